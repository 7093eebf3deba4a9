"""Results of sends and receives."""
