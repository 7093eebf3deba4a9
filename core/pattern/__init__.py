"""Messaging patterns, sans-I/O: which message goes to which pipe, and in which order (RFC 28, 29, 30, 31)."""
