"""The runtime of a part of a program: the system's, until a scope sets another one."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from core.runtime import runtime, supervision

if TYPE_CHECKING:
    from pathlib import Path


class Later(runtime.Runtime):
    """A runtime with a clock of its own."""

    monotonic = staticmethod(lambda: 7.0)


def test_the_system_is_the_default_and_its_functions_are_the_systems_own() -> None:
    """Nothing stands between a caller and the system, so it costs nothing."""
    system = runtime.current()
    assert system is runtime.SYSTEM
    assert system.monotonic is time.monotonic
    assert system.random_bytes is os.urandom
    assert system.pause is time.sleep
    assert system.files is os
    assert abs(system.wall_ns() - time.time_ns()) < 60e9
    assert system.boot_clock() >= system.monotonic() - 60.0


def test_random_numbers_have_their_size_and_repeat_with_a_seed() -> None:
    system = runtime.current()
    assert all(system.random_bits(63) < 1 << 63 for _ in range(100))
    assert max(system.random_bits(3) for _ in range(200)) == 7
    assert system.chance(5).random() == random.Random(5).random()
    assert system.chance().random() != system.chance().random()


async def test_a_scope_holds_in_tasks_timers_and_threads_that_begin_in_it() -> None:
    seen: list[runtime.Runtime] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        seen.append(runtime.current())

    def ended() -> None:
        seen.append(runtime.current())
        loop.call_soon_threadsafe(done.set)

    with runtime.scope(Later()) as later, supervision.scope(supervision.Supervisor()) as supervisor:
        task = supervisor.task("a task", work)
        timer = supervisor.timer("a timer", work_now := lambda: seen.append(runtime.current()))
        timer.at(loop.time())
        assert supervisor.runtime is later
        supervisor.thread("a thread", ended)
    assert callable(work_now)
    await task
    await done.wait()
    await asyncio.sleep(0)
    assert runtime.current() is runtime.SYSTEM
    assert seen == [later] * 3


def test_a_locked_file_is_refused_to_another_descriptor(tmp_path: Path) -> None:
    system = runtime.current()
    files = system.files
    first, second = (files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        system.lock_file(first)
        with pytest.raises(OSError):
            system.lock_file(second)
        files.close(first)
        system.lock_file(second, shared=True)
    finally:
        files.close(second)


def test_threads_queues_and_pools_work_together() -> None:
    system = runtime.current()
    queue, event, lock = system.queue(), system.event(), system.lock()
    with lock:
        thread = system.thread("a thread", lambda: queue.put(event.wait()))
    assert isinstance(thread, threading.Thread)
    assert thread.daemon
    event.set()
    assert queue.get(timeout=60) is True
    condition = system.condition()
    with condition:
        assert condition.wait_for(lambda: True)
    with system.pool(1, "pool") as pool:
        assert pool.submit(lambda: threading.current_thread().name).result(60).startswith("pool")
