"""ZMTP, sans-I/O: bytes in, messages and bytes out (RFC 23, RFC 37)."""
