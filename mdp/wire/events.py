"""Received commands of MDP as typed events, strictly validated, for all paths that are not hot.

Pure: decoded frames in, one event out. A message that is not a command of MDP, exact in length and value of header and command (MDP-03),
gives `Invalid` with the reason; no message of a peer raises. The hot paths of broker, client and worker decode frequent and valid messages
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mdp.wire.commands import (
    BY_FRONT,
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_HEARTBEAT_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    CLIENT_REQUEST_03,
    CODE_BYTES_MAX,
    EMPTY,
    HEAD_BYTES,
    ID_BYTES,
    MDPC01,
    MDPC02,
    MDPC03,
    MDPW01,
    MDPW02,
    MDPW03,
    PROGRESS_BYTES_MAX,
    TEXT_BYTES_MAX,
    V01,
    V02,
    V03,
    WORKER_CANCEL_03,
    WORKER_DISCONNECT_03,
    WORKER_ERROR_03,
    WORKER_FINAL_03,
    WORKER_HEARTBEAT_03,
    WORKER_PARTIAL_03,
    WORKER_PING_03,
    WORKER_PROGRESS_03,
    WORKER_READY_03,
    WORKER_RECALL_03,
    WORKER_REQUEST_03,
    WORKER_RETURN_03,
    Dialect,
    is_service_name,
    worker_disconnect,
    worker_heartbeat,
)
from mdp.wire.options import BadOptions, decode_heartbeat_options

Role: TypeAlias = Literal["client", "worker", ""]


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client. `id` and `options` are empty before MDP/0.3; `body` has one frame or more."""

    dialect: Dialect
    service: bytes
    body: Sequence[bytes]
    id: bytes = b""
    options: bytes = b""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancellation of the request with this id (to the broker) or token (to a worker) (MDP/0.3)."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The READY of a worker that offers a service; `options` is empty before MDP/0.3."""

    dialect: Dialect
    service: bytes
    options: bytes = b""


@dataclass(frozen=True, slots=True)
class Work:
    """A request for a worker; `id` is the client address to answer to, in MDP/0.3 the token."""

    dialect: Dialect
    id: bytes
    body: Sequence[bytes]
    options: bytes = b""


@dataclass(frozen=True, slots=True)
class Partial:
    """A part of a reply, with more to come."""

    dialect: Dialect  # MDP/0.2 or 0.3
    id: bytes  # from a worker, the address or token of the request; at a client, the id of the request (MDP/0.3), else empty
    service: bytes  # at a client of MDP/0.2, the service that answers; else empty
    body: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Final:
    """The last or only part of a reply (REPLY in MDP/0.1); attributes as in `Partial`, `service` in MDP/0.1 too."""

    dialect: Dialect
    id: bytes
    service: bytes
    body: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Failure:
    """An ERROR instead of a FINAL (MDP/0.3): a code of capital letters and underscores, and a text for people."""

    id: bytes
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A PROGRESS of a request that is not answered yet (MDP/0.3); its frame is decoded where it is read."""

    id: bytes
    progress: bytes


@dataclass(frozen=True, slots=True)
class Recall:
    """The broker's demand to return the request with this token if it has not started (MDP/0.3)."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Return:
    """The return of a recalled request that the worker has not started (MDP/0.3)."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """The broker's demand for a HEARTBEAT at once (MDP/0.3)."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life; `role` is the peer's (at a client or worker: ours), the states are those of workers."""

    dialect: Dialect
    role: Role
    stuck: bool = False
    draining: bool = False
    by_front: bool = False  # the front of shards sends it for a worker


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The end of a worker's registration, by the worker or by the broker."""

    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Invalid:
    """Frames that are not a command of MDP (MDP-03)."""

    reason: str  # the faulty part: `frames` (too few or many), `header`, `command`, `service`, `address`, `id` or `error`
    role: Role = ""
    dialect: Dialect | None = None  # of the header, None for an unknown header
    id: bytes = b""  # of the request, where it is known (MDP/0.3), to answer it


BrokerEvent: TypeAlias = Request | Cancel | Ready | Partial | Final | Failure | ProgressReport | Return | Heartbeat | Disconnect | Invalid
ClientEvent: TypeAlias = Partial | Final | Failure | ProgressReport | Heartbeat | Invalid
WorkerEvent: TypeAlias = Work | Cancel | Recall | Ping | Heartbeat | Disconnect | Invalid


def parse_at_broker(frames: Sequence[bytes]) -> BrokerEvent:
    """Decode a message of a client or worker to the broker."""
    if len(frames) < 1:
        return Invalid("frames")
    head = frames[0]
    if head == EMPTY:
        if len(frames) < 2:
            return Invalid("frames")
        if frames[1] == MDPC01:
            return _request(V01, frames[2:])
        return _from_worker(V01, frames[2:]) if frames[1] == MDPW01 else Invalid("header")
    if head == MDPC02:
        if len(frames) < 2:
            return Invalid("frames", "client", V02)
        return _request(V02, frames[2:]) if frames[1] == b"\x01" else Invalid("command", "client", V02)
    if head == MDPW02:
        return _from_worker(V02, frames[1:])
    if head.startswith(MDPC03):
        return _from_client_03(head, frames)
    return _from_worker_03(head, frames) if head.startswith(MDPW03) else Invalid("header")


