"""Security mechanisms: the interface of a handshake after the greetings, and NULL (RFC 23, 37; ZMTP-34..36).

A mechanism takes and returns command bodies (`name-length name data`); framing, limits and time belong to `connection`.
Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from core.constants import ProtocolErrorCode as Code
from core.errors import AuthenticationRefused, HandshakeError, LimitExceeded
from core.zmtp.commands import command, error_reason, parse_command
from core.zmtp.zap import RESERVED_PROPERTIES, claimed

if TYPE_CHECKING:
    from core.zmtp.zap import ZapReply, ZapRequest


def refusal(data: bytes) -> HandshakeError:
    """Return the error that a received ERROR means; 300, 400 and 500 are authentication (ZMTP-47)."""
    reason = error_reason(data)
    if reason in (b"300", b"400", b"500"):
        return AuthenticationRefused(reason)
    text = reason.decode("ascii", "backslashreplace")
    return PeerError(f"peer refused the handshake: {text!r}")


def sealed_too_long(size: int, limit: int) -> LimitExceeded:
    return LimitExceeded(f"sealed frame of {size} bytes, at most {limit} are taken", kind="frame_bytes", size=size, limit=limit)


def check_metadata(data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise HandshakeError(f"metadata of {len(data)} bytes, at most {limit} are taken", code=Code.ZMTP_INVALID_METADATA)


class PeerError(HandshakeError):
    """The peer sent ERROR: it refuses our configuration, so a connecting socket gives up (ZMTP-47)."""


class Mechanism(ABC):
    """One side of one handshake, and for CURVE of the traffic after it."""

    name: ClassVar[bytes]
    encrypts: ClassVar[bool] = False

    def __init__(self, *, as_server: bool = False) -> None:
        self.as_server = as_server
        self.bare = False  # it checks nothing of a peer, so that peers without mechanisms are possible (ZMTP-13)
        self.complete = False
        self.peer_metadata: dict[bytes, bytes] = {}
        self.user_id: str | None = None  # name of the peer given by the authenticator, None if it was not asked
        # set while the authenticator must be asked; the shell calls `authenticated` with the answer
        self.zap_request: ZapRequest | None = None
        self.last_words: list[bytes] = []

    @abstractmethod
    def start(self) -> list[bytes]:
        """Return the command bodies to send after the greetings."""

    @abstractmethod
    def receive(self, body: bytes) -> list[bytes]:
        """Take one command body of the handshake; returns those to send. Raises HandshakeError."""

    def work(self, body: bytes) -> int:
        """Return the number of key agreements this command costs. Anyone can send it, so the listener rations them (C3)."""
        return 0

    def authenticated(self, reply: ZapReply) -> list[bytes]:
        """Take the authenticator's answer to `zap_request`; returns bodies to send."""
        raise HandshakeError(f"no authentication was asked for: {reply.status_code!r}")

    def apply_verdict(self, reply: ZapReply) -> dict[bytes, bytes]:
        """Close the question with the handler's reply (ZAP-04, ZAP-05, PLAIN-07).

        400 and 500 leave an ERROR with the code among the last words; 300 is silent, so that the peer tries again.

        Returns:
            Properties (lower-case name to value) the handler adds to those of the peer, `user-id` among them.

        Raises:
            AuthenticationRefused: the status is not 200.
        """
        self.zap_request = None
        if not reply.accepted:
            if reply.status_code != b"300":
                self.last_words.append(command(b"ERROR", bytes((len(reply.status_code),)) + reply.status_code))
            raise AuthenticationRefused(reply.status_code)
        # The handler is trusted, but a user id may be text of any encoding.
        self.user_id = reply.user_id.decode("utf-8", "backslashreplace")
        properties = {name.lower(): value for name, value in reply.metadata.items() if name.lower() not in RESERVED_PROPERTIES}
        if reply.user_id:
            properties[b"user-id"] = reply.user_id
        return properties

    def seal(self, flags: int, body: bytes) -> bytes:
        """Return the MESSAGE body for one frame (flags 01 MORE, 02 COMMAND) (CURVE-12)."""
        raise HandshakeError(f"{self.name.decode()} does not seal frames: {flags} {len(body)}")

    def seal_frames(self, octets: bytes) -> bytes:
        """Return encoded messages sealed for the wire."""
        raise HandshakeError(f"{self.name.decode()} does not seal frames: {len(octets)}")

    def open_frames(self, octets: bytes, at: int, body_bytes_max: int, frames: list[bytes]) -> int:
        """Open whole sealed frames from `at` on and append them in clear, in pieces; returns the end of the last.

        Raises RemoteProtocolError: longer than `body_bytes_max`, forged or replayed; those before it have been appended.
        """
        raise HandshakeError(f"{self.name.decode()} does not open frames: {len(octets) - at}")

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Return (flags 01 MORE 02 COMMAND, frame body) of a MESSAGE body."""
        raise HandshakeError(f"{self.name.decode()} does not open frames: {len(body)}")


class NullMechanism(Mechanism):
    """No security: both sides send READY at once (ZMTP-34).

    Args:
        zap: what is known of the peer, if its address is to be checked; READY waits for the verdict (ZAP-06).
    """

    name: ClassVar[bytes] = b"NULL"

    def __init__(self, metadata: bytes, *, metadata_bytes_max: int, zap: ZapRequest | None = None) -> None:
        super().__init__()
        self.bare = zap is None
        self._metadata = metadata
        self._metadata_bytes_max = metadata_bytes_max
        self._zap = zap
        self._zap_properties: dict[bytes, bytes] = {}

    def start(self) -> list[bytes]:
        """Return READY, or nothing if an authenticator is asked first."""
        self.zap_request = self._zap
        return [] if self._zap is not None else [command(b"READY", self._metadata)]

    def authenticated(self, reply: ZapReply) -> list[bytes]:
        """Take the authenticator's answer; returns READY. Raises AuthenticationRefused: any status but 200."""
        self._zap_properties = self.apply_verdict(reply)
        return [command(b"READY", self._metadata)]

    def receive(self, body: bytes) -> list[bytes]:
        """Take READY or ERROR; anything else, or a second one, is an error (ZMTP-36)."""
        name, data = parse_command(body)
        if name == b"ERROR":
            raise refusal(data)
        if name != b"READY" or self.complete:
            raise HandshakeError("expected READY", code=Code.ZMTP_UNEXPECTED_COMMAND)
        check_metadata(data, self._metadata_bytes_max)
        self.peer_metadata = claimed(data) | self._zap_properties
        self.complete = True
        return []
