"""One connection to a broker: which broker, which dialect, and when to try again."""
