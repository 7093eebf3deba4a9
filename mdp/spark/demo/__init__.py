"""The `mdp demo` command: nearest airports by Spark and workers."""
