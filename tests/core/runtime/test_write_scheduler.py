"""core.runtime.write_scheduler: the connections that are called in an iteration of the event loop, and after a fault."""

from __future__ import annotations

import asyncio
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.runtime import supervision
from core.runtime.write_scheduler import READERS_AT_ONCE, READING, WRITING, WriteScheduler
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


def scheduler() -> WriteScheduler:
    return WriteScheduler(asyncio.get_running_loop(), supervision.current())


class Connection:
    """Keeps in a list what it is called for."""

    def __init__(self, name: str, told: list[str], then: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._told = told
        self._then = then

    def _tell(self, what: str) -> None:
        self._told.append(f"{self._name} {what}")
        self._then()

    def write_out(self) -> None:
        self._tell("writes")

    def iteration_ended(self) -> None:
        self._tell("ends")

    def read_on(self) -> None:
        self._tell("reads")

    def guard(self) -> None:
        self._tell("guards")


def fails() -> None:
    raise ZeroDivisionError


async def test_what_waits_for_the_end_of_an_iteration_is_written_then_and_once() -> None:
    some, told = scheduler(), list[str]()
    two = Connection("two", told)
    one = Connection("one", told, lambda: some.write_later(two))
    for _ in range(2):
        some.write_later(one)
        some.write_later(two)
        assert told == []
        await asyncio.sleep(0)
        assert told == ["one ends", "two ends"]
        await asyncio.sleep(0)
        assert told == ["one ends", "two ends", "two ends"]  # what was said meanwhile, in the next one
        await asyncio.sleep(0)
        assert len(told) == 3
        told.clear()


async def test_some_read_on_in_each_iteration_in_their_order() -> None:
    some, told = scheduler(), list[str]()
    names = [f"{number}" for number in range(2 * READERS_AT_ONCE + 1)]
    for name in names:
        some.read_later(Connection(name, told))
    for _ in range(2):
        await asyncio.sleep(0)
        assert told == [f"{name} reads" for name in names[: len(told)]]
        assert len(told) % READERS_AT_ONCE == 0
    assert len(told) == 2 * READERS_AT_ONCE
    await asyncio.sleep(0)
    assert len(told) == len(names)
    some.read_later(Connection("again", told))
    await asyncio.sleep(0)
    assert told[-1] == "again reads"


async def test_a_connection_that_is_to_be_read_again_comes_after_those_that_wait() -> None:
    some, told = scheduler(), list[str]()
    again = Connection("again", told, lambda: some.read_later(Connection("last", told)))
    for reader in (again, *(Connection(f"{number}", told) for number in range(READERS_AT_ONCE))):
        some.read_later(reader)
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == ["again reads", *(f"{number} reads" for number in range(READERS_AT_ONCE)), "last reads"]


async def test_sockets_are_guarded_again_at_the_end_of_the_iteration() -> None:
    some, told = scheduler(), list[str]()
    for names in (["one", "two"], ["one"], ["one", "two", "three"]):
        for name in names:
            some.guard_later(Connection(name, told))
        assert told == []
        await asyncio.sleep(0)
        assert told == [f"{name} guards" for name in names]
        told.clear()


async def test_nothing_is_counted_at_first_and_the_thread_is_that_of_the_loop() -> None:
    some = scheduler()
    assert (some.ahead, some.partial, some.thread) == (0, 0, get_ident())
    assert not some.large_frames.readers


def test_a_batch_is_written_when_the_last_receiver_has_returned() -> None:
    async def in_loop() -> list[str]:
        some, told = scheduler(), list[str]()
        later = Connection("later", told)
        for _ in range(2):
            some.batching += 2
            some.dirty += [Connection("one", told, lambda: some.dirty.append(later)), Connection("two", told)]
            some.end_batch()
            assert told == []
            some.end_batch()
            assert told == ["one writes", "two writes"]
            told.clear()
            some.batching += 1
            some.end_batch()
            assert told == ["later writes"]
            told.clear()
            some.batching += 1
            some.end_batch()
        return told

    assert asyncio.run(in_loop()) == []


@pytest.mark.faults
@pytest.mark.parametrize("what", ["writes", "ends", "reads"])
async def test_a_fault_of_one_is_counted_and_the_others_are_called(what: str) -> None:
    some, told = scheduler(), list[str]()
    connections = [Connection("one", told), Connection("two", told, fails), Connection("three", told)]
    name = READING if what == "reads" else WRITING
    before = some.supervisor.faults.get(name, 0)
    if what == "writes":
        some.dirty += connections
        some.batching = 1
        some.end_batch()
    else:
        for connection in connections:
            (some.write_later if what == "ends" else some.read_later)(connection)
    await asyncio.sleep(0)
    assert told == [f"{name} {what}" for name in ("one", "two", "three")]
    assert some.supervisor.faults.get(name, 0) == before + 1


@pytest.mark.faults
@in_virtual_time
async def test_a_fault_in_a_timer_of_a_connection_ends_it_and_one_that_has_ended_needs_no_end() -> None:
    some, ended, loop = scheduler(), list[float](), asyncio.get_running_loop()
    transport = SimpleNamespace(abort=lambda: ended.append(loop.time()))
    began = loop.time()
    for one in (transport, None):
        some.later(cast("Any", SimpleNamespace(transport=one)), 2.0, fails)
    some.later(cast("Any", SimpleNamespace(transport=transport)), 1.0, lambda: None)
    some.later(cast("Any", SimpleNamespace(transport=transport)), 1.0, fails).cancel()
    await asyncio.sleep(3.0)
    assert ended == [began + 2.0]
