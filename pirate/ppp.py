"""Frames between queue and workers, in both dialects (RFC 6; PPP-02, LRU-04, LRU-06).

Messages of the queue's ROUTER begin with the worker's routing id, which is omitted here:

    message                 Simple (REQ worker)                  Paranoid (DEALER worker)
    READY, to the queue     [""][01] or [""]["READY"]            [01]
    HEARTBEAT, both ways    none                                 [02]
    request, to the worker  [""][client…][""][body…]             [client…][""][body…]
    reply, to the queue     [""][client…][""][body…]             [client…][""][body…]

`client…` is one address or, behind proxies, several, none of them empty; it ends with the first empty frame, which belongs to
the *envelope*. Control messages are recognised by their shape, a lone frame of a known value: a client whose address begins with
the byte 01 is just a client.

Pure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from core.machine.envelope import Control, EnvelopedRequest, read_request, read_worker
from core.machine.value_copies import check_positive
from pirate.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

HEARTBEAT_MS_MIN: Final = 10  # with less, a loop that is briefly busy looks dead
HEARTBEAT_MS_MAX: Final = 30_000

split_envelope: Final = partial(read_request, malformed=MalformedMessage)


def decode(frames: Sequence[bytes], *, simple: bool) -> Control | EnvelopedRequest:
    """Decode a message between queue and worker, without the worker's routing id; `simple` is the dialect of REQ workers."""
    if simple:
        if not frames or frames[0]:
            raise MalformedMessage("no delimiter in front")
        frames = frames[1:]
    return read_worker(frames, MalformedMessage, req=simple)


def checked_heartbeat_s(heartbeat_ms: float) -> float:
    """Convert an interval to seconds; raises ValueError if it is out of range."""
    check_positive(heartbeat_ms=heartbeat_ms)
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise ValueError(f"heartbeat_ms is from {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms:g}")
    return heartbeat_ms / 1000
