"""Identity of the front at its shards, and the users of the peers whose messages it forwards.

The front has a name and a key or password of its own, made at each start and passed in the environment of the shards. What it says about
its peers stands in the routing ids of its connections: a serial number and the user's name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self

from core.runtime import runtime
from core.security.authenticator import curve_keypair, curve_public
from core.security.credentials import Curve, Plain
from mdp.broker.broker import Broker
from mdp.wire.channels import connection_of
from mdp.wire.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from core.security.credentials import Secured

FRONT: Final = "MAJORDOMO_FRONT"  # environment variable of a shard
_SERIAL_BYTES: Final = 8
_NAME_AT: Final = 1 + _SERIAL_BYTES
USER_BYTES_MAX: Final = 255 - _NAME_AT  # a routing id has 255 bytes


def connection_name(serial: int, user: bytes) -> bytes:
    return b"F" + serial.to_bytes(_SERIAL_BYTES, "big") + user  # another first byte than 0, which marks ids that a ROUTER made


class FrontIdentity:
    """Name and secret of the front."""

    def __init__(self, user: str = "", key: str = "", password: str = "", shard: int | None = None) -> None:
        self.shard = shard  # number of the shard that has this; None in the front, and in a broker without shards
        self.user = user  # its name at the shards, that of no other user; empty where peers are not authenticated
        self.key = key
        self.password = password

    @classmethod
    def made_for(cls, security: Secured | None) -> tuple[Self, Secured | None]:
        """Make the identity of the front of a broker; return it with the security of the front's connections."""
        random = runtime.current().random_bytes
        user = f"front-{random(16).hex()}"
        if isinstance(security, Curve):
            _, secret = curve_keypair()
            return cls(user, key=curve_public(secret).decode()), Curve(secret_key=secret, server_key=security.public_key)
        if isinstance(security, Plain):
            password = random(32).hex()
            return cls(user, password=password), Plain(user=user, password=password)
        return cls(), None

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self:
        """Return what a shard was given, and remove it from the environment; an empty identity without it."""
        try:
            user, key, password, shard = json.loads(environment.pop(FRONT, "null"))
        except (TypeError, ValueError):  # nothing, or nothing of ours
            return cls()
        return cls(str(user), str(key), str(password), int(shard))

    def encode(self, shard: int) -> str:
        return json.dumps([self.user, self.key, self.password, shard])

    def admit(self, security: Secured | None) -> None:
        authenticator = None if security is None else security.authenticator
        if authenticator is not None and self.key:
            authenticator.authorize(self.key, self.user)
        elif authenticator is not None and self.password:
            authenticator.set_password(self.user, self.password)


class ShardBroker(Broker):
    """The broker of a shard: it knows its services, and the users of peers behind the front.

    Args:
        number: of this one, from 0.
    """

    def __init__(self, front: FrontIdentity, count: int, number: int, **options: Any) -> None:
        self._front_user = front.user
        super().__init__(**options)
        self.machine.is_ours = lambda service: shard_of(service, count) == number

    def _user_of(self, peer: bytes) -> str | None:
        user = super()._user_of(peer)
        if not self._front_user or user != self._front_user:
            return user
        return connection_of(peer)[_NAME_AT:].decode("utf-8", "backslashreplace") or None
