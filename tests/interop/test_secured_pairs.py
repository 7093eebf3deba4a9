"""Every pair of sockets over PLAIN and CURVE, with libzmq."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.credentials import BODIES, CLIENT, SERVER, join, welcome
from tests.interop.ends import frames_between

if TYPE_CHECKING:
    from tests.interop.ends import End, Foreign, Ours


def secured_pair(first: str, second: str, first_is: str, mechanism: str, ours: Ours, foreign: Foreign) -> tuple[End, End]:
    """Ours is the server, so that nobody of libzmq's has to be asked."""
    ours.context.authenticator = welcome
    if first_is == "ours":
        return ours(first, **SERVER[mechanism]), foreign(second, **CLIENT[mechanism])
    return foreign(first, **CLIENT[mechanism]), ours(second, **SERVER[mechanism])


async def there_and_back(one: End, other: End, body: list[bytes]) -> None:
    """One message from end to end, and back where the pair has a way back."""
    sent, expected = frames_between(one.kind, other.kind, body)
    await one.send(*sent)
    found = await other.recv()
    routing_id = found.pop(0) if other.kind == "ROUTER" else b""
    assert found == expected
    if one.kind != "PUSH":
        sent, expected = frames_between(other.kind, one.kind, body, routing_id)
        await other.send(*sent)
        assert await one.recv() == expected


PAIRS = [tuple(pair.split("-")) for pair in "REQ-REP REQ-ROUTER DEALER-REP DEALER-DEALER DEALER-ROUTER PAIR-PAIR PUSH-PULL".split()]


@pytest.mark.parametrize("first_binds", [True, False], ids=["first binds", "second binds"])
@pytest.mark.parametrize("first_is", ["ours", "libzmq"])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_har_05_every_pair_of_sockets_over_every_mechanism(
    ours: Ours, foreign: Foreign, mechanism: str, anywhere: str, first: str, second: str, first_is: str, first_binds: bool
) -> None:
    """The server of the handshake is independent of which side binds (PLAIN-01)."""
    one, other = secured_pair(first, second, first_is, mechanism, ours, foreign)
    join(one, other, anywhere, first_binds)
    large = bytes(16 * 1024 * 1024 if (first, second, first_binds) == ("DEALER", "ROUTER", True) else 70_000)
    for body in ([b""], [b"one", b"", b"x" * 255, b"y" * 256, large, b""]):
        await there_and_back(one, other, body)


@pytest.mark.parametrize("one,other", [("REQ", "REP"), ("PUSH", "PULL"), ("PAIR", "PAIR"), ("DEALER", "DEALER")])
@pytest.mark.parametrize("server_is", ["ours", "libzmq"])
async def test_other_pairs_of_sockets_over_curve(ours: Ours, foreign: Foreign, one: str, other: str, server_is: str, anywhere: str) -> None:
    make_server, make_client = (ours, foreign) if server_is == "ours" else (foreign, ours)
    server = make_server(other, **SERVER["CURVE"])
    client = make_client(one, **CLIENT["CURVE"])
    join(server, client, anywhere, True)
    for body in BODIES:
        await there_and_back(client, server, body)
