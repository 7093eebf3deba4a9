"""A REQ client on libzmq, written from RFC 7 and RFC 9 alone, uses our Titanic through our broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import zmq

import mdp
import titanic
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.interop.ends import Foreign, ForeignEnd


async def ask(client: ForeignEnd, service: bytes, *body: bytes) -> list[bytes]:
    """MDP/0.1 over REQ: the socket adds the empty frame itself (MDP-09)."""
    await client.send(b"MDPC01", service, *body)
    header, answered_by, *reply = await client.recv()
    assert (header, answered_by) == (b"MDPC01", service)
    return reply


async def upper(request: mdp.Request) -> list[bytes]:
    return [frame.upper() for frame in request.body]


async def test_a_stock_client_runs_the_whole_cycle(foreign: Foreign, anywhere: str, tmp_path: Path) -> None:
    """TSP-01, TSP-04, TSP-08, TSP-09, TSP-10, TSP-18, TSP-20."""
    async with mdp.Broker() as broker:
        endpoint = broker.bind(anywhere)
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
        async with titanic.Service(endpoint, store) as service, mdp.Worker(endpoint, "upper", handler=upper):
            while not service.connected or not broker.stats["workers"] >= 5:
                await asyncio.sleep(0.001)
            client = foreign("REQ")
            client.connect(endpoint)
            code, uuid = await ask(client, b"titanic.request", b"upper", b"hello", b"", b"world")
            assert code == b"200"
            assert len(uuid) == 32
            assert set(uuid) <= set(b"0123456789ABCDEF")
            while (reply := await ask(client, b"titanic.reply", uuid)) == [b"300"]:
                await asyncio.sleep(0.01)
            assert reply == [b"200", b"HELLO", b"", b"WORLD"]
            assert await ask(client, b"titanic.reply", uuid.lower()) == reply
            assert await ask(client, b"titanic.close", uuid) == [b"200"]
            assert await ask(client, b"titanic.reply", uuid) == [b"400"]
            assert await ask(client, b"titanic.close", uuid) == [b"200"]
            assert (await ask(client, b"titanic.request", b"upper"))[0] == b"400"
            assert await ask(client, b"titanic.reply", b"../../etc/passwd") == [b"400"]


async def test_titanic_serves_at_a_broker_that_speaks_only_the_oldest_dialect(foreign: Foreign, tmp_path: Path) -> None:
    """Registrations with one request at a time, and a dispatcher that looks at mmi.service (TSP-12)."""
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0)))
        service = titanic.Service(endpoint, store, dialect="0.1")
        async with service, mdp.Worker(endpoint, "upper", handler=upper, dialect="0.1"):
            while not service.connected:
                await asyncio.sleep(0.001)
            client = foreign("REQ")
            client.connect(endpoint)
            uuids = []
            for number in range(10):
                code, uuid = await ask(client, b"titanic.request", b"upper", b"a%d" % number)
                assert code == b"200"
                uuids.append(uuid)
            for number, uuid in enumerate(uuids):
                while (reply := await ask(client, b"titanic.reply", uuid)) == [b"300"]:
                    await asyncio.sleep(0.01)
                assert reply == [b"200", b"A%d" % number]


class GuideClient:
    """The client of the guide.

    Asks, and when there is no answer in time throws its socket away and asks again with a new one.
    """

    def __init__(self, foreign: Foreign, endpoint: str) -> None:
        self._foreign = foreign
        self._endpoint = endpoint
        self._socket: ForeignEnd | None = None

    async def ask(self, service: bytes, *body: bytes) -> list[bytes]:
        while True:
            if self._socket is None:
                self._socket = self._foreign("REQ", rcvtimeo=400)
                self._socket.connect(self._endpoint)
            try:
                return await ask(self._socket, service, *body)
            except zmq.Again:
                self._socket.close()
                self._socket = None

    async def submit(self, body: bytes) -> bytes:
        while (reply := await self.ask(b"titanic.request", b"upper", body))[0] != b"200":
            await asyncio.sleep(0.01)
        return reply[1]

    async def result(self, uuid: bytes) -> list[bytes]:
        while (reply := await self.ask(b"titanic.reply", uuid))[0] == b"300":
            await asyncio.sleep(0.01)
        return reply


async def test_any_piece_may_be_stopped_and_started_again(foreign: Foreign, tmp_path: Path) -> None:
    """TSP-16, as the guide has it: everything but the client.

    Each was away while a request was made, and nothing is lost.
    """
    endpoint = f"ipc://{tmp_path / 's'}"
    quick: dict[str, Any] = {"heartbeat_ms": 100, "reconnect_ms": 50, "reconnect_max_ms": 200}
    dispatch = DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1)

    @asynccontextmanager
    async def broker() -> AsyncIterator[None]:
        async with mdp.Broker(heartbeat_ms=100) as one:
            one.bind(endpoint)
            yield

    def store() -> titanic.Service:
        disk = titanic.RealDisk(tmp_path / "store")
        journal = titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=0))
        return titanic.Service(endpoint, titanic.Store(disk, journal), titanic.ServiceOptions(dispatch=dispatch), **quick)

    def worker() -> mdp.Worker:
        return mdp.Worker(endpoint, "upper", handler=upper, **quick)

    pieces: list[Callable[[], AbstractAsyncContextManager[Any]]] = [broker, store, worker]
    client = GuideClient(foreign, endpoint)
    accepted: dict[bytes, bytes] = {}
    async with AsyncExitStack() as everything:
        running = [await everything.enter_async_context(AsyncExitStack()) for _ in pieces]
        for piece, place in zip(pieces, running, strict=True):
            await place.enter_async_context(piece())
        for piece, place in zip(pieces, running, strict=True):
            before = b"before %s" % piece.__name__.encode()
            accepted[await client.submit(before)] = before
            await place.aclose()
            meanwhile = b"without %s" % piece.__name__.encode()
            submitting = asyncio.ensure_future(client.submit(meanwhile))
            await asyncio.sleep(0)
            await place.enter_async_context(piece())
            accepted[await submitting] = meanwhile
            for uuid, body in accepted.items():
                assert await client.result(uuid) == [b"200", body.upper()]
        for uuid in accepted:
            assert await client.ask(b"titanic.close", uuid) == [b"200"]


class StockStore:
    """A store as RFC 9 has it, three workers of MDP/0.1 on a foreign socket.

    What it is sent is stored, and run when `run` is called.
    """

    def __init__(self, foreign: Foreign, endpoint: str) -> None:
        self.stored: dict[bytes, list[bytes]] = {}
        self.replies: dict[bytes, list[bytes]] = {}
        self._workers = {name: foreign("DEALER") for name in (b"titanic.request", b"titanic.reply", b"titanic.close")}
        for worker in self._workers.values():
            worker.connect(endpoint)

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, worker in self._workers.items():
                group.create_task(self._work(name, worker))

    async def _work(self, name: bytes, worker: ForeignEnd) -> None:
        await worker.send(b"", b"MDPW01", b"\x01", name)
        while True:
            _, header, command, *rest = await worker.recv()
            assert header == b"MDPW01"
            if command == b"\x02":
                client, empty, *body = rest
                await worker.send(b"", b"MDPW01", b"\x03", client, empty, *self._answer(name, body))
            elif command == b"\x04":
                await worker.send(b"", b"MDPW01", b"\x04")

    def _answer(self, name: bytes, body: list[bytes]) -> list[bytes]:
        if name == b"titanic.request":
            uuid = uuid4().hex.upper().encode()
            self.stored[uuid] = body
            return [b"200", uuid]
        if name == b"titanic.close":
            self.stored.pop(body[0], None)
            return [b"200"]
        if body[0] in self.replies:
            return [b"200", *self.replies[body[0]]]
        return [b"300"] if body[0] in self.stored else [b"400"]

    async def run(self, client: mdp.Client) -> None:
        """Give what is stored to its services, as RFC 9 says: the first frame is the name of one."""
        for uuid, (service, *body) in self.stored.items():
            self.replies[uuid] = await client.request(service, *body)


async def test_our_client_asks_a_stock_store_for_nothing_it_does_not_know(foreign: Foreign, anywhere: str) -> None:
    """TSP-06, TSP-18: no frame before the service, so that the request is one a worker can be found for."""
    async with mdp.Broker() as broker, mdp.Client(endpoint := broker.bind(anywhere)) as client:
        stock = StockStore(foreign, endpoint)
        serving = asyncio.create_task(stock.serve())
        async with mdp.Worker(endpoint, "upper", handler=upper), titanic.Client(endpoint) as store:
            first, second = await asyncio.gather(store.submit("upper", b"hello"), store.submit("upper", b"", b"world"))
            assert stock.stored == {first.uuid.encode(): [b"upper", b"hello"], second.uuid.encode(): [b"upper", b"", b"world"]}
            await stock.run(client)
            assert await first.result(100) == [b"HELLO"]
            assert await second.result(100) == [b"", b"WORLD"]
            await first.close()
            asked: list[dict[str, Any]] = [{"key": "k"}, {"delay": 1.0}, {"ttl": 60.0}, {"attempts": 3}]
            for options in asked:
                with pytest.raises(titanic.OptionsNotSupported) as raised:
                    await store.submit("upper", b"x", **options)
                assert raised.value.options == tuple(options)
            assert len(stock.stored) == 1
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_our_store_is_known_as_ours_again_after_a_stock_one(foreign: Foreign, tmp_path: Path) -> None:
    """State of a store that belongs to the connection it was asked over."""
    place = f"ipc://{tmp_path}/b"
    async with titanic.Client(place, attempts=20) as store:
        async with mdp.Broker() as broker:
            broker.bind(place)
            stock = StockStore(foreign, place)
            serving = asyncio.create_task(stock.serve())
            await store.submit("upper", b"one")
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        async with mdp.Broker() as broker:
            broker.bind(place)
            async with titanic.Service(place, titanic.Store(None, None)):
                tickets = [await store.submit("upper", b"two", key="k", delay=60.0, ttl=600.0, attempts=3) for _ in range(2)]
                assert tickets[0].uuid == tickets[1].uuid
        async with mdp.Broker() as broker:
            broker.bind(place)
            stock = StockStore(foreign, place)
            serving = asyncio.create_task(stock.serve())
            await store.submit("upper", b"three")
            assert list(stock.stored.values()) == [[b"upper", b"three"]]
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
