"""The broker: its machine, its shell and their state.

`from mdp.broker import Broker` works; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.broker.broker import Broker

__all__ = ["Broker"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"mdp.broker.broker": __all__})
