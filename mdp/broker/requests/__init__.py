"""One request's life in the broker, sans-I/O."""
