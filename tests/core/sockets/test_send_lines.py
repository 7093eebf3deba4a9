"""Sends of a ROUTER that wait hold up only what is for the same peer (RTR-06)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.core.sockets.test_sending import VERBS
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAMES = (b"a", b"b", b"c")
Message = list[bytes]


@dataclass(eq=False)
class Call:
    """A send: its messages, its result, and the peers of what it had not sent when it began to wait."""

    messages: list[Message]
    pending: Any
    peers: set[bytes]

    @property
    def taken(self) -> int:
        return int(self.pending.taken())


@dataclass
class World:
    """A ROUTER, its peers, and all calls in their order."""

    router: core.Socket
    dealers: dict[bytes, core.Socket]
    calls: list[Call] = field(default_factory=list)
    got: dict[bytes, Message] = field(default_factory=lambda: {name: [] for name in NAMES})

    def waiting(self) -> list[Call]:
        return [call for call in self.calls if not call.pending.done()]

    def call(self, messages: list[Message], *, as_batch: bool, flags: int = 0) -> None:
        held = {name for call in self.waiting() for name in call.peers}
        peers = {message[0] for message in messages}
        sent = [list(message) for message in messages]
        try:
            pending: Any = self.router.send_many(sent) if as_batch else self.router.send_multipart(sent[0], flags)
        except core.Again:
            assert flags
            assert held & peers or any(self.dealers[name].readable() for name in peers)
            return
        call = Call(messages, pending, peers)
        if not pending.done():
            call.peers = {message[0] for message in messages[call.taken :]}
        assert not held & peers or (call.peers == peers and not pending.done())
        self.calls.append(call)

    def check(self) -> None:
        """Nothing waits unless its peer has messages, or an earlier call waits for one of its peers."""
        held: set[bytes] = set()
        for call in self.waiting():
            assert held & call.peers or self.dealers[call.messages[call.taken][0]].readable()
            held |= call.peers

    def cancel(self, call: Call) -> None:
        call.messages = call.messages[: call.taken]
        assert call.pending.cancel()

    def receive(self, name: bytes) -> None:
        if self.dealers[name].readable():
            self.got[name].append(self.dealers[name].recv(core.NOBLOCK).result())

    def end(self) -> None:
        """Compare what has arrived with what was called."""
        sent: dict[bytes, Message] = {name: [] for name in NAMES}
        for name, body in (message for call in self.calls for message in call.messages):
            sent[name].append(body)
        assert self.got == sent
        self.calls.clear()
        for bodies in self.got.values():
            bodies.clear()


@pytest.fixture(params=["inproc://lines", "tcp://127.0.0.1:*"])
async def router(request: pytest.FixtureRequest) -> AsyncIterator[core.Socket]:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        made = context.socket(core.ROUTER, linger=0, sndhwm=1, router_mandatory=1)
        made.bind(request.param)
        yield made


async def connected(router: core.Socket) -> dict[bytes, core.Socket]:
    dealers = {name: router.context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0, routing_id=name) for name in NAMES}
    for name, dealer in dealers.items():
        dealer.connect(router.last_endpoint)
        await dealer.send(b"ready")
        assert await router.recv_multipart() == [name, b"ready"]
    return dealers


async def fill(router: core.Socket, name: bytes) -> Any:
    """Send to a peer until a send waits; return that one."""
    while (waits := router.send_multipart([name, b"x" * 100_000])).done():
        await asyncio.sleep(0)
    return waits


@pytest.mark.parametrize("verb", [*VERBS, "send_octets"])
async def test_rtr_06_a_send_that_waits_for_its_peer_holds_up_no_other_peer(router: core.Socket, verb: str) -> None:
    dealers = await connected(router)
    waits = await fill(router, b"a")
    for count in range(3):
        if verb == "send_octets":
            router.send_octets(b"b", [b"\0\1x"])
        else:
            assert VERBS[verb](router, [b"b", b"x"]).done()
        if count == 1:
            router.send_multipart([b"c", b"y"], core.NOBLOCK)
        assert await dealers[b"b"].recv_multipart() == [b"x"]
    assert await dealers[b"c"].recv() == b"y"
    with pytest.raises(core.HostUnreachable):
        router.send_multipart([b"unknown", b"x"])
    with pytest.raises(core.Again):
        router.send_multipart([b"a", b"x"], core.NOBLOCK)
    with pytest.raises(core.Again):
        router.send(b"a", core.SNDMORE | core.NOBLOCK)
    router.send(b"b", core.SNDMORE | core.NOBLOCK)
    router.send(b"z", core.NOBLOCK)
    assert await dealers[b"b"].recv() == b"z"
    await router.send_multipart([b"b", b"one"], core.SNDMORE | core.NOBLOCK)
    await router.send(b"two")
    assert await dealers[b"b"].recv_multipart() == [b"one", b"two"]
    names: list[Any] = [bytearray(b"a"), bytearray(b"b")]
    await router.send_multipart([names[1], b"bytes-like"])
    assert await dealers[b"b"].recv() == b"bytes-like"
    assert not waits.done()
    late: Any = router.send_multipart([names[0], b"late"])
    assert not late.done()
    last = router.send_multipart([b"a", b"last"])
    while await dealers[b"a"].recv() != b"last":
        pass
    await waits
    await last


@pytest.mark.parametrize("router", ["inproc://lines"], indirect=True)
@pytest.mark.parametrize("seed", range(6))
async def test_rtr_06_sends_to_several_peers_wait_each_for_its_own(router: core.Socket, seed: int) -> None:
    """A batch waits for all peers of what it has not sent."""
    chance = random.Random(seed)
    world = World(router, await connected(router))
    numbers = iter(range(1_000_000))

    def message() -> Message:
        return [chance.choice(NAMES), b"%d" % next(numbers)]

    for _ in range(100):
        for _ in range(chance.randrange(4, 40)):
            match chance.randrange(8):
                case 0 | 1 | 2:
                    world.call([message()], as_batch=chance.random() < 0.2, flags=0)
                case 3:
                    world.call([message()], as_batch=False, flags=core.NOBLOCK)
                case 4:
                    world.call([message() for _ in range(chance.randrange(1, 5))], as_batch=True)
                case 5 | 6:
                    world.receive(chance.choice(NAMES))
                case _ if world.waiting():
                    world.cancel(chance.choice(world.waiting()))
            for _ in range(3):
                await asyncio.sleep(0)
            world.check()
        while world.waiting() or any(dealer.readable() for dealer in world.dealers.values()):
            for name in NAMES:
                world.receive(name)
            await asyncio.sleep(0)
        world.end()


@pytest.mark.parametrize("router", ["inproc://lines"], indirect=True)
async def test_a_router_that_closes_ends_what_waits_and_counts_it_once(router: core.Socket) -> None:
    await connected(router)
    waits = [await fill(router, name) for name in NAMES]
    waits.append(router.send_many([[name, b"x"] for name in NAMES]))
    waits.append(router.send_multipart([b"a", b"x"]))
    assert waits[0].cancel()
    router.close()
    for each in waits[1:]:
        with pytest.raises(core.SocketClosed):
            await each
    assert router.counters.undelivered == 6


async def test_a_send_with_a_time_limit_ends_though_its_peer_never_reads(router: core.Socket) -> None:
    """Thousands of them leave nothing that waits."""
    dealers = await connected(router)
    waits = await fill(router, b"a")
    router.sndtimeo = 1
    for _ in range(3):
        late = [router.send_multipart([b"a", b"late"]) for _ in range(50)]
        for each in late:
            with pytest.raises(core.Again):
                await each
    router.sndtimeo = -1
    last = router.send_multipart([b"a", b"last"])
    while await dealers[b"a"].recv() != b"last":
        pass
    await waits
    await last
