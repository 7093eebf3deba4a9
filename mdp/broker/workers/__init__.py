"""Who offers which service, sans-I/O."""
