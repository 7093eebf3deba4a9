"""An internal fault while one stored request is sent or answered: it is tried again, with back-off, or dead-lettered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import titanic
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from tests.titanic.access.test_verbs import Scene
from titanic.access.broker_permissions import Question
from titanic.journal.record_bodies import encode_reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

pytestmark = pytest.mark.faults
FAST = titanic.DispatchOptions(retry_s=0.01, probe_s=0.01)


class Shop:
    """A broker, a store and a worker of `echo`.

    `fail` has what is called by a name fail so many times.
    """

    async def __aenter__(self) -> Shop:
        self.broker = await mdp.Broker().__aenter__()
        self.where = self.broker.bind("tcp://127.0.0.1:*")
        self.worker = await mdp.Worker(self.where, "echo", handler=_echo).__aenter__()
        self.service = titanic.Service(self.where, titanic.Store(None, None), titanic.ServiceOptions(dispatch=FAST), seed=1)
        await self.service.__aenter__()
        self.client = await titanic.Client(self.where).__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for part in (self.client, self.service, self.worker, self.broker):
            await part.__aexit__(None, None, None)


async def _echo(request: mdp.Request) -> list[bytes]:
    return request.body


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    with supervision.scope(Supervisor()):
        async with Shop() as made:
            yield made


def fail(
    monkeypatch: pytest.MonkeyPatch, whole: Any, name: str, times: int, error: Exception, when: Callable[..., bool] = lambda *_: True
) -> list[int]:
    """Have a method raise the first times it is called with what is meant; returns how often it still will."""
    left, real = [times], getattr(whole, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        if left[0] and when(*arguments):
            left[0] -= 1
            raise error
        return real(*arguments, **named)

    monkeypatch.setattr(whole, name, failing)
    return left


PLACES: dict[str, tuple[Callable[[Shop], Any], str, Callable[..., bool]]] = {
    "given to the worker": (lambda shop: shop.service._client, "ask", lambda *_: True),
    "its body": (lambda shop: shop.service.store.bodies, "take", lambda *_: True),
    "its answer": (lambda shop: shop.service.store, "answer", lambda *_: True),
    "its answer taken": (lambda shop: shop.service.delivery, "finished", lambda *_: True),
    "the question for its service": (lambda shop: shop.service._client, "request", lambda service, *_: service == b"mmi.service"),
}


@pytest.mark.parametrize(
    "error", [ValueError("odd"), MemoryError(), mdp.Busy("echo"), KeyError("x")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("place", [pytest.param(place, marks=[replaces_names] if place.startswith("its ") else []) for place in PLACES])
async def test_a_request_is_answered_after_faults(shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    whole, name, when = PLACES[place]
    left = fail(monkeypatch, whole(shop), name, 3, error, when)
    tickets = await asyncio.gather(*(shop.client.submit("echo", b"%d" % number) for number in range(5)))
    assert [await ticket.result(100) for ticket in tickets] == [[b"%d" % number] for number in range(5)]
    assert left == [0]
    assert not shop.service.delivery.in_flight
    assert not shop.service.delivery.waiting


@replaces_names
@pytest.mark.parametrize("place", ["given to the worker", "its body", "its answer"])
async def test_one_that_fails_whenever_it_is_tried_is_a_dead_letter(shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    whole, name, _ = PLACES[place]
    fail(monkeypatch, whole(shop), name, 1000, ValueError("odd"))
    ticket = await shop.client.submit("echo", b"x", attempts=3)
    with pytest.raises(titanic.DeadLettered, match="after 3 attempts: internal fault: ValueError"):
        await ticket.result(100)
    assert not shop.service.delivery.in_flight
    await ticket.close()


@replaces_names
@pytest.mark.parametrize("closed", [False, True])
async def test_a_fault_behind_the_end_of_a_request_is_no_failed_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    """It is not executed again, nor given up, because its reply or its CLOSE is being written."""
    store = shop.service.store
    answer = store.answer

    def failing(uuid: bytes, frames: Any) -> None:
        if closed:
            store.close_request([uuid.hex().encode()], lambda _: None)
        else:
            answer(uuid, frames)
        raise ValueError("odd")

    monkeypatch.setattr(store, "answer", failing)
    ticket = await shop.client.submit("echo", b"x", attempts=1)
    entry = store.index.entries[bytes.fromhex(ticket.uuid)]
    if closed:
        await eventually(lambda: not store.index.entries)
    else:
        assert await ticket.result(100) == [b"x"]
    assert entry.attempts == 0
    assert "is given up" not in caplog.text
    assert not shop.service.delivery.waiting
    assert not shop.service.delivery.in_flight


@replaces_names
async def test_an_answer_that_could_not_be_encoded_is_asked_for_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is marked as being written before it is."""
    left = [2]
    real = encode_reply

    def failing(*arguments: Any) -> bytes:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr("titanic.store.store.encode_reply", failing)
    ticket = await shop.client.submit("echo", b"x")
    assert await ticket.result(100) == [b"x"]


@replaces_names
async def test_who_asks_is_answered_though_the_store_has_a_fault(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the broker would never repeat it, and one request in flight less would be possible."""
    worker = shop.service._workers[0]
    fail(monkeypatch, shop.service.store, "submit", 1, ValueError("odd"))
    with pytest.raises(titanic.Unavailable, match="internal fault: ValueError"):
        await shop.client.submit("absent", b"x")
    assert worker.open == 0
    await shop.client.submit("absent", b"x")


async def test_a_reason_that_is_no_text_can_be_stored() -> None:
    async with titanic.Store(None, None) as store:
        submitted: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.submit([b"nobody", b"x"], submitted.set_result)
        uuid = (await submitted)[1]
        store.dead_letter(store.index.entries[bytes.fromhex(uuid.decode())], "odd \udc80")
        found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.wait([uuid], 20.0, found.set_result)
        assert await found == [b"500", b"odd \\udc80"]


@replaces_names
async def test_a_fault_after_a_permission_affects_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with supervision.scope(Supervisor()) as supervisor:
        async with Scene(dispatch=FAST) as scene:
            left = fail(monkeypatch, scene.store.store.bodies, "take", 2, ValueError("odd"))
            uuids = await asyncio.gather(*(scene.submit("ann") for _ in range(4)))
            for uuid in uuids:
                assert await scene.ask("ann", b"titanic.wait", uuid, b"20000") == [b"200", b"hello"]
            assert left == [0]
            await eventually(lambda: not scene.store.delivery.in_flight)
        assert supervisor.faults == {"titanic dispatch": 2}


async def test_a_fault_in_one_question_about_rights_delays_no_other() -> None:
    with supervision.scope(Supervisor()) as supervisor:
        async with Scene() as scene:
            permissions = scene.store._permissions
            told: list[int] = []

            def tell(number: int, _: object) -> None:
                if number == 1:
                    raise ValueError("odd")
                told.append(number)

            question = Question(b"call", b"ann", b"own-other")
            for number in range(4):
                permissions.ask(question, tell, number)
            await eventually(lambda: told == [0, 2, 3])
            assert await scene.submit("ann", "own-yet-another")  # others are asked after it
        assert supervisor.faults == {"titanic permission": 1}
