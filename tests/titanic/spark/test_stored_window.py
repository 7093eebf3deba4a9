"""Requests that are stored before they are executed, as `dispatch(…, via="titanic")` sends them; no Java."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import pytest

import mdp
import mdp.testing
import titanic
from tests.scenes.fault_injection import sabotaged
from titanic.spark.stored_window import StoredWindow
from titanic.store.service import ServiceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from types import TracebackType

    from mdp.client.client import Outcome


class Scene:
    """A broker, a store in memory, and a worker that counts what it executes."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, bytes | None]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._stack = AsyncExitStack()
        self._store: titanic.Service | None = None

    async def __aenter__(self) -> Self:
        self.local = await self._stack.enter_async_context(mdp.testing.broker())
        worker = mdp.Worker(self.local.endpoint, "echo", handler=self._execute, context=self.local.context)
        await self._stack.enter_async_context(worker)
        await self.open_store()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close_store()
        await self._stack.aclose()

    async def open_store(self) -> None:
        store = titanic.Store(None, None)
        self._store = titanic.Service(self.local.endpoint, store, ServiceOptions(), context=self.local.context, seed=1)
        await self._store.__aenter__()

    async def close_store(self) -> None:
        if self._store is not None:
            await self._store.__aexit__(None, None, None)
            self._store = None

    async def _execute(self, request: mdp.Request) -> list[bytes]:
        self.executed.append((request.body[0], request.key))
        await self.gate.wait()
        if request.body[0] == b"poison":
            raise ValueError("the handler does not like this row")
        return [b"done", request.body[0]]

    async def ask(self, *bodies: bytes, keys: Sequence[str] = (), timeout_s: float = 60.0, attempts: int = 2) -> list[Outcome]:
        """Ask for all, and return their outcomes by index."""
        ended = asyncio.Event()
        window = StoredWindow(self.local.client, "echo", ended.set, timeout_s=timeout_s, attempts=attempts)
        assert window.send([(body,) for body in bodies], keys or [body.decode() for body in bodies]) == 0
        found: list[Outcome] = []
        while len(found) < len(bodies):
            await ended.wait()
            ended.clear()
            found += window.take()
        assert window.take() == []
        return sorted(found, key=lambda outcome: outcome.index)


async def test_what_was_stored_is_executed_once_and_answered_from_the_store() -> None:
    async with Scene() as scene:
        first = await scene.ask(b"a", b"b")
        again = await scene.ask(b"b", b"c", b"a")
    assert [(one.reply, one.replayed) for one in first] == [([b"done", b"a"], False), ([b"done", b"b"], False)]
    assert [(one.reply, one.replayed) for one in again] == [
        ([b"done", b"b"], True),
        ([b"done", b"c"], False),
        ([b"done", b"a"], True),
    ]
    assert sorted(body for body, _ in scene.executed) == [b"a", b"b", b"c"]
    # The worker sees one key for each, by which a request that it gets again can be recognised.
    assert len({key for _, key in scene.executed}) == 3
    assert None not in {key for _, key in scene.executed}


async def test_a_request_that_fails_each_time_is_a_dead_letter_which_is_kept_too() -> None:
    async with Scene() as scene:
        (first,) = await scene.ask(b"poison")
        (again,) = await scene.ask(b"poison")
    assert isinstance(first.error, mdp.HandlerError)  # so that its table is halved
    assert (first.error.code, first.replayed) == ("DEAD_LETTER", False)
    assert "after 2 attempts" in first.error.text
    assert again.error is not None
    assert (again.error.code, again.replayed) == ("DEAD_LETTER", True)
    assert [body for body, _ in scene.executed] == [b"poison"] * 2


async def test_a_key_of_another_request_is_refused() -> None:
    async with Scene() as scene:
        await scene.ask(b"a", keys=["k"])
        (other,) = await scene.ask(b"b", keys=["k"])
    assert other.error is not None
    assert other.error.code == "BAD_REQUEST"
    assert [body for body, _ in scene.executed] == [b"a"]


async def test_a_reply_that_takes_longer_than_a_question_is_waited_for() -> None:
    """Questions end after half of the timeout; the next one finds the request that runs."""
    async with Scene() as scene:
        scene.gate.clear()
        asked = asyncio.ensure_future(scene.ask(b"a", timeout_s=0.1, attempts=1000))
        counters = scene.local.broker.machine.counters
        while counters.accepted < 6:
            await asyncio.sleep(0.01)
        scene.gate.set()
        (outcome,) = await asked
    assert (outcome.reply, outcome.replayed) == ([b"done", b"a"], False)
    assert outcome.attempts > 1
    assert len(scene.executed) == 1


