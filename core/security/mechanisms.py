"""Makes the security mechanism of a connection from socket options (PLAIN-01, CURVE-17)."""

from __future__ import annotations

import asyncio
import errno
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from core.constants import SecurityMechanism
from core.errors import InvalidOption
from core.runtime import runtime, supervision
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import COOKIE_LIFETIME_S, CookieKeys, is_low_order, public_key
from core.security.nacl import too_old
from core.security.plain import PlainClient, PlainServer
from core.zmtp.commands import encode_metadata
from core.zmtp.limits import properties as limit_properties
from core.zmtp.mechanism import Mechanism, NullMechanism
from core.zmtp.zap import ZapRequest, must_ask

if TYPE_CHECKING:
    from core.options import Options
    from core.zmtp.zap import Judge


class Credentials(Protocol):
    """Security of every socket of a context; see `core.security.credentials`."""

    @property
    def authenticator(self) -> Judge | None: ...  # checks peers that connect to us; None if none may
    def for_listening(self, options: Options) -> None: ...  # set what a bound endpoint needs
    def for_connecting(self, options: Options, endpoint: str) -> None: ...  # set what a connected endpoint needs


def unprotected(options: Options, endpoint: str) -> str:
    """Return a warning if other machines can reach a bound endpoint (numeric) that does not authenticate or encrypt, else ""."""
    if not endpoint.startswith("tcp://"):
        return ""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]").partition("%")[0]
    if ip_address(host).is_loopback or options.mechanism == SecurityMechanism.CURVE:
        return ""
    if options.mechanism == SecurityMechanism.PLAIN:
        return "PASSWORDS CAN BE READ on the way: PLAIN encrypts nothing, and this listens beyond this machine; use CURVE"
    if options.zap_domain:
        return ""  # every peer is authenticated by ZAP
    return "ANYBODY MAY CONNECT: this listens beyond this machine without security; use CURVE or listen on 127.0.0.1"


class Security:
    """Makes the mechanisms of one socket, and keeps the cookie keys of its CURVE handshakes."""

    __slots__ = ("_announces_identity", "_cookie_keys", "_cookie_clock", "_random_bytes", "_type_name")

    def __init__(self, type_name: bytes, announces_identity: bool) -> None:
        self._type_name = type_name  # Socket-Type of the metadata
        self._announces_identity = announces_identity  # the metadata has an Identity, empty if unset (ZMTP-38)
        self._random_bytes = runtime.current().random_bytes
        self._cookie_keys: CookieKeys | None = None
        self._cookie_clock = supervision.current().timer("core cookie clock", self._expire_cookies)

    def check(self, options: Options) -> None:
        """Refuse options (InvalidOption) with which no handshake could succeed, before an endpoint is made."""
        if self._type_name == b"STREAM" and (options.mechanism != SecurityMechanism.NULL or options.zap_domain):
            raise InvalidOption(msg="a STREAM socket is raw TCP: it has no handshake for CURVE, PLAIN or ZAP", option="security")
        if options.mechanism != SecurityMechanism.CURVE:
            return
        if lacking := too_old():
            raise InvalidOption(errno.ENOTSUP, lacking, option="curve_secretkey")
        if not options.curve_secretkey:
            raise InvalidOption(msg="CURVE needs curve_secretkey", option="curve_secretkey")
        if options.as_server:
            return
        if not options.curve_serverkey:
            raise InvalidOption(msg="a CURVE client needs curve_serverkey", option="curve_serverkey")
        if options.curve_publickey and options.curve_publickey != public_key(options.curve_secretkey):
            raise InvalidOption(msg="curve_publickey does not belong to curve_secretkey", option="curve_publickey")
        if is_low_order(options.curve_serverkey):
            raise InvalidOption(msg="curve_serverkey is a point of low order", option="curve_serverkey")

    def mechanism(self, options: Options, peer_address: str) -> Mechanism:
        """Return our side of the handshake of a new connection; `peer_address` is numeric, or `:uid:gid:pid`."""
        limit = options.max_metadata_bytes
        metadata = self._metadata(options)
        if options.mechanism == SecurityMechanism.PLAIN:
            if options.as_server:
                return PlainServer(metadata, zap=self._question(options, peer_address), metadata_bytes_max=limit)
            return PlainClient(metadata, username=options.plain_username, password=options.plain_password, metadata_bytes_max=limit)
        if options.mechanism == SecurityMechanism.CURVE:
            return self._curve(options, metadata, peer_address)
        asks = must_ask(b"NULL", options.zap_domain, enforce_domain=bool(options.zap_enforce_domain))
        zap = self._question(options, peer_address) if asks else None
        return NullMechanism(metadata, metadata_bytes_max=limit, zap=zap)

    def _metadata(self, options: Options) -> bytes:
        properties = [(b"Socket-Type", self._type_name)]
        if self._announces_identity:
            properties.append((b"Identity", options.routing_id))
        return encode_metadata([*properties, *limit_properties(options), *options.properties()])

    def _question(self, options: Options, peer_address: str) -> ZapRequest:
        address = peer_address.encode("ascii", "backslashreplace")
        return ZapRequest(domain=options.zap_domain, address=address)

    def _curve(self, options: Options, metadata: bytes, peer_address: str) -> Mechanism:
        if not options.as_server:
            return CurveClient(
                metadata,
                secret_key=options.curve_secretkey,
                public_key=options.curve_publickey,
                server_key=options.curve_serverkey,
                random_bytes=self._random_bytes,
                metadata_bytes_max=options.max_metadata_bytes,
            )
        asks = must_ask(b"CURVE", options.zap_domain, enforce_domain=bool(options.zap_enforce_domain))
        return CurveServer(
            metadata,
            secret_key=options.curve_secretkey,
            cookie_keys=self._fresh_cookie_keys(),
            random_bytes=self._random_bytes,
            zap=self._question(options, peer_address) if asks else None,
            metadata_bytes_max=options.max_metadata_bytes,
        )

    def _fresh_cookie_keys(self) -> CookieKeys:
        loop = asyncio.get_running_loop()
        now = loop.time()
        keys = self._cookie_keys
        if keys is None:
            keys = self._cookie_keys = CookieKeys(self._random_bytes, now)
        keys.rotate(now)
        self._cookie_clock.at(now + COOKIE_LIFETIME_S)
        return keys

    def _expire_cookies(self) -> None:
        if self._cookie_keys is not None:
            self._cookie_keys.rotate(asyncio.get_running_loop().time())
