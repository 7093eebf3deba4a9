"""Requests with their return addresses, and what workers of a least-recently-used queue say: shared by all brokers of that kind.

A message that comes from a REQ client is `[""][body…]`; every ROUTER on its way puts the address of whom it took it from in front. The
addresses, up to and with the first empty frame, are its *envelope*: whoever answers repeats it octet for octet. A worker tells with a
lone frame that it is free (READY) or alive (HEARTBEAT). Control messages are told apart by their shape: a client whose address begins
with the octet 01 is just a client.

Each protocol says what of this it takes, and raises its own error. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["HEARTBEAT", "READY", "Control", "Envelope", "Letter", "read_letter", "read_worker"]

READY: Final = b"\x01"
HEARTBEAT: Final = b"\x02"
READY_WORD: Final = b"READY"  # of the first load-balancing brokers, and of their ports (DIS-30)

Envelope = tuple[bytes, ...]


class Control(Enum):
    """A worker's message that carries no request."""

    READY = READY
    HEARTBEAT = HEARTBEAT


class Letter(NamedTuple):
    """A request or a reply.

    Attributes:
        envelope: addresses and the empty frame that ends them; a reply repeats that of its request.
        body: one frame or more.
    """

    envelope: Envelope
    body: list[bytes]


def read_letter(frames: Sequence[bytes], malformed: Callable[[str], Exception]) -> Letter:
    """Split `[address…][""][body…]`.

    Args:
        frames: as received; the routing id is an address.
        malformed: makes the error out of its reason, one lower-case clause.

    Raises:
        Exception: what `malformed` makes: no address, no empty frame, or no body.
    """
    try:
        end = frames.index(b"") + 1
    except ValueError:
        raise malformed("no empty frame after the addresses") from None
    if end == 1:
        raise malformed("no address before the empty frame")
    if end == len(frames):
        raise malformed("no body after the empty frame")
    return Letter(tuple(frames[:end]), list(frames[end:]))


def read_worker(frames: Sequence[bytes], malformed: Callable[[str], Exception], *, req: bool) -> Control | Letter:
    """Read what a worker says, without its routing id and without the empty frame of a REQ worker.

    Args:
        frames: the rest.
        malformed: makes the error out of its reason.
        req: whether it is a REQ worker; it may say READY as a word, and has no heartbeat.

    Raises:
        Exception: what `malformed` makes: neither a letter nor a control message.
    """
    if len(frames) != 1:
        return read_letter(frames, malformed)
    if frames[0] == READY or (req and frames[0] == READY_WORD):
        return Control.READY
    if frames[0] == HEARTBEAT and not req:
        return Control.HEARTBEAT
    raise malformed("a single frame that is no control message")
