"""PLAIN: user name and password in clear text, checked through ZAP (RFC 24; PLAIN-01..10).

    client                              server
      HELLO user password  ------------>
                                        asks ZAP
                           <------------ WELCOME, or ERROR
      INITIATE metadata    ------------>
                           <------------ READY metadata, or ERROR
      messages             <-----------> messages

    HELLO      05 "HELLO" ulen(1) user plen(1) password
    WELCOME    07 "WELCOME"
    INITIATE   08 "INITIATE" metadata
    READY      05 "READY" metadata
    ERROR      05 "ERROR" len(1) reason

Both roles, sans-I/O. The state is the name of the expected command.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, LocalProtocolError
from core.zmtp.commands import command, parse_command
from core.zmtp.mechanism import Mechanism, check_metadata, refusal
from core.zmtp.zap import claimed

if TYPE_CHECKING:
    from core.zmtp.zap import ZapReply, ZapRequest

_HELLO: Final = b"HELLO"
_WELCOME: Final = b"WELCOME"
_INITIATE: Final = b"INITIATE"
_READY: Final = b"READY"
_ERROR: Final = b"ERROR"
_CREDENTIAL_OCTETS_MAX: Final = 255  # each has a length of one byte (PLAIN-10)
# libzmq since 4.3.0 writes ERROR so, because "\x5" "ERROR" became "\x5E" "RROR" in its source (PLAIN-08).
_MISSPELT_ERROR: Final = b"\x5eRROR"


def _expect(body: bytes, expected: bytes | None) -> bytes:
    """Return the data of the expected command; ERROR and any other command raise HandshakeError."""
    name, data = parse_command(body)
    if name == _ERROR:
        raise refusal(data)
    if name != expected:
        raise HandshakeError(f"unexpected command {name.hex()}", code=Code.ZMTP_UNEXPECTED_COMMAND)
    return data


class PlainClient(Mechanism):
    """Client: sends its credentials. Raises LocalProtocolError if one is longer than the wire allows (PLAIN-10)."""

    name: ClassVar[bytes] = b"PLAIN"

    def __init__(self, metadata: bytes, *, username: bytes, password: bytes, metadata_bytes_max: int) -> None:
        super().__init__()
        for what, value in (("user name", username), ("password", password)):
            if len(value) > _CREDENTIAL_OCTETS_MAX:
                raise LocalProtocolError(f"{what} of {len(value)} bytes, at most {_CREDENTIAL_OCTETS_MAX} fit")
        self._metadata = metadata  # own properties, encoded
        self._metadata_bytes_max = metadata_bytes_max  # limit of the peer's metadata
        self._hello = b"".join((bytes((len(username),)), username, bytes((len(password),)), password))
        self._expected: bytes | None = None

    def start(self) -> list[bytes]:
        self._expected = _WELCOME
        return [command(_HELLO, self._hello)]

    def receive(self, body: bytes) -> list[bytes]:
        if body.startswith(_MISSPELT_ERROR):
            raise refusal(body[len(_MISSPELT_ERROR) :])
        data = _expect(body, self._expected)
        if self._expected == _WELCOME:
            if data:
                raise HandshakeError(f"WELCOME of {len(body)} bytes", code=Code.ZMTP_MALFORMED_COMMAND_WELCOME)
            self._expected = _READY
            return [command(_INITIATE, self._metadata)]
        check_metadata(data, self._metadata_bytes_max)
        self.peer_metadata = claimed(data)
        self._expected = None
        self.complete = True
        return []


class PlainServer(Mechanism):
    """Server: has the credentials checked."""

    name: ClassVar[bytes] = b"PLAIN"

    def __init__(self, metadata: bytes, *, zap: ZapRequest, metadata_bytes_max: int) -> None:
        super().__init__(as_server=True)
        self._metadata = metadata  # own properties, encoded
        self._metadata_bytes_max = metadata_bytes_max  # limit of the peer's metadata
        self._zap = zap  # what is known of the peer; mechanism and credentials are filled in
        self._zap_properties: dict[bytes, bytes] = {}
        self._expected: bytes | None = _HELLO

    def start(self) -> list[bytes]:
        return []  # the client speaks first

    def receive(self, body: bytes) -> list[bytes]:
        """Take HELLO, which sets `zap_request`, then INITIATE."""
        data = _expect(body, self._expected)
        if self._expected == _HELLO:
            self._expected = None  # until the verdict
            self.zap_request = replace(self._zap, mechanism=self.name, credentials=_credentials(data))
            return []
        check_metadata(data, self._metadata_bytes_max)
        self.peer_metadata = claimed(data) | self._zap_properties
        self._expected = None
        self.complete = True
        return [command(_READY, self._metadata)]

    def authenticated(self, reply: ZapReply) -> list[bytes]:
        """Take the authenticator's reply; returns WELCOME, raises AuthenticationRefused for any status but 200."""
        if self.zap_request is None:
            raise LocalProtocolError("no authentication was asked for")
        self._zap_properties = self.apply_verdict(reply)
        self._expected = _INITIATE
        return [command(_WELCOME)]


def _credentials(data: bytes) -> tuple[bytes, bytes]:
    """Split the data of a HELLO into (user, password) (PLAIN-03)."""
    user_end = 1 + data[0] if data else 0
    if 0 < user_end < len(data) and user_end + 1 + data[user_end] == len(data):
        return data[1:user_end], data[user_end + 1 :]
    raise HandshakeError(f"HELLO with {len(data)} bytes of credentials", code=Code.ZMTP_MALFORMED_COMMAND_HELLO)
