"""Brokers that borrow workers of each other, over sockets and as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.wire.lending import LENDING_SERVICE
from tests.scenes.hanging_names import hanging
from tests.scenes.waiting import eventually
from tests.sim.virtual_time import VirtualTime, run

if TYPE_CHECKING:
    import selectors
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.scenes.programs import Programs

TCP = "tcp://127.0.0.1:*"


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


def answers(name: bytes, gate: asyncio.Event | None = None) -> Callable[[mdp.Request], object]:
    async def handler(request: mdp.Request) -> list[bytes]:
        if gate is not None:
            await gate.wait()
        return [name, *request.body]

    return handler


async def test_a_service_only_a_peer_has_is_served(context: core.Context) -> None:
    async with (
        mdp.Broker(context=context) as lender,
        mdp.LendingBroker([lender.bind(TCP)], name="A", context=context, state_ms=50) as borrower,
        mdp.Worker(lender.endpoints[0], "echo", handler=answers(b"B"), context=context),
        mdp.Client(borrower.bind(TCP), context=context, timeout=100) as client,
    ):
        assert await client.request("echo", b"hello", wait=True) == [b"B", b"hello"]
        assert await client.mmi("service", "echo") == "200"
        assert borrower.lending_counters["answered"] == 1


@pytest.mark.parametrize("named", [False, True])
async def test_a_peer_that_cannot_be_reached_is_in_the_log_with_the_reason(
    context: core.Context, tmp_path: Path, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    """Also where its name is not resolved; and when it answers."""
    caplog.set_level("INFO", "mdp.cluster")
    with hanging() as names:
        async with mdp.Broker(context=context) as lender:
            port = lender.bind(TCP).rpartition(":")[2]
            endpoint = f"tcp://slow.test:{port}" if named else f"ipc://{tmp_path}/s"
            options = {"connect_timeout": 20, "reconnect_ivl": 5}
            async with mdp.LendingBroker([endpoint], context=context, state_ms=20, peer_options=options):
                why = "its name is not resolved" if named else "No such file"
                await eventually(lambda: f"no workers of the peer at {endpoint}, and it is tried again: " in caplog.text)
                assert why in caplog.text
                if named:
                    names.may_answer.set()
                else:
                    lender.bind(endpoint)
                await eventually(lambda: f"the peer at {endpoint} answers" in caplog.text)
    assert caplog.text.count("no workers of the peer at") == 1


async def test_workers_here_go_first_and_peers_take_what_they_cannot(context: core.Context) -> None:
    """PEER-02 of Majordomo: per service."""
    gate = asyncio.Event()
    async with (
        mdp.Broker(context=context) as lender,
        mdp.LendingBroker([lender.bind(TCP)], context=context, state_ms=50) as borrower,
        mdp.Worker(lender.endpoints[0], "echo", handler=answers(b"B"), context=context),
        mdp.Worker(borrower.bind(TCP), "echo", handler=answers(b"A", gate), concurrency=1, credit=1, context=context),
        mdp.Client(borrower.endpoints[0], context=context, timeout=100) as client,
    ):
        await eventually(lambda: borrower.stats["workers"] == 2)
        first = asyncio.ensure_future(client.request("echo", b"1"))
        await eventually(lambda: borrower.stats["running"] == 1)
        assert await client.request("echo", b"2") == [b"B", b"2"]
        gate.set()
        assert await first == [b"A", b"1"]
        assert await client.request("echo", b"3") == [b"A", b"3"]


async def test_both_brokers_lend_and_borrow_and_no_request_circulates(context: core.Context) -> None:
    """PEER-03, fault N8: A and B are each other's peers, and neither has a worker for the service."""
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(mdp.LendingBroker([], name="A", context=context, state_ms=50))
        two = await stack.enter_async_context(mdp.LendingBroker([one.bind(TCP)], name="B", context=context, state_ms=50))
        one.add_peer(two.bind(TCP))
        clients = [await stack.enter_async_context(mdp.Client(broker.endpoints[0], context=context, timeout=100)) for broker in (one, two)]
        waiting = [asyncio.ensure_future(client.request("echo", b"x", wait=True)) for client in clients]
        await eventually(lambda: one.stats["queued"] == two.stats["queued"] == 1)
        await stack.enter_async_context(mdp.Worker(one.endpoints[0], "echo", handler=answers(b"A"), context=context))
        assert await asyncio.gather(*waiting) == [[b"A", b"x"]] * 2
        assert two.lending_counters["answered"] == 1
        assert one.lending_counters["lent"] == 0


async def test_a_broker_is_not_its_own_peer(context: core.Context, caplog: pytest.LogCaptureFixture) -> None:
    """Fault N8."""
    async with mdp.LendingBroker([], name="A", context=context, state_ms=50) as broker:
        broker.add_peer(broker.bind(TCP))
        await eventually(lambda: broker.lending_counters["peers_refused"] > 0)
    assert any("is refused" in record.getMessage() and "A" in record.getMessage() for record in caplog.records)


