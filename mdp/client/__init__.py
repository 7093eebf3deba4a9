"""The client: its machines, its connections, its asynchronous and its synchronous API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.client.client import Client, ClientClosed, NotSupported, Outcome, Overrun, Unreachable

__all__ = ["Client", "ClientClosed", "NotSupported", "Outcome", "Overrun", "Unreachable"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"mdp.client.client": __all__})
