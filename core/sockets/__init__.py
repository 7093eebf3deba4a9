"""The public socket: context, verbs, options, polling, monitoring."""
