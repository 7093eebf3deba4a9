"""Receives wait on one socket and are cancelled in every order: as if they had never been called (SOCK-13).

`Model` says what each gets: the frames that were not received yet, in order, are dealt to the receives that were not cancelled, in the
order of their calls. The frames of a message of which one was received come before whole messages.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import pytest

import core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

KINDS = ("one", "whole", "many")
PAIRS = [(core.PUSH, core.PULL), (core.XSUB, core.XPUB)]  # XPUB has messages of its own, so it takes the longer way
Frames = list[bytes]


@dataclass(eq=False)
class Arrived:
    """A message; frames that were received are no longer in it."""

    left: Frames
    begun: bool = False


@dataclass(eq=False)
class Receive:
    """A receive that waits, or whose result was not taken."""

    kind: str
    pending: Any

    def share(self, messages: list[Arrived]) -> list[Frames]:
        """Return what it takes of the first message."""
        return [messages[0].left[: 1 if self.kind == "one" else None]] if messages else []


@dataclass
class Model:
    """Messages that have arrived and were not received, and their receives."""

    arrived: list[Arrived] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)

    def dealt(self) -> Iterator[tuple[Receive, list[Frames]]]:
        """Yield what each receive has, in order of their calls."""
        left = [Arrived(message.left, message.begun) for message in self.arrived]
        for receive in self.receives:
            share = receive.share(left)
            if share:
                left[0].left = left[0].left[len(share[0]) :]
                left = [message for message in left if message.left]
            yield receive, share

    def free(self) -> list[Arrived]:
        """Return what no receive has, in the order in which it is received."""
        left = [Arrived(list(message.left), message.begun) for message in self.arrived]
        for _, share in self.dealt():
            for frame in share[0] if share else ():
                message = next(message for message in left if frame in message.left)
                message.left.remove(frame)
                message.begun = True
        return sorted((message for message in left if message.left), key=lambda message: not message.begun)

    def take(self, messages: list[Frames]) -> None:
        """Note that frames were received."""
        for frame in (frame for frames in messages for frame in frames):
            message = next(message for message in self.arrived if frame in message.left)
            message.left.remove(frame)
            message.begun = True
        self.arrived = [message for message in self.arrived if message.left]

    def tears(self) -> bool:
        """Return whether the next receive takes frames before those in front of them are taken."""
        free = self.free()
        held = {frame for _, share in self.dealt() for frame in (share[0] if share else ())}
        return bool(free) and any(free[0].left[0] in message.left and held & {*message.left} for message in self.arrived)

    def whole(self) -> list[Frames]:
        """Return the whole messages that no receive has."""
        return [message.left for message in self.free() if not message.begun]


class World:
    """A socket, its peer and the model."""

    def __init__(self, receiver: core.Socket, sender: core.Socket) -> None:
        self.receiver, self.sender = receiver, sender
        self.model = Model()
        self.numbers = iter(range(1_000_000))

    async def arrive(self, parts: int) -> Frames:
        frames = [b"%d" % next(self.numbers) for _ in range(parts)]
        self.model.arrived.append(Arrived(list(frames)))
        await self.sender.send_multipart(frames)
        return frames

    def receive(self, kind: str) -> Any:
        verbs: dict[str, Callable[[], Any]]
        verbs = {"one": self.receiver.recv, "whole": self.receiver.recv_multipart, "many": self.receiver.recv_many}
        return verbs[kind]()

    def call(self, kind: str) -> None:
        """Receive; what is there comes at once, unless another receive waits for it."""
        receive = Receive(kind, self.receive(kind))
        free = self.model.free()
        if not free or any(not share for _, share in self.model.dealt()):
            self.model.receives.append(receive)
            return
        wanted = receive.share(free)
        if kind == "many" and not free[0].begun:
            wanted = self.model.whole()
        assert self.got(receive) == wanted
        self.model.take(wanted)

    @staticmethod
    def got(receive: Receive) -> list[Frames]:
        result = receive.pending.result()
        return [[result]] if receive.kind == "one" else [result] if receive.kind == "whole" else result

    def cancel(self, receive: Receive) -> None:
        assert receive.pending.cancel()
        self.model.receives.remove(receive)

    def take(self, receive: Receive) -> None:
        """Take the result of the first receive."""
        dealt = dict(self.model.dealt())
        wanted = dealt[receive] + (self.model.whole() if receive.kind == "many" else [])
        assert self.got(receive) == wanted
        assert not receive.pending.cancel()
        self.model.receives.remove(receive)
        self.model.take(wanted)

    async def wait_out(self, kind: str) -> None:
        """Let the time limit of a receive end."""
        self.receiver.rcvtimeo = 1
        before = len(self.model.receives)
        self.call(kind)
        self.receiver.rcvtimeo = -1
        if len(self.model.receives) > before:
            await asyncio.wait([self.model.receives[-1].pending])
            with pytest.raises(core.Again):
                self.model.receives.pop().pending.result()

    def check(self) -> None:
        for receive, share in self.model.dealt():
            assert receive.pending.done() == bool(share)
        assert self.receiver.rcvmore == any(message.begun for message in self.model.free())

    def end(self) -> None:
        """Take all that is left, and leave nothing that waits."""
        for receive, share in list(self.model.dealt()):
            if share:
                self.take(receive)
            else:
                self.cancel(receive)
        while self.model.free():
            self.call("whole")
        with pytest.raises(core.Again):
            self.receiver.recv(core.NOBLOCK)
        assert self.receiver.counters.stale == 0


@pytest.fixture(params=PAIRS, ids=lambda pair: core.SocketType(pair[1]).name)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    sends, receives = request.param
    async with core.Context() as context:
        receiver, sender = context.socket(receives, linger=0), context.socket(sends, linger=0)
        receiver.bind("inproc://orders")
        sender.connect("inproc://orders")
        yield World(receiver, sender)


@pytest.mark.parametrize("kinds", list(product(KINDS, repeat=3)), ids="-".join)
async def test_sock_13_every_order_in_which_three_receives_are_cancelled(world: World, kinds: tuple[str, ...]) -> None:
    """Before, between and after messages come; a result is taken in between, or none is."""
    orders = [order for count in range(4) for order in permutations(range(3), count)]
    for order, parts, before, taken in product(orders, ((1, 1, 1), (3,), (2, 1), (1, 3), (4, 2)), range(3), (0, 1)):
        for kind in kinds:
            world.call(kind)
        receives = list(world.model.receives)
        for count in parts[:before]:
            await world.arrive(count)
        for place, number in enumerate(order):
            first = world.model.receives[0]
            if taken and place == len(order) - 1 and first.pending.done() and first is not receives[number]:
                world.take(first)
            world.cancel(receives[number])
            world.check()
        for count in parts[before:]:
            await world.arrive(count)
            world.check()
        world.end()


@pytest.mark.parametrize("seed", range(6))
async def test_sock_13_receives_are_called_cancelled_and_taken_in_random_order(world: World, seed: int) -> None:
    """Results are taken in the order of the calls."""
    chance = random.Random(seed)
    for _ in range(300):
        for _ in range(chance.randrange(4, 24)):
            receives = world.model.receives
            match chance.randrange(8):
                case 0 | 1 | 2 if not world.model.tears():
                    world.call(chance.choice(KINDS))
                case 3 | 4:
                    await world.arrive(chance.choice((1, 1, 2, 3)))
                case 5 | 6 if receives:
                    world.cancel(chance.choice(receives))
                case _ if receives and receives[0].pending.done():
                    world.take(receives[0])
                case _ if chance.random() < 0.02 and not world.model.tears():
                    await world.wait_out(chance.choice(KINDS))
            world.check()
        world.end()


@pytest.mark.parametrize("seed", range(6))
async def test_sock_13_nothing_is_lost_in_whatever_order_results_are_taken(world: World, seed: int) -> None:
    """Frames that are taken before earlier ones come in another order, each once, and in no result with another message."""
    chance = random.Random(seed)
    for _ in range(300):
        waiting: list[Receive] = []
        got: list[list[bytes]] = []
        sent: list[bytes] = []
        for _ in range(chance.randrange(4, 24)):
            match chance.randrange(7):
                case 0 | 1 | 2:
                    kind = chance.choice(KINDS)
                    waiting.append(Receive(kind, world.receive(kind)))
                case 3 | 4:
                    sent += await world.arrive(chance.choice((1, 1, 2, 3)))
                case _ if waiting:
                    receive = waiting.pop(chance.randrange(len(waiting)))
                    if (receive.pending.done() and chance.random() < 0.5) or not receive.pending.cancel():
                        got += world.got(receive)
        for receive in waiting:
            if not receive.pending.cancel():
                got += world.got(receive)
        world.model.arrived.clear()
        with pytest.raises(core.Again):
            while True:
                got += [world.receiver.recv_multipart(core.NOBLOCK).result()]
        assert sorted(frame for frames in got for frame in frames) == sorted(sent)
        for frames in got:
            assert [int(frame) for frame in frames] == list(range(int(frames[0]), int(frames[0]) + len(frames)))
