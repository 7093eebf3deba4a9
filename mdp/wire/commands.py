"""The commands of Majordomo: MDP/0.1 (RFC 7), MDP/0.2 (RFC 18) and our draft MDP/0.3 (specs/mdp.md).

Pure: names, octets and frames of each command to send; `mdp.wire.events` decodes received ones. It knows nothing of sockets, routing ids
(the caller adds frame 0 of a ROUTER), queues or time.

                       MDP/0.1                       MDP/0.2                       MDP/0.3
    client REQUEST     "" MDPC01 service body+       MDPC02 01 service body+       MDPC03.01.id8 service options body+
           CANCEL                                                                  MDPC03.05.id8
    to it  PARTIAL                                   MDPC02 02 service body+       MDPC03.02.id8 body+
           REPLY/FINAL "" MDPC01 service body+       MDPC02 03 service body+       MDPC03.03.id8 body+
           ERROR                                                                   MDPC03.04.id8 code text
           PROGRESS                                                                MDPC03.07.id8 progress
    both   HEARTBEAT                                                               MDPC03.06
    worker READY       "" MDPW01 01 service          MDPW02 01 service             MDPW03.01 service options
           PARTIAL                                   MDPW02 03 client "" body+     MDPW03.03.token8 body+
           REPLY/FINAL "" MDPW01 03 client "" body+  MDPW02 04 client "" body+     MDPW03.04.token8 body+
           ERROR                                                                   MDPW03.05.token8 code text
           RETURN                                                                  MDPW03.0b.token8
           PROGRESS                                                                MDPW03.0c.token8 progress
    to it  REQUEST     "" MDPW01 02 client "" body+  MDPW02 02 client "" body+     MDPW03.02.token8 options body+
           CANCEL                                                                  MDPW03.08.token8
           RECALL                                                                  MDPW03.09.token8
           PING                                                                    MDPW03.0a
    both   HEARTBEAT   "" MDPW01 04                  MDPW02 05                     MDPW03.06
           DISCONNECT  "" MDPW01 05                  MDPW02 06                     MDPW03.07

A dot joins octets of one frame: MDP/0.3 packs header, command and number into a single frame, because every frame costs time to decode, and
because the whole frame is then the key of the request at the receiver.

Hot paths do not call the functions below: they compare and build frames with the `*_03` heads, the first octets of a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Dialect: TypeAlias = Literal["0.1", "0.2", "0.3"]

V01: Final = "0.1"
V02: Final = "0.2"
V03: Final = "0.3"
DIALECTS: tuple[Dialect, ...] = (V01, V02, V03)

EMPTY: Final = b""
MDPC01: Final = b"MDPC01"
MDPC02: Final = b"MDPC02"
MDPC03: Final = b"MDPC03"
MDPW01: Final = b"MDPW01"
MDPW02: Final = b"MDPW02"
MDPW03: Final = b"MDPW03"

# Octets of a client's request id and of a worker's token in MDP/0.3.
ID_BYTES: Final = 8
# Octets of header and command, and of a whole numbered command frame, in MDP/0.3.
HEAD_BYTES: Final = 7
NUMBERED_BYTES: Final = HEAD_BYTES + ID_BYTES
# A service name is a word, not a payload; 255 bytes fit into a short ZMTP frame and a metadata name (MDP-05).
SERVICE_BYTES_MAX: Final = 255
# Longest text of an ERROR; the rest is truncated, so that a peer cannot fill our logs.
TEXT_BYTES_MAX: Final = 1024
# Longest frame of a PROGRESS: a text of the longest size, a number, and their names.
PROGRESS_BYTES_MAX: Final = TEXT_BYTES_MAX + 64
# Longest code of an ERROR; the longest of ours has 17 characters.
CODE_BYTES_MAX: Final = 32

CLIENT_REQUEST_03: Final = MDPC03 + b"\x01"
CLIENT_PARTIAL_03: Final = MDPC03 + b"\x02"
CLIENT_FINAL_03: Final = MDPC03 + b"\x03"
CLIENT_ERROR_03: Final = MDPC03 + b"\x04"
CLIENT_CANCEL_03: Final = MDPC03 + b"\x05"
CLIENT_HEARTBEAT_03: Final = MDPC03 + b"\x06"
CLIENT_PROGRESS_03: Final = MDPC03 + b"\x07"

WORKER_READY_03: Final = MDPW03 + b"\x01"
WORKER_REQUEST_03: Final = MDPW03 + b"\x02"
WORKER_PARTIAL_03: Final = MDPW03 + b"\x03"
WORKER_FINAL_03: Final = MDPW03 + b"\x04"
WORKER_ERROR_03: Final = MDPW03 + b"\x05"
WORKER_HEARTBEAT_03: Final = MDPW03 + b"\x06"
WORKER_DISCONNECT_03: Final = MDPW03 + b"\x07"
WORKER_CANCEL_03: Final = MDPW03 + b"\x08"
WORKER_RECALL_03: Final = MDPW03 + b"\x09"
WORKER_PING_03: Final = MDPW03 + b"\x0a"
WORKER_RETURN_03: Final = MDPW03 + b"\x0b"
WORKER_PROGRESS_03: Final = MDPW03 + b"\x0c"

# Last frame of a HEARTBEAT that the front of shards sends for a worker of MDP/0.1 or 0.2. It does not show what the worker itself can send.
BY_FRONT: Final = b"front"
# msgpack of {"stuck": true}, {"draining": true} and both
_STUCK: Final = b"\xa5stuck\xc3"
_DRAINING: Final = b"\xa8draining\xc3"
_STATES: Final = {(True, False): b"\x81" + _STUCK, (False, True): b"\x81" + _DRAINING, (True, True): b"\x82" + _STUCK + _DRAINING}
_HEARTBEATS: dict[Dialect, list[bytes]] = {V01: [EMPTY, MDPW01, b"\x04"], V02: [MDPW02, b"\x05"], V03: [WORKER_HEARTBEAT_03]}
_DISCONNECTS: dict[Dialect, list[bytes]] = {V01: [EMPTY, MDPW01, b"\x05"], V02: [MDPW02, b"\x06"], V03: [WORKER_DISCONNECT_03]}


def printable(octets: bytes) -> str:
    """Return bytes of a peer as one line of text; all in hexadecimal if some are not printable UTF-8."""
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        return octets.hex()
    return text if text.isprintable() else octets.hex()


def is_service_name(name: bytes) -> bool:
    """Return whether this is a valid service name: 1 to 255 bytes of printable UTF-8 (MDP-05)."""
    if not 0 < len(name) <= SERVICE_BYTES_MAX:
        return False
    try:
        return name.decode().isprintable()
    except UnicodeDecodeError:
        return False


def client_request(dialect: Dialect, service: bytes, body: Sequence[bytes], *, id: bytes = b"", options: bytes = b"") -> list[bytes]:
    """Return the frames of a client's REQUEST; `id` (8 bytes) and `options` (a msgpack map) are of MDP/0.3."""
    if dialect == V03:
        return [CLIENT_REQUEST_03 + id, service, options, *body]
    if dialect == V02:
        return [MDPC02, b"\x01", service, *body]
    return [EMPTY, MDPC01, service, *body]