async def test_a_request_without_a_reply_in_time_stays_stored() -> None:
    async with Scene() as scene:
        scene.gate.clear()
        (late,) = await scene.ask(b"a", timeout_s=0.05, attempts=2)
        assert late.error is not None
        assert late.error.code == "PENDING"
        scene.gate.set()
        (found,) = await scene.ask(b"a")
    assert found.reply == [b"done", b"a"]
    assert len(scene.executed) == 1


async def test_a_store_that_is_away_is_waited_for() -> None:
    async with Scene() as scene:
        await scene.close_store()
        asked = asyncio.ensure_future(scene.ask(b"a"))
        await asyncio.sleep(0)
        await scene.open_store()
        (outcome,) = await asked
    assert outcome.reply == [b"done", b"a"]


class Shaken:
    """Client whose first questions fail, each in its own way; then the reply is there."""

    def __init__(self, *first: list[bytes] | mdp.RequestError) -> None:
        self.first = list(first)
        self.asked = 0

    connected = True

    def open_window(self, service: str, on_end: Callable[[], None], *, wait: bool) -> Shaken:
        assert (service, wait) == ("titanic.batch", True)
        self.on_end = on_end
        return self

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str] = ()) -> int:
        assert not keys
        assert len(bodies) == 1
        self.asked += 1
        asyncio.get_running_loop().call_soon(self.on_end)
        return self.asked - 1

    def take(self) -> list[Outcome]:
        found = self.first.pop(0) if self.first else [b"200", b"new", b"reply"]
        error = found if isinstance(found, mdp.RequestError) else None
        return [mdp.Outcome(self.asked - 1, None if isinstance(found, mdp.RequestError) else found, error, 1, 0.0)]

    async def withdraw(self) -> None: ...

    async def request(self, service: str, *frames: bytes, attempts: int) -> list[bytes]:
        raise mdp.NoService(service)

    async def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]:
        raise mdp.NoService(service)
        yield []


async def shaken(*first: list[bytes] | mdp.RequestError, timeout_s: float = 60.0) -> tuple[Outcome, int]:
    """Return the outcome of a request, and how often the store was asked."""
    client = Shaken(*first)
    ended = asyncio.Event()
    window = StoredWindow(client, "echo", ended.set, timeout_s=timeout_s, attempts=1)
    window.send([(b"a",)], ["a"])
    await ended.wait()
    (outcome,) = window.take()
    return outcome, client.asked


async def test_a_store_that_cannot_answer_now_is_asked_again() -> None:
    for passing in ([b"500", b"store is full"], [b"garbage"], mdp.WorkerLost("titanic.batch"), mdp.DeadLetter("titanic.batch")):
        outcome, asked = await shaken(passing)
        assert (outcome.reply, asked) == ([b"reply"], 2)


async def test_a_store_that_cannot_answer_in_time_is_an_error_of_the_row() -> None:
    outcome, _ = await shaken(*[[b"500", b"store is full"]] * 50, timeout_s=0.1)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.text) == ("UNAVAILABLE", "store is full")
    outcome, asked = await shaken(mdp.Timeout("titanic.batch"))  # the client has tried all its attempts
    assert isinstance(outcome.error, mdp.Timeout)
    assert asked == 1


@pytest.mark.faults
async def test_a_fault_while_asking_again_is_an_error_of_the_row() -> None:
    with sabotaged("titanic dispatch retry"):
        outcome, asked = await shaken([b"500", b"store is full"])
    assert outcome.error is not None
    assert (outcome.error.code, asked) == ("UNAVAILABLE", 1)


async def test_what_was_withdrawn_is_not_asked_for_and_stays_stored() -> None:
    async with Scene() as scene:
        scene.gate.clear()
        window = StoredWindow(scene.local.client, "echo", lambda: None, timeout_s=60.0, attempts=2)
        window.send([(b"a",)], ["a"])
        while not scene.executed:
            await asyncio.sleep(0.01)
        await window.withdraw()
        scene.gate.set()
        (outcome,) = await scene.ask(b"a")
        assert window.take() == []
    assert outcome.reply == [b"done", b"a"]
    assert len(scene.executed) == 1


async def test_a_row_that_no_message_can_carry_is_an_error_of_the_row() -> None:
    """It ends before it is sent, and its partition waited for ever."""
    async with Scene() as scene:
        await scene.ask(b"first")  # connected, so that the limits of the broker are known
        ended = asyncio.Event()
        window = StoredWindow(scene.local.client, "echo", ended.set, timeout_s=60.0, attempts=2)
        assert window.send([(b"x",) * 2000, (b"small",)], ["large", "small"]) == 0
        found: list[Outcome] = []
        while len(found) < 2:
            await ended.wait()
            ended.clear()
            found += window.take()
        assert {outcome.index: outcome.error.code if outcome.error else outcome.reply for outcome in found} == {
            0: "TOO_LARGE",
            1: [b"done", b"small"],
        }
