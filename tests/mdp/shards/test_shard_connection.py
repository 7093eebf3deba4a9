"""A connection to a shard after its close: nothing that comes yet is handed over.

Rules of specs/mdp.md: SHD-07.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.zmtp.frames import encode_message
from core.zmtp.scan import Batch
from mdp.shards.shard_connection import ShardConnection


class Socket:
    """A stand-in of a socket, and of the context that makes it."""

    def __init__(self) -> None:
        self.closed = False
        self.lingers: list[int] = []

    def socket(self, kind: int, **options: Any) -> Socket:
        return self

    def set_batch_receiver(self, receiver: Any, on_peer: Any) -> None:
        self.receive, self.on_peer = receiver, on_peer

    def connect(self, endpoint: str) -> None: ...

    def close(self, linger: int) -> None:
        self.closed = True
        self.lingers.append(linger)


@pytest.mark.parametrize("lost", [False, True])
async def test_what_comes_after_the_close_in_the_same_iteration_is_dropped(lost: bool) -> None:
    """Its peer has gone, and another one may have its routing id."""
    context: Any = Socket()
    done: list[Any] = []
    connection = ShardConnection(context, "ipc://b.0", b"F", 1000, on_messages=done.append, on_lost=lambda: done.append("lost"))
    octets = encode_message([b"x"])
    context.on_peer(b"", True)
    context.receive(Batch([], octets, [0], [len(octets)]))
    if lost:
        context.on_peer(b"", False)
    else:
        connection.close(7)
    context.receive(Batch([], octets, [0], [len(octets)]))
    context.on_peer(b"", False)
    connection.close(9)
    await asyncio.sleep(0)  # it is closed in the next iteration
    assert done == [[octets], *["lost"] * lost]
    assert context.lingers == [0 if lost else 7]


async def test_nothing_lingers_for_a_shard_that_was_never_connected() -> None:
    context: Any = Socket()
    connection = ShardConnection(context, "ipc://b.0", b"F", 1000, on_messages=lambda _: None, on_lost=lambda: None)
    connection.close(7)
    await asyncio.sleep(0)
    assert context.lingers == [0]
