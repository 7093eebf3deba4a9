"""Common parts of tests of clients and workers: a handler, and an endpoint without a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdp.request import Request

__all__ = ["NO_LISTENER", "echo"]

NO_LISTENER = "tcp://127.0.0.1:9"  # the discard port


async def echo(request: Request) -> list[bytes]:
    """Answer with the body."""
    return request.body
