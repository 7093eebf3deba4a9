"""Requests with return addresses, and control messages of workers: for brokers with a least-recently-used queue.

A message of a REQ client is `[""][body…]`; every ROUTER on its way prepends the address of the sender. The addresses, up to and
including the first empty frame, are its *envelope*: a reply repeats it byte for byte. A worker reports with a single frame that it is
idle (READY) or alive (HEARTBEAT). Control messages are recognised by their shape: a client whose address begins with the byte 01 is an
ordinary client.

Each protocol decides what of this it accepts, and raises its own error. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READY: Final = b"\x01"
HEARTBEAT: Final = b"\x02"
READY_WORD: Final = b"READY"  # of the first load-balancing brokers, and of their ports (DIS-30)

Envelope = tuple[bytes, ...]


class Control(Enum):
    """Control message of a worker."""

    READY = READY
    HEARTBEAT = HEARTBEAT


class EnvelopedRequest(NamedTuple):
    """A request or a reply."""

    envelope: Envelope  # addresses and the empty frame that ends them; a reply repeats that of its request
    body: list[bytes]  # at least one frame


def read_request(frames: Sequence[bytes], malformed: Callable[[str], Exception]) -> EnvelopedRequest:
    """Split `[address…][""][body…]`, as received: the routing id is an address. Raises what `malformed` makes of the reason."""
    try:
        end = frames.index(b"") + 1
    except ValueError:
        raise malformed("no empty frame after the addresses") from None
    if end == 1:
        raise malformed("no address before the empty frame")
    if end == len(frames):
        raise malformed("no body after the empty frame")
    return EnvelopedRequest(tuple(frames[:end]), list(frames[end:]))


def read_worker(frames: Sequence[bytes], malformed: Callable[[str], Exception], *, req: bool) -> Control | EnvelopedRequest:
    """Parse a worker's message, without its routing id and without the empty frame of a REQ worker.

    A REQ worker may send READY as a word and has no heartbeat. Raises what `malformed` makes of the reason.
    """
    if len(frames) != 1:
        return read_request(frames, malformed)
    if frames[0] == READY or (req and frames[0] == READY_WORD):
        return Control.READY
    if frames[0] == HEARTBEAT and not req:
        return Control.HEARTBEAT
    raise malformed("a single frame that is not a control message")
