"""mdp.LendingBroker in virtual time: it lends and borrows when something changes, not with the next query."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from tests.scenes.mdp_handlers import echo
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RARELY_MS = 2000  # between two queries of a peer
SOON_S = 0.2


@asynccontextmanager
async def lending(state_ms: float = RARELY_MS) -> AsyncIterator[tuple[core.Context, mdp.Broker, mdp.LendingBroker, mdp.Client]]:
    """Return a context, a lender, a borrower, and a client of the borrower."""
    async with core.Context() as context, mdp.Broker(context=context) as lender:
        peer = lender.bind("inproc://lender")
        async with mdp.LendingBroker([peer], name="A", context=context, state_ms=state_ms) as borrower:
            async with mdp.Client(borrower.bind("inproc://borrower"), context=context) as client:
                yield context, lender, borrower, client


def hold(gate: asyncio.Event) -> object:
    async def handler(request: mdp.Request) -> list[bytes]:
        await gate.wait()
        return [*request.body]

    return handler


@in_virtual_time
async def test_a_request_goes_to_a_worker_of_a_peer_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with lending() as (context, lender, borrower, client), mdp.Worker("inproc://lender", "echo", handler=echo, context=context):
        await eventually(lambda: lender.stats["workers"])
        assert await client.request("echo", b"first", wait=True) == [b"first"]
        begun = loop.time()
        for number in range(3):
            assert await client.request("echo", b"%d" % number) == [b"%d" % number]
        assert loop.time() == pytest.approx(begun, abs=SOON_S)
        assert borrower.lending_counters["answered"] == 4


@in_virtual_time
async def test_requests_that_wait_go_on_as_soon_as_a_worker_of_a_peer_is_free() -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    async with (
        lending() as (context, lender, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=hold(gate), context=context, concurrency=1, credit=1),  # type: ignore[arg-type]
    ):
        await eventually(lambda: lender.stats["workers"])
        replies = [client.request("echo", b"%d" % number, wait=True) for number in range(6)]
        await eventually(lambda: borrower.lending_counters["lent"])
        begun = loop.time()
        gate.set()
        assert await asyncio.gather(*replies) == [[b"%d" % number] for number in range(6)]
        assert loop.time() == pytest.approx(begun, abs=6 * SOON_S)


@in_virtual_time
async def test_what_a_removed_peer_had_goes_to_a_worker_here_at_once() -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    async with (
        lending() as (context, lender, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=hold(gate), context=context),  # type: ignore[arg-type]
    ):
        await eventually(lambda: lender.stats["workers"])
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: lender.stats["running"])
        async with mdp.Worker("inproc://borrower", "echo", handler=echo, context=context):
            await eventually(lambda: borrower.stats["workers"])
            begun = loop.time()
            await borrower.remove_peer("inproc://lender")
            assert await reply == [b"x"]
            assert loop.time() == pytest.approx(begun, abs=SOON_S)
            assert not lender.stats["clients"]
        gate.set()


@in_virtual_time
async def test_a_drain_ends_as_the_last_lent_request_is_answered() -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    async with (
        lending() as (context, lender, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=hold(gate), context=context),  # type: ignore[arg-type]
    ):
        await eventually(lambda: lender.stats["workers"])
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: lender.stats["running"])
        draining = asyncio.ensure_future(borrower.drain(3600.0))
        await asyncio.sleep(0.5)
        begun = loop.time()
        gate.set()
        assert await draining
        assert loop.time() == pytest.approx(begun, abs=SOON_S)
        assert await reply == [b"x"]


async def test_a_borrower_with_a_wrong_peer_does_not_serve() -> None:
    async with core.Context() as context:
        broker = mdp.LendingBroker(["nonsense"], context=context)
        with pytest.raises(core.InvalidEndpoint):
            await broker.__aenter__()
        assert broker._socket.closed


async def test_peers_are_added_and_removed_once() -> None:
    async with lending() as (_, _, borrower, _):
        with pytest.raises(ValueError, match="a peer already"):
            borrower.add_peer("inproc://lender")
        await borrower.remove_peer("inproc://lender")
        with pytest.raises(ValueError, match="is not a peer"):
            await borrower.remove_peer("inproc://lender")


async def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with lending() as (_, _, borrower, _):
        for text in ("one", "two", "one"):
            borrower._warn(text)
    assert [record.getMessage() for record in caplog.records] == ["one", "two"]


async def test_a_request_that_no_peer_takes_is_refused_at_once() -> None:
    """A peer says what it takes when it is connected to."""
    async with core.Context() as context, mdp.Broker(context=context, socket_options={"maxmsgsize": 10_000}) as lender:
        at = lender.bind("tcp://127.0.0.1:*")
        async with (
            mdp.LendingBroker([at], context=context, state_ms=20) as borrower,
            mdp.Worker(at, "echo", handler=echo, context=context),
            mdp.Client(borrower.bind("tcp://127.0.0.1:*"), context=context) as client,
        ):
            assert await client.request("echo", b"x", wait=True) == [b"x"]
            with pytest.raises(mdp.TooLarge):
                await client.request("echo", bytes(20_000), wait=True)
            assert await client.request("echo", b"y", wait=True) == [b"y"]


async def test_a_request_that_cannot_be_sent_to_its_peer_goes_elsewhere() -> None:
    async with (
        core.Context() as context,
        mdp.Broker(context=context) as lender,
        mdp.LendingBroker([lender.bind("tcp://127.0.0.1:*")], context=context, state_ms=20) as borrower,
        mdp.Worker(lender.endpoints[0], "echo", handler=echo, context=context),
        mdp.Client(borrower.bind("tcp://127.0.0.1:*"), context=context) as client,
    ):
        assert await client.request("echo", b"x", wait=True) == [b"x"]
        (connection,) = borrower._connections.values()
        refused = list[int]()

        def send(messages: list[list[bytes]]) -> bool:
            refused.append(len(messages))
            del connection.send
            return False

        connection.send = send  # type: ignore[method-assign]
        assert await client.request("echo", b"y", wait=True) == [b"y"]
        assert refused == [1]
