"""Security of a program: CURVE or PLAIN for every socket of a context.

    async with core.Context(security=core.Curve(secret_key=…, authorized_keys="/etc/mdp/clients")) as context: ...     # a server
    async with mdp.Client("tcp://broker:5555", security=core.Curve(secret_key=…, server_key=…)) as client: ...

Bound endpoints are the servers of the handshake and authenticate peers; connected endpoints are its clients. So one object is enough
for a program that does both, such as a server of a pair. inproc does not use it, and a socket with security options of its own keeps
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from core.constants import SecurityMechanism
from core.errors import InvalidOption
from core.runtime import runtime
from core.security.authenticator import Authenticator, key_octets
from core.security.curve_keys import key_pair, public_key
from core.security.mechanisms import Credentials
from core.sockets.context import Context
from core.zmtp import z85

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from core.options import Options


class Secured(Credentials, Protocol):
    """Security of the sockets of a context."""

    authenticator: Authenticator | None  # checks peers that connect to us, None if none may


class Curve:
    """CURVE: encrypted, and both sides are authenticated.

    Args:
        secret_key: own key, 32 bytes or 40 Z85 characters; clients may leave it out and get a temporary one.
        server_key: public key of the servers we connect to; needed to connect.
        server_keys: endpoint to the public key of its server, where it differs from `server_key`.
        authorized_keys: file of the clients that may connect to us, see `Authenticator`.
        keys: public key to name, of more clients.
        any_key: every client that knows our public key may connect; its name is its key as Z85.
        allow: addresses that may connect to us; when given, no others may.
        deny: addresses that may not.

    Attributes:
        authenticator: checks peers that connect to us, None if none may.
        public_key: own key, 32 bytes.

    Raises:
        InvalidOption: a malformed key or address.
    """

    mechanism: ClassVar[SecurityMechanism] = SecurityMechanism.CURVE

    def __init__(
        self,
        *,
        secret_key: bytes | str | None = None,
        server_key: bytes | str | None = None,
        server_keys: Mapping[str, bytes | str] | None = None,
        authorized_keys: str | Path | None = None,
        keys: Mapping[bytes, str] | Mapping[str, str] | Mapping[bytes | str, str] | None = None,
        any_key: bool = False,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
    ) -> None:
        self._lasting = secret_key is not None
        self._secret_key = key_pair(runtime.current().random_bytes)[1] if secret_key is None else key_octets(secret_key, "secret_key")
        self.public_key = public_key(self._secret_key)
        self._server_key = None if server_key is None else key_octets(server_key, "server_key")
        self._server_keys = {endpoint: key_octets(key, "server_keys") for endpoint, key in (server_keys or {}).items()}
        judged = authorized_keys is not None or keys is not None or any_key
        self.authenticator = (
            Authenticator(allow=allow, deny=deny, keys=keys, authorized_keys=authorized_keys, any_key=any_key) if judged else None
        )

    def __repr__(self) -> str:
        return f"<Curve {z85.encode(self.public_key).decode()}>"

    @property
    def lasting_secret(self) -> bytes | None:
        """The secret key that was given, 32 bytes; None for a temporary one."""
        return self._secret_key if self._lasting else None

    def shared_with(self, endpoint: str) -> bytes | None:
        """Return our secret key if the server expected at an endpoint has the same one, else None."""
        server_key = self._server_keys.get(endpoint, self._server_key)
        return self.lasting_secret if server_key == self.public_key else None

    def expect_same(self, endpoint: str, known: str) -> None:
        """Expect the server of one endpoint at another one too, unless a key was given for that."""
        if known in self._server_keys:
            self._server_keys.setdefault(endpoint, self._server_keys[known])

    def for_listening(self, options: Options) -> None:
        """Make a bound endpoint a CURVE server.

        Raises:
            InvalidOption: there is no `secret_key` whose public key clients could know.
        """
        if not self._lasting:
            raise InvalidOption(msg="a CURVE server needs a secret_key: clients must know the public one", option="secret_key")
        options.set("curve_secretkey", self._secret_key)
        options.set("curve_server", 1)

    def for_connecting(self, options: Options, endpoint: str) -> None:
        """Make a connected endpoint a CURVE client.

        Raises:
            InvalidOption: the public key of the server is not known.
        """
        server_key = self._server_keys.get(endpoint, self._server_key)
        if server_key is None:
            raise InvalidOption(msg=f"the public key of the server at {endpoint} is not known: give server_key", option="server_key")
        options.set("curve_secretkey", self._secret_key)
        options.set("curve_publickey", self.public_key)
        options.set("curve_serverkey", server_key)


class Plain:
    """PLAIN: names and passwords in clear text, for one machine or a network that is encrypted otherwise.

    Args:
        user: own name for the servers we connect to.
        password: own password.
        users: name to password of the clients that may connect to us.
        allow: addresses that may connect to us; when given, no others may.
        deny: addresses that may not.

    Attributes:
        authenticator: checks peers that connect to us, None if none may.

    Raises:
        InvalidOption: a malformed address.
    """

    mechanism: ClassVar[SecurityMechanism] = SecurityMechanism.PLAIN

    def __init__(
        self,
        *,
        user: str | None = None,
        password: str = "",
        users: Mapping[str, str] | None = None,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
    ) -> None:
        self._user = user
        self._password = password
        self.authenticator = None if users is None else Authenticator(allow=allow, deny=deny, passwords=users)

    def __repr__(self) -> str:
        return f"<Plain {self._user!r}>"

    @property
    def lasting_secret(self) -> bytes | None:
        """A digest of the names and passwords that may connect to us, 32 bytes; None without any."""
        return None if self.authenticator is None else self.authenticator.passwords_digest()

    def for_listening(self, options: Options) -> None:
        """Make a bound endpoint a PLAIN server."""
        options.set("plain_server", 1)

    def for_connecting(self, options: Options, endpoint: str) -> None:
        """Make a connected endpoint a PLAIN client.

        Raises:
            InvalidOption: there is no `user`.
        """
        if self._user is None:
            raise InvalidOption(msg="a PLAIN client needs a user and a password", option="user")
        options.set("plain_username", self._user)
        options.set("plain_password", self._password)


def context_for(context: Context | None, security: Secured | None) -> Context:
    """Return the given context, or a new one with this security that refuses ipc paths in use.

    Raises:
        TypeError: both were given; a context has its own security.
    """
    security = only_one(context, security)
    return Context(security=security, exclusive_ipc=True) if context is None else context


def only_one(context: Context | None, security: Secured | None) -> Secured | None:
    """Return the security for a context made later; raises TypeError if there is a context, which has its own."""
    if context is not None and security is not None:
        raise TypeError("give the security to the context: core.Context(security=...)")
    return security
