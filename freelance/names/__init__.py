"""Name service: endpoints by name, on Freelance servers."""
