"""The wall clock jumps by a day, there and back, while broker, worker and client talk.

Nothing expires and nothing is late (fault T1).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import mdp
import mdp.testing
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    import pytest

DAY_S = 86_400.0


async def test_no_decision_depends_on_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mdp.testing.broker(heartbeat_ms=100, liveness=100) as local:
        worker = await local.add_worker("echo", echo, heartbeat_ms=100, liveness=100)
        client = await local.add_client(timeout=100)
        machine, real, real_ns = local.broker.machine, time.time, time.time_ns
        for jump_s in (DAY_S, -DAY_S, 0.0):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda jump_s=jump_s: real_ns() + int(jump_s * 1e9))
            beats = machine.counters.as_dict()["heartbeats_received"]
            assert await client.request("echo", b"x", deadline=20.0) == [b"x"]
            await eventually(lambda beats=beats: machine.counters.as_dict()["heartbeats_received"] >= beats + 3)  # type: ignore[misc]
        counted = machine.counters.as_dict()
        assert counted["workers_registered"] == 1
        assert not counted.get("workers_expired")
        assert worker.connected
        assert client.counters.repeated == 0