def parse_at_client(frames: Sequence[bytes]) -> ClientEvent:
    """Decode a message of the broker to a client on DEALER; on REQ, first add the empty frame of MDP/0.1."""
    if len(frames) < 1:
        return Invalid("frames")
    head = frames[0]
    if head.startswith(MDPC03):
        return _to_client_03(head, frames)
    if head == EMPTY:
        if len(frames) > 1 and frames[1] != MDPC01:
            return Invalid("header")
        return Final(V01, b"", frames[2], frames[3:]) if len(frames) > 3 else Invalid("frames", "client", V01)
    if head != MDPC02:
        return Invalid("header")
    if len(frames) < 4:
        return Invalid("frames", "client", V02)
    if frames[1] == b"\x03":
        return Final(V02, b"", frames[2], frames[3:])
    return Partial(V02, b"", frames[2], frames[3:]) if frames[1] == b"\x02" else Invalid("command", "client", V02)


def parse_at_worker(frames: Sequence[bytes]) -> WorkerEvent:
    if len(frames) < 1:
        return Invalid("frames")
    head = frames[0]
    if head.startswith(MDPW03):
        return _to_worker_03(head, frames)
    if head == EMPTY:
        if len(frames) < 2:
            return Invalid("frames")
        return _to_worker(V01, frames[2:]) if frames[1] == MDPW01 else Invalid("header")
    return _to_worker(V02, frames[1:]) if head == MDPW02 else Invalid("header")


def _request(dialect: Literal["0.1", "0.2"], rest: Sequence[bytes]) -> Request | Invalid:
    if len(rest) < 2:
        return Invalid("frames", "client", dialect)  # MDP-08: no service or no body
    if not is_service_name(rest[0]):
        return Invalid("service", "client", dialect)
    return Request(dialect, rest[0], rest[1:])


def _from_worker(dialect: Literal["0.1", "0.2"], rest: Sequence[bytes]) -> BrokerEvent:
    if len(rest) < 1:
        return Invalid("frames", "worker", dialect)
    command, arguments = rest[0], rest[1:]
    if command == b"\x01":
        if len(arguments) != 1:
            return Invalid("frames", "worker", dialect)
        return Ready(dialect, arguments[0])
    if [*arguments] in ([], [BY_FRONT]) and [command] == worker_heartbeat(dialect)[-1:]:
        return Heartbeat(dialect, "worker", by_front=bool(arguments))
    if not arguments and [command] == worker_disconnect(dialect)[-1:]:
        return Disconnect(dialect)
    if command == b"\x03" or (command == b"\x04" and dialect == V02):
        if len(arguments) < 3:
            return Invalid("frames", "worker", dialect)
        if arguments[1] != EMPTY:
            return Invalid("address", "worker", dialect)  # MDP-06: one address, then an empty frame
        if command == b"\x03" and dialect == V02:
            return Partial(dialect, arguments[0], b"", arguments[2:])
        return Final(dialect, arguments[0], b"", arguments[2:])
    return Invalid("command", "worker", dialect)


def _to_worker(dialect: Literal["0.1", "0.2"], rest: Sequence[bytes]) -> WorkerEvent:
    if len(rest) < 1:
        return Invalid("frames", "worker", dialect)
    command, arguments = rest[0], rest[1:]
    if command == b"\x02":
        if len(arguments) < 3:
            return Invalid("frames", "worker", dialect)
        if arguments[1] != EMPTY:
            return Invalid("address", "worker", dialect)
        return Work(dialect, arguments[0], arguments[2:])
    if not arguments and [command] == worker_heartbeat(dialect)[-1:]:
        return Heartbeat(dialect, "worker")
    if not arguments and [command] == worker_disconnect(dialect)[-1:]:
        return Disconnect(dialect)
    return Invalid("command", "worker", dialect)


def _from_client_03(head: bytes, frames: Sequence[bytes]) -> BrokerEvent:
    command, id = head[:HEAD_BYTES], head[HEAD_BYTES:]
    if command == CLIENT_HEARTBEAT_03:
        return Invalid("frames", "client", V03) if id or len(frames) > 1 else Heartbeat(V03, "client")
    if command not in (CLIENT_REQUEST_03, CLIENT_CANCEL_03):
        return Invalid("command", "client", V03)
    if len(id) != ID_BYTES:
        return Invalid("id", "client", V03)
    if command == CLIENT_CANCEL_03:
        return Invalid("frames", "client", V03) if len(frames) > 1 else Cancel(id)
    if len(frames) < 4:
        return Invalid("frames", "client", V03, id)
    if not is_service_name(frames[1]):
        return Invalid("service", "client", V03, id)
    return Request(V03, frames[1], frames[3:], id, frames[2])


