"""The three Freelance models as machines, and their frames (RFC 10)."""