async def test_parts_errors_and_cancellation_pass(context: core.Context) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def parts(request: mdp.Request) -> AsyncIterator[bytes]:
        for part in (b"1", b"2", b"3"):
            yield part

    def fails(request: mdp.Request) -> bytes:
        raise ValueError("no")

    async def slow(request: mdp.Request) -> bytes:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async with contextlib.AsyncExitStack() as stack:
        lender = await stack.enter_async_context(mdp.Broker(context=context))
        borrower = await stack.enter_async_context(mdp.LendingBroker([lender.bind(TCP)], context=context, state_ms=50))
        for name, handler in (("parts", parts), ("fails", fails), ("slow", slow)):
            await stack.enter_async_context(mdp.Worker(lender.endpoints[0], name, handler=handler, context=context))
        client = await stack.enter_async_context(mdp.Client(borrower.bind(TCP), context=context, timeout=100))
        await eventually(lambda: len(borrower.machine.directory.routes) == 3)
        assert [part async for part in client.stream("parts", b"")] == [[b"1"], [b"2"], [b"3"]]
        with pytest.raises(mdp.HandlerError):
            await client.request("fails", b"")
        asking = asyncio.ensure_future(client.request("slow", b""))
        await asyncio.wait_for(started.wait(), 100)
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 100)
        await eventually(lambda: borrower.machine.idle and lender.machine.idle)


async def test_nothing_is_lost_with_a_peer(context: core.Context) -> None:
    """PEER-11: one peer is disconnected with requests in flight; another one, and the workers here, take them."""
    never = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(mdp.Broker(context=context))
        gone = await stack.enter_async_context(mdp.Broker(context=context))
        await stack.enter_async_context(mdp.Worker(gone.bind(TCP), "echo", handler=answers(b"gone", never), context=context, drain_s=0))
        borrower = await stack.enter_async_context(mdp.LendingBroker([gone.endpoints[0]], context=context, state_ms=50))
        client = await stack.enter_async_context(mdp.Client(borrower.bind(TCP), context=context, timeout=100))
        asking = [asyncio.ensure_future(client.request("echo", b"%d" % number, wait=True)) for number in range(20)]
        await eventually(lambda: borrower.lending_counters["lent"] == 20)
        await stack.enter_async_context(mdp.Worker(other.bind(TCP), "echo", handler=answers(b"other"), context=context))
        borrower.add_peer(other.endpoints[0])
        await gone.__aexit__(None, None, None)
        replies = await asyncio.gather(*asking)
        assert replies == [[b"other", b"%d" % number] for number in range(20)]


async def test_requests_of_a_removed_peer_are_given_back(context: core.Context) -> None:
    """BEY-15."""
    never = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        lender = await stack.enter_async_context(mdp.Broker(context=context))
        worker = mdp.Worker(lender.bind(TCP), "echo", handler=answers(b"B", never), context=context, drain_s=0)
        await stack.enter_async_context(worker)
        borrower = await stack.enter_async_context(mdp.LendingBroker([lender.endpoints[0]], context=context, state_ms=50))
        client = await stack.enter_async_context(mdp.Client(borrower.bind(TCP), context=context, timeout=100))
        asking = asyncio.ensure_future(client.request("echo", b"x", wait=True))
        await eventually(lambda: borrower.lending_counters["lent"] == 1)
        await borrower.remove_peer(lender.endpoints[0])
        await stack.enter_async_context(mdp.Worker(borrower.endpoints[0], "echo", handler=answers(b"A"), context=context))
        assert await asking == [b"A", b"x"]
        borrower.add_peer(lender.endpoints[0])
        with pytest.raises(ValueError, match="a peer already"):
            borrower.add_peer(lender.endpoints[0])
        await borrower.remove_peer(lender.endpoints[0])
        with pytest.raises(ValueError, match="not a peer"):
            await borrower.remove_peer(lender.endpoints[0])


async def test_a_silent_peer_is_lost_and_found_again(context: core.Context) -> None:
    """Fault N2: a peer that stays connected and says nothing."""
    async with context.socket(core.ROUTER, linger=0) as peer, contextlib.AsyncExitStack() as stack:
        peer.bind(TCP)
        borrower = await stack.enter_async_context(mdp.LendingBroker([peer.last_endpoint], context=context, state_ms=20))
        before, *_ = await peer.recv_multipart()
        async with asyncio.timeout(100):
            while (message := await peer.recv_multipart())[0] == before:
                assert message[2] == LENDING_SERVICE
        assert borrower.machine.idle


class Late(VirtualTime):
    """A clock of a busy loop: each event-loop iteration takes longer than an interval of queries."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += 0.05
        return super().select(0.0 if timeout is None else max(0.0, timeout - 0.05))


def test_a_silent_peer_is_lost_though_every_query_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence is excused a few times: a broker that is always late would keep a silent peer for ever."""

    async def meet() -> None:
        async with core.Context() as made, made.socket(core.ROUTER, linger=0) as peer:
            peer.bind(f"ipc://{tmp_path}/peer")
            async with mdp.LendingBroker([peer.last_endpoint], context=made, state_ms=20):
                before, *_ = await peer.recv_multipart()
                queries = 1
                while (await peer.recv_multipart())[0] == before:
                    queries += 1
                    assert queries < 100

    run(meet(), Late(), monkeypatch)


