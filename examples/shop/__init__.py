"""A service of twelve functions with a pool, authentication, tracing and tests; see README.md."""