def _to_client_03(head: bytes, frames: Sequence[bytes]) -> ClientEvent:
    command, id = head[:HEAD_BYTES], head[HEAD_BYTES:]
    if command == CLIENT_HEARTBEAT_03:
        return Invalid("frames", "client", V03) if id or len(frames) > 1 else Heartbeat(V03, "client")
    if command not in (CLIENT_PARTIAL_03, CLIENT_FINAL_03, CLIENT_ERROR_03, CLIENT_PROGRESS_03):
        return Invalid("command", "client", V03)
    if len(id) != ID_BYTES:
        return Invalid("id", "client", V03)
    if command == CLIENT_ERROR_03:
        return _failure("client", id, frames)
    if command == CLIENT_PROGRESS_03:
        return _progress("client", id, frames)
    if len(frames) < 2:
        return Invalid("frames", "client", V03, id)
    return Final(V03, id, b"", frames[1:]) if command == CLIENT_FINAL_03 else Partial(V03, id, b"", frames[1:])


def _from_worker_03(head: bytes, frames: Sequence[bytes]) -> BrokerEvent:
    command, token = head[:HEAD_BYTES], head[HEAD_BYTES:]
    if head == WORKER_READY_03:
        return Ready(V03, frames[1], frames[2]) if len(frames) == 3 else Invalid("frames", "worker", V03)
    if head == WORKER_HEARTBEAT_03:
        return _worker_heartbeat_03(frames)
    if head == WORKER_DISCONNECT_03:
        return Disconnect(V03) if len(frames) == 1 else Invalid("frames", "worker", V03)
    if command not in (WORKER_PARTIAL_03, WORKER_FINAL_03, WORKER_ERROR_03, WORKER_RETURN_03, WORKER_PROGRESS_03):
        return Invalid("command", "worker", V03)
    if len(token) != ID_BYTES:
        return Invalid("id", "worker", V03)
    if command == WORKER_RETURN_03:
        return Return(token) if len(frames) == 1 else Invalid("frames", "worker", V03, token)
    if command == WORKER_ERROR_03:
        return _failure("worker", token, frames)
    if command == WORKER_PROGRESS_03:
        return _progress("worker", token, frames)
    if len(frames) < 2:
        return Invalid("frames", "worker", V03, token)
    return Final(V03, token, b"", frames[1:]) if command == WORKER_FINAL_03 else Partial(V03, token, b"", frames[1:])


def _to_worker_03(head: bytes, frames: Sequence[bytes]) -> WorkerEvent:
    command, token = head[:HEAD_BYTES], head[HEAD_BYTES:]
    if head == WORKER_HEARTBEAT_03:
        return Heartbeat(V03, "worker") if len(frames) == 1 else Invalid("frames", "worker", V03)
    if head == WORKER_DISCONNECT_03:
        return Disconnect(V03) if len(frames) == 1 else Invalid("frames", "worker", V03)
    if head == WORKER_PING_03:
        return Ping() if len(frames) == 1 else Invalid("frames", "worker", V03)
    if command not in (WORKER_REQUEST_03, WORKER_CANCEL_03, WORKER_RECALL_03):
        return Invalid("command", "worker", V03)
    if len(token) != ID_BYTES:
        return Invalid("id", "worker", V03)
    if command != WORKER_REQUEST_03:
        about = Cancel if command == WORKER_CANCEL_03 else Recall
        return about(token) if len(frames) == 1 else Invalid("frames", "worker", V03)
    if len(frames) < 3:
        return Invalid("frames", "worker", V03, token)
    return Work(V03, token, frames[2:], frames[1])


def _worker_heartbeat_03(frames: Sequence[bytes]) -> Heartbeat | Invalid:
    if len(frames) == 1:
        return Heartbeat(V03, "worker")
    try:
        stuck, draining = decode_heartbeat_options(frames[1]) if len(frames) == 2 else (False, False)
    except BadOptions:
        stuck = draining = False
    # A worker that is neither sends a plain heartbeat; other options are invalid.
    return Heartbeat(V03, "worker", stuck, draining) if stuck or draining else Invalid("frames", "worker", V03)


def _failure(role: Literal["client", "worker"], id: bytes, frames: Sequence[bytes]) -> Failure | Invalid:
    if len(frames) != 3:
        return Invalid("frames", role, V03, id)
    code = frames[1]
    if not 0 < len(code) <= CODE_BYTES_MAX or code.strip(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_"):
        return Invalid("error", role, V03, id)
    return Failure(id, code.decode("ascii"), frames[2][:TEXT_BYTES_MAX].decode(errors="replace"))


def _progress(role: Literal["client", "worker"], id: bytes, frames: Sequence[bytes]) -> ProgressReport | Invalid:
    if len(frames) != 2 or len(frames[1]) > PROGRESS_BYTES_MAX:
        return Invalid("frames", role, V03, id)
    return ProgressReport(id, frames[1])
