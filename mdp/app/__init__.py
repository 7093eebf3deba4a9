"""Programs of several services: with shared resources, middleware and dependencies."""
