"""Messages of a libzmq peer that has closed are received, however long the application takes.

Nothing of ours may reset its connection.

An octet written to a peer that has closed makes its system forget what it has not brought yet, which is most of it when we are at our
high-water mark.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import core
from core import blocking
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = 900
BODY = b"x" * 1_000  # together far more than our system takes while nothing is read, and less than theirs takes at once
STALL_S = 0.8  # three signs of life, of ours and of theirs
# What pings: nobody, the sender, we, both, or we with a promise to be heard.
BEATS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "nobody": ({}, {}),
    "sender": ({"heartbeat_ivl": 50, "heartbeat_timeout": 60_000}, {}),
    "receiver": ({}, {"heartbeat_ivl": 50}),
    "both": (
        {"heartbeat_ivl": 50, "heartbeat_timeout": 60_000},
        {"heartbeat_ivl": 50, "heartbeat_timeout": 60_000, "heartbeat_ttl": 60_000},
    ),
}


def send_and_close(kind: str, endpoint: str, options: dict[str, int], messages: list[list[bytes]]) -> None:
    """Be a libzmq program that sends and ends."""
    context = zmq.Context()
    socket: Any = context.socket(getattr(zmq, "XPUB" if kind == "PUB" else kind))
    socket.sndhwm = 0
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(endpoint)
    if kind == "PUB":
        socket.recv()  # the subscription
    for message in messages:
        socket.send_multipart(message)
    socket.close(linger=-1)
    context.term()


async def receive_all(socket: core.Socket, stall_s: float, taken: Callable[[list[bytes]], object]) -> list[bytes]:
    """Let the inbox fill, stall in the middle as well, and return the numbers of all messages."""
    numbers = []
    for number in range(COUNT):
        if number in (0, 40):
            await asyncio.sleep(stall_s)
        message = await socket.recv_multipart()
        numbers.append(message[-2])
        taken(message)
    return numbers


@pytest.mark.parametrize("beats", BEATS)
@pytest.mark.parametrize("pair", [("PUSH", core.PULL), ("DEALER", core.ROUTER), ("PUB", core.SUB)], ids=lambda pair: pair[0])
async def test_all_that_a_closed_peer_sent_is_received(pair: tuple[str, core.SocketType], beats: str) -> None:
    """ZMTP-59."""
    kind, receiver = pair
    theirs, ours = BEATS[beats]
    messages = [[b"%d" % number, BODY] for number in range(COUNT)]
    async with core.Context() as context:
        socket = context.socket(receiver, rcvhwm=10, rcvtimeo=60_000, **ours)
        if receiver == core.SUB:
            socket.subscribe(b"")
        socket.bind("tcp://127.0.0.1:*")
        sender = asyncio.to_thread(send_and_close, kind, socket.last_endpoint, theirs, messages)
        _, numbers = await asyncio.gather(sender, receive_all(socket, STALL_S, lambda _: None))
    assert numbers == [number for number, _ in messages]


async def test_what_a_peer_sent_before_an_answer_could_not_be_written_is_received(tmp_path: Path) -> None:
    """Over ipc the answer fails at once, and all that the peer sent is in our system."""
    messages = [[b"%d" % number, BODY] for number in range(COUNT)]
    async with core.Context() as context:
        router = context.socket(core.ROUTER, rcvhwm=10, rcvtimeo=60_000)
        router.bind(f"ipc://{tmp_path / 'socket'}")
        sender = asyncio.to_thread(send_and_close, "DEALER", router.last_endpoint, {}, messages)
        answer: Callable[[list[bytes]], object] = lambda message: router.send_multipart([message[0], b"taken"])  # noqa: E731
        _, numbers = await asyncio.gather(sender, receive_all(router, 0.05, answer))
    assert numbers == [number for number, _ in messages]


async def test_what_we_sent_before_we_closed_comes_to_a_libzmq_peer_that_reads_late() -> None:
    """Its mark is reached, so most messages wait here and in the systems while heartbeats are due (SOCK-15)."""
    theirs = zmq.Context()
    pull: Any = theirs.socket(zmq.PULL)
    pull.rcvhwm, pull.rcvtimeo, pull.linger = 10, 60_000, 0
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    async with core.Context() as context:
        push = context.socket(core.PUSH, linger=20_000, sndhwm=0, heartbeat_ivl=20, heartbeat_timeout=60)
        push.connect(f"tcp://127.0.0.1:{port}")
        for number in range(COUNT):
            await push.send_multipart([b"%d" % number, BODY * 10])
        push.close()
        await asyncio.sleep(STALL_S)
        numbers = await asyncio.to_thread(lambda: [pull.recv_multipart()[0] for _ in range(COUNT)])
        await push.wait_closed()
    pull.close()
    theirs.term()
    assert numbers == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
@pytest.mark.parametrize("library", ["ours", "libzmq"])
async def test_a_sender_whose_only_peer_has_closed_waits_for_another(tmp_path: Path, library: str, transport: str) -> None:
    """SOCK-09. libzmq takes messages, and loses them, until it notices; that is a row of the table in `docs/core.md`."""
    context: Any = blocking.Context() if library == "ours" else zmq.Context()
    push, pull = context.socket(core.PUSH), context.socket(core.PULL)
    push.linger = push.sndtimeo = 0
    pull.rcvtimeo = 60_000
    push.bind({"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{tmp_path / 's'}", "inproc": "inproc://here"}[transport])
    pull.connect(push.last_endpoint)
    await eventually(lambda: taken(push))
    pull.recv()
    pull.close()
    await eventually(lambda: not taken(push))
    push.close()
    context.term()


def taken(push: Any) -> bool:
    """Return whether a message is taken without waiting."""
    try:
        push.send(b"x")
    except (core.Again, zmq.Again):
        return False
    return True
