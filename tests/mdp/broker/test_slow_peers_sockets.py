"""Answers faster than they are read: all queues are bounded, and clients that read lose nothing (BEY-14, fault N5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from core.pattern.reqrep import Router
from mdp.wire.commands import client_request, worker_ready
from mdp.wire.options import encode_options
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.request import Request

KIB = 2**10
ANSWER = b"\xa5" * (64 * KIB)
TOTAL = 2048 * KIB
DEAF = 12
EACH = 16  # so many answers are a little less than one may have
WITH_OPTIONS = encode_options({"deadline_ms": 3_600_000})


async def answer(request: Request) -> bytes:
    return ANSWER


def waiting(broker: mdp.Broker) -> int:
    pattern = broker._socket.pattern
    assert isinstance(pattern, Router)
    return sum(pipe.waiting_bytes() for pipe in pattern.routes.values())


@pytest.mark.parametrize("options", [b"", WITH_OPTIONS], ids=["plain", "with options"])
async def test_what_waits_for_all_clients_is_bounded_and_others_are_served(tmp_path: Path, options: bytes) -> None:
    """Each client is below its own limit; together they would have three times the limit of all.

    Buffers of the system are not counted. They read nothing ahead either, as sockets do that are full for a while.
    """
    async with core.Context() as context, mdp.Broker(context=context, unread_max_bytes=TOTAL, unread_total_max_bytes=TOTAL) as broker:
        at = broker.bind(f"ipc://{tmp_path / 'broker'}")  # the system keeps a fifth of a MiB for each, with tcp several
        most = 0
        async with mdp.Worker(at, "big", handler=answer), mdp.Client(at, timeout=100) as client:
            assert await client.request("big", b"x", wait=True) == [ANSWER]
            deaf = [context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0) for _ in range(DEAF)]
            for serial in range(EACH * DEAF):
                if serial < DEAF:
                    deaf[serial].connect(at)
                asking = client_request("0.3", b"big", [b"x"], id=serial.to_bytes(8, "big"), options=options)
                await deaf[serial % DEAF].send_multipart(asking)
                await client.request("big", b"x")
                most = max(most, waiting(broker))
            await eventually(lambda: not broker.stats["running"])
            assert most <= TOTAL + TOTAL // 16 + 2 * len(ANSWER)
            assert broker.counters["cut_slow"] > 0
            assert client.counters.repeated == 0
            for socket in deaf:
                socket.close()


async def test_workers_that_read_slowly_are_not_counted_among_the_clients(tmp_path: Path) -> None:
    """Requests wait for them, which have limits of their own; together these are more than all clients may leave unread."""
    async with (
        core.Context() as context,
        mdp.Broker(context=context, unread_max_bytes=TOTAL, unread_total_max_bytes=TOTAL, unread_hold_ms=1) as broker,
    ):
        at = broker.bind(f"ipc://{tmp_path / 'broker'}")
        slow = [context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0) for _ in range(4)]
        for socket in slow:
            socket.connect(at)
            await socket.send_multipart(worker_ready("0.3", b"big", options=encode_options({"credit": EACH})))
        await eventually(lambda: broker.stats["workers"] == len(slow))
        async with mdp.Client(at, timeout=100) as client:
            asked = [client.request("big", ANSWER) for _ in range(EACH * len(slow))]
            await eventually(lambda: broker.stats["running"] == len(asked))
            await client.request("mmi.service", b"big")
            assert waiting(broker) > TOTAL
            assert (broker.counters["cut_slow"], broker.stats["workers"]) == (0, len(slow))
            for request in asked:
                request.cancel()
        for socket in slow:
            socket.close()


async def test_a_client_that_reads_slower_than_workers_answer_is_waited_for() -> None:
    """No answer is lost or doubled, though all together are fifty times the limit of unread ones."""
    done = 0

    async def count(request: Request) -> bytes:
        nonlocal done
        done += 1
        return ANSWER

    async with mdp.Broker(unread_max_bytes=8 * len(ANSWER), unread_hold_ms=60_000, heartbeat_ms=60_000) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(at, "big", handler=count), mdp.Worker(at, "big", handler=count), mdp.Client(at, timeout=100) as client:
            replies = await asyncio.gather(*(client.request("big", b"x", wait=True) for _ in range(400)))
        assert replies == [[ANSWER]] * 400
        assert (done, client.counters.repeated, broker.counters["cut_slow"]) == (400, 0, 0)
        assert not broker._slow_peers._held_back