def client_heartbeat() -> list[bytes]:
    """Return the frame of a HEARTBEAT between client and broker, either way (MDP/0.3)."""
    return [CLIENT_HEARTBEAT_03]


def client_final(dialect: Dialect, service: bytes, id: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the frames of a FINAL to a client (REPLY in MDP/0.1); the id is for MDP/0.3 only."""
    if dialect == V03:
        return [CLIENT_FINAL_03 + id, *body]
    if dialect == V02:
        return [MDPC02, b"\x03", service, *body]
    return [EMPTY, MDPC01, service, *body]


def worker_ready(dialect: Dialect, service: bytes, *, options: bytes = b"") -> list[bytes]:
    """Return the frames of a worker's READY; options are a msgpack map or empty, MDP/0.3 only."""
    if dialect == V03:
        return [WORKER_READY_03, service, options]
    if dialect == V02:
        return [MDPW02, b"\x01", service]
    return [EMPTY, MDPW01, b"\x01", service]


def worker_partial(dialect: Dialect, address: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the frames of a worker's PARTIAL (not in MDP/0.1)."""
    if dialect == V03:
        return [WORKER_PARTIAL_03 + address, *body]
    return [MDPW02, b"\x03", address, EMPTY, *body]


def worker_final(dialect: Dialect, address: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the frames of a worker's FINAL, or of its REPLY in MDP/0.1."""
    if dialect == V03:
        return [WORKER_FINAL_03 + address, *body]
    if dialect == V02:
        return [MDPW02, b"\x04", address, EMPTY, *body]
    return [EMPTY, MDPW01, b"\x03", address, EMPTY, *body]


def is_code(code: str) -> bool:
    """Return whether this is a valid code of an ERROR: capital letters and underscores, up to 32."""
    return 0 < len(code) <= CODE_BYTES_MAX and not code.strip("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")


def worker_error(token: bytes, code: str, text: str) -> list[bytes]:
    """Return the frames of a worker's ERROR (MDP/0.3)."""
    return [WORKER_ERROR_03 + token, code.encode("ascii"), text.encode()]


def worker_cancel(token: bytes) -> list[bytes]:
    """Return the frame of a CANCEL to a worker (MDP/0.3)."""
    return [WORKER_CANCEL_03 + token]


def worker_recall(token: bytes) -> list[bytes]:
    """Return the frame that asks a worker to return a request that it has not started (MDP/0.3)."""
    return [WORKER_RECALL_03 + token]


def worker_return(token: bytes) -> list[bytes]:
    """Return the frame with which a worker returns such a request (MDP/0.3)."""
    return [WORKER_RETURN_03 + token]


def worker_progress(token: bytes, progress: bytes) -> list[bytes]:
    """Return the frames that say how far a request is (MDP/0.3); see `mdp.wire.progress`."""
    return [WORKER_PROGRESS_03 + token, progress]


def worker_ping() -> list[bytes]:
    """Return the frame that asks a worker for a HEARTBEAT at once (MDP/0.3)."""
    return [WORKER_PING_03]


def front_heartbeat(dialect: Dialect) -> list[bytes]:
    """Return what a front sends to a shard while octets of a message move to or from a worker."""
    return worker_heartbeat(dialect) if dialect == V03 else [*worker_heartbeat(dialect), BY_FRONT]


def worker_heartbeat(dialect: Dialect, *, stuck: bool = False, draining: bool = False) -> list[bytes]:
    """Return the frames of a HEARTBEAT between worker and broker, either way; the states are of workers of MDP/0.3 only."""
    return [*_HEARTBEATS[dialect], _STATES[stuck, draining]] if stuck or draining else [*_HEARTBEATS[dialect]]


def worker_disconnect(dialect: Dialect) -> list[bytes]:
    """Return the frames of a DISCONNECT between worker and broker, either way."""
    return [*_DISCONNECTS[dialect]]
