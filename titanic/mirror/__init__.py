"""Second copy of a store, and which of two copies leads.

`from titanic.mirror import Mirror` works; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.mirror.replica_server import Mirror

__all__ = ["Mirror"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"titanic.mirror.replica_server": __all__})
