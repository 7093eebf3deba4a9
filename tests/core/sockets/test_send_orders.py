"""Sends that wait are cancelled, run out of time or are refused: messages stay whole and in order (SOCK-13, 14).

What arrives is what was sent, once and in the order of the calls. Of a batch that was cancelled the first messages may have been sent.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = {
    "push": (core.PUSH, core.PULL),
    "pair": (core.PAIR, core.PAIR),
    "router": (core.ROUTER, core.DEALER),
    "xpub": (core.XPUB, core.SUB),
}
VERBS = ("one", "pieces", "whole", "many")
Message = list[bytes]


@dataclass(eq=False)
class Sent:
    """A call that was not refused: its messages and its result."""

    messages: list[Message]
    pending: Any


class World:
    """Two sockets, and the calls on one of them."""

    def __init__(self, sender: core.Socket, receiver: core.Socket, head: Message) -> None:
        self.sender, self.receiver, self.head = sender, receiver, head
        self.numbers = iter(range(1_000_000))
        self.calls: list[Sent] = []
        self.got: list[Message] = []

    def message(self, parts: int) -> Message:
        number = next(self.numbers)
        return [b"%d.%d" % (number, part) for part in range(parts)]

    def send(self, kind: str, flags: int) -> None:
        """Send in one way; a call that is refused at once has no effect."""
        parts = {"one": (1,), "many": (1, 2, 1)}.get(kind, (2,))
        messages = [self.message(count) for count in parts]
        frames = [*self.head, *messages[0]]
        try:
            if kind == "pieces":
                for frame in frames[:-1]:
                    assert self.sender.send(frame, core.SNDMORE | flags).done()
                pending: Any = self.sender.send(frames[-1], flags)
            elif kind == "one" and not self.head:
                pending = self.sender.send(frames[0], flags)
            elif kind != "many":
                pending = self.sender.send_multipart(frames, flags)
            else:
                pending = self.sender.send_many([[*self.head, *message] for message in messages])
        except core.Again:
            return
        self.calls.append(Sent(messages, pending))

    def receive(self) -> None:
        try:
            self.got.append(self.receiver.recv_multipart(core.NOBLOCK).result())
        except core.Again:
            return

    def check(self) -> None:
        """Compare what has arrived with the calls."""
        arrived = iter(self.got)
        following = next(arrived, None)
        for call in self.calls:
            count = 0
            for message in call.messages:
                if following != message:
                    break
                following = next(arrived, None)
                count += 1
            if not call.pending.cancelled() and call.pending.done():
                error = call.pending.exception()
                assert count == (len(call.messages) if error is None else error.taken)
            elif len(call.messages) == 1 and call.pending.done():
                assert count == 0
        assert following is None


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A queue of two messages."""
    sends, receives = KINDS[request.param]
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        receiver = context.socket(receives, linger=0, rcvhwm=1, routing_id=b"name")
        sender = context.socket(sends, linger=0, sndhwm=1, router_mandatory=1, xpub_nodrop=1)
        sender.bind("inproc://orders")
        receiver.connect("inproc://orders")
        if receives == core.SUB:
            receiver.subscribe(b"")
        yield World(sender, receiver, [b"name"] if sends == core.ROUTER else [])


@pytest.mark.parametrize("seed", range(4))
async def test_sock_13_what_arrives_is_what_was_sent_in_order(world: World, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        for _ in range(chance.randrange(4, 24)):
            waiting = [call.pending for call in world.calls if not call.pending.done()]
            match chance.randrange(8):
                case 0 | 1 | 2 | 3:
                    world.send(chance.choice(VERBS), chance.choice((0, 0, core.NOBLOCK)))
                case 4 | 5:
                    world.receive()
                case 6 if waiting:
                    assert chance.choice(waiting).cancel()
                case _ if chance.random() < 0.02:
                    world.sender.sndtimeo = 1
                    world.send(chance.choice(VERBS), 0)
                    world.sender.sndtimeo = -1
                    await asyncio.wait([world.calls[-1].pending])
        while any(not call.pending.done() for call in world.calls) or world.receiver.readable():
            world.receive()
        world.check()
        world.calls.clear()
        world.got.clear()


async def test_sock_15_a_socket_that_closes_says_what_it_did_not_send(world: World) -> None:
    for kind in ("whole", "whole", "many", "pieces", "whole"):
        world.send(kind, 0)
    waiting = [call for call in world.calls if not call.pending.done()]
    assert [len(call.messages) for call in waiting] == [3, 1, 1]
    assert waiting[1].pending.cancel()
    world.sender.close()
    for call in (waiting[0], waiting[2]):
        with pytest.raises(core.SocketClosed):
            await call.pending
    assert world.sender.counters.undelivered == 4
