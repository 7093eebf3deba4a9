"""core.rpc.client_engine: a client that could not start begins anew the next time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import freelance
import mdp
import pirate
import titanic

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = ("tcp://127.0.0.1:9", "tcp://127.0.0.1:10")
MAKE: dict[str, Callable[..., Any]] = {
    "mdp": lambda places, **options: mdp.Client(places[0], timeout=0.2, attempts=1, **options),
    "mdp in one dialect": lambda places, **options: mdp.Client(places[0], dialect="0.1", timeout=0.2, attempts=1, **options),
    "titanic": lambda places, **options: titanic.Client(places[0], timeout=0.2, attempts=1, **options),
    "bstar": lambda places, **options: bstar.Client(*places, **options),
    "freelance model 2": lambda places, **options: freelance.Client(places, model=2, **options),
    "freelance model 3": lambda places, **options: freelance.Client(places, model=3, **options),
}


@pytest.fixture(params=MAKE.values(), ids=[*MAKE])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    chosen: Callable[..., Any] = request.param
    return chosen


async def test_every_start_without_the_key_of_the_server_says_so(make: Callable[..., Any]) -> None:
    client = make(PLACES, security=core.Curve())
    for _ in range(3):
        with pytest.raises(core.InvalidOption, match="the public key of the server"):
            await client.__aenter__()


async def test_every_request_without_the_key_of_the_server_says_so() -> None:
    async with mdp.Broker() as broker:
        client = mdp.Client(broker.bind("tcp://127.0.0.1:*"), security=core.Curve())
        for _ in range(3):
            with pytest.raises(core.InvalidOption, match="the public key of the server"):
                await client.request("echo", b"x")
        await client.close()


@pytest.mark.parametrize("wrong", [5, None, b"\xff", b"", "tcp://127.0.0.1"], ids=repr)
async def test_what_is_no_endpoint_is_refused_when_a_client_or_worker_is_made(wrong: Any) -> None:
    def echo(request: mdp.Request) -> list[bytes]:
        return request.body

    makers: tuple[Callable[..., Any], ...] = (
        *MAKE.values(),
        lambda places: pirate.Client(places),
        lambda places: pirate.Worker(places, lambda frames: frames),
        lambda places: mdp.Worker(places[0], service="echo", handler=echo),
    )
    for make in makers:
        with pytest.raises(core.InvalidEndpoint):
            make((wrong, wrong))
    async with core.Context() as context:
        for verb in (context.socket(core.REQ).connect, context.socket(core.REQ).bind):
            with pytest.raises(core.InvalidEndpoint):
                verb(wrong)


async def test_an_endpoint_in_bytes_is_one_in_text() -> None:
    async with mdp.Broker() as broker:
        here = broker.bind("tcp://127.0.0.1:*").encode()
        async with mdp.Worker(here, service="echo", handler=lambda request: request.body), mdp.Client(here) as client:  # type: ignore[arg-type]
            assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_a_client_with_fewer_sockets_than_requests_answers_them_all() -> None:
    async with mdp.Broker() as broker, core.Context() as few:
        here = broker.bind("tcp://127.0.0.1:*")
        few.max_sockets = 3
        echo = mdp.Worker(here, service="echo", handler=lambda request: request.body)
        async with echo, mdp.Client(here, dialect="0.1", context=few) as client:
            asked = [client.request("echo", b"%d" % number) for number in range(20)]
            assert await asyncio.gather(*asked) == [[b"%d" % number] for number in range(20)]
