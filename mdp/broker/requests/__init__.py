"""The requests of the broker from acceptance to end, sans-I/O."""
