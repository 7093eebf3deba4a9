"""Replies to a client with a long queue leave together; none is late for long, lost, or out of order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.broker.broker import HELD_BEHIND_MIN, HELD_MAX
from mdp.wire.commands import client_request, worker_final, worker_ready
from mdp.wire.events import Work, parse_at_worker
from tests.scenes.builds import replaces_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


REQUESTS = HELD_BEHIND_MIN * 3


@contextlib.asynccontextmanager
async def trio(hold_replies_ms: float = 1) -> AsyncIterator[tuple[mdp.Broker, core.Socket, core.Socket]]:
    """A broker, a worker of MDP/0.1 played by the test, and a client whose queue is long."""
    async with core.Context() as context, mdp.Broker(hold_replies_ms=hold_replies_ms) as broker, asyncio.timeout(100):
        endpoint = broker.bind("tcp://127.0.0.1:*")
        worker, client = context.socket(core.DEALER, linger=0), context.socket(core.DEALER, linger=0)
        for socket in (worker, client):
            socket.connect(endpoint)
        await worker.send_multipart(worker_ready("0.1", b"echo"))
        for n in range(REQUESTS):
            await client.send_multipart(client_request("0.1", b"echo", [b"%d" % n]))
        yield broker, worker, client


async def answer(worker: core.Socket) -> bytes:
    event = parse_at_worker(await worker.recv_multipart())
    assert isinstance(event, Work)
    await worker.send_multipart(worker_final("0.1", event.id, event.body))
    return event.body[0]


async def test_one_reply_is_not_held_for_ever() -> None:
    async with trio() as (_, worker, client):
        body = await answer(worker)
        assert (await client.recv_multipart())[-1] == body == b"0"


async def test_all_replies_come_in_order_and_in_fewer_reads_than_there_are() -> None:
    reads: list[int] = []
    got: list[bytes] = []
    done = asyncio.Event()

    def on_batch(batch: list[list[bytes]]) -> None:
        reads.append(len(batch))
        got.extend(message[-1] for message in batch)
        if len(got) == REQUESTS:
            done.set()

    async with trio() as (broker, worker, client):
        client.set_receiver(on_batch)
        for _ in range(REQUESTS):
            await answer(worker)
        await done.wait()
        assert got == [b"%d" % n for n in range(REQUESTS)]
        assert max(reads) > 1
        assert broker.counters["replies"] == broker.counters["closed"] == REQUESTS


async def test_held_replies_are_sent_when_the_broker_stops() -> None:
    async with trio() as (broker, worker, client):
        for _ in range(HELD_MAX - 2):
            await answer(worker)
        while broker.counters["replies"] < HELD_MAX - 2:
            await asyncio.sleep(0)
        broker.stop()
        got = [(await client.recv_multipart())[-1] for _ in range(HELD_MAX - 2)]
        assert got == [b"%d" % n for n in range(HELD_MAX - 2)]


@pytest.mark.parametrize(("hold_replies_ms", "arrives"), [(600_000, False), (0, True)])
async def test_how_long_replies_are_held_is_an_option(hold_replies_ms: float, arrives: bool) -> None:
    async with trio(hold_replies_ms) as (broker, worker, client):
        await answer(worker)
        while not broker.counters["replies"]:
            await asyncio.sleep(0)
        if arrives:
            assert (await client.recv_multipart())[-1] == b"0"
        async with mdp.Client(client.last_endpoint) as other:
            await other.mmi("service", "echo")  # by then what was sent to the first client has come
        assert not await client.poll(0)
        for _ in range(HELD_MAX):
            await answer(worker)
        assert (await client.recv_multipart())[-1] == (b"1" if arrives else b"0")


@pytest.mark.parametrize("hold_replies_ms", [-1, float("nan")])
def test_a_negative_time_to_hold_is_refused(hold_replies_ms: float) -> None:
    with pytest.raises(ValueError, match="hold_replies_ms"):
        mdp.Broker(hold_replies_ms=hold_replies_ms)


async def test_held_replies_of_a_client_that_leaves_are_dropped() -> None:
    async with trio() as (broker, worker, client):
        await answer(worker)
        while not broker.counters["replies"]:
            await asyncio.sleep(0)
        client.close()
        while broker.stats["clients"]:
            await asyncio.sleep(0)
        assert broker.counters["closed"] == broker.counters["accepted"]


@replaces_names
async def test_a_client_without_capacity_for_held_replies_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """N5: what was dropped for it would be missed for ever."""
    noted: list[set[bytes]] = []
    async with mdp.Broker() as broker:
        monkeypatch.setattr(broker, "_note_full", noted.append)
        broker._socket.counters.peer_full += 1
        broker._held = {b"slow": [b"\x00\x01x"]}
        broker._release()
    assert noted[0] == {b"slow"}
