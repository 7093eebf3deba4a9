"""Helpers under their names in ZeroMQ's Python binding: `core.utils.monitor`, `z85`, `jsonapi`, `strtypes`."""
