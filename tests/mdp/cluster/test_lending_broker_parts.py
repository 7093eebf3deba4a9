"""mdp.LendingBroker in virtual time: it lends and borrows when something changes, not with the next query."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.wire.commands import CLIENT_REQUEST_03, V03, worker_ready
from tests.scenes.mdp_handlers import echo
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RARELY_MS = 2000  # between two queries of a peer
SOON_S = 0.2
AT_ONCE_S = 0.01  # sooner than any timer


@asynccontextmanager
async def lending(state_ms: float = RARELY_MS) -> AsyncIterator[tuple[core.Context, mdp.Broker, mdp.LendingBroker, mdp.Client]]:
    """Return a context, a lender, a borrower, and a client of the borrower."""
    async with core.Context() as context, mdp.Broker(context=context) as lender:
        peer = lender.bind("inproc://lender")
        async with mdp.LendingBroker([peer], name="A", context=context, state_ms=state_ms) as borrower:
            async with mdp.Client(borrower.bind("inproc://borrower"), context=context, timeout=100) as client:
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
        assert loop.time() == pytest.approx(begun, abs=AT_ONCE_S)
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
        assert loop.time() == pytest.approx(begun, abs=AT_ONCE_S)


@in_virtual_time
async def test_requests_that_wait_go_to_a_peer_as_it_offers_workers() -> None:
    loop = asyncio.get_running_loop()
    async with lending() as (context, _, borrower, client):
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: borrower.stats["queued"])
        async with mdp.Worker("inproc://lender", "echo", handler=echo, context=context):
            await eventually(lambda: borrower.stats["workers"])
            begun = loop.time()
            assert await reply == [b"x"]
            assert loop.time() == pytest.approx(begun, abs=AT_ONCE_S)


@in_virtual_time
async def test_workers_of_a_peer_that_were_lent_are_offered_again() -> None:
    """An offer counts only the requests that were sent after its query as not considered."""
    async with (
        lending(state_ms=20) as (context, _, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=echo, context=context, concurrency=1, credit=1),
    ):
        for number in range(3):
            assert await client.request("echo", b"%d" % number, wait=True) == [b"%d" % number]
            offers = borrower.lending_counters["offers"]
            await eventually(lambda before=offers: borrower.lending_counters["offers"] > before + 1)  # type: ignore[misc]


@in_virtual_time
async def test_a_busy_peer_is_asked_more_often_while_requests_wait_and_not_otherwise() -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    async with (
        lending() as (context, lender, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=hold(gate), context=context, concurrency=1, credit=1),  # type: ignore[arg-type]
        mdp.Client("inproc://lender", context=context) as client_there,
    ):
        await eventually(lambda: borrower.stats["workers"])
        offers = borrower.lending_counters["offers"]
        await asyncio.sleep(10 * RARELY_MS / 1000)
        assert borrower.lending_counters["offers"] - offers == 10
        replies = [client_there.request("echo", b"there")]
        await asyncio.sleep(2 * RARELY_MS / 1000)
        replies.append(client.request("echo", b"here", wait=True))
        await asyncio.sleep(RARELY_MS / 1000)
        assert (lender.stats["running"], lender.stats["queued"], borrower.stats["queued"]) == (1, 0, 1)
        begun = loop.time()
        gate.set()
        assert await asyncio.gather(*replies) == [[b"there"], [b"here"]]
        assert loop.time() == pytest.approx(begun, abs=SOON_S)


@in_virtual_time
async def test_a_request_beyond_the_limits_of_every_peer_is_refused_at_once() -> None:
    """A peer that has announced no limits takes 1,024 frames."""
    loop = asyncio.get_running_loop()
    async with lending() as (context, _, borrower, _), mdp.Worker("inproc://lender", "echo", handler=echo, context=context):
        await eventually(lambda: borrower.stats["workers"])
        asking = context.socket(core.DEALER)
        asking.connect("inproc://borrower")
        begun = loop.time()
        asking.send_multipart([CLIENT_REQUEST_03 + bytes(8), b"echo", b"", *[b"x"] * 1500])
        assert (await asking.recv_multipart())[1:] == [b"TOO_LARGE", b"frames of the request: 1500, at most 1021"]
        assert loop.time() == begun
        assert borrower.lending_counters["too_large"] == 1


@asynccontextmanager
async def busy_worker_here() -> AsyncIterator[tuple[mdp.LendingBroker, core.Socket, asyncio.Future[list[bytes]]]]:
    """Return a borrower, its worker, and the reply that the worker owes; a peer has a free worker."""
    async with lending() as (context, _, borrower, client), mdp.Worker("inproc://lender", "echo", handler=echo, context=context):
        await eventually(lambda: borrower.stats["workers"] == 1)
        worker = context.socket(core.DEALER, linger=0)
        worker.connect("inproc://borrower")
        worker.send_multipart(worker_ready(V03, b"echo"))
        await eventually(lambda: borrower.stats["workers"] == 2)
        reply = client.request("echo", b"x")
        await worker.recv_multipart()
        yield borrower, worker, reply


@in_virtual_time
async def test_what_a_lost_worker_had_goes_to_a_peer_that_is_asked_at_once() -> None:
    """MDP-37: it is for workers heard from since then."""
    async with busy_worker_here() as (borrower, worker, reply):
        begun = asyncio.get_running_loop().time()
        worker.close()
        assert await reply == [b"x"]
        assert asyncio.get_running_loop().time() == pytest.approx(begun, abs=SOON_S)
        assert borrower.lending_counters["answered"] == 1


@in_virtual_time
async def test_what_a_silent_worker_had_goes_to_a_peer_as_it_expires() -> None:
    async with busy_worker_here() as (borrower, _, reply):
        await eventually(lambda: borrower.stats["workers"] == 1)
        begun = asyncio.get_running_loop().time()
        assert await reply == [b"x"]
        assert asyncio.get_running_loop().time() == pytest.approx(begun, abs=SOON_S)
        assert borrower.lending_counters["answered"] == 1


@in_virtual_time
async def test_what_a_removed_peer_had_goes_to_another_one_that_is_asked_at_once() -> None:
    never = asyncio.Event()
    async with (
        lending() as (context, lender, borrower, client),
        mdp.Worker("inproc://lender", "echo", handler=hold(never), context=context),  # type: ignore[arg-type]
    ):
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: lender.stats["running"])
        async with mdp.Broker(context=context) as other:
            async with mdp.Worker(other.bind("inproc://other"), "echo", handler=echo, context=context):
                borrower.add_peer("inproc://other")
                await eventually(lambda: borrower.stats["workers"] == 2)
                begun = asyncio.get_running_loop().time()
                await borrower.remove_peer("inproc://lender")
                assert await reply == [b"x"]
                assert asyncio.get_running_loop().time() == pytest.approx(begun, abs=SOON_S)


async def test_connections_to_peers_end_with_the_broker() -> None:
    async with core.Context() as context:
        peer = context.socket(core.ROUTER, linger=0)
        watch = Watch(peer)
        peer.bind("tcp://127.0.0.1:*")
        async with mdp.LendingBroker([peer.last_endpoint], context=context, state_ms=3_600_000):
            await watch.peers()
        await watch.lost()


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
