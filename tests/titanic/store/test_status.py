"""Status of a store that serves, metrics, and many tickets at once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import titanic
from tests.scenes.prefork import command
from titanic.journal.inspection import segment_name
from titanic.store.index.limits import DispatchOptions
from titanic.store.index.stored_request import State
from titanic.store.repair import repair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FAST = titanic.ServiceOptions(dispatch=DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[titanic.Service, titanic.Client, str]]:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        options = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), options)
        async with titanic.Service(endpoint, store, FAST, context=context) as service, titanic.Client(endpoint, context=context) as client:
            yield service, client, endpoint


async def echo(request: mdp.Request) -> list[bytes]:
    if request.body[0] == b"bad":
        raise ValueError("no")
    return list(request.body)


Served = tuple[titanic.Service, titanic.Client, str]


async def test_the_state_and_the_requests_of_a_store_that_serves(served: Served) -> None:
    service, client, _ = served
    uuids = [(await client.submit("a" if n % 2 else "b", b"x", key=f"k{n}")).uuid for n in range(5)]
    status = await client.look("status")
    assert (status["state"], status["requests"]) == ("serving", 5)
    assert status["counters"]["requests_accepted"] == 5
    assert status["gauges"]["requests_waiting"] == 5
    assert status["gauges"] == service.figures()["gauges"]
    rows = await client.look("requests", "", 0, 3) + await client.look("requests", "", 3, 3)
    assert [row["uuid"] for row in rows] == uuids
    assert [row["key"] for row in await client.look("requests", "a", 0, 10)] == ["k1", "k3"]


@pytest.mark.parametrize("asked", [("nonsense",), ("requests", "a", "x", "1"), ("requests", "a", "1"), ("status", "more")])
async def test_what_cannot_be_looked_at_is_refused(served: Served, asked: tuple[str, ...]) -> None:
    _, client, _ = served
    with pytest.raises(titanic.Unavailable):
        await client.look(*asked)


@pytest.mark.parametrize("answer", [b"", b"{", b"\xff", b"1" * 5000, b"[" * 100_000])
async def test_an_answer_that_is_no_json_is_no_answer(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    async def ask(*_: object) -> list[bytes]:
        return [b"200", answer]

    monkeypatch.setattr(titanic.Client, "ask", ask)
    async with titanic.Client("tcp://127.0.0.1:9") as client:
        with pytest.raises(titanic.Unavailable):
            await client.look("status")


async def cli(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command("titanic"), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_ls_asks_a_store_that_serves_and_says_when_it_is_not_well(served: Served) -> None:
    service, client, endpoint = served
    ticket = await client.submit("a", b"x")
    code, out, err = await cli("ls", "--broker", endpoint, "--json")
    assert (code, json.loads(out)["uuid"], err) == (0, ticket.uuid, "")
    journal = service.store.journal
    assert isinstance(journal, titanic.Journal)
    journal.log.wounded = "EIO"
    code, out, err = await cli("ls", "--broker", endpoint)
    assert out.split()[:3] == [ticket.uuid, "waiting", "a"]
    assert "wounded" in err
    assert json.loads((await cli("ls", "--broker", endpoint, "--status"))[1])["state"] == "wounded"
    journal.log.wounded = None
    assert (await cli("ls"))[0] == 2


async def test_many_tickets_are_waited_for_at_once_and_come_as_they_are_ready(served: Served) -> None:
    service, client, endpoint = served
    bodies = [b"bad" if n == 7 else b"%d" % n for n in range(40)]
    tickets = [await client.submit("echo", body, attempts=1) for body in bodies]
    tickets.append(client.ticket("0" * 32))
    async with mdp.Worker(endpoint, "echo", handler=echo):
        outcomes = {outcome.ticket.uuid: outcome async for outcome in client.results(tickets, timeout=100, window=8)}
    assert len(outcomes) == 41
    for ticket, body in zip(tickets, bodies, strict=False):
        outcome = outcomes[ticket.uuid]
        if body == b"bad":
            assert isinstance(outcome.error, titanic.DeadLettered)
        else:
            assert outcome.reply == [body]
    assert isinstance(outcomes["0" * 32].error, titanic.UnknownRequest)
    assert service.store.status["dead"] == 1


@pytest.mark.parametrize("window", [0, -1])
async def test_tickets_are_not_waited_for_none_at_a_time(window: int) -> None:
    """It looked as if no ticket had an outcome."""
    client = titanic.Client("tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match=f"window is {window}, it must be positive"):
        await anext(client.results([client.ticket("0" * 32)], window=window))


async def test_leaving_the_loop_over_tickets_early_leaves_nothing_behind(served: Served) -> None:
    _, client, endpoint = served
    tickets = [await client.submit("echo", b"%d" % n) for n in range(20)]
    tickets.append(await client.submit("nobody", b"x"))
    async with mdp.Worker(endpoint, "echo", handler=echo):
        outcomes = client.results(reversed(tickets), window=4)
        first = await anext(outcomes)
        await outcomes.aclose()
    assert first.reply is not None


async def test_leaving_the_service_does_not_wait_for_waiting_clients(tmp_path: Path) -> None:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions())
        async with titanic.Client(endpoint, context=context) as client:
            async with titanic.Service(endpoint, store, FAST, context=context):
                ticket = await client.submit("nobody", b"x")
                asked = asyncio.ensure_future(client.ask(b"titanic.wait", ticket.uuid.encode(), b"600000"))
                while not store._waiters:
                    await asyncio.sleep(0)
            assert (await asked)[0] == b"300"


async def test_a_segment_is_read_again_and_damage_is_named_while_the_store_serves(served: Served) -> None:
    service, client, _ = served
    store = service.store
    journal, maintenance = store.journal, store._maintenance
    assert isinstance(journal, titanic.Journal)
    assert maintenance is not None
    tickets = [await client.submit("nobody", b"x" * 5000) for _ in range(30)]
    number = journal.log.droppable()[0]
    assert await maintenance.scrub(number) == 0
    entry = next(e for e in store.index.entries.values() if e.request is not None and e.request[0] == number)
    assert entry.request is not None
    path = store._disk.directory / segment_name(number)  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    data[entry.request[1] + 100] ^= 1
    path.write_bytes(data)
    assert await maintenance.scrub(number) == 1
    assert store.status["state"] == "degraded"
    assert store.problems[-1].uuid == entry.uuid
    assert number not in journal.log.droppable()
    assert service.figures()["counters"]["upkeep_damaged"] == 1
    assert entry.state == State.WAITING
    assert len(tickets) == 30


async def test_damage_that_was_accepted_is_not_found_again(tmp_path: Path) -> None:
    options = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))
    async with titanic.Store(titanic.RealDisk(tmp_path), options) as store:
        stored: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        for number in range(30):
            store.submit([b"nobody", b"x" * 5000], stored.set_result if number == 29 else lambda _: None)
        await stored
    path = min(tmp_path.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    assert repair(titanic.RealDisk(tmp_path), b"")
    async with titanic.Store(titanic.RealDisk(tmp_path), options) as store:
        maintenance = store._maintenance
        assert maintenance is not None
        assert await maintenance.scrub(int(path.name[:12])) == 0
        assert store.status["state"] == "serving"


async def test_segments_are_scrubbed_once_per_period(served: Served) -> None:
    service, client, _ = served
    maintenance = service.store._maintenance
    assert maintenance is not None
    for _ in range(30):
        await client.submit("nobody", b"x" * 5000)
    journal = service.store.journal
    assert isinstance(journal, titanic.Journal)
    count = len(journal.log.droppable())
    assert count >= 2
    every_ms = int(journal.options.scrub_s * 1000)
    await maintenance._scrub_one(0)
    assert maintenance.counts["scrubbed"] == 0
    for _ in range(count + 3):
        await maintenance._scrub_one(every_ms)
    assert maintenance.counts["scrubbed"] == count


async def test_the_face_has_every_figure_the_services_and_why_it_is_not_ready(served: Served) -> None:
    service, client, _ = served
    for number in range(3):
        await client.submit("a" if number else "b", b"x")
    page = service.page()
    families = {family.name: family for family in page.families()}
    assert families["titanic_requests_accepted"].kind == "counter"
    assert families["titanic_requests_accepted"].samples == [((), 3)]
    assert families["titanic_requests"].samples == [((), 3)]
    assert families["titanic_service_requests"].samples == [(("a",), 2.0), (("b",), 1.0)]
    assert families["titanic_state"].samples == [(("serving",), 1.0)]
    shown = page.snapshot().as_dict()
    assert shown["figures"]["state"] == "serving"
    assert shown["tables"][0]["rows"] == [("a", 2), ("b", 1)]
    assert page.not_ready() == ""
    journal = service.store.journal
    assert isinstance(journal, titanic.Journal)
    journal.log.wounded = "EIO"
    assert "wounded" in page.not_ready()
    journal.log.wounded = None
    journal.stalled = "the mirror is away"
    assert "the mirror is away" in page.not_ready()
    journal.stalled = None


def test_figures_of_a_store_in_memory_are_there_too() -> None:
    async def look() -> dict[str, Any]:
        async with mdp.Broker() as broker:
            async with titanic.Service(broker.bind("tcp://127.0.0.1:*"), titanic.Store(None, None)) as service:
                return service.figures()

    assert asyncio.run(look())["gauges"]["requests"] == 0
