"""The properties with which a socket of ours tells its limits: libzmq takes and ignores them, and is refused nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import core
from core.zmtp.zap import ZAP_ENDPOINT, ZapReply, ZapRequest
from tests.interop.credentials import CLIENT, SERVER, join, welcome

if TYPE_CHECKING:
    from tests.interop.ends import Foreign, Ours

LIMITS = {"tell_limits": 1, "max_parts": 5, "maxmsgsize": 100}


@pytest.mark.parametrize("we_serve", [True, False], ids=["our server", "libzmq's server"])
@pytest.mark.parametrize("secured", ["NULL", "PLAIN", "CURVE"])
async def test_libzmq_takes_the_properties_of_every_mechanism(ours: Ours, foreign: Foreign, secured: str, we_serve: bool) -> None:
    ours.context.authenticator = welcome
    mine, theirs = (SERVER, CLIENT) if we_serve else (CLIENT, SERVER)
    zap = foreign("ROUTER")
    zap.bind(ZAP_ENDPOINT)
    ask = not we_serve and secured != "NULL"
    ourselves = ours("DEALER", identity=b"a" * 100, **LIMITS, **mine[secured])
    peer = foreign("DEALER", **({"zap_domain": b"global"} if ask else {}), **theirs[secured])
    join(ourselves, peer, "tcp://127.0.0.1:*", we_serve)
    if ask:
        request = ZapRequest.decode(await zap.recv())
        await zap.send(*ZapReply(b"200", b"OK", b"somebody").encode(request))
    await ourselves.send(*[b"x" * 1000] * 50)  # more than we would take ourselves
    assert await peer.recv() == [b"x" * 1000] * 50
    await peer.send(*[b"y"] * 5)
    assert await ourselves.recv() == [b"y"] * 5
    assert ourselves.socket.peer_limits() is None
    assert ourselves.socket.get("peer_max_parts") == -1
    assert isinstance(ourselves.socket, core.Socket)
