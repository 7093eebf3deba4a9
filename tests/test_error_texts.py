"""Texts of errors, as users read them: what happened, the numbers, and what to do."""

from __future__ import annotations

import asyncio

import pytest

import bstar
import core
import freelance
import titanic


async def test_sockets_say_which_limit_was_over_and_who_is_missing() -> None:
    async with core.Context() as context:
        dealer = context.socket(core.DEALER, sndtimeo=1, rcvtimeo=1)
        with pytest.raises(core.Again, match=r"^sndtimeo: no peer had capacity within 1 ms$"):
            await dealer.send(b"x")
        with pytest.raises(core.Again, match=r"^rcvtimeo: no message came within 1 ms$"):
            await dealer.recv()
        router = context.socket(core.ROUTER, router_mandatory=1)
        with pytest.raises(core.HostUnreachable, match=r"^no peer has this routing id, b'worker-7'$"):
            router.send_multipart([b"worker-7", b"x"])
        dealer.close()
        with pytest.raises(core.SocketClosed, match=r"^the socket is closed$"):
            dealer.send(b"x")


async def test_clients_name_the_option_that_limits_them() -> None:
    nobody = "tcp://127.0.0.1:9"
    async with freelance.Client([nobody], outstanding_max=1) as servers, bstar.Client(nobody, nobody, waiting_max=1, window=1) as pair:
        waiting = [asyncio.ensure_future(client.request(b"x")) for client in (servers, pair)]
        await asyncio.sleep(0)
        with pytest.raises(freelance.Overrun, match="raise outstanding_max"):
            await servers.request(b"y")
        with pytest.raises(bstar.Overrun, match="raise waiting_max"):
            await pair.request(b"y")
        for request in waiting:
            request.cancel()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (titanic.UnknownRequest("17"), "no request 17: it was never stored here, or was closed"),
        (titanic.Pending("17", 2.0), "request 17 has no reply after 2.0 s; it stays stored, and can be asked for again"),
        (titanic.Expired("17"), "request 17 expired: its time to live ended before it was answered"),
        (titanic.Wounded("no space"), "store is wounded: no space; it takes nothing until it is started again"),
    ],
)
def test_titanic_says_what_became_of_the_request(error: Exception, said: str) -> None:
    assert str(error) == said
