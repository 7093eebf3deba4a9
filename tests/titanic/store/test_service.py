"""Titanic at a real broker over sockets: the three services, delivery, the client, restarts of each."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import titanic
from tests.scenes.mdp_handlers import echo
from tests.scenes.prefork import command
from titanic.errors import BadRequest, DeadLettered, Expired, Pending, StoreFull, UnknownRequest
from titanic.store.delivery_queue import BACKLOG_AT_ONCE
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

FAST = DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1)
UUID = b"0" * 32


class Scene:
    """A context, a broker, and what a test adds."""

    def __init__(self, context: core.Context, broker: mdp.Broker, endpoint: str, directory: Path) -> None:
        self.context = context
        self.broker = broker
        self.endpoint = endpoint
        self.directory = directory
        self.log = titanic.LogOptions(reserve_bytes=4096)

    def store(self, limits: titanic.Limits | None = None, **options: Any) -> titanic.Service:
        options.setdefault("dispatch", FAST)
        store = titanic.Store(titanic.RealDisk(self.directory), titanic.JournalOptions(log=self.log), limits)
        return titanic.Service(self.endpoint, store, titanic.ServiceOptions(**options), context=self.context, seed=1)

    def worker(self, service: str, handler: Callable[[mdp.Request], Awaitable[Any]], **options: Any) -> mdp.Worker:
        return mdp.Worker(self.endpoint, service, handler=handler, context=self.context, **options)

    def client(self, **options: Any) -> titanic.Client:
        return titanic.Client(self.endpoint, context=self.context, **options)

    def plain(self) -> mdp.Client:
        return mdp.Client(self.endpoint, context=self.context)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        yield Scene(context, broker, broker.bind("tcp://127.0.0.1:*"), tmp_path / "store")


async def registered(service: titanic.Service) -> None:
    while not service.connected:
        await asyncio.sleep(0.001)


async def test_three_services_with_exactly_those_names(scene: Scene) -> None:
    """TSP-01, TSP-02, TSP-04: any Majordomo client will do; bare digits."""
    async with scene.store() as service, scene.plain() as client, scene.worker("echo", echo):
        await registered(service)
        for name in ("titanic.request", "titanic.reply", "titanic.close"):
            assert await client.mmi("service", name) == "200"
        code, uuid = await client.request("titanic.request", b"echo", b"a", b"", b"b")
        assert code == b"200"
        assert len(uuid) == 32
        while (reply := await client.request("titanic.reply", uuid)) == [b"300"]:
            await asyncio.sleep(0.001)
        assert reply == [b"200", b"a", b"", b"b"]
        assert await client.request("titanic.close", uuid) == [b"200"]
        assert await client.request("titanic.reply", uuid) == [b"400"]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"titanic.reply", b"../../etc/passwd"], b"400"),
        ([b"titanic.reply", UUID], b"400"),
        ([b"titanic.reply", UUID, UUID], b"400"),
        ([b"titanic.close", b"../victim"], b"200"),
        ([b"titanic.close", UUID], b"200"),
        ([b"titanic.request", b"echo"], b"400"),
        ([b"titanic.request", b"titanic.request", b"x"], b"400"),
        ([b"titanic.request", b"mmi.service", b"x"], b"400"),
        ([b"titanic.wait", UUID], b"400"),
        ([b"titanic.wait", UUID, b"-1"], b"400"),
        ([b"titanic.wait", UUID, b"9" * 40], b"400"),
        ([b"titanic.wait", UUID, b"10"], b"400"),
    ],
)
async def test_what_cannot_be_is_answered_with_its_code(scene: Scene, frames: list[bytes], expected: bytes) -> None:
    """TSP-03, TSP-07, TSP-10, TSP-19, TI2."""
    async with scene.store() as service, scene.plain() as client:
        await registered(service)
        assert (await client.request(*frames))[0] == expected


async def test_a_client_submits_waits_and_closes(scene: Scene) -> None:
    """TSP-18, BEY-09."""
    async with scene.store(), scene.client() as client, scene.worker("echo", echo):
        ticket = await client.submit("echo", b"hello", b"", key="order-17")
        assert (await client.submit("echo", b"hello", b"", key="order-17")).uuid == ticket.uuid
        assert await ticket.result(100) == [b"hello", b""]
        again = client.ticket(ticket.uuid.lower())
        assert await again.fetch() == [b"hello", b""]
        await ticket.close()
        await ticket.close()
        with pytest.raises(UnknownRequest):
            await again.result(100)
        with pytest.raises(BadRequest, match="another request"):
            await client.submit("echo", b"other", key="order-17")
        with pytest.raises(UnknownRequest):
            client.ticket("../victim")


async def test_a_request_waits_for_its_service_to_come(scene: Scene) -> None:
    """TSP-12."""
    async with scene.store(), scene.client() as client:
        ticket = await client.submit("echo", b"hello")
        assert await ticket.fetch() is None
        with pytest.raises(Pending) as caught:
            await ticket.result(0.05)
        assert caught.value.uuid == ticket.uuid
        async with scene.worker("echo", echo):
            assert await ticket.result(100) == [b"hello"]


async def test_a_dead_or_slow_service_does_not_delay_others(scene: Scene) -> None:
    """TSP-13."""
    stuck = asyncio.Event()

    async def slow(_: mdp.Request) -> bytes:
        await stuck.wait()
        return b"at last"

    async with scene.store(), scene.client() as client, scene.worker("slow", slow), scene.worker("echo", echo):
        dead = [await client.submit("dead", b"x") for _ in range(20)]
        late = [await client.submit("slow", b"x") for _ in range(20)]
        quick = [await client.submit("echo", b"%d" % n) for n in range(20)]
        assert [await ticket.result(100) for ticket in quick] == [[b"%d" % n] for n in range(20)]
        assert [await ticket.fetch() for ticket in (*dead, *late)] == [None] * 40
        stuck.set()
        assert await late[-1].result(100) == [b"at last"]


async def test_a_worker_that_fails_is_tried_again_until_it_does_not(scene: Scene) -> None:
    """TSP-16: at least once."""
    calls = 0

    async def fails_twice(request: mdp.Request) -> bytes:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("not yet")
        return b"done"

    async with scene.store(), scene.client() as client, scene.worker("moody", fails_twice):
        assert await (await client.submit("moody", b"x")).result(100) == [b"done"]
    assert calls == 3


@pytest.mark.parametrize("who", ["store", "request"])
async def test_a_poison_request_is_given_up_and_says_why(scene: Scene, who: str) -> None:
    """B7: after --max-attempts, or as many as the request itself says."""

    async def poisoned(_: mdp.Request) -> bytes:
        raise ValueError("poison")

    most = 3 if who == "store" else 0
    async with scene.store(max_attempts=most), scene.client() as client, scene.worker("bad", poisoned):
        ticket = await client.submit("bad", b"x", attempts=0 if most else 3)
        with pytest.raises(DeadLettered, match="after 3 attempts") as caught:
            await ticket.result(100)
        assert "HANDLER_ERROR" in caught.value.reason
        with pytest.raises(DeadLettered):
            await ticket.fetch()
        await ticket.close()
        with pytest.raises(UnknownRequest):
            await ticket.fetch()


async def test_a_delayed_request_is_not_given_to_a_worker_before_its_time(scene: Scene) -> None:
    began: list[float] = []

    async def clock(_: mdp.Request) -> bytes:
        began.append(asyncio.get_running_loop().time())
        return b""

    async with scene.store(), scene.client() as client, scene.worker("clock", clock):
        stored = asyncio.get_running_loop().time()
        late = await client.submit("clock", b"x", delay=0.2)
        await late.result(100)
        assert began[0] >= stored + 0.199


async def test_a_request_past_its_time_to_live_is_never_dispatched(scene: Scene) -> None:
    """B8."""
    calls = 0

    async def count(_: mdp.Request) -> bytes:
        nonlocal calls
        calls += 1
        return b""

    async with scene.store(), scene.client() as client:
        ticket = await client.submit("count", b"x", ttl=0.03)
        with pytest.raises(Expired):
            await ticket.result(100)
        async with scene.worker("count", count):
            other = await client.submit("count", b"x")
            await other.result(100)
    assert calls == 1


async def test_a_result_that_comes_after_the_close_is_discarded(scene: Scene) -> None:
    """TSP-11."""
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(_: mdp.Request) -> bytes:
        started.set()
        await go.wait()
        return b"late"

    async with scene.store() as service, scene.client() as client, scene.worker("slow", slow):
        ticket = await client.submit("slow", b"x")
        await started.wait()
        await ticket.close()
        go.set()
        while not service.store.counters["late"]:
            await asyncio.sleep(0.001)
        with pytest.raises(UnknownRequest):
            await ticket.fetch()


async def test_a_full_store_is_recognized_by_its_type(scene: Scene) -> None:
    async with scene.store(titanic.Limits(requests_max=1)) as service, scene.client() as client:
        ticket = await client.submit("nobody", b"x")
        with pytest.raises(StoreFull, match="requests_max"):
            await client.submit("nobody", b"y")
        assert service.page().not_ready() == "the store is full: requests_max (1 of 1 in use)"
        await ticket.close()
        assert service.page().not_ready() == ""


async def test_nothing_is_lost_when_titanic_is_stopped_and_started(scene: Scene) -> None:
    """TSP-15, TSP-16: in the same tickets."""
    async with scene.client() as client:
        async with scene.store() as service:
            await registered(service)
            tickets = [await client.submit("echo", b"%d" % n) for n in range(50)]
            await service.drain(5)
        async with scene.store(), scene.worker("echo", echo):
            assert [await ticket.result(100) for ticket in tickets] == [[b"%d" % n] for n in range(50)]
            for ticket in tickets[:25]:
                await ticket.close()
        async with scene.store():
            assert [await ticket.result(100) for ticket in tickets[25:]] == [[b"%d" % n] for n in range(25, 50)]


async def test_a_backlog_is_delivered_after_a_restart(scene: Scene) -> None:
    """TSP-15: requests of a checkpoint, more than are taken from it at once, and one that comes afterwards; each once."""
    count = BACKLOG_AT_ONCE + 100
    scene.log = titanic.LogOptions(segment_bytes=65_536, reserve_bytes=4096)  # or all are read from the open segment
    async with scene.store(), scene.client() as client:
        tickets = list(await asyncio.gather(*(client.submit("late", b"%d" % number, key=b"%d" % number) for number in range(count))))
    seen: list[bytes] = []

    async def late(request: mdp.Request) -> bytes:
        seen.append(request.body[0])
        return b"done " + request.body[0]

    async with scene.store() as service, scene.client() as client:
        await registered(service)
        figures = service.figures()["gauges"]
        assert (figures["requests"], figures["requests_waiting"]) == (count, count)
        assert len(service.store.index.entries.unpacked()) <= BACKLOG_AT_ONCE  # the others are rows of the checkpoint
        newest = await client.submit("late", b"newest")
        again = await client.submit("late", b"7", key=b"7")
        assert again.uuid == tickets[7].uuid
        async with scene.worker("late", late, concurrency=1):
            assert await client.ticket(newest.uuid).result(100) == [b"done newest"]
            for number, ticket in enumerate(tickets):
                assert await client.ticket(ticket.uuid).result(100) == [b"done %d" % number]
        assert len(seen) == count + 1
        assert sorted(seen) == sorted([b"newest", *(b"%d" % number for number in range(count))])
        assert service.figures()["gauges"]["requests_waiting"] == 0


async def test_draining_waits_for_the_answer_of_a_worker(scene: Scene) -> None:
    """An answer that is lost at a stop would be worked for twice."""
    started, go = asyncio.Event(), asyncio.Event()
    calls = 0

    async def slow(_: mdp.Request) -> bytes:
        nonlocal calls
        calls += 1
        started.set()
        await go.wait()
        return b"done"

    async with scene.client() as client, scene.worker("slow", slow):
        async with scene.store() as service:
            ticket = await client.submit("slow", b"x")
            await started.wait()
            draining = [asyncio.ensure_future(service.drain(3600)) for _ in range(2)]
            await service.drain(0.01)
            assert not any(each.done() for each in draining)
            go.set()
            await asyncio.gather(*draining)
        async with scene.store():
            assert await ticket.result(100) == [b"done"]
    assert calls == 1


async def test_a_plain_client_gets_by_with_what_a_stock_titanic_has(scene: Scene) -> None:
    """TSP-18."""
    async with scene.store(), scene.client(plain=True) as client, scene.worker("echo", echo):
        ticket = await client.submit("echo", b"hello")
        assert not client.store_waits
        assert await ticket.result(100) == [b"hello"]
        with pytest.raises(BadRequest):
            await client.submit("echo", b"hello", key="k")


async def test_clients_without_a_key_make_one_that_no_other_request_has(scene: Scene) -> None:
    """IDM-01: not even the same request of the same client, or of one that was started afterwards."""
    tickets = set()
    async with scene.store():
        for _ in range(2):
            async with scene.client() as client:
                tickets |= {(await client.submit("echo", b"hello")).uuid for _ in range(2)}
                assert client._takes_options  # with a key, that is
    assert len(tickets) == 4


async def test_in_memory_nothing_needs_a_directory(scene: Scene) -> None:
    store = titanic.Store(None, None)
    async with titanic.Service(scene.endpoint, store, context=scene.context), scene.client() as client, scene.worker("echo", echo):
        ticket = await client.submit("echo", b"hello")
        assert await ticket.result(100) == [b"hello"]
        await ticket.close()
    assert not scene.directory.exists()


def test_the_synchronous_client_does_the_same(tmp_path: Path) -> None:
    async def serve(ready: asyncio.Future[str], stop: asyncio.Event) -> None:
        async with mdp.Broker() as broker:
            endpoint = broker.bind("tcp://127.0.0.1:*")
            store = titanic.Store(titanic.RealDisk(tmp_path), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
            async with titanic.Service(endpoint, store) as service, mdp.Worker(endpoint, "echo", handler=echo):
                await registered(service)
                ready.set_result(endpoint)
                await stop.wait()

    async def main() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        serving = asyncio.ensure_future(serve(ready, stop))
        endpoint = await ready

        def talk() -> None:
            with titanic.SyncClient(endpoint) as client:
                ticket = client.submit("echo", b"hello")
                assert ticket.result(100) == [b"hello"]
                assert client.ticket(ticket.uuid).fetch() == [b"hello"]
                others = [client.submit("echo", b"%d" % n) for n in range(5)]
                outcomes = {outcome.ticket.uuid: outcome.reply for outcome in client.results(others, timeout=100)}
                assert outcomes == {other.uuid: [b"%d" % n] for n, other in enumerate(others)}
                ticket.close()

        await asyncio.to_thread(talk)
        stop.set()
        await serving

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------- with processes


@asynccontextmanager
async def daemon(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command; it is killed at the end if it is still running."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_cli(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command("titanic"), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_line_from_submit_to_close(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        at = ("--broker", endpoint)
        async with daemon("titanic", "serve", *at, "--store", store) as process, mdp.Worker(endpoint, "echo", handler=echo):
            async with mdp.Client(endpoint) as client:
                while await client.mmi("service", "titanic.close") != "200" or await client.mmi("service", "titanic.wait") != "200":
                    await asyncio.sleep(0.01)
            code, out, _ = await run_cli("submit", *at, "--key", "k", "echo", "hello", "world")
            uuid = out.strip()
            assert (code, len(uuid)) == (0, 32)
            assert (await run_cli("submit", *at, "--key", "k", "echo", "hello", "world"))[1].strip() == uuid
            assert await run_cli("wait", *at, "--for", "10", uuid) == (0, "hello\nworld\n", "")
            code, out, _ = await run_cli("fetch", *at, "--json", uuid)
            assert json.loads(out) == {"uuid": uuid, "frames": ["hello", "world"]}
            code, _, err = await run_cli("verify", "--store", store)
            assert code == 69
            assert str(process.pid) in err
            assert await run_cli("close", *at, uuid) == (0, "", "")
            code, out, err = await run_cli("fetch", *at, uuid)
            assert (code, out) == (1, "")
            assert uuid in err
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    code, out, _ = await run_cli("verify", "--store", store)
    assert code == 0