async def test_a_peer_that_does_not_lend_is_named_in_the_log(context: core.Context, caplog: pytest.LogCaptureFixture) -> None:
    async with context.socket(core.ROUTER, linger=0) as peer:
        peer.bind(TCP)
        async with mdp.LendingBroker([peer.last_endpoint], context=context, state_ms=20) as borrower:
            identity, head, *_ = await peer.recv_multipart()
            await peer.send_multipart([identity, b"MDPC03\x03" + head[7:], b"501"])
            await eventually(lambda: borrower.lending_counters["offers_refused"] == 1)
    assert any("does not lend" in record.getMessage() for record in caplog.records)


async def test_clients_of_older_dialects_get_borrowed_workers_too(context: core.Context) -> None:
    async with (
        mdp.Broker(context=context) as lender,
        mdp.LendingBroker([lender.bind(TCP)], context=context, state_ms=50) as borrower,
        mdp.Worker(lender.endpoints[0], "echo", handler=answers(b"B"), context=context),
        context.socket(core.REQ, linger=0) as client,
    ):
        client.connect(borrower.bind(TCP))
        await client.send_multipart([b"MDPC01", b"echo", b"x"])
        assert await asyncio.wait_for(client.recv_multipart(), 100) == [b"MDPC01", b"echo", b"B", b"x"]


def test_on_the_command_line(programs: Programs) -> None:
    """`mdp broker --peer`: the worker is at one broker, the client at the other."""
    north, south = f"ipc://{programs.folder}/north", f"ipc://{programs.folder}/south"
    programs.start("mdp", "broker", "--bind", south).said("broker serves")
    borrower = programs.start("mdp", "broker", "--bind", north, "--peer", south, "--peer-name", "north", "--peer-state-ms", "50")
    borrower.said("broker serves")
    programs.start("mdp", "worker", "--broker", south, "--service", "echo").said("worker serves")
    ended = programs.run("mdp", "call", "--broker", north, "--wait", "--timeout", "20", "echo", "hello")
    assert (ended.code, ended.out) == (0, b"hello\n"), ended.err
    assert borrower.stop().code == 0


def test_a_suspended_lender_is_detected(programs: Programs) -> None:
    """Fault N2, PEER-11: it stays connected and says nothing; what it was lent goes to a worker here."""
    north, south = f"ipc://{programs.folder}/north", f"ipc://{programs.folder}/south"
    lender = programs.start("mdp", "broker", "--bind", south)
    lender.said("broker serves")
    programs.start("mdp", "broker", "--bind", north, "--peer", south, "--peer-state-ms", "100").said("broker serves")
    programs.start("mdp", "worker", "--broker", south, "--service", "sleep").said("worker serves")
    call = programs.start("mdp", "call", "--broker", north, "--wait", "--timeout", "30", "--attempts", "1", "sleep", "2")
    with mdp.SyncClient(south) as client:
        while json.loads(client.request("mmi.stats", b"")[1])["running"] == 0:
            pass
        lender.signal(signal.SIGSTOP)
    programs.start("mdp", "worker", "--broker", north, "--service", "sleep").said("worker serves")
    ended = call.end()
    lender.signal(signal.SIGCONT)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--peer-name", "x"], 2),
        (["--peer", "nonsense"], 2),
        (["--peer", "tcp://127.0.0.1:1", "--peer-name", "x" * 256], 78),
        (["--peer", "tcp://127.0.0.1:1", "--bstar", "primary", "--bstar-local", "ipc://l", "--bstar-remote", "ipc://r"], 2),
    ],
)
def test_flags_that_do_not_go_together(programs: Programs, flags: list[str], code: int) -> None:
    assert programs.run("mdp", "broker", "--bind", f"ipc://{programs.folder}/b", *flags).code == code


async def test_what_a_peer_says_after_the_stop_is_dropped(context: core.Context) -> None:
    """It answers requests that have ended, and offers workers to a broker that has ended."""
    gate = asyncio.Event()
    async with (
        mdp.Broker(context=context) as lender,
        mdp.LendingBroker([lender.bind(TCP)], name="A", context=context, state_ms=20) as borrower,
        mdp.Worker(lender.endpoints[0], "echo", handler=answers(b"B", gate), context=context),
        mdp.Client(borrower.bind(TCP), context=context, timeout=100) as client,
    ):
        request = asyncio.ensure_future(client.request("echo", b"hello", wait=True))
        await eventually(lambda: lender.stats["running"] == 1)
        borrower.stop()
        with pytest.raises(mdp.WorkerLost):
            await request
        gate.set()
        await eventually(lambda: lender.stats["running"] == 0)
        offers = lender.stats["mmi"]
        await eventually(lambda: lender.stats["mmi"] > offers + 1)
        assert borrower.stats["workers"] == 0
