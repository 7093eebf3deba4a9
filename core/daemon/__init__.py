"""What every daemon has: options, configuration, logs, metrics, and an orderly start and end."""
