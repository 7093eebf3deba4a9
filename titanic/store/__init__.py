"""Stored requests: index, delivery, services at a broker, maintenance.

`from titanic.store import Store` works; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.store.store import Store

__all__ = ["Store"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"titanic.store.store": __all__})
