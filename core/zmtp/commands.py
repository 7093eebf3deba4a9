"""ZMTP commands and metadata: `name-length(1) name data`, and properties `name-length(1) name value-length(4) value`.

RFC 23 and 37; ZMTP-30..47. Pure codecs; `connection` and the mechanisms check the order of commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

PING_CONTEXT_MAX: Final = 16  # bytes, ZMTP-51
TTL_MAX: Final = 655  # tenths of a second; libzmq multiplies in 16 bits and wraps above (ZMTP-54)


def command(name: bytes, data: bytes = b"") -> bytes:
    return bytes((len(name),)) + name + data


def parse_command(body: bytes) -> tuple[bytes, bytes]:
    """Split a command body into (name, data); raises RemoteProtocolError: the body is empty or the name is longer than it."""
    if not body or 1 + body[0] > len(body):
        raise RemoteProtocolError("command shorter than its name", code=Code.ZMTP_MALFORMED_COMMAND_UNSPECIFIED)
    end = 1 + body[0]
    return body[1:end], body[end:]


def encode_metadata(properties: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"".join((bytes((len(name),)), name, len(value).to_bytes(4, "big"), value)) for name, value in properties])


def decode_metadata(data: bytes) -> dict[bytes, bytes]:
    """Decode a metadata block to lower-case name → value; the last of a name wins (ZMTP-37, 43). Raises HandshakeError."""
    properties: dict[bytes, bytes] = {}
    at, size = 0, len(data)
    while at < size:
        name_end = at + 1 + data[at]
        value_start = name_end + 4
        value_end = value_start + int.from_bytes(data[name_end:value_start], "big")
        if not data[at] or value_start > size or value_end > size:
            raise HandshakeError("malformed metadata", code=Code.ZMTP_INVALID_METADATA, offset=at)
        properties[data[at + 1 : name_end].lower()] = data[value_start:value_end]
        at = value_end
    return properties


def error_reason(data: bytes) -> bytes:
    """Return the reason of an ERROR command: `len(1) reason`; raises HandshakeError."""
    if not data or 1 + data[0] > len(data):
        raise HandshakeError("ERROR shorter than its reason", code=Code.ZMTP_MALFORMED_COMMAND_ERROR)
    return data[1 : 1 + data[0]]


def ping(ttl_ms: int, context: bytes = b"") -> bytes:
    """Return a PING body; the TTL is sent in tenths of a second, at most 65.5 s (ZMTP-54, ZMTP-55)."""
    return command(b"PING", min(ttl_ms // 100, TTL_MAX).to_bytes(2, "big") + context[:PING_CONTEXT_MAX])


def pong(data: bytes) -> tuple[bytes, int]:
    """Return (PONG body, TTL in ms) for a PING, 16 bytes of its context repeated; raises RemoteProtocolError (ZMTP-52)."""
    if len(data) < 2:
        raise RemoteProtocolError("PING without a TTL", code=Code.ZMTP_MALFORMED_COMMAND_UNSPECIFIED)
    return command(b"PONG", data[2 : 2 + PING_CONTEXT_MAX]), int.from_bytes(data[:2], "big") * 100
