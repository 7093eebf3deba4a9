"""Frames of the three flows between brokers (zguide chapter 3; PEER-05, PEER-13, PEER-17).

    flow    socket           message, without the routing id of its sender
    local   localfe ROUTER   task and reply      [""][body…] of a REQ client; [address…][""][body…] behind a proxy
            localbe ROUTER   REQ worker          [""][01] or [""]["READY"]; task and reply [""][client…][""][body…]
                             DEALER worker       [01] READY, [02] HEARTBEAT both ways; task and reply [client…][""][body…]
    cloud   cloudfe ROUTER   task and reply      [client…][""][body…]; the routing id is the name of the broker that asks
            cloudbe ROUTER   the same            the routing id is the name of the broker that is asked
    state   statebe PUB      [name][decimal count of idle workers]

A task has an *envelope*: addresses up to and including the first empty frame. The reply repeats it byte for byte, so a broker may add
one more address, and a peer of another implementation returns it too.

Pure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.envelope import Control, EnvelopedRequest, read_request, read_worker
from core.machine.peer_text import decimal
from peering.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

# A longer count is not plausible, and int() of a long text is slow.
COUNT_DIGITS_MAX: Final = 9


class StateMessage(NamedTuple):
    """State of a broker, as published."""

    name: bytes
    idle: int  # workers that wait for a task


class Endpoints(NamedTuple):
    """Endpoints of a broker for other brokers: its cloudfe and its statebe."""

    cloud: str
    state: str


split_envelope: Final = partial(read_request, malformed=MalformedMessage)


def decode_worker(frames: Sequence[bytes]) -> tuple[Control | EnvelopedRequest, bool]:
    """Decode a worker's message, without its routing id; return it, and whether it is from a REQ worker."""
    is_req = bool(frames) and not frames[0]
    return read_worker(frames[1:] if is_req else frames, MalformedMessage, req=is_req), is_req


def encode_state(state: StateMessage) -> list[bytes]:
    return [state.name, b"%d" % state.idle]


def decode_state(frames: Sequence[bytes]) -> StateMessage:
    """Decode a state message (PEER-13)."""
    if len(frames) != 2:
        raise MalformedMessage(f"a state message of {len(frames)} frames")
    name, count = frames[0], decimal(frames[1], COUNT_DIGITS_MAX)
    if not name:
        raise MalformedMessage("a state message without a name")
    if count is None:
        raise MalformedMessage("a count that is not a decimal number")
    return StateMessage(name, count)
