"""Services and workers of the broker, sans-I/O."""
