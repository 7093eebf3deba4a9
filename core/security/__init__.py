"""Security mechanisms, keys, and who may connect (RFC 24, RFC 25, RFC 26, RFC 27)."""
