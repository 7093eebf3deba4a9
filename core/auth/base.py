"""Rules that decide on peers, configured as in ZeroMQ's Python binding: by address, domain, password, certificate or callback.

The context asks the authenticator directly, in the event loop of its sockets: there is no thread and no ZAP socket.
"""

from __future__ import annotations

import hmac
import inspect
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol

from core.auth.certificates import load_certificates
from core.zmtp import z85
from core.zmtp.zap import ZapReply, ZapRequest

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from core.zmtp.zap import Judge

__all__ = ["CURVE_ALLOW_ANY", "AuthenticatedContext", "Authenticator"]

CURVE_ALLOW_ANY: Final = "*"
_ANY_DOMAIN: Final = "*"
_NAMELESS: Final = b"anonymous"


class AuthenticatedContext(Protocol):
    """A context, blocking or not."""

    authenticator: Judge | None


class Authenticator(ABC):
    """Decides on peers of one context, between `start` and `stop`.

    Without rules, NULL is accepted, and PLAIN and CURVE are refused.

    Args:
        context: whose sockets ask; the shared one of the process when left out.
        encoding: of domains, addresses and names.
        log: gets the decisions, at level DEBUG; "zmq.auth" when left out.

    Attributes:
        allow_any: accept every CURVE key.
        passwords: names and passwords, by domain.
        certs: accepted public keys as Z85, by domain.
        credentials_providers: objects with `callback(domain, key)`, by domain.
    """

    def __init__(self, context: Any = None, encoding: str = "utf-8", log: Any = None) -> None:
        self.context: AuthenticatedContext = self._shared_context() if context is None else context
        self.encoding = encoding
        self.log: Any = log or logging.getLogger("zmq.auth")
        self.allow_any = False
        self.passwords: dict[str, Mapping[str, str]] = {}
        self.certs: dict[str, Mapping[bytes, Any]] = {}
        self.credentials_providers: dict[str, Any] = {}
        self._allowed: set[str] = set()
        self._denied: set[str] = set()

    @abstractmethod
    def _shared_context(self) -> Any: ...  # return the shared context of the process

    def start(self) -> None:
        """Decide on peers from now on."""
        self.context.authenticator = self

    def stop(self) -> None:
        """Decide no more; connected peers stay."""
        if self.context.authenticator is self:
            self.context.authenticator = None

    # -- rules

    def allow(self, *addresses: str) -> None:
        """Allow these addresses and no others. Raises ValueError after `deny`."""
        if self._denied:
            raise ValueError("allow and deny cannot be combined")
        self._allowed.update(addresses)

    def deny(self, *addresses: str) -> None:
        """Refuse these addresses. Raises ValueError after `allow`."""
        if self._allowed:
            raise ValueError("allow and deny cannot be combined")
        self._denied.update(addresses)

    def configure_plain(self, domain: str = _ANY_DOMAIN, passwords: Mapping[str, str] | None = None) -> None:
        """Accept users of PLAIN.

        Args:
            domain: ZAP_DOMAIN of the server's socket; "*" for a socket without one.
            passwords: user name to password.
        """
        if passwords:
            self.passwords[domain] = passwords

    def configure_curve(self, domain: str = _ANY_DOMAIN, location: str | os.PathLike[str] = ".") -> None:
        """Accept clients of CURVE.

        Args:
            domain: as for `configure_plain`.
            location: folder of public certificates `*.key`, read now; CURVE_ALLOW_ANY for every key.
        """
        self.allow_any = location == CURVE_ALLOW_ANY
        if not self.allow_any:
            try:
                self.certs[domain] = load_certificates(location)
            except (OSError, ValueError) as error:
                self.log.error("cannot load CURVE certificates from %s: %s", location, error)

    def configure_curve_callback(self, domain: str = _ANY_DOMAIN, credentials_provider: Any = None) -> None:
        """Accept clients of CURVE that a function accepts.

        Args:
            domain: as for `configure_plain`.
            credentials_provider: has `callback(domain, key)`, plain or async, which returns whether to accept the key, given as Z85.
        """
        self.allow_any = False
        if credentials_provider is None:
            self.log.error("no credentials_provider for domain %s", domain)
        else:
            self.credentials_providers[domain] = credentials_provider

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the user id of an accepted CURVE client, the Z85 text of its key; to be overridden.

        Args:
            client_public_key: 32 bytes.
        """
        return z85.encode(client_public_key).decode()

    # -- verdicts

    async def __call__(self, request: ZapRequest) -> ZapReply:
        reply = await self._verdict(request)
        self.log.debug("%s %s: %s", request.mechanism.decode("ascii", "replace"), request.address.decode("ascii", "replace"), reply)
        return reply

    async def _verdict(self, request: ZapRequest) -> ZapReply:
        address = request.address.decode(self.encoding, "replace")
        domain = request.domain.decode(self.encoding, "replace") or _ANY_DOMAIN
        if address in self._denied or (self._allowed and address not in self._allowed):
            return ZapReply(b"400", b"address refused")
        match request.mechanism, request.credentials:
            case b"NULL", ():
                return ZapReply(b"200", b"OK", _NAMELESS)
            case b"PLAIN", (user, password):
                accepted = self._knows_user(domain, user, password)
                return ZapReply(b"200", b"OK", user) if accepted else ZapReply(b"400", b"user or password refused")
            case b"CURVE", (key,):
                if await self._knows_key(domain, key):
                    return ZapReply(b"200", b"OK", self.curve_user_id(key).encode(self.encoding, "replace"))
                return ZapReply(b"400", b"key refused")
        return ZapReply(b"400", b"mechanism refused")

    def _knows_user(self, domain: str, user: bytes, password: bytes) -> bool:
        known = self.passwords.get(domain, {}).get(user.decode(self.encoding, "replace"))
        return known is not None and hmac.compare_digest(known.encode(self.encoding), password)

    async def _knows_key(self, domain: str, key: bytes) -> bool:
        text = z85.encode(key)
        if self.allow_any:
            return True
        if self.credentials_providers:
            provider = self.credentials_providers.get(domain)
            verdict = False if provider is None else provider.callback(domain, text)
            return bool(await verdict if inspect.isawaitable(verdict) else verdict)
        return bool(self.certs.get(domain, {}).get(text))
