"""Requests by the way in which their caller gets the end: a future, a callback, an iterator, a window."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mypy_extensions import mypyc_attr

from core.machine.requests import SETTLED
from core.rpc.client_engine import settle_future
from core.runtime import supervision
from mdp.client.calls import PendingRequest, body_frames
from mdp.errors import Busy, ClientClosed, NotSupported, RequestError, TooLarge

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from core.rpc.reply import Reply, Withdrawing
    from mdp.client.calls import Call
    from mdp.client.engine import MdpEngine

Body: TypeAlias = bytes | Sequence[bytes]


@mypyc_attr(free_list_len=1)  # a round trip uses the same memory again
class PendingFuture(PendingRequest):
    """A request with a future: `caller`."""

    __slots__ = ()

    def notify(self) -> None:
        settle_future(self, ClientClosed)

    def moved(self, engine: Withdrawing) -> None:
        self.caller.engine = engine


def request_with_future(engine: MdpEngine, call: Call, frames: Sequence[Any]) -> Reply:
    """Send a request and return the future of its reply.

    Raises TypeError for a frame that is not bytes, and what `submit` raises.
    """
    for frame in frames:
        if type(frame) is not bytes:
            frames = body_frames(frames)
            break
    pending = PendingFuture(call, frames or (b"",))
    engine.submit(pending)  # first, because it may refuse it: a future that is never returned must not be made
    return engine.reply_to(pending)


class PendingCallback(PendingRequest):
    """A request with a callback: `caller(context, reply, error)`."""

    __slots__ = ("context",)

    context: Any

    def notify(self) -> None:
        done = self.caller
        if done is not None and self.stage == SETTLED:
            self.caller = None
            try:  # other requests end in the same loop
                done(self.context, self.reply, self.error)
            except Exception as error:
                supervision.current().fault("mdp client callback", error)


@mypyc_attr(allow_interpreted_subclasses=True)  # mdp.spark adds the parts of a reply
@dataclass(slots=True, init=False)
class Outcome:
    """The end of one request of `Client.map`.

    Attributes:
        index: its place in the iterable, from 0.
        reply: body frames, None when it failed.
        error: why it failed, None when it did not.
        attempts: how many times it was sent.
        latency_s: seconds from its first sending, or from the wait for it, to its end.
        replayed: the reply was there before it was asked for; only where that is known.
    """

    index: int
    reply: list[bytes] | None
    error: RequestError | None
    attempts: int
    latency_s: float
    replayed: bool = False

    # Written here, because that of a dataclass is not compiled: one is made for every request.
    def __init__(
        self,
        index: int,
        reply: list[bytes] | None,
        error: RequestError | None,
        attempts: int,
        latency_s: float,
        replayed: bool = False,
    ) -> None:
        self.index = index
        self.reply = reply
        self.error = error
        self.attempts = attempts
        self.latency_s = latency_s
        self.replayed = replayed

    def __reduce__(self) -> tuple[type[Outcome], tuple[Any, ...]]:
        return Outcome, (self.index, self.reply, self.error, self.attempts, self.latency_s, self.replayed)


class RoutedRequest(PendingRequest):
    """A request of many that knows the engine it was sent with."""

    __slots__ = ("engine",)

    engine: Withdrawing

    def moved(self, engine: Withdrawing) -> None:
        self.engine = engine


S = TypeVar("S", bound=RoutedRequest)


class PendingIterator(RoutedRequest):
    """A request that its caller polls; `caller` is the future it awaits while there is nothing to take."""

    __slots__ = ()

    def notify(self) -> None:
        waiter = self.caller
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        self.caller = asyncio.get_running_loop().create_future()
        await self.caller


def pending_iterators(call: Call, bodies: Sequence[Body]) -> list[PendingIterator]:
    """Return a request for each body; raises TypeError: a frame is not a buffer."""
    return [PendingIterator(call, frames_of(body)) for body in bodies]


def take_settled(slots: deque[PendingIterator], first: int, count: int) -> list[Outcome]:
    """Remove settled requests from the front, up to `count`; return their outcomes, with indices from `first`."""
    outcomes: list[Outcome] = []
    while slots and len(outcomes) < count and slots[0].stage == SETTLED:
        slot = slots.popleft()
        outcomes.append(Outcome(first + len(outcomes), slot.reply, slot.error, slot.sent, slot.settled_at - slot.started_at))
    return outcomes


class PendingSlot(RoutedRequest):
    """A request of a `RequestWindow`, which is its `caller`."""

    __slots__ = ("index",)

    index: int

    def notify(self) -> None:
        window = self.caller
        if window is not None and self.stage == SETTLED:
            self.caller = None
            window.end(self)


class RequestWindow:
    """Requests to one service whose outcomes are taken in the order in which the requests end; see `mdp.Client.open_window`."""

    def __init__(self, engine_for: Callable[[bytes], MdpEngine], call: Call, on_end: Callable[[], None]) -> None:
        self._engine_for = engine_for
        self._call = call
        self._on_end = on_end
        self._open: dict[PendingSlot, None] = {}
        self._ended: list[PendingSlot] = []
        self._count = 0

    def send(self, bodies: Sequence[Body], keys: Sequence[str | bytes] | None = None) -> int:
        """Send requests together.

        Args:
            bodies: `bytes` for one frame, a sequence of `bytes` for several.
            keys: idempotency keys, one for each, None for none.

        Returns:
            The `index` of the outcome of the first; the others follow. Those of a window are numbered from 0.

        Raises:
            TypeError, ValueError: a frame is not a buffer, or a key is wrong; nothing is sent then.
            ClientClosed: the client was closed.
        """
        call = self._call
        batch = [PendingSlot(call, frames_of(body)) for body in bodies]
        if keys is not None:
            for slot, key in zip(batch, keys, strict=True):
                slot.call = call.with_key(key)
        first = self._count
        self._count += len(batch)
        for index, slot in enumerate(batch, first):
            slot.index, slot.caller = index, self
            self._open[slot] = None
        for refused in submit_all(self._engine_for(call.service), batch):
            refused.notify()
        return first

    def take(self) -> list[Outcome]:
        """Return the outcomes of the requests that have ended since the last call, in the order of their ends."""
        ended, self._ended = self._ended, []
        return [Outcome(slot.index, slot.reply, slot.error, slot.sent, slot.settled_at - slot.started_at) for slot in ended]

    async def withdraw(self) -> None:
        """Cancel what has not ended; broker and worker are notified (MDP/0.3)."""
        given_up, self._open = self._open, {}
        for slot in given_up:
            slot.caller = None
            slot.engine.withdraw(slot)

    def end(self, slot: PendingSlot) -> None:
        """Keep the outcome of a request until it is taken."""
        del self._open[slot]
        self._ended.append(slot)
        if len(self._ended) == 1:
            try:
                self._on_end()
            except Exception as error:
                supervision.current().fault("mdp client callback", error)


def submit_all(engine: MdpEngine, batch: Sequence[S]) -> list[S]:
    """Send requests together; return those that were refused at once, which are settled."""
    for slot in batch:
        slot.engine = engine
    engine.begin_iteration()
    machine, now = engine.machine, engine.now
    refused = []
    sent = machine.submit_many(batch, now)
    for slot in batch[sent:]:
        try:
            machine.submit(slot, now)
        except (Busy, NotSupported, TooLarge) as error:
            slot.error, slot.stage, slot.started_at, slot.settled_at = error, SETTLED, now, now
            refused.append(slot)
    engine.flush_all()
    return refused


def frames_of(body: Body) -> Sequence[bytes]:
    return (body,) if type(body) is bytes else body_frames(body) or (b"",)
