"""A path that documents and programs have used: the code is in `titanic.journal.disk`."""

from titanic.journal.disk import HeldDisk, RealDisk

__all__ = ["HeldDisk", "RealDisk"]
