"""Messages read beyond the high-water mark, and the ends of their connection before they are taken (ZMTP-59)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
from core.net.read_ahead import AHEAD_BYTES_MAX, Muted, ReadAhead, read_rest
from core.pattern.pipe import Pipe
from core.runtime import supervision
from core.runtime.write_scheduler import WriteScheduler
from core.zmtp.scan import Batch
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COUNT = 60


@asynccontextmanager
async def behind(kind: core.SocketType, peer_kind: bytes, **options: int) -> AsyncIterator[tuple[core.Socket, WirePeer]]:
    """A socket that holds five messages of a peer, and has read the others ahead."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvhwm=3, rcvtimeo=60_000, **options)
        socket.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(socket.last_endpoint) as peer:
            await peer.shake(peer_kind, b"id" if kind == core.ROUTER else None)
            await peer.send(b"".join(message(b"%d" % number) for number in range(5)))
            await eventually(lambda: any(pipe.throttled for pipe in socket.pattern.pipes))
            await peer.send(b"".join(message(b"%d" % number) for number in range(5, COUNT)))
            await eventually(lambda: socket.scheduler.ahead > COUNT)
            yield socket, peer


def taken(socket: core.Socket) -> list[bytes]:
    """Return the messages that can be received at once."""
    bodies = []
    while socket.readable():
        bodies.append(socket.recv_multipart(core.NOBLOCK).result()[-1])
    return bodies


class Kept:
    """Hold the read-ahead of one peer, and the sizes of the reads that a socket takes."""

    def __init__(self, *, rcvhwm_bytes: int = 0, unread: int = 0, octets_max: int = 10**12, takes: int = 10**6) -> None:
        self.pipe = Pipe()
        self.pipe.set_marks(0, 0, 0, rcvhwm_bytes)
        self.pipe.unread_bytes = unread
        self.scheduler = WriteScheduler(asyncio.get_running_loop(), supervision.current())
        self.full = 0
        self.takes = takes
        self.taken: list[tuple[int, int]] = []
        self.ahead = ReadAhead(self, self.pipe, self.scheduler, octets_max, self.was_full)

    def was_full(self) -> None:
        self.full += 1

    def read(self, octets: int, messages: int = 1) -> bool:
        """Return whether more may be read after this."""
        full = self.full
        self.ahead.received(self.pipe, Batch([], b"", [0] * messages, [0] * messages), octets)
        assert self.ahead.has_capacity() is (self.full == full)
        return self.full == full

    def received(self, pipe: Pipe, batch: Batch, octets: int) -> None:
        assert pipe is self.pipe
        self.taken.append((len(batch), octets))
        if len(self.taken) >= self.takes:
            pipe.throttled = True


async def test_zmtp_59_reading_ahead_ends_at_the_bytes_of_the_high_water_mark_that_are_left() -> None:
    """Each message counts as 128 bytes more than it has."""
    assert [Kept(rcvhwm_bytes=1000, unread=100).read(octets) for octets in (771, 772, 773)] == [True, False, False]
    assert [Kept(rcvhwm_bytes=1000).read(octets, 2) for octets in (743, 744)] == [True, False]
    assert not Kept(rcvhwm_bytes=1000, unread=1000).ahead.has_capacity()


async def test_zmtp_59_no_peer_has_more_than_eight_mebibytes_and_all_of_a_context_their_limit() -> None:
    most = AHEAD_BYTES_MAX - 128
    assert AHEAD_BYTES_MAX == 8 * 1024 * 1024
    assert [Kept().read(octets) for octets in (most - 1, most)] == [True, False]
    assert [Kept(octets_max=500).read(octets) for octets in (371, 372)] == [True, False]
    kept = Kept(octets_max=500)
    kept.scheduler.ahead = 200  # of other peers
    assert [kept.read(171), kept.read(0)] == [True, False]
    assert kept.scheduler.ahead == 200 + 171 + 2 * 128


