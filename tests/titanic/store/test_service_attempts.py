"""Attempts of a store that fail: which request leaves next, and when its service is asked for again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import titanic
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_refused_closes import FullDisk
from tests.titanic.store.test_service import FAST, Scene, scene
from tests.titanic.store.test_service_deliveries import PATIENT, stored
from tests.titanic.store.test_store import SMALL, ask

if TYPE_CHECKING:
    import mdp
    from titanic.store.index.stored_request import Entry

__all__ = ["scene"]


async def test_requests_keep_their_order_while_their_service_is_away(scene: Scene) -> None:
    """The first one that finds no worker is no failed attempt, and the others are not even sent."""
    calls: list[bytes] = []

    async def noted(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    one = titanic.DispatchOptions(window=1, **PATIENT)
    async with stored(scene, titanic.ServiceOptions(dispatch=one)) as service, scene.client() as client:
        async with scene.worker("away", noted):
            assert await (await client.submit("away", b"first")).result(PATIENCE_S) == [b"first"]
        tickets = [await client.submit("away", b"%d" % number) for number in range(5)]
        await eventually(lambda: not service.delivery.in_flight)
        async with scene.worker("away", noted):
            for ticket in tickets:
                await ticket.result(PATIENCE_S)
        assert calls == [b"first", *(b"%d" % number for number in range(5))]
        assert {entry.attempts for entry in service.store.index.entries.values()} == {0}


@replaces_names
@pytest.mark.faults
@pytest.mark.parametrize("fault", [False, True])
async def test_a_request_that_fails_does_not_hold_up_those_behind_it(scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: bool) -> None:
    """It waits for its next attempt beside them, also after an internal fault of the store."""
    poisoned: list[Entry] = []

    async def moody(request: mdp.Request) -> list[bytes]:
        if request.body[0] == b"poison" and not fault:
            raise ValueError("odd")
        return request.body

    patient = titanic.DispatchOptions(window=1, **PATIENT)
    service = stored(scene, titanic.ServiceOptions(dispatch=patient))
    async with service, scene.client() as client, scene.worker("moody", moody):
        take = service.store.bodies.take

        def breakable(entry: Entry) -> list[bytes] | None:
            poisoned.append(entry)
            if fault and entry is poisoned[0]:
                raise ValueError("odd")
            return take(entry)

        monkeypatch.setattr(service.store.bodies, "take", breakable)
        poison = await client.submit("moody", b"poison")
        assert await (await client.submit("moody", b"x")).result(PATIENCE_S) == [b"x"]
        assert await poison.fetch() is None


@replaces_names
@pytest.mark.parametrize("silent", [False, True])
async def test_a_service_that_was_silent_is_asked_for_before_the_next_attempt(scene: Scene, silent: bool) -> None:
    """A broker of MDP/0.1 says nothing of an absent one. A handler that fails is there."""

    probes: list[bytes] = []
    seen: dict[bytes, int] = {}

    async def fails(called: mdp.Request) -> list[bytes]:
        seen[called.body[0]] = len(probes)
        if silent:
            await asyncio.Event().wait()
        raise ValueError("odd")

    one = titanic.DispatchOptions(window=1, retry_s=0.02, probe_s=0.02)
    options = titanic.ServiceOptions(dispatch=one, timeout_s=0.1 if silent else PATIENCE_S)
    async with stored(scene, options) as service, scene.client() as client:
        request = service._client.request

        def noted(name: Any, *frames: bytes, **options: Any) -> Any:
            probes.append(frames[0])
            return request(name, *frames, **options)

        service._client.request = noted  # type: ignore[method-assign, assignment]
        async with scene.worker("fails", fails, concurrency=100, drain_s=0.0, cancel_s=1.0) as worker:
            await eventually(lambda: worker.connected)
            tickets = await asyncio.gather(*(client.submit("fails", body, attempts=1) for body in (b"one", b"two")))
            for ticket in tickets:
                with pytest.raises(titanic.DeadLettered):
                    await ticket.result(PATIENCE_S)
    assert [seen[b"two"] - seen[b"one"]] == [int(silent)]


async def test_a_request_that_was_given_up_while_its_close_was_refused_is_delivered_again(scene: Scene) -> None:
    """It would be in flight for ever."""
    began, go_on = asyncio.Event(), asyncio.Event()
    calls: list[bytes] = []

    async def fails_once(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        if len(calls) == 1:
            began.set()
            await go_on.wait()
            raise ValueError("odd")
        return request.body

    disk = FullDisk(scene.directory)
    options = titanic.ServiceOptions(dispatch=FAST)
    service = titanic.Service(scene.endpoint, titanic.Store(disk, SMALL), options, context=scene.context, seed=1)
    async with service, scene.client() as client, scene.worker("moody", fails_once):
        ticket = await client.submit("moody", b"x", attempts=1)
        entry = service.store.index.entries[bytes.fromhex(ticket.uuid)]
        await began.wait()
        disk.gate.clear()
        disk.full = True
        closing = asyncio.ensure_future(ticket.close())
        await eventually(lambda: entry.closing)
        go_on.set()
        await eventually(lambda: entry.attempts)
        disk.gate.set()
        with pytest.raises(titanic.Unavailable):
            await closing
        disk.full = False
        assert await ticket.result(PATIENCE_S) == [b"x"]
    assert len(calls) == 2


@replaces_names
@pytest.mark.faults
async def test_the_reason_of_a_dead_letter_is_cut_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of other programs have any length."""

    def fail(_: object) -> None:
        raise type("E" * 2000, (Exception,), {})

    async with stored(scene, titanic.ServiceOptions(dispatch=FAST)) as service, scene.client() as client, scene.worker("echo", echo):
        monkeypatch.setattr(service.store.bodies, "take", fail)
        ticket = await client.submit("echo", b"x", attempts=1)
        code, reason = await ask(service.store.wait, [ticket.uuid.encode()], PATIENCE_S)
        assert (code, len(reason)) == (b"500", 1000)
        assert reason.startswith(b"DEAD_LETTER after 1 attempts: internal fault: EEE")
