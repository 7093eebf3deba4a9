"""Peers of ZMTP 2.0 and 1.0 in raw octets.

Libzmq and we answer them with the same octets, and hear the same (conformance 1.2).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenes.raw_octets import WirePeer, greeting, ready

if TYPE_CHECKING:
    from tests.interop.ends import End, Foreign, Ours

SIGNATURE = b"\xff" + bytes(7) + b"\x04\x7f"
SECOND = SIGNATURE + b"\x01"
# What an old peer says, for a socket of a type with an identity: (type, identity, octets, what is said back, what is heard).
CONVERSATIONS: dict[str, tuple[str, bytes, bytes, bytes, list[bytes]]] = {
    "1.0 to ROUTER": ("ROUTER", b"", b"\x04\x00old\x03\x01hi\x01\x00", b"", [b"old", b"hi", b""]),
    "1.0 to ROUTER RR": ("ROUTER", b"RR", b"\x04\x00old\x03\x00hi", b"RR", [b"old", b"hi"]),
    "1.0 in the long form": ("ROUTER", b"", b"\xff" + bytes(7) + b"\x04\x00old\xff" + bytes(7) + b"\x03\x00hi", b"", [b"old", b"hi"]),
    "1.0 to DEALER": ("DEALER", b"", b"\x01\x00\xff" + (301).to_bytes(8, "big") + b"\x00" + bytes(300), b"", [bytes(300)]),
    "1.0 to PULL": ("PULL", b"", b"\x01\x00\x02\x00x", b"", [b"x"]),
    "1.0 to SUB": ("SUB", b"", b"\x01\x00\x02\x00a", b"\x02\x00\x01", [b"a"]),
    "1.0 to XPUB": ("XPUB", b"", b"\x01\x00", b"", [b"\x01"]),
    "2.0 to ROUTER": ("ROUTER", b"", SECOND + b"\x05\x00\x03old\x01\x02hi\x00\x00", b"\x03\x06\x00\x00", [b"old", b"hi", b""]),
    "2.0 to ROUTER RR": ("ROUTER", b"RR", SECOND + b"\x03\x00\x03old\x00\x02hi", b"\x03\x06\x00\x02RR", [b"old", b"hi"]),
    "2.0 to DEALER": (
        "DEALER",
        b"",
        SECOND + b"\x06\x00\x00\x02" + (300).to_bytes(8, "big") + bytes(300),
        b"\x03\x05\x00\x00",
        [bytes(300)],
    ),
    "2.0 to PULL": ("PULL", b"", SECOND + b"\x08\x00\x00\x00\x01x", b"\x03\x07\x00\x00", [b"x"]),
    "2.0 to SUB": ("SUB", b"", SECOND + b"\x01\x00\x00\x00\x01a", b"\x03\x02\x00\x00\x00\x01\x01", [b"a"]),
}


@pytest.mark.parametrize("which", ["ours", "libzmq"])
@pytest.mark.parametrize(("kind", "identity", "says", "answer", "heard"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
async def test_zmtp_15_zmtp_16_zmtp_18_zmtp_19_zmtp_20_zmtp_21_the_same_octets_as_libzmq(
    ours: Ours, foreign: Foreign, which: str, kind: str, identity: bytes, says: bytes, answer: bytes, heard: list[bytes]
) -> None:
    end: End = ours(kind) if which == "ours" else foreign(kind)
    if identity:
        end.set(routing_id=identity)
    if kind == "SUB":
        end.subscribe(b"")
    async with await WirePeer.connect(end.bind("tcp://127.0.0.1:*")) as peer:
        assert await peer.receive(10) == b"\xff" + (len(identity) + 1).to_bytes(8, "big") + b"\x7f"
        await peer.send(says)
        came = asyncio.ensure_future(end.recv())  # a SUB of libzmq says nothing before its application looks at it
        assert await peer.receive(len(answer)) == answer
        assert await came == heard


@pytest.mark.parametrize("which", ["ours", "libzmq"])
async def test_zmtp_03_zmtp_04_zmtp_14_the_stages_of_a_greeting_are_those_of_libzmq(ours: Ours, foreign: Foreign, which: str) -> None:
    end: End = ours("DEALER") if which == "ours" else foreign("DEALER")
    theirs = greeting()
    async with await WirePeer.connect(end.bind("tcp://127.0.0.1:*")) as peer:
        assert await peer.receive(10) == b"\xff" + bytes(7) + b"\x01\x7f"
        await peer.send(theirs[:10])
        assert await peer.receive(1) == b"\x03"
        await peer.send(theirs[10:11])
        assert await peer.receive(53) == b"\x01NULL" + bytes(48)
        await peer.send(theirs[11:])
        assert await peer.receive(len(ready(b"DEALER"))) == ready(b"DEALER")
