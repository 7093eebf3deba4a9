"""The connection to a broker: choosing the broker and the dialect, and reconnecting."""
