"""A path that documents and programs have used: the code is in `mdp.spark.demo.nearest`."""

from mdp.spark.demo.nearest import nearest

__all__ = ["nearest"]
