"""HAR-07: random, damaged and truncated octets to a real listener; it stays up, holds nothing, and serves everyone else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, command, frame, message, ready
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

TCP = "tcp://127.0.0.1:*"
ROUNDS = 60
CLEAN = GREETING_NULL + ready(b"DEALER", b"fuzz") + message(b"", b"body") + command(b"PING", b"\0\0") + message(b"x" * 300)


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(400))


def damaged(chance: random.Random) -> bytes:
    octets = bytearray(CLEAN)
    for _ in range(chance.randrange(1, 6)):
        octets[chance.randrange(len(octets))] = chance.randrange(256)
    return bytes(octets)


def truncated(chance: random.Random) -> bytes:
    return CLEAN[: chance.randrange(len(CLEAN))]


def after_the_handshake(chance: random.Random) -> bytes:
    return GREETING_NULL + ready(b"DEALER") + frame(chance.randbytes(chance.randrange(20)), chance.randrange(256)) + noise(chance)


@pytest.mark.parametrize("make_octets", [noise, damaged, truncated, after_the_handshake])
@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
async def test_har_07_strangers_harm_nobody(make_octets: Callable[[random.Random], bytes], mechanism: str) -> None:
    chance = random.Random(f"{make_octets.__name__} {mechanism}")
    server: dict[str, int | bytes] = {}
    if mechanism == "PLAIN":
        server = {"plain_server": 1}
    elif mechanism == "CURVE":
        server = {"curve_server": 1, "curve_secretkey": core.curve_keypair()[1]}
    async with core.Context(seed=1) as context:
        attacked = context.socket(core.ROUTER, linger=0, **server)
        attacked.bind(TCP)
        open_endpoint = context.socket(core.ROUTER, linger=0)
        open_endpoint.bind(TCP)
        honest = context.socket(core.DEALER, linger=0, rcvtimeo=60_000, identity=b"honest")
        honest.connect(open_endpoint.last_endpoint)
        targets = [attacked.last_endpoint, open_endpoint.last_endpoint]

        def answer(batch: list[list[bytes]]) -> None:
            open_endpoint.send_many([asked for asked in batch if asked[0] == b"honest"])

        open_endpoint.set_receiver(answer)
        for number in range(ROUNDS):
            async with await WirePeer.connect(targets[number % 2]) as stranger:
                await stranger.send(make_octets(chance))
            await honest.send_multipart([b"%d" % number])
            assert await honest.recv() == b"%d" % number
        await eventually(lambda: not attacked._endpoints.sessions and len(open_endpoint._endpoints.sessions) == 1)
        assert not attacked.pattern.pipes
