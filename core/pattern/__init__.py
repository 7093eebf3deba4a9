"""Messaging patterns, sans-I/O: which message goes to which pipe, and whose turn it is (RFC 28, 29, 30, 31)."""
