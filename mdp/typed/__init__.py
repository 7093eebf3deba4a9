"""Typed services: arguments and results by annotations."""
