"""Messages the broker sends, for every pair of dialects: a request to a worker, a reply to a client.

Pure. All messages are encoded. Bodies are forwarded as the received bytes: the head before them is made once for each dialect and
service, and the number of the request is between the two.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from core.zmtp.frames import MORE_HEADERS, decode_frames, encode_frame, encode_message, encode_prefix, split_frames
from mdp.wire.commands import (
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    EMPTY,
    ID_BYTES,
    MDPC01,
    MDPC02,
    MDPW01,
    MDPW02,
    NUMBERED_BYTES,
    V01,
    V02,
    V03,
    WORKER_REQUEST_03,
    worker_cancel,
)
from mdp.wire.message_runs import ADDRESS_END, ADDRESS_START, NO_OPTIONS
from mdp.wire.options import amend_options

if TYPE_CHECKING:
    from mdp.broker.requests.records import Request, Worker
    from mdp.wire.commands import Dialect

_NUMBERED: Final = MORE_HEADERS[NUMBERED_BYTES]
# Command frames of MDP/0.3 up to their number, with the frame header: more frames follow.
_REPLY_HEAD_03: Final = _NUMBERED + CLIENT_FINAL_03
_PARTIAL_HEAD_03: Final = _NUMBERED + CLIENT_PARTIAL_03
_ERROR_HEAD_03: Final = _NUMBERED + CLIENT_ERROR_03
_PROGRESS_HEAD_03: Final = _NUMBERED + CLIENT_PROGRESS_03
# Head of a request to a worker, before the key.
WORK_HEADS: Final[dict[Dialect, bytes]] = {
    V01: encode_prefix([EMPTY, MDPW01, b"\x02"]),
    V02: encode_prefix([MDPW02, b"\x02"]),
    V03: _NUMBERED + WORKER_REQUEST_03,
}


def in_flight_key(dialect: Dialect, address: bytes) -> bytes:
    """Return a worker's key of a request, in its dialect, from the address or token of 8 bytes."""
    return address if dialect == V03 else ADDRESS_START + address + ADDRESS_END


def work_octets(worker: Worker, request: Request, number: int, now: float, user: str | None = None) -> tuple[bytes, bytes]:
    """Return a worker's key of a request and the message that sends the request to it.

    Args:
        worker: the worker that gets it.
        request: any request, of any dialect.
        number: the token, not used before in this broker.
        now: monotonic seconds, to compute the time left until the request's deadline.
        user: the client's user, for a worker of MDP/0.3 that gets users; else None.
    """
    dialect = worker.dialect
    key = in_flight_key(dialect, number.to_bytes(ID_BYTES, "big"))
    head = WORK_HEADS[dialect] + key
    if dialect != V03:
        return key, head + body_octets(request)
    extras = request.extras
    if user is None and (extras is None or (extras.deadline == inf and not extras.lost)):
        return key, head + request.payload if request.dialect == V03 else head + NO_OPTIONS + request.payload
    if extras is None:
        options = amend_options(b"", deadline_ms=None, delivery=1, user=user)
    else:
        left_ms = None if extras.deadline == inf else max(0, int((extras.deadline - now) * 1000))
        options = amend_options(extras.options, deadline_ms=left_ms, delivery=len(extras.lost) + 1, user=user)
    return key, b"".join((head, encode_frame(options, more=True), body_octets(request)))


def body_octets(request: Request) -> bytes:
    tail = request.payload
    if request.dialect != V03:
        return tail
    return tail[2:] if tail[:2] == NO_OPTIONS else split_frames(tail, 1)[1]


def cancel_octets(request: Request) -> bytes:
    """Return the CANCEL of a request to its worker (MDP/0.3)."""
    return encode_message(worker_cancel(request.number.to_bytes(ID_BYTES, "big")))


def reply_head(dialect: Dialect, key: bytes | int, name: bytes) -> bytes:
    """Return the head of the FINAL or REPLY to a client, before its body.

    Args:
        dialect: of the client.
        key: id of its request (MDP/0.3).
        name: the service that answers (MDP/0.1, 0.2; MDP-40).
    """
    if isinstance(key, bytes):
        return _REPLY_HEAD_03 + key
    return encode_prefix([MDPC02, b"\x03", name] if dialect == V02 else [EMPTY, MDPC01, name])


def final_octets(request: Request, body: bytes) -> bytes:
    """Return the whole FINAL or REPLY of a request, whose service has the head for the dialects without ids."""
    key = request.key
    if isinstance(key, bytes):
        return b"%b%b%b" % (_REPLY_HEAD_03, key, body)  # compiled, one object instead of two
    return (request.service.reply_01 if request.dialect == V01 else request.service.final_02) + body


def partial_head(key: bytes | int, name: bytes) -> bytes:
    """Return the head of a PARTIAL to a client of MDP/0.2 or 0.3; arguments as for `reply_head`."""
    return _PARTIAL_HEAD_03 + key if isinstance(key, bytes) else encode_prefix([MDPC02, b"\x02", name])


def progress_octets(key: bytes, progress: bytes) -> bytes:
    """Return the PROGRESS to a client of MDP/0.3; `key` is the id of its request."""
    return b"".join((_PROGRESS_HEAD_03, key, encode_message([progress])))


def error_octets(key: bytes, code: str, text: str) -> bytes:
    """Return the ERROR to a client of MDP/0.3; `key` is the id of its request."""
    return b"".join((_ERROR_HEAD_03, key, encode_message([code.encode("ascii"), text.encode()])))


def as_prefix(body: bytes) -> bytes:
    """Return encoded frames with MORE in the last one too."""
    return encode_prefix(decode_frames(body))
