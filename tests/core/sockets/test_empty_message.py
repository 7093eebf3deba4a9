"""A message without frames raises an error, on every sending socket type, with and without peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SENDERS = {"PUSH": "PULL", "PUB": "SUB", "XPUB": "SUB", "XSUB": "XPUB", "DEALER": "ROUTER", "PAIR": "PAIR", "ROUTER": "DEALER"}
ANY = {"tcp": "tcp://127.0.0.1:*", "inproc": "inproc://there"}


async def refuse(socket: core.Socket) -> None:
    sends: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: socket.send_multipart([]),
        lambda: socket.send_multipart(()),
        lambda: socket.send_multipart([], core.NOBLOCK),
        lambda: socket.send_many([[]]),
        lambda: socket.send_many([[b"a", b"b"], []]),
    )
    for send in sends:
        with pytest.raises(core.ZMQError) as caught:
            await send()
        assert caught.value.errno == core.EINVAL


@pytest.mark.parametrize("kind", sorted(SENDERS))
@pytest.mark.parametrize("transport", sorted(ANY))
async def test_with_a_peer(kind: str, transport: str) -> None:
    async with core.Context() as context:
        sender = context.socket(core.SocketType[kind], linger=0)
        sender.bind(ANY[transport])
        peer = context.socket(core.SocketType[SENDERS[kind]], linger=0)
        if SENDERS[kind] == "SUB":
            peer.setsockopt(core.SUBSCRIBE, b"")
        watch = Watch(sender)
        peer.connect(sender.last_endpoint)
        if transport == "tcp":
            await watch.peers()
        await refuse(sender)


@pytest.mark.parametrize("kind", sorted(SENDERS))
async def test_with_nobody_there(kind: str) -> None:
    async with core.Context() as context:
        await refuse(context.socket(core.SocketType[kind], linger=0))


async def test_what_is_there_is_received_as_before() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, rcvtimeo=60_000)
        pull.bind("inproc://there")
        push = context.socket(core.PUSH, linger=0)
        push.connect("inproc://there")
        with pytest.raises(core.ZMQError):
            await push.send_multipart([])
        await push.send_multipart([b""])
        assert await pull.recv_multipart() == [b""]
