"""Security mechanisms, keys, and authentication (RFC 24, RFC 25, RFC 26, RFC 27)."""
