"""Bodies of the commands that serve."""
