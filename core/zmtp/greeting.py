"""The ZMTP greeting: 64 bytes each way, and version detection by the peer's first bytes (RFC 23, 37; ZMTP-01..09, 14).

Layout: `FF`, 8 bytes of padding, `7F`, major, minor, mechanism (20, zero padded), as-server, 31 zero bytes. A peer of
version 1.0 or 2.0 is detected after 1, 10 or 11 bytes. Where such peers are accepted the greeting is sent in stages, like libzmq's:
10 bytes at once, the 11th when the peer has sent 10, the others when it has sent 11 (ZMTP-04). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from core.errors import HandshakeError, MechanismMismatch

GREETING_BYTES: Final = 64
SIGNATURE_BYTES: Final = 10
IDENTITY_BYTES_MAX: Final = 255
MECHANISM_AT: Final = 12
MECHANISM_END: Final = 32
MAJOR: Final = 3
MINOR: Final = 1


class Generation(Enum):
    """Framing and handshake of the peer."""

    UNKNOWN = "not enough bytes yet"
    V1 = "ZMTP 1.0"
    V2 = "ZMTP 2.0"
    V3 = "ZMTP 3.x"


def greeting(mechanism: bytes, *, as_server: bool = False, padding: bytes = bytes(8)) -> bytes:
    """Return the whole 64 bytes of a 3.1 greeting (ZMTP-01); only older peers read the padding."""
    role = bool(as_server) and mechanism != b"NULL"  # ZMTP-09
    return b"\xff" + padding + b"\x7f" + bytes((MAJOR, MINOR)) + mechanism.ljust(20, b"\0") + bytes((role,)) + bytes(31)


class StagedGreeting:
    """Our greeting, sent in stages while the peer's protocol version is being detected (ZMTP-03..05, 14).

    Args:
        oldest: the oldest major version that is accepted; 3 sends all at once, 2 the 11 bytes peers of 2.0 need.
    """

    __slots__ = ("_octets", "_said")

    def __init__(self, octets: bytes, oldest: int) -> None:
        self._octets = octets
        self._said = {1: SIGNATURE_BYTES, 2: SIGNATURE_BYTES + 1}.get(oldest, GREETING_BYTES)

    def begin(self) -> bytes:
        """Return the bytes to send before anything is read."""
        return self._octets[: self._said]

    def go_on(self, data: bytes) -> bytes:
        """Return the bytes to send once the peer has sent `data`, b"" for none."""
        said = self._said
        self._said = max(said, self._may_say(data))
        return self._octets[said : self._said]

    def _may_say(self, data: bytes) -> int:
        if len(data) < SIGNATURE_BYTES or data[0] != 0xFF or not data[9] & 1:
            return 0
        return GREETING_BYTES if data[10:11] > b"\x01" else SIGNATURE_BYTES + 1


def generation(data: bytes) -> Generation:
    """Return the peer's generation from its first bytes (table of conformance 1.2, DIS-02)."""
    if not data:
        return Generation.UNKNOWN
    if data[0] != 0xFF:
        return Generation.V1
    if len(data) < SIGNATURE_BYTES:
        return Generation.UNKNOWN
    if not data[9] & 1:
        return Generation.V1
    if len(data) == SIGNATURE_BYTES:
        return Generation.UNKNOWN
    revision = data[10]
    if revision == 0:
        raise HandshakeError("revision 0 after a signature was never deployed", offset=10)
    return Generation.V2 if revision == 1 else Generation.V3


def peer_minor(data: bytes, mechanism: bytes) -> int:
    """Check a whole 3.x greeting against our mechanism; returns the minor version to speak (ZMTP-06). Raises MechanismMismatch."""
    theirs = data[MECHANISM_AT:MECHANISM_END]
    if theirs != mechanism.ljust(20, b"\0"):
        name = theirs.rstrip(b"\0").decode("ascii", "backslashreplace")
        raise MechanismMismatch(f"peer has mechanism {name!r}, we have {mechanism.decode()!r}", offset=MECHANISM_AT)
    if data[10] > MAJOR:
        return MINOR
    return min(data[11], MINOR) if data[10] == MAJOR else 0


def looks_like(data: bytes) -> str:
    """Return the name of the protocol that non-ZMTP bytes belong to, for the log."""
    if data[:4] in (b"GET ", b"POST", b"HTTP", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "):
        return "HTTP"
    if data[:2] == b"\x16\x03":
        return "TLS"
    if data[:4] == b"SSH-":
        return "SSH"
    return "something other than ZMTP"
