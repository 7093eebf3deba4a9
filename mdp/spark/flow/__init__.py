"""Bounds of the requests of a dispatch."""
