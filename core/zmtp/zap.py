"""ZAP: request about a peer's credentials, and reply (RFC 27; rules ZAP-01..12).

The request goes from the socket that runs a server-side mechanism to one handler, at `inproc://zeromq.zap.01` or in process
(`core.Authenticator`). The frames, as a DEALER or ROUTER end sees them:

    request   [routing id ...][""]["1.0"][request id][domain][address][identity][mechanism][credential ...]
    reply     [routing id ...][""]["1.0"][request id][status][status text][user id][metadata]

This module has both codecs and knows no socket. `verdict_without_handler` is the answer where there is no handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from core.constants import ProtocolErrorCode
from core.errors import HandshakeError, RemoteProtocolError
from core.machine.value_copies import reduced
from core.zmtp.commands import decode_metadata, encode_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"

_VERSION = b"1.0"
# 200 accepted, 300 try again later, 400 refused, 500 the handler failed; nothing else is a status (ZAP-03).
STATUS_CODES: Final = frozenset((b"200", b"300", b"400", b"500"))
_REPLY_FRAMES = 7  # with the delimiter (ZAP-02)
_REQUEST_FIELDS = 6  # version, request id, domain, address, identity, mechanism
# Properties that identify a peer: its user id, given by an authenticator, and its CURVE key, which it has proved to own.
PROVEN_PROPERTIES: Final = (b"user-id", b"curve-key")
# Names that a handler's metadata cannot set: these come from the handshake or from proof.
RESERVED_PROPERTIES: Final = frozenset((b"socket-type", b"identity", *PROVEN_PROPERTIES))
# Number of credentials of a mechanism; any number for other names.
_CREDENTIALS = {b"NULL": 0, b"PLAIN": 2, b"CURVE": 1}
# Proxies between socket and handler, each adding one routing id (ZAP-11); bounded, because a reply repeats them all.
_ENVELOPE_FRAMES_MAX = 16


@dataclass(frozen=True, slots=True)
class ZapRequest:
    """Facts about a peer, for a handler.

    Attributes:
        mechanism: b"NULL", b"PLAIN" or b"CURVE".
        domain: the ZAP_DOMAIN of the socket that asks.
        address: of the peer: dotted IPv4, canonical IPv6, or `:uid:gid:pid` for ipc (ZAP-10).
        identity: of the peer if known. Do not trust it: ZMTP sends it after the handshake, and libzmq puts the server's own
            there (ZAP-08).
        credentials: none for NULL; user name, password for PLAIN; the client's 32 raw bytes of public key for CURVE.
        request_id: opaque, to be repeated in the reply (ZAP-09).
        envelope: the routing ids in front of the delimiter, to be repeated in the reply (ZAP-11).
        connected: an authenticator that accepted this peer earlier is asked again, because it has changed; never in a message.
    """

    mechanism: bytes = b"NULL"
    domain: bytes = b""
    address: bytes = b""
    identity: bytes = b""
    credentials: tuple[bytes, ...] = field(default=(), repr=False)  # never in a log line
    request_id: bytes = b"1"
    envelope: tuple[bytes, ...] = ()
    connected: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def encode(self) -> list[bytes]:
        """Return the frames of the request, delimiter included."""
        return [
            *self.envelope,
            b"",
            _VERSION,
            self.request_id,
            self.domain,
            self.address,
            self.identity,
            self.mechanism,
            *self.credentials,
        ]

    @classmethod
    def decode(cls, frames: Sequence[bytes]) -> ZapRequest:
        """Read a request as a handler on ROUTER or DEALER receives it: `[routing id ...][""]["1.0"][...]`.

        Raises:
            RemoteProtocolError: not a ZAP 1.0 request; it came from a broken socket of this process, so a handler drops it.
        """
        delimiter = next((n for n, frame in enumerate(frames) if not frame), None)
        if delimiter is None or delimiter > _ENVELOPE_FRAMES_MAX:
            raise RemoteProtocolError("ZAP request has no delimiter", code=ProtocolErrorCode.ZAP_UNSPECIFIED)
        fields = frames[delimiter + 1 :]
        if len(fields) < _REQUEST_FIELDS:
            raise RemoteProtocolError(f"ZAP request of {len(fields)} frames", code=ProtocolErrorCode.ZAP_UNSPECIFIED)
        version, request_id, domain, address, identity, mechanism = fields[:_REQUEST_FIELDS]
        credentials = tuple(fields[_REQUEST_FIELDS:])
        if version != _VERSION:
            raise RemoteProtocolError(f"ZAP request of version {version.hex()}", code=ProtocolErrorCode.ZAP_BAD_VERSION)
        if len(credentials) != _CREDENTIALS.get(mechanism, len(credentials)):
            raise RemoteProtocolError(
                f"ZAP request with {len(credentials)} credentials for mechanism {mechanism.hex()}",
                code=ProtocolErrorCode.ZAP_UNSPECIFIED,
            )
        return cls(mechanism, domain, address, identity, credentials, request_id, tuple(frames[:delimiter]))


@dataclass(frozen=True, slots=True)
class ZapReply:
    """Verdict of a handler on a peer.

    Attributes:
        status_code: b"200" accepted, b"300" temporary failure, b"400" refused, b"500" the handler failed.
        status_text: for people.
        user_id: becomes the message property `User-Id` (ZAP-04).
        metadata: further message properties, name to value.
    """

    status_code: bytes
    status_text: bytes = b""
    user_id: bytes = b""
    metadata: dict[bytes, bytes] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    @property
    def accepted(self) -> bool:
        """Whether the handshake goes on."""
        return self.status_code == b"200"

    def encode(self, request: ZapRequest) -> list[bytes]:
        """Return the frames of this reply to `request`, with its routing ids, delimiter and request id (ZAP-09, ZAP-11)."""
        metadata = encode_metadata(self.metadata.items())
        return [
            *request.envelope,
            b"",
            _VERSION,
            request.request_id,
            self.status_code,
            self.status_text,
            self.user_id,
            metadata,
        ]

    @classmethod
    def decode(cls, frames: Sequence[bytes], request: ZapRequest) -> ZapReply:
        """Read the reply to `request`: `[""]["1.0"][request id][status][status text][user id][metadata]`.

        Raises:
            HandshakeError: any other number of frames, version, request id, status or metadata; the connection that was asked
                about is closed (ZAP-02, ZAP-03). `code` is one of ProtocolErrorCode.ZAP_*.
        """
        if len(frames) != _REPLY_FRAMES or frames[0]:
            raise HandshakeError(f"ZAP reply of {len(frames)} frames", code=ProtocolErrorCode.ZAP_MALFORMED_REPLY)
        _, version, request_id, status, text, user_id, metadata = frames
        if version != _VERSION:
            raise HandshakeError(f"ZAP reply of version {version.hex()}", code=ProtocolErrorCode.ZAP_BAD_VERSION)
        if request_id != request.request_id:
            raise HandshakeError("ZAP reply to another request", code=ProtocolErrorCode.ZAP_BAD_REQUEST_ID)
        if status not in STATUS_CODES:
            raise HandshakeError(f"ZAP status {status.hex()}", code=ProtocolErrorCode.ZAP_INVALID_STATUS_CODE)
        try:
            properties = decode_metadata(metadata)
        except RemoteProtocolError as error:
            raise HandshakeError(f"ZAP reply: {error.reason}", code=ProtocolErrorCode.ZAP_INVALID_METADATA) from error
        return cls(status, text, user_id, properties)


Judge: TypeAlias = Callable[[ZapRequest], Awaitable[ZapReply]]


def must_ask(mechanism: bytes, domain: bytes, *, enforce_domain: bool) -> bool:
    """Return whether a server-side handshake asks ZAP (ZAP-06, CURVE-15).

    NULL asks only if a domain is set. CURVE does not ask if domains are enforced and none is set: encryption for everybody.
        PLAIN always asks, because its credentials mean nothing without an authenticator.
    """
    if mechanism == b"NULL":
        return bool(domain)
    if mechanism == b"CURVE":
        return bool(domain) or not enforce_domain
    return True


def verdict_without_handler(mechanism: bytes, *, enforce_domain: bool) -> ZapReply:
    """Return the verdict when ZAP must be asked and there is no handler (PLAIN-06, CURVE-15, ZAP-06).

    NULL and CURVE accept the peer unless domains are enforced, like libzmq; PLAIN never does.
    """
    if mechanism == b"PLAIN" or enforce_domain:
        return ZapReply(b"300", b"no authentication handler")
    return ZapReply(b"200")


def claimed(metadata: bytes) -> dict[bytes, bytes]:
    """Decode a peer's metadata, without the properties that it cannot claim."""
    properties = decode_metadata(metadata)
    for name in PROVEN_PROPERTIES:
        properties.pop(name, None)
    return properties
