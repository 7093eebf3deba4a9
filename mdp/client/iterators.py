"""Iterators over many requests of a client, and over the parts of one reply; their hot paths are in `mdp.client.replies`."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from core.machine.requests import SETTLED
from mdp.client.calls import body_frames
from mdp.client.replies import Body, Outcome, PendingIterator, pending_iterators, submit_all, take_settled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from mdp.client.calls import Call
    from mdp.client.engine import MdpEngine


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
                batch = pending_iterators(call, bodies)
                if key is not None:
                    for number, slot in enumerate(batch, submitted):
                        slot.call = call.with_key(key(number))
                slots += batch
                submit_all(engine_for(call.service), batch)
                submitted += len(bodies)
            if not slots:
                return
            while slots[0].stage != SETTLED:
                await slots[0].wait()
            # As many as leave together when the window is refilled: further ones may be sent when these were yielded.
            for outcome in take_settled(slots, index, max(1, len(slots) - refill_at)):
                yield outcome
                index += 1
    finally:
        for slot in slots:
            slot.engine.withdraw(slot)


async def stream_parts(
    engine_for: Callable[[bytes], MdpEngine], prepare: Callable[[], Call], frames: Sequence[bytes]
) -> AsyncGenerator[list[bytes], None]:
    """Send one request and yield the parts of its reply; see `mdp.Client.stream`, and `map_outcomes` for `prepare`."""
    pending = PendingIterator(prepare(), body_frames(frames) or (b"",))
    pending.engine = engine = engine_for(pending.call.service)
    engine.submit(pending)
    in_parts = False
    try:
        while True:
            part = engine.machine.take_part(pending)
            if part is not None:
                in_parts = True
                yield part
            elif pending.stage == SETTLED:
                break
            else:
                await pending.wait()
    finally:
        pending.engine.withdraw(pending)  # another one may have taken it over
    if pending.error is not None:
        raise pending.error
    # Our workers end a reply in parts with one empty frame.
    if pending.reply is not None and not (in_parts and pending.reply == [b""]):
        yield pending.reply
