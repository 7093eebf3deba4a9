"""Keys, passwords and options of the two ends of a secured connection, and what they send each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from core.security.authenticator import curve_keypair
from core.zmtp.zap import ZapReply

if TYPE_CHECKING:
    from core.zmtp.zap import ZapRequest
    from tests.interop.ends import End

SERVER_PUBLIC, SERVER_SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
OTHER_PUBLIC, OTHER_SECRET = curve_keypair()
SERVER: dict[str, dict[str, Any]] = {
    "PLAIN": {"plain_server": 1},
    "CURVE": {"curve_server": 1, "curve_secretkey": SERVER_SECRET},
    "NULL": {},
}
CLIENT: dict[str, dict[str, Any]] = {
    "PLAIN": {"plain_username": b"admin", "plain_password": b"secret"},
    "CURVE": {"curve_serverkey": SERVER_PUBLIC, "curve_publickey": CLIENT_PUBLIC, "curve_secretkey": CLIENT_SECRET},
    "NULL": {},
}
BODIES: list[list[bytes]] = [
    [b"hello"],
    [b""],
    [b"", b"a", b""],
    [bytes(254), bytes(255), bytes(256)],
    [os.urandom(200_000), b"tail"],
    [b"%d" % n for n in range(50)],
]


async def welcome(request: ZapRequest) -> ZapReply:
    """A judge that lets everybody in."""
    return ZapReply(b"200", b"OK", b"somebody")


def join(one: End, other: End, anywhere: str, one_binds: bool) -> None:
    """Have one of the two bind and the other connect."""
    if one_binds:
        other.connect(one.bind(anywhere))
    else:
        one.connect(other.bind(anywhere))
