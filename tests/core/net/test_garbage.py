"""The memory of a peer is freed with its connection.

Nothing is left to the garbage collector, which a daemon runs seldom.

Fault P4, and the class of CVE-2021-20234: messages that are begun and never ended, again and again.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import core
from core.net.session import Session
from core.pattern.pipe import Pipe
from core.security.authenticator import curve_keypair
from core.zmtp.connection import Connection
from core.zmtp.decoder import Decoder
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, frame, message, ready
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_A_CONNECTION = (Session, Connection, Decoder)
SHAKEN = GREETING_NULL + ready(b"DEALER", b"")
PUBLIC, SECRET = curve_keypair()
OUR_PUBLIC, OUR_SECRET = curve_keypair()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collector for the time of the test, and nothing to look through but what the test makes.

    What is frozen stays so: thawed, all modules and tests would be looked through at each collection of the tests after it.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def alive(*more: type) -> int:
    """Return the number of objects of connections, with those in reference cycles."""
    return sum(isinstance(one, (*OF_A_CONNECTION, *more)) for one in gc.get_objects())


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "brought",
    [
        b"",
        GREETING_NULL[:20],
        GREETING_NULL + ready(b"DEALER", b"")[:9],
        GREETING_NULL + ready(b"PUB"),
        SHAKEN,
        SHAKEN + frame(b"x" * 200)[:50],
        SHAKEN + message(b"begun", b"not ended")[:-11],
        SHAKEN + frame(b"x" * 300_000)[:200_000],  # read into a buffer
        SHAKEN + frame(b"x" * 3_000_000)[:2_000_000],
        SHAKEN + b"\x08\x00",
        SHAKEN + message(b"whole"),
    ],
    ids=["nothing", "greeting", "handshake", "refused", "peer", "short", "parts", "room", "large", "wrong", "whole"],
)
async def test_p4_what_a_peer_has_brought_goes_with_it(brought: bytes) -> None:
    async with core.Context() as context:
        router = context.socket(core.ROUTER, heartbeat_ivl=30_000)
        router.set_receiver(lambda _: None)
        router.bind("tcp://127.0.0.1:*")
        before = alive(Pipe)
        for _ in range(3):
            peer = await WirePeer.connect(router.last_endpoint)
            await peer.send(brought)
            await peer.close()
            await eventually(lambda: alive(Pipe) <= before)


SECURITIES = {
    "NULL": (None, None),
    "PLAIN": (core.Plain(users={"ann": "pw"}), core.Plain(user="ann", password="pw")),
    "CURVE": (core.Curve(secret_key=SECRET, keys={OUR_PUBLIC: "ann"}), core.Curve(secret_key=OUR_SECRET, server_key=PUBLIC)),
}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("mechanism", SECURITIES)
async def test_p4_both_ends_of_a_connection_are_free_when_it_is_over(mechanism: str) -> None:
    bound, connected = SECURITIES[mechanism]
    async with core.Context(security=bound) as here, core.Context(security=connected) as there:
        router = here.socket(core.ROUTER, heartbeat_ivl=30_000)
        router.set_batch_receiver(lambda _: None)
        watch = Watch(router)
        router.bind("tcp://127.0.0.1:*")
        before = alive()
        for number in range(1, 4):
            dealer = there.socket(core.DEALER, heartbeat_ivl=30_000)
            dealer.connect(router.last_endpoint)
            await dealer.send(b"x" * 100_000)
            await watch.peers(number)
            dealer.close(linger=0)
            await watch.lost(number)
            del dealer
            await eventually(lambda: alive() <= before)
