"""Command-line and daemon kit: options, configuration, logs, metrics, orderly start and end."""
