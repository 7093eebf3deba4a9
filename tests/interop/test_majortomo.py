"""Clients and workers of the package majortomo at our brokers: one process, shards, and a pair.

The package is used where it is installed (extra `dev`); its octets are in `tests/mdp/broker/test_variants.py`.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_paired_brokers import Brokers
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.interop.ends import Foreign

majortomo: Any = pytest.importorskip("majortomo", reason="majortomo is not installed")


@contextmanager
def doubling_worker(endpoint: str, service: str) -> Iterator[None]:
    """Answer each request with its frames as parts, and then all of them."""
    worker = majortomo.Worker(endpoint, service, heartbeat_interval=0.1, zmq_linger=0)

    def serve() -> None:
        try:
            while True:
                client, body = worker.wait_for_request()
                worker.send_reply_from_iterable(client, [[frame] for frame in body], final=body)
        except majortomo.error.Disconnected:
            pass

    worker.connect()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)  # a broker that stops sends DISCONNECT


def ask(endpoint: str, service: str, *body: bytes) -> list[list[bytes]]:
    """Return all parts of a reply."""
    with majortomo.Client(endpoint, zmq_linger=0) as client:
        client.send(service, *body)
        return list(client.recv_all(timeout=PATIENCE_S))


async def converse(endpoint: str, service: str) -> None:
    """Let both meet each other and peers of ours."""
    assert await asyncio.to_thread(ask, endpoint, service, b"a", b"") == [[b"a"], [b""], [b"a", b""]]
    async with mdp.Client(endpoint) as client:
        assert [part async for part in client.stream(service, b"x" * 70_000)] == [[b"x" * 70_000]] * 2
    async with mdp.Worker(endpoint, f"{service}-ours", handler=echo) as worker:
        await eventually(lambda: worker.connected)
        assert await asyncio.to_thread(ask, endpoint, f"{service}-ours", b"b") == [[b"b"]]


async def test_at_a_broker() -> None:
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        with doubling_worker(endpoint, "double"):
            await converse(endpoint, "double")
            await eventually(lambda: broker.counters["heartbeats_received"] > 2)
            assert broker.counters["unknown_dialect"] == broker.counters["invalid_header"] == 0
            broker.stop()


async def test_at_a_broker_of_two_shards(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b") as sharded:
        service = sharded.names(1)[0]
        with doubling_worker(sharded.endpoint, service):
            await converse(sharded.endpoint, service)
            assert await asyncio.to_thread(ask, sharded.endpoint, "mmi.service", service.encode()) == [[b"200"]]
            await sharded.stop(1)


async def test_a_worker_at_the_passive_broker_of_a_pair_gets_disconnect_in_kind(foreign: Foreign) -> None:
    async with asyncio.timeout(PATIENCE_S), Brokers() as brokers:
        await brokers.settle()
        worker = foreign("DEALER")
        worker.connect(brokers.fronts[1])
        await worker.send(b"", b"MDPW02", b"\x01", b"echo")
        assert await worker.recv() == [b"", b"MDPW02", b"\x06"]
        with doubling_worker(brokers.fronts[0], "double"):
            assert await asyncio.to_thread(ask, brokers.fronts[0], "double", b"a") == [[b"a"], [b"a"]]
            await brokers.stop(0)
