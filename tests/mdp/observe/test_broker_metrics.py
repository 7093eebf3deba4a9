"""mdp.observe.broker_metrics: errors by code, and their reasons."""

from __future__ import annotations

import asyncio

import pytest

import mdp
import mdp.testing
from mdp.observe.broker_metrics import BrokerMetrics
from tests.scenes.waiting import eventually


@mdp.service("refuses")
async def refuses(what: str) -> str:
    raise mdp.HandlerError(code="NOT_IN_STOCK", text=f"no {what} left")


async def answers(request: mdp.Request) -> bytes:
    return b""


async def test_failed_requests_are_counted_by_code_and_shown_with_their_reason() -> None:
    async with mdp.testing.broker(refuses) as local:
        recorder = local.broker.watch()
        metrics = BrokerMetrics(local.broker, recorder, asyncio.get_running_loop().time)
        for what in ("tea", "coffee"):
            with pytest.raises(mdp.HandlerError):
                await local.client.call("refuses", what)
        with pytest.raises(mdp.NoService):
            await local.client.request("missing", b"x")
        (failed,) = [family for family in metrics.families() if family.name == "mdp_requests_failed"]
        assert (failed.kind, failed.labels) == ("counter", ("code",))
        assert dict(failed.samples) == {("NOT_IN_STOCK",): 2, ("NO_SERVICE",): 1}
        names = [family.name for family in metrics.families()]
        assert "mdp_error_no_service" in names, "what was there before stays"
        (table,) = [table for table in metrics.snapshot().tables if table.title == "Recent errors"]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        assert [(row["service"], row["code"]) for row in rows] == [
            ("missing", "NO_SERVICE"),
            ("refuses", "NOT_IN_STOCK"),
            ("refuses", "NOT_IN_STOCK"),
        ]
        assert [row["reason"] for row in rows][1:] == ["no coffee left", "no tea left"]
        assert rows[0]["reason"]


async def test_deadlines_and_lost_workers_have_a_reason_too() -> None:
    begun = asyncio.Event()

    async def stays(request: mdp.Request) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    async with mdp.testing.broker(services={"stays": stays}) as local:
        recorder = local.broker.watch()
        with pytest.raises(mdp.DeadlineExceeded):
            await local.client.request("stays", b"x", deadline=0.05)
        begun.clear()
        lost = asyncio.ensure_future(local.client.request("stays", b"x", once=True, timeout=60.0))
        await begun.wait()
        await local.lose_worker("stays")
        with pytest.raises(mdp.WorkerLost):
            await lost
        reasons = {error.code: error.text for error in recorder.errors}
        assert reasons["WORKER_LOST"] == "the request may be given to one worker only"
        assert reasons.get("DEADLINE_EXCEEDED", "running") == "running"
        assert recorder.failed["WORKER_LOST"] == 1


async def test_latencies_of_services_that_are_forgotten_are_forgotten_too_though_no_page_is_read() -> None:
    async with mdp.testing.broker(refuses, service_idle_ms=1, heartbeat_ms=50) as local:
        recorder = local.broker.watch()
        for name in ("first", "second"):
            await local.add_worker(name, answers)
            await local.client.request(name, b"x")
            assert name.encode() in recorder.latencies
            await local.lose_worker(name)
        await local.add_worker("stays", answers)
        await local.client.request("stays", b"x")
        await eventually(lambda: [*recorder.latencies] == [b"stays"])


async def test_percentiles_of_a_service_that_was_forgotten_begin_anew() -> None:
    async with mdp.testing.broker(refuses, services={"back": answers}) as local:
        recorder = local.broker.watch()
        now = [0.0]
        metrics = BrokerMetrics(local.broker, recorder, lambda: now[0])
        for _ in range(9):
            await local.client.request("back", b"x")
        for now[0] in (10.0, 20.0):  # two marks with these requests
            metrics.snapshot()
        recorder.keep(())
        recorder.latencies[b"back"].add(7.0)
        (services,) = [table for table in metrics.snapshot().tables if table.title == "Services"]
        rows = {row[0]: dict(zip(services.columns, row, strict=True)) for row in services.rows}
        assert rows["back"]["p50 ms"] == pytest.approx(7000, rel=0.2)
