"""Octets of requests and replies, and the objects that went with them, are not kept after their end.

A compiled class can count a value twice and never free it. Nothing fails then, but a daemon grows with each request.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import pytest

import bstar
import core
import freelance
import mdp
import pirate
import titanic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

Scene: TypeAlias = "Callable[[str, bytes, bytes], Awaitable[None]]"
OCTETS = 4000  # more than is ever copied into a larger buffer
ROUNDS = 8
TURNS = 20
LOOKS = 200
OURS = ("core.", "mdp.", "titanic.", "bstar.", "freelance.", "pirate.", "peering.", "builtins.list", "builtins.tuple", "builtins.dict")


async def two_sockets(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with core.Context() as context, context.socket(core.ROUTER) as router, context.socket(core.DEALER) as dealer:
        router.bind(endpoint)
        dealer.connect(endpoint)
        await dealer.send_multipart([b"", asked])
        identity, *_ = await router.recv_multipart()
        await router.send_multipart([identity, b"", answered])
        await dealer.recv_multipart()
        await dealer.send_many([[asked], [asked, asked]])
        assert await router.recv_multipart() == [identity, asked]


async def two_inproc_sockets(endpoint: str, asked: bytes, answered: bytes) -> None:
    await two_sockets(f"inproc://{endpoint}", asked, answered)


async def a_socket_closed_with_messages(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with core.Context() as context, context.socket(core.PUSH, linger=0) as push:
        push.connect(endpoint)
        await push.send_multipart([asked, answered])
        waits = [asyncio.ensure_future(push.send_multipart([asked])) for _ in range(2000)]
        await asyncio.sleep(0)
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def calling(call: Callable[[mdp.Client, bytes], Awaitable[object]]) -> Scene:
    """Return a scene of a broker, a worker and a client."""

    async def scene(endpoint: str, asked: bytes, answered: bytes) -> None:
        async def answer(request: mdp.Request) -> AsyncIterator[list[bytes]]:
            yield [answered]
            yield [answered, answered]

        async with mdp.Broker() as broker:
            broker.bind(endpoint)
            async with mdp.Worker(endpoint, "parts", handler=answer), mdp.Worker(endpoint, "whole", handler=lambda _: answered):
                async with mdp.Client(endpoint) as client:
                    for service in ("parts", "whole"):
                        await client.request(service, b"first", wait=True)
                    await call(client, asked)

    return scene


async def request(client: mdp.Client, asked: bytes) -> None:
    await client.request("whole", asked)
    await client.request("whole", asked, asked, key="k", deadline=50.0, headers={"a": "b"}, priority="high")
    await client.request("parts", asked)


async def cancelled(client: mdp.Client, asked: bytes) -> None:
    for one in [client.request("whole", asked) for _ in range(5)]:
        one.cancel()
    with pytest.raises(mdp.RequestError):
        await client.request("absent", asked, timeout=0.02, attempts=1)
    client.request("absent", asked, wait=True)  # open when the client is closed


async def ask(client: mdp.Client, asked: bytes) -> None:
    for key in (None, "k"):
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        client.ask("whole", [asked], lambda about, reply, _: about.set_result(reply), ended, key=key)
        assert await ended


async def map_(client: mdp.Client, asked: bytes) -> None:
    assert [outcome.error async for outcome in client.map("whole", [asked, [asked, asked], asked], key=str)] == [None] * 3


async def window(client: mdp.Client, asked: bytes) -> None:
    ended = asyncio.Event()
    opened = client.open_window("whole", ended.set)
    opened.send([asked, asked], keys=["a", "b"])
    await ended.wait()
    await opened.withdraw()


async def stream(client: mdp.Client, asked: bytes) -> None:
    assert len([part async for part in client.stream("parts", asked)]) == 2
    async for _ in client.stream("parts", asked, key="k"):
        break


async def titanic_of_a_broker(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with mdp.Broker() as broker:
        broker.bind(endpoint)
        store = titanic.Store(None, None)
        async with titanic.Service(endpoint, store), mdp.Worker(endpoint, "whole", handler=lambda _: answered):
            async with titanic.Client(endpoint) as client:
                for key in (None, "k"):
                    ticket = await client.submit("whole", asked, key=key)
                    await ticket.result(50)
                    await ticket.close()


async def freelance_server(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with freelance.Server(endpoint, lambda _: [answered]), freelance.Client([endpoint]) as client:
        await client.request(asked)


async def pirate_server(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with core.Context() as context, context.socket(core.REP) as server, pirate.Client(endpoint) as client:
        server.bind(endpoint)
        waits = asyncio.ensure_future(client.request(asked))
        await server.recv_multipart()
        await server.send_multipart([answered])
        await waits


async def pair(endpoint: str, asked: bytes, answered: bytes) -> None:
    async with bstar.Pair(bstar.PRIMARY, local=f"{endpoint}.state", remote=f"{endpoint}.none", heartbeat_ms=200) as primary:
        primary.voter(endpoint, handler=lambda _: [answered])
        async with bstar.Client(endpoint, f"{endpoint}.other", timeout=20) as client:
            await client.request(asked)


SCENES: dict[str, Scene] = {
    "sockets": two_sockets,
    "inproc": two_inproc_sockets,
    "a closed socket": a_socket_closed_with_messages,
    **{f"mdp {call.__name__}": calling(call) for call in (request, cancelled, ask, map_, window, stream)},
    "titanic": titanic_of_a_broker,
    "freelance": freelance_server,
    "pirate": pirate_server,
    "bstar": pair,
}


async def ours() -> Counter[str]:
    """Return how many objects there are of each class of ours, and of what they are made of."""
    for _ in range(TURNS):
        await asyncio.sleep(0)  # what the loop has still to call holds something too
    for _ in range(3):
        gc.collect()
    names = (f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    return Counter(name for name in names if name.startswith(OURS))


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[str]:
    """Return new endpoints."""
    return (f"ipc://{tmp_path}/{number}" for number in range(1000))


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
async def test_nothing_keeps_what_was_sent_and_answered(endpoints: Iterator[str], scene: Scene) -> None:
    asked, answered = bytes(OCTETS), bytes(OCTETS + 1)
    await scene(next(endpoints), asked, answered)  # what is made once: tables, imports, caches
    before = await ours()
    for _ in range(ROUNDS):
        await scene(next(endpoints), asked, answered)

    async def kept() -> dict[str, tuple[int, int]]:
        """Return what there is more of: before and now."""
        more = {name: (before[name], count) for name, count in (await ours()).items() if count >= before[name] + ROUNDS}
        octets = {"asked": (2, sys.getrefcount(asked)), "answered": (2, sys.getrefcount(answered))}
        return {**more, **{name: counts for name, counts in octets.items() if counts[0] != counts[1]}}

    # The thread of a handler, and a system that is busy, may hold something for a moment longer.
    left = await kept()
    for _ in range(LOOKS):
        if left:
            await asyncio.sleep(0.05)
            left = await kept()
    assert left == {}


async def test_a_request_that_is_kept_is_seen() -> None:
    """The test above finds what it looks for."""
    asked = bytes(OCTETS)
    kept: list[object] = []
    before = await ours()
    kept.extend([asked] for _ in range(ROUNDS))
    assert (await ours())["builtins.list"] >= before["builtins.list"] + ROUNDS
    assert sys.getrefcount(asked) == 2 + ROUNDS
