"""Several processes of one command: started, watched, restarted, stopped together."""
