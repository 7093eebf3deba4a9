"""Documented path that forwards to `mdp.spark.demo.nearest`."""

from mdp.spark.demo.nearest import nearest

__all__ = ["nearest"]
