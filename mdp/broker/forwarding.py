"""Messages the broker sends, for every pair of dialects: a request to a worker, a reply to a client.

Pure. Bodies stay encoded as they came wherever they can (`core.Encoded` is the last item of a message then); a constant prefix and the
number are packed before them in one step. The dispatcher has the commonest pair, MDP/0.3 to 0.3, on its hot path and does not come here.
"""

from __future__ import annotations

from math import inf
from struct import Struct
from typing import TYPE_CHECKING

from core.zmtp.decoder import MORE_HEADERS, Encoded, encode_prefix, split_frames
from mdp.wire.commands import (
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    EMPTY,
    HEAD_BYTES,
    ID_BYTES,
    MDPC01,
    MDPC02,
    MDPW01,
    MDPW02,
    NUMBERED_BYTES,
    V01,
    V02,
    V03,
    WORKER_CANCEL_03,
    WORKER_FINAL_03,
    WORKER_REQUEST_03,
)
from mdp.wire.options import amend_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mdp.broker.requests.records import Request, Worker
    from mdp.wire.commands import Dialect

__all__ = [
    "END",
    "KEY_01_BYTES",
    "KEY_02_BYTES",
    "NO_OPTIONS",
    "PACK_03",
    "PACK_KEY_01",
    "PACK_WORK_01",
    "REPLY_01",
    "REPLY_HEAD_03",
    "WORK_01",
    "WORK_HEAD_03",
    "body_octets",
    "cancel_message",
    "error_message",
    "held_key",
    "partial_message",
    "reply_message",
    "with_encoded_bodies",
    "work_message",
]

# Encoded empty options frame with MORE: how the undecoded part of most requests of MDP/0.3 begins.
NO_OPTIONS = b"\x01\x00"

# The token is the client address in MDP/0.1 and 0.2: a frame of 8 octets, then the empty frame. Both have MORE.
_TOKEN = encode_prefix([bytes(ID_BYTES)])[:2]
END = encode_prefix([EMPTY])
WORK_01 = encode_prefix([EMPTY, MDPW01, b"\x02"]) + _TOKEN
_WORK_02 = encode_prefix([MDPW02, b"\x02"]) + _TOKEN
REPLY_01 = encode_prefix([b"\x03"]) + _TOKEN

# Command frames of MDP/0.3 up to their number, with the frame header: more frames follow.
REPLY_HEAD_03 = MORE_HEADERS[NUMBERED_BYTES] + CLIENT_FINAL_03
WORK_HEAD_03 = MORE_HEADERS[NUMBERED_BYTES] + WORKER_REQUEST_03

PACK_03 = Struct(f">{HEAD_BYTES}sQ").pack
PACK_WORK_01 = Struct(f">{len(WORK_01)}sQ{len(END)}s").pack
_PACK_WORK_02 = Struct(f">{len(_WORK_02)}sQ{len(END)}s").pack
_KEY_01 = Struct(f">{len(REPLY_01)}sQ{len(END)}s")
_KEY_02 = Struct(f">{len(_TOKEN)}sQ{len(END)}s")
# First octets of the undecoded part of a worker's answer: command (MDP/0.1 only), address, empty frame.
KEY_01_BYTES = _KEY_01.size
KEY_02_BYTES = _KEY_02.size
PACK_KEY_01 = _KEY_01.pack
_PACK_KEY_02 = _KEY_02.pack


def with_encoded_bodies(batch: Iterable[Sequence[bytes]]) -> list[list[bytes]]:
    """Return messages as `[routing id, frame, frame, Encoded]`."""
    return [[*frames[:3], Encoded.of(frames[3:])] if len(frames) > 3 else [*frames] for frames in batch]


def held_key(dialect: Dialect, address: bytes) -> bytes:
    """Return the key under which a worker of a dialect holds the request with an address or token of 8 octets."""
    if dialect == V03:
        return WORKER_FINAL_03 + address
    return (REPLY_01 if dialect == V01 else _TOKEN) + address + END


def work_message(worker: Worker, request: Request, number: int, now: float, user: str | None = None) -> tuple[bytes, list[bytes]]:
    """Return the key under which the worker is to hold a request, and the message that gives it to the worker.

    Args:
        worker: who gets it.
        request: any request, of any dialect.
        number: not used before in this broker; the token.
        now: monotonic seconds, for what is left of the request's deadline.
        user: who asks, for a worker of MDP/0.3 that is told; None for one that is not.
    """
    dialect = worker.dialect
    if dialect == V01:
        octets = PACK_WORK_01(WORK_01, number, END) + body_octets(request)
        return PACK_KEY_01(REPLY_01, number, END), [worker.peer, Encoded(octets)]
    if dialect == V02:
        octets = _PACK_WORK_02(_WORK_02, number, END) + body_octets(request)
        return _PACK_KEY_02(_TOKEN, number, END), [worker.peer, Encoded(octets)]
    head = PACK_03(WORKER_REQUEST_03, number)
    key = PACK_03(WORKER_FINAL_03, number)
    terms = request.terms
    if user is None and (terms is None or (terms.deadline == inf and not terms.lost)):
        if request.dialect == V03:
            return key, [worker.peer, head, Encoded(request.tail)]
        return key, [worker.peer, head, Encoded(NO_OPTIONS + request.tail)]
    if terms is None:
        options = amend_options(b"", deadline_ms=None, delivery=1, user=user)
    else:
        left_ms = None if terms.deadline == inf else max(0, int((terms.deadline - now) * 1000))
        options = amend_options(terms.options, deadline_ms=left_ms, delivery=len(terms.lost) + 1, user=user)
    return key, [worker.peer, head, options, Encoded(body_octets(request))]


def body_octets(request: Request) -> bytes:
    """Return the encoded body of a request, without options."""
    tail = request.tail
    if request.dialect != V03:
        return tail
    return tail[2:] if tail[:2] == NO_OPTIONS else split_frames(tail, 1)[1]


def cancel_message(worker: Worker, request: Request) -> list[bytes]:
    """Return the CANCEL of a request to its worker (MDP/0.3)."""
    return [worker.peer, PACK_03(WORKER_CANCEL_03, request.number)]


def reply_message(client: bytes, dialect: Dialect, key: bytes | int, name: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the FINAL, or REPLY, to a client.

    Args:
        client: routing id.
        dialect: what it speaks.
        key: the command frame of its request (MDP/0.3).
        name: the service that answers (MDP/0.1, 0.2; MDP-40).
        body: `[frame …]`, an `Encoded` may be last.
    """
    if dialect == V03 and isinstance(key, bytes):
        return [client, CLIENT_FINAL_03 + key[HEAD_BYTES:], *body]
    if dialect == V02:
        return [client, MDPC02, b"\x03", name, *body]
    return [client, EMPTY, MDPC01, name, *body]


def partial_message(client: bytes, dialect: Dialect, key: bytes | int, name: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the PARTIAL to a client of MDP/0.2 or 0.3; arguments as for `reply_message`."""
    if dialect == V03 and isinstance(key, bytes):
        return [client, CLIENT_PARTIAL_03 + key[HEAD_BYTES:], *body]
    return [client, MDPC02, b"\x02", name, *body]


def error_message(client: bytes, key: bytes, code: str, text: str) -> list[bytes]:
    """Return the ERROR to a client of MDP/0.3; `key` is the command frame of its request."""
    return [client, CLIENT_ERROR_03 + key[HEAD_BYTES:], code.encode("ascii"), text.encode()]
