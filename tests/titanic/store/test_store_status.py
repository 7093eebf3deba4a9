"""titanic.store.status: what `titanic.look` answers, and what the metrics page shows."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import core
import titanic
from core.runtime import runtime
from tests.scenes.virtual_loop import in_virtual_time
from tests.sim.disk import SimDisk
from tests.titanic.store.test_store import SMALL, ask
from titanic.mirror.replica_link import MirrorTerms
from titanic.store.delivery_queue import BACKLOG_AT_ONCE, DeliveryQueue
from titanic.store.index.limits import DispatchOptions
from titanic.store.other_stores import OtherStores
from titanic.store.status import SERVICES_SHOWN, StoreStatus
from titanic.wire import tsp

AGE_S = 600.0


class Opened:
    """A store that is open, its deliveries, and its status."""

    def __init__(self, store: titanic.Store, **more: Any) -> None:
        self.store = store
        self.delivery = DeliveryQueue(DispatchOptions(), runtime.current().chance(1).random)
        self.others = OtherStores()
        self.status = StoreStatus(store, self.delivery, self.others, **more)

    async def accept(self, service: str, body: bytes = b"x", owner: bytes = b"") -> str:
        code, uuid = await ask(lambda frames, done: self.store.submit(frames, done, None, owner), [service.encode(), body])
        assert code == b"200"
        return uuid.decode()

    def look(self, *frames: bytes, owner: bytes | None = None) -> Any:
        """Return what is answered, once."""
        said: list[list[bytes]] = []
        self.status.take(frames, said.append, owner)
        ((code, text),) = said
        return json.loads(text) if code == tsp.OK else (code, text.decode())


def family(opened: Opened, name: str) -> Any:
    (found,) = [one for one in opened.status.page().families() if one.name == name]
    return found


@in_virtual_time
async def test_a_request_is_shown_with_its_age_its_key_and_its_owner() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store)
        await asyncio.sleep(5 * AGE_S)
        plain = await opened.accept("a")
        owned = await opened.accept("b", owner=b"ann\xff")
        await asyncio.sleep(AGE_S)
        rows = {row["uuid"]: row for row in opened.look(b"requests", b"", b"0", b"10")}
        assert rows[plain].pop("age_s") == pytest.approx(AGE_S, abs=0.1)
        assert rows[plain] == {"uuid": plain, "state": "waiting", "service": "a", "attempts": 0, "key": None, "owner": None}
        assert rows[owned]["owner"] == "ann\ufffd"


@in_virtual_time
async def test_a_user_sees_its_own_requests_only() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store)
        mine = await opened.accept("a", owner=b"ann")
        await opened.accept("a", owner=b"bob")
        assert [row["uuid"] for row in opened.look(b"requests", b"", b"0", b"10", owner=b"ann")] == [mine]
        assert opened.look(b"requests", b"", b"0", b"10", owner=b"eve") == []
        assert opened.look(b"status", owner=b"ann") == {"state": "serving", "problems": 0, "requests": 1}
        assert opened.look(b"status", owner=b"eve") == {"state": "serving", "problems": 0, "requests": 0}


@in_virtual_time
async def test_an_operator_sees_the_status_with_what_a_pair_adds() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store, about=lambda: {"role": "primary"})
        await opened.accept("a")
        status = opened.look(b"status")
        assert (status["role"], status["requests"], status["gauges"]["requests"]) == ("primary", 1, 1)
        assert status["counters"]["requests_accepted"] == 1


@pytest.mark.parametrize("asked", [[b"nonsense"], [], [b"requests", b"", b"-1", b"1"]])
@in_virtual_time
async def test_what_is_no_question_is_refused(asked: list[bytes]) -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        code, text = Opened(store).look(*asked)
        assert (code, bool(text)) == (tsp.BAD, True)


@in_virtual_time
async def test_the_page_shows_the_services_with_most_requests_first() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store)
        for number in range(SERVICES_SHOWN + 2):
            for _ in range(2 if number == 7 else 1):
                await opened.accept(f"s{number:03}")
        (table,) = opened.status.page().snapshot().tables
        assert table.rows[:2] == [("s007", 2), ("s000", 1)]
        assert (len(table.rows), table.left_out) == (SERVICES_SHOWN, 2)
        assert family(opened, "titanic_service_requests").samples[:2] == [(("s007",), 2.0), (("s000",), 1.0)]
        assert family(opened, "titanic_state").samples == [(("serving",), 1.0)]


@in_virtual_time
async def test_the_page_leaves_nothing_out_while_there_are_few_services() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store)
        for name in ("b", "a", "c"):
            await opened.accept(name)
        (table,) = opened.status.page().snapshot().tables
        assert (table.rows, table.left_out) == ([("a", 1), ("b", 1), ("c", 1)], 0)


@in_virtual_time
async def test_a_store_that_does_not_serve_is_not_ready_and_says_why() -> None:
    reason = "no broker knows titanic.reply"
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store, lacks=lambda: reason)
        page, journal = opened.status.page(), store.journal
        assert isinstance(journal, titanic.Journal)
        assert page.not_ready() == reason
        journal.stalled = "the mirror is away"
        assert page.not_ready() == "the store is stalled: the mirror is away"
        journal.stalled = None
        journal.log.wounded = "EIO"
        assert page.not_ready().startswith("the store is wounded: ")
        assert page.not_ready().count("wounded") == 1
        journal.log.wounded = None
        store.counters["damaged"] = 1  # a degraded store serves
        assert (store.status["state"], page.not_ready()) == ("degraded", reason)


@in_virtual_time
async def test_a_store_that_is_full_names_the_limit() -> None:
    async with titanic.Store(None, None, titanic.Limits(requests_max=1)) as store:
        opened = Opened(store)
        await opened.accept("a")
        page = opened.status.page()
        assert (store.status["state"], page.not_ready()) == ("full", f"the store is full: {store.status['trouble']}")


@in_virtual_time
async def test_figures_of_a_journal_are_there_where_there_is_one() -> None:
    async with titanic.Store(SimDisk(), SMALL) as store:
        opened = Opened(store)
        await opened.accept("a")
        opened.delivery.add_backlog(b"late", iter([b"%d" % number for number in range(BACKLOG_AT_ONCE + 5)]), BACKLOG_AT_ONCE + 5)
        opened.others.count = 2
        figures, journal = opened.status.figures(), store.journal
        assert isinstance(journal, titanic.Journal)
        assert figures["gauges"]["requests_waiting"] == BACKLOG_AT_ONCE + 5
        assert (figures["gauges"]["other_stores"], figures["gauges"]["services"], figures["gauges"]["record_bytes"] > 0) == (2, 1, True)
        assert figures["gauges"]["journal_wounded"] == 0
        assert figures["counters"]["journal_records"] == journal.acknowledged > 0
        assert figures["counters"]["requests_over_share"] == 0
        assert "upkeep_scrubbed" in figures["counters"]
        assert "mirror_in_step" not in figures["gauges"]
        journal.log.wounded = "EIO"
        assert opened.status.figures()["gauges"]["journal_wounded"] == 1
        journal.log.wounded = None
    async with titanic.Store(None, None) as store:
        names = {name for part in Opened(store).status.figures().values() for name in part}
        assert not any(name.startswith(("journal", "upkeep", "mirror")) for name in names)


@pytest.mark.parametrize(("state", "in_step"), [("in step", 1), ("away", 0)])
@in_virtual_time
async def test_figures_of_a_mirror_are_there_where_there_is_one(state: str, in_step: int) -> None:
    async with core.Context() as context:
        line = titanic.MirrorLine("inproc://nowhere", context=context, terms=MirrorTerms(1000.0, 1000.0, True, lambda: True))
        async with titanic.Store(SimDisk(), SMALL, mirror=line, go_on=True) as store:
            line.state, line.sessions = state, 3
            figures = Opened(store).status.figures()
            assert (figures["gauges"]["mirror_in_step"], figures["counters"]["mirror_sessions"]) == (in_step, 3)
