"""Settings of the commands: named contexts, configuration files, completion in a shell."""