async def test_what_was_read_ahead_is_handed_over_in_order_until_the_inbox_is_full() -> None:
    kept = Kept(takes=2)
    for octets in (10, 20, 30):
        kept.read(octets, octets // 10)
    assert kept.scheduler.ahead == 60 + 6 * 128
    assert not kept.ahead.give()
    assert (kept.taken, kept.scheduler.ahead) == ([(1, 10), (2, 20)], 30 + 3 * 128)
    assert not kept.ahead.give()
    assert len(kept.taken) == 2
    kept.pipe.throttled, kept.takes = False, 10
    assert kept.ahead.give()
    assert (kept.taken[2:], kept.scheduler.ahead) == ([(3, 30)], 0)
    assert kept.ahead.give()
    kept.read(10)
    kept.scheduler.ahead += 5
    kept.ahead.drop()
    assert (kept.scheduler.ahead, kept.ahead.give(), len(kept.taken)) == (5, True, 3)


class Reading(asyncio.Protocol):
    def __init__(self) -> None:
        self.octets = b""

    def data_received(self, data: bytes) -> None:
        self.octets += data


class Filling(asyncio.BufferedProtocol):
    """Takes three octets at a time."""

    def __init__(self) -> None:
        self.octets = b""
        self.buffer = bytearray(3)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.octets += self.buffer[:nbytes]


class Broken(asyncio.Transport):
    """A transport that failed in a write; its socket still holds what the peer sent."""

    def __init__(self, sock: socket.socket, protocol: Reading | Filling) -> None:
        super().__init__({"socket": sock})
        self.protocol = protocol

    def get_protocol(self) -> Reading | Filling:
        return self.protocol


@pytest.mark.parametrize("kind", [Reading, Filling])
@pytest.mark.parametrize("ended", [True, False])
async def test_what_the_system_still_holds_of_a_failed_connection_is_read(kind: type[Reading | Filling], ended: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(b"the last words")
        if ended:
            theirs.close()
        protocol = kind()
        read_rest(Broken(ours, protocol), Kept().ahead)
        assert protocol.octets == b"the last words"


async def test_a_failed_connection_of_which_nothing_has_come_is_left() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        protocol = Reading()
        read_rest(Broken(ours, protocol), Kept().ahead)
        assert protocol.octets == b""


async def test_without_capacity_nothing_more_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"too much")
        protocol = Reading()
        read_rest(Broken(ours, protocol), Kept(octets_max=0).ahead)
        assert protocol.octets == b""
        ours.close()
        read_rest(Broken(ours, protocol), Kept().ahead)
        assert protocol.octets == b""


def test_rtr_08_messages_of_a_peer_whose_routing_id_was_taken_are_counted() -> None:
    dropped: list[int] = []
    Muted(dropped.append).received(Pipe(), Batch([], b"", [0, 0], [0, 0]), 7)
    assert dropped == [2]


async def test_a_peer_that_has_gone_is_there_until_its_messages_are_taken() -> None:
    async with behind(core.ROUTER, b"DEALER") as (router, peer):
        await peer.close()
        assert [(await router.recv_multipart())[1] for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
        await eventually(lambda: not router.pattern.pipes)
        assert router.scheduler.ahead == 0


async def test_a_peer_disconnected_after_its_end_takes_its_read_ahead_along() -> None:
    async with behind(core.ROUTER, b"DEALER") as (router, peer):
        await peer.close()
        assert router.cut(b"id")
        await eventually(lambda: not router.pattern.pipes)
        assert taken(router) == [b"%d" % number for number in range(5)]
        assert router.scheduler.ahead == 0
        assert not router.cut(b"id")


async def test_a_receiver_that_comes_later_is_handed_all_of_it_before_what_comes_then() -> None:
    async with behind(core.PULL, b"PUSH") as (pull, peer):
        got: list[list[bytes]] = []
        pull.set_receiver(got.extend)
        await peer.send(message(b"%d" % COUNT))
        await eventually(lambda: len(got) > COUNT)
        assert got == [[b"%d" % number] for number in range(COUNT + 1)]


async def test_what_came_before_a_broken_rule_is_received() -> None:
    async with behind(core.PULL, b"PUSH") as (pull, peer):
        await peer.send(b"\xff" * 20)
        await eventually(lambda: pull.counters.protocol_errors == 1)
        assert [await pull.recv() for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
        await eventually(lambda: not pull.pattern.pipes)


async def test_rtr_08_what_was_read_ahead_of_a_former_holder_is_received() -> None:
    async with behind(core.ROUTER, b"DEALER", router_handover=1) as (router, peer):
        async with await WirePeer.connect(router.last_endpoint) as newcomer:
            await newcomer.shake(b"DEALER", b"id")
            await peer.send(message(b"late"))
            await eventually(lambda: router.counters.displaced == 1)
            assert [(await router.recv_multipart())[1] for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
            await router.send_multipart([b"id", b"to the newcomer"])
            assert await newcomer.message() == [b"to the newcomer"]
