"""Many requests of a client: outcomes in order, outcomes as requests end, and the parts of one reply."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from core.machine.requests import SETTLED
from mdp.client.calls import PendingRequest, body_frames
from mdp.client.pending import NotSupported
from mdp.errors import Busy
from mdp.wire.size_limits import TooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from mdp.client.calls import Call
    from mdp.client.engine import MdpEngine
    from mdp.errors import RequestError

__all__ = ["Body", "Outcome", "RequestWindow", "frames_of", "map_outcomes", "stream_parts"]

Body: TypeAlias = "bytes | Sequence[bytes]"
S = TypeVar("S", bound="PendingIterator | PendingSlot")


@dataclass(slots=True)
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


class PendingIterator(PendingRequest):
    """A request that its caller polls; `caller` is the future it awaits while there is nothing to take."""

    __slots__ = ("engine",)

    engine: MdpEngine

    def notify(self) -> None:
        waiter = self.caller
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for a part or for the end."""
        self.caller = asyncio.get_running_loop().create_future()
        await self.caller


async def map_outcomes(
    engine_for: Callable[[bytes], MdpEngine],
    prepare: Callable[[], Call],
    requests: Iterable[Body],
    window: int,
    key: Callable[[int], str | bytes] | None,
) -> AsyncGenerator[Outcome, None]:
    """Send a request for each body and yield the outcomes in order; see `mdp.Client.map`.

    `prepare` makes the call when the iteration begins, so that its errors are raised there.
    """
    call = prepare()
    if window < 1:
        raise ValueError(f"window of {window}: it must be positive")
    source = iter(requests)
    slots: deque[PendingIterator] = deque()
    # Refilled a quarter at a time, so that requests leave in batches while replies are taken one by one.
    refill_at = window - max(1, window // 4)
    submitted = index = 0
    more = True
    try:
        while True:
            if more and (len(slots) <= refill_at or slots[0].stage != SETTLED):
                wanted = window - len(slots)
                bodies = list(islice(source, wanted))
                more = len(bodies) == wanted
                batch = [PendingIterator(call, frames_of(body)) for body in bodies]
                if key is not None:
                    for number, slot in enumerate(batch, submitted):
                        slot.call = call.with_key(key(number))
                slots += batch
                _submit_all(engine_for(call.service), batch)
                submitted += len(bodies)
            if not slots:
                return
            slot = slots[0]
            while slot.stage != SETTLED:
                await slot.wait()
            slots.popleft()
            yield Outcome(index, slot.reply, slot.error, slot.sent, slot.settled_at - slot.started_at)
            index += 1
    finally:
        for slot in slots:
            slot.engine.withdraw(slot)


class PendingSlot(PendingRequest):
    """A request of a `RequestWindow`, which is its `caller`."""

    __slots__ = ("engine", "index")

    engine: MdpEngine
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
            ClientClosed: the client was closed.
        """
        first = self._count
        self._count += len(bodies)
        call = self._call
        batch = [PendingSlot(call, frames_of(body)) for body in bodies]
        for index, slot in enumerate(batch, first):
            slot.index, slot.caller = index, self
            self._open[slot] = None
        if keys is not None:
            for slot, key in zip(batch, keys, strict=True):
                slot.call = call.with_key(key)
        for refused in _submit_all(self._engine_for(call.service), batch):
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
            self._on_end()


def frames_of(body: Body) -> Sequence[bytes]:
    """Return the body of a request as frames."""
    return (body,) if type(body) is bytes else body_frames(body) or (b"",)


def _submit_all(engine: MdpEngine, batch: list[S]) -> list[S]:
    """Send requests together; return those that were refused at once, which are settled."""
    for slot in batch:
        slot.engine = engine
    engine.begin_iteration()
    machine, now = engine.machine, engine.now
    refused = []
    for slot in batch[machine.submit_many(batch, now) :]:
        try:
            machine.submit(slot, now)
        except (Busy, NotSupported, TooLarge) as error:
            slot.error, slot.stage, slot.started_at, slot.settled_at = error, SETTLED, now, now
            refused.append(slot)
    engine.flush_all()
    return refused


async def stream_parts(
    engine_for: Callable[[bytes], MdpEngine], prepare: Callable[[], Call], frames: Sequence[bytes]
) -> AsyncGenerator[list[bytes], None]:
    """Send one request and yield the parts of its reply; see `mdp.Client.stream`, and `map_outcomes` for `prepare`."""
    pending = PendingIterator(prepare(), body_frames(frames) or (b"",))
    engine = engine_for(pending.call.service)
    engine.submit(pending)
    parts = 0
    try:
        while True:
            part = engine.machine.take_part(pending)
            if part is not None:
                parts += 1
                yield part
            elif pending.stage == SETTLED:
                break
            else:
                await pending.wait()
    finally:
        engine.withdraw(pending)
    if pending.error is not None:
        raise pending.error
    # Our workers end a reply in parts with one empty frame.
    if pending.reply is not None and not (parts and pending.reply == [b""]):
        yield pending.reply
