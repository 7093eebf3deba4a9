"""Titanic at a Binary Star pair of brokers.

The active one dies or hands over, and nothing that was accepted is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import titanic
from tests.scenes.mdp_paired_brokers import QUICK_MS, Brokers
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from pathlib import Path

FAST = titanic.ServiceOptions(dispatch=DispatchOptions(retry_s=0.02, retry_max_s=0.2, probe_s=0.02, probe_max_s=0.1))


@pytest.mark.parametrize("how", ["crash", "switchover"])
async def test_what_was_accepted_at_one_broker_is_answered_at_the_other(tmp_path: Path, how: str) -> None:
    """TSP-16, BEY-08: store, workers and clients follow the pair."""
    async with Brokers(heartbeat_ms=QUICK_MS) as pair:
        await pair.settle()
        options = titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096))
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), options)
        async with (
            titanic.Service(pair.fronts, store, FAST, context=pair.context, heartbeat_ms=100) as service,
            titanic.Client(pair.fronts, context=pair.context, timeout=2.0, attempts=20) as client,
        ):
            while not service.connected:
                await asyncio.sleep(0.001)
            tickets = [await client.submit("echo", b"%d" % n) for n in range(20)]
            if how == "crash":
                await pair.stop(0)
            else:
                await pair.pairs[0].switchover()
            tickets += [await client.submit("echo", b"%d" % n) for n in range(20, 40)]
            await pair.worker()
            assert [await ticket.result(40) for ticket in tickets] == [[b"%d" % n] for n in range(40)]
            for ticket in tickets:
                await ticket.close()
        assert store.counters["accepted"] == 40
