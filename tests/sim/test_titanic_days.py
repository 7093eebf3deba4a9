"""TI3: a whole Titanic at a broker, with a service that is absent for thirty days, in virtual time (`virtual_time.py`).

Broker and store look round once a second whatever happens. Five million such looks take a minute, so `make test` lets them do it once a
minute, and `make models` as they are.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import core
import mdp
import titanic
from mdp.broker import dispatcher
from tests.scenes.builds import replaces_names
from tests.sim.disk import SimDisk
from tests.sim.virtual_time import VirtualTime, run
from titanic.journal.group_commit import Journal
from titanic.store import maintenance
from titanic.store.index.limits import DispatchOptions, Limits
from titanic.store.service import Service, ServiceOptions
from titanic.store.store import Store

DAYS = 30
HOUR_S, DAY_S = 3600.0, 86_400.0
BEAT_MS = 1_800_000  # heartbeats at the broker: half an hour, or they would be most of what happens
PROBE_S = 600.0
OPTIONS = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65_536, reserve_bytes=4096))
LIMITS = Limits(bytes_max=60_000, service_requests_max=100)
BROKER = "inproc://broker"


class Threads:
    """Counts unfinished work of the threads of a store, so that no time passes meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.under_way = 0
        self.journals: list[Journal] = []
        submit, run_job, begin = ThreadPoolExecutor.submit, Journal.run, Journal.__init__

        def counted(pool: ThreadPoolExecutor, *call: Any, **named: Any) -> Any:
            self.under_way += 1
            loop = asyncio.get_running_loop()
            future = submit(pool, *call, **named)
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done))
            return future

        def counted_job(journal: Journal, *call: Any) -> Any:
            self.under_way += 1
            future = run_job(journal, *call)
            future.add_done_callback(lambda _: self._done())
            return future

        def begun(journal: Journal, *arguments: Any) -> None:
            self.journals.append(journal)
            begin(journal, *arguments)

        patch.setattr(ThreadPoolExecutor, "submit", counted)
        patch.setattr(Journal, "run", counted_job)
        patch.setattr(Journal, "__init__", begun)

    def _done(self) -> None:
        self.under_way -= 1

    def busy(self) -> bool:
        return self.under_way > 0 or any(journal.backlog_bytes for journal in self.journals)


def room(disk: SimDisk) -> int:
    return sum(map(len, disk.survivors().values()))


async def month(clock: VirtualTime, disk: SimDisk, seen: dict[str, Any]) -> None:
    """Fill the quota of an absent service, use another one for days, then check the absent one's requests."""
    loop = asyncio.get_running_loop()
    answered: list[bytes] = []

    async def echo(request: mdp.Request) -> list[bytes]:
        answered.append(request.body[0])
        return list(request.body)

    dispatch = DispatchOptions(probe_max_s=PROBE_S)
    beats: dict[str, Any] = {"heartbeat_ms": BEAT_MS, "liveness": 3}
    async with core.Context() as context, mdp.Broker(context=context, **beats) as broker:
        broker.bind(BROKER)
        store = Store(disk, OPTIONS, LIMITS)
        async with (
            Service(BROKER, store, ServiceOptions(dispatch=dispatch), context=context, seed=1, **beats),
            mdp.Worker(BROKER, "there", handler=echo, context=context, blocked_s=0, **beats),
            titanic.Client(BROKER, context=context) as client,
        ):
            tickets = [await client.submit("gone", b"%d" % number) for number in range(100)]
            short = [await client.submit("other", b"x", ttl=DAY_S) for _ in range(20)]
            with pytest.raises(titanic.StoreFull):
                await client.submit("gone", b"one too many")
            begun, turns, jumps = loop.time(), clock.turns, clock.jumps
            for day in range(1, DAYS + 1):
                for number in range(10):  # another service is not hindered, and its requests leave nothing behind
                    ticket = await client.submit("there", b"%d" % number)
                    assert await ticket.result(timeout=60) == [b"%d" % number]
                    await ticket.close()
                await asyncio.sleep(begun + day * DAY_S - loop.time())
                seen.setdefault("room", []).append(room(disk))
            seen["days"] = (loop.time() - begun) / DAY_S
            seen["turns"], seen["jumps"] = clock.turns - turns, clock.jumps - jumps
            for ticket in short:
                with pytest.raises(titanic.Expired):
                    await ticket.result(timeout=60)
            assert len(answered) == 10 * DAYS
            answered.clear()
            async with mdp.Worker(BROKER, "gone", handler=echo, context=context, blocked_s=0, **beats):
                back = loop.time()
                assert [await ticket.result(timeout=HOUR_S) for ticket in tickets] == [[b"%d" % number] for number in range(100)]
                seen["after_s"] = loop.time() - back
            assert sorted(answered) == sorted(b"%d" % number for number in range(100))
            for ticket in tickets:
                await ticket.close()


@replaces_names
@pytest.mark.long
@pytest.mark.timeout(240)  # a machine that may be busy
def test_a_whole_titanic_waits_thirty_days_for_a_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """TI3: bounded in requests and on the disk, no busy loop, nothing lost, nothing done twice.

    What had a time to live has ended.
    """
    look_s = 1.0 if request.config.getoption("--sim-states", default=0) else 60.0
    monkeypatch.setattr(maintenance, "LOOK_S", look_s)
    monkeypatch.setattr(maintenance, "TICK_S", 60 * look_s)
    monkeypatch.setattr(dispatcher, "_SWEEP_S", look_s)
    clock, disk, seen = VirtualTime(), SimDisk(), dict[str, Any]()
    with monkeypatch.context() as patch:
        clock.busy = Threads(patch).busy
        run(month(clock, disk, seen), clock, monkeypatch)
    assert seen["days"] >= DAYS
    # A look of the broker and one of the store, ten requests a day, and a probe of each absent service now and then.
    assert seen["jumps"] <= DAYS * DAY_S * (2 / look_s + 6 / PROBE_S) + DAYS * 100
    assert seen["after_s"] <= PROBE_S * 1.1
    assert max(seen["room"]) <= 3 * OPTIONS.log.segment_bytes
