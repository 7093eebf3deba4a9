"""core.rpc.client_engine: when it sends, what a cancellation and the end do."""

from __future__ import annotations

import asyncio
import os
import threading
from math import inf
from typing import Any

import pytest

from core.errors import ClientClosed
from core.machine.requests import SENT, PendingRequest, Requests
from core.rpc.client_engine import ClientEngine
from core.runtime import supervision
from tests.scenes.forked_child import in_child
from tests.scenes.waiting import eventually


class Machine(Requests[PendingRequest]):
    """Sends everything at once."""

    def __init__(self) -> None:
        super().__init__(100)
        self.outgoing: list[PendingRequest] = []
        self.open: list[PendingRequest] = []
        self.cancelled: list[PendingRequest] = []

    def submit(self, pending: PendingRequest, now: float) -> None:
        self.timeouts.start(pending, now, float(pending.body[0]))
        pending.stage = SENT
        self.outgoing.append(pending)
        self.open.append(pending)

    def end(
        self, pending: PendingRequest, now: float, *, reply: list[bytes] | None = None, error: Exception | None = None
    ) -> PendingRequest:
        self.open.remove(pending)
        self._settle(pending, now)
        pending.reply, pending.error = reply, error
        return pending

    def cancel(self, pending: PendingRequest, now: float) -> None:
        self.cancelled.append(self.end(pending, now))

    def tick(self, now: float) -> list[PendingRequest]:
        return [self.end(pending, now, error=TimeoutError()) for pending in self.timeouts.expired(now)]

    def deadline(self) -> float:
        return self.timeouts.wake_at

    def close(self, now: float) -> list[PendingRequest]:
        return [self.end(pending, now, error=ClientClosed()) for pending in [*self.open]]


class Engine(ClientEngine[Machine]):
    def __init__(self, **options: Any) -> None:
        super().__init__(Machine(), "test", ClientClosed, options.get("context"), options.get("security"), {})
        self._ticker = supervision.current().timer("test client clock", self._tick)
        self.writes: list[list[PendingRequest]] = []
        self.ended = 0
        self.flushes = 0

    def _connect(self) -> None:
        pass

    def flush(self) -> None:
        self.flushes += 1
        if self.machine.outgoing:
            self.writes.append(self.machine.outgoing)
            self.machine.outgoing = []

    async def _disconnect(self) -> None:
        self.ended += 1

    def begin(self, timeout_s: bytes = b"1000") -> asyncio.Future[list[bytes]]:
        pending = PendingRequest([timeout_s])
        self.submit(pending)
        return self.reply_to(pending)


async def test_the_first_request_of_an_iteration_is_sent_at_once_and_the_others_together() -> None:
    engine = Engine()
    asked = [engine.begin() for _ in range(5)]
    assert [len(write) for write in engine.writes] == [1]
    await asyncio.sleep(0)
    assert [len(write) for write in engine.writes] == [1, 4]
    engine.updated([engine.machine.end(engine.machine.open[0], 0.0, reply=[b"x"])])
    assert await asked[0] == [b"x"]
    engine.begin()
    assert [len(write) for write in engine.writes] == [1, 4, 1]
    await engine.close()


async def test_requests_of_each_iteration_are_sent_at_its_end_though_nothing_is_answered() -> None:
    engine = Engine()
    for iteration in range(3):
        for _ in range(3):
            engine.begin()
        await asyncio.sleep(0)
        assert [len(write) for write in engine.writes] == [1, 2] * (iteration + 1)
    await engine.close()


async def test_a_cancellation_is_sent_at_once() -> None:
    engine = Engine()
    asked = engine.begin()
    engine.updated(())
    flushes = engine.flushes
    asked.cancel()
    assert engine.flushes == flushes + 1
    await engine.close()


async def test_callers_that_wait_are_notified_of_settled_requests_only() -> None:
    engine = Engine()
    asked = engine.begin()
    engine.submit(forgotten := PendingRequest([b"1000"]))
    (pending, _) = engine.machine.open
    engine.notify([pending])
    assert not asked.done()
    engine.notify([engine.machine.end(forgotten, 0.0, reply=[])])
    engine.notify([engine.machine.end(pending, 0.0, reply=[b"x"])])
    assert await asked == [b"x"]
    await engine.close()


async def test_time_limits_end_requests() -> None:
    engine = Engine()
    late, soon = engine.begin(), engine.begin(b"0.01")
    with pytest.raises(TimeoutError):
        await soon
    assert not late.done()
    await engine.close()


async def test_a_cancelled_future_withdraws_its_request_once() -> None:
    engine = Engine()
    asked = engine.begin()
    assert asked.cancel()
    assert not asked.cancel()
    assert len(engine.machine.cancelled) == 1
    assert engine.machine.open == []
    other = engine.begin()
    (pending,) = engine.machine.open
    engine.machine.end(pending, 0.0, reply=[])
    assert other.cancel()  # settled, and the caller not notified yet
    engine.notify([pending])
    assert len(engine.machine.cancelled) == 1
    await engine.close()


async def test_the_end_settles_what_is_open_and_refuses_what_comes() -> None:
    engine = Engine()
    asked = [engine.begin() for _ in range(3)]
    await engine.close()
    await engine.close()
    assert engine.ended == 1
    assert [type(one.exception()) for one in asked] == [ClientClosed] * 3
    with pytest.raises(ClientClosed):
        engine.begin()
    with pytest.raises(ClientClosed):
        engine.start()
    asked[0].cancel()
    unused = Engine()
    await unused.close()
    assert not unused.ended


async def test_another_loop_is_refused() -> None:
    engine = Engine()
    engine.begin()

    async def ask_there() -> None:
        engine.begin()

    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, ask_there())
    await engine.close()


async def test_another_loop_is_refused_while_requests_of_this_iteration_are_collected() -> None:
    engine = Engine()
    engine.begin()
    engine.begin()  # which has the end of the iteration scheduled

    async def ask_there() -> None:
        engine.begin()

    def in_a_thread() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(ask_there())

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()  # without an iteration of this loop
    assert len(engine.machine.open) == 2
    await engine.close()


def test_a_second_loop_of_the_same_thread_is_refused() -> None:
    engine = Engine()

    async def ask() -> None:
        engine.begin()

    async def ask_again() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            engine.begin()

    async def close() -> None:
        await engine.close()

    with asyncio.Runner() as runner:
        runner.run(ask())
        asyncio.set_event_loop(None)
        with asyncio.Runner() as other:
            other.run(ask_again())
        assert len(engine.machine.open) == 1
        runner.run(close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_a_forked_child_is_refused() -> None:
    """Fault P7: its requests would go out on the connection of its parent."""
    engine = Engine()
    engine.begin()
    await asyncio.sleep(0)

    def begin() -> str:
        with pytest.raises(RuntimeError):
            engine.begin()
        return "refused"

    assert in_child(begin) == "refused"
    await engine.close()


async def test_the_timer_is_off_when_nothing_is_open() -> None:
    engine = Engine()
    asked = engine.begin(b"0.01")
    await eventually(asked.done)
    assert asked.exception() is not None
    assert engine.machine.deadline() == inf
    await engine.close()


async def test_a_plain_future_has_the_reply_also_of_a_request_that_ends_while_it_is_submitted() -> None:
    class AtOnce(Machine):
        def submit(self, pending: PendingRequest, now: float) -> None:
            super().submit(pending, now)
            if pending.body[0] == b"1":
                self.end(pending, now, reply=[b"at once"])

    engine = Engine()
    engine.machine = AtOnce()
    assert await engine.ask(PendingRequest([b"1"])) == [b"at once"]
    pending = PendingRequest([b"1000"])
    reply = engine.ask(pending)
    engine.updated([engine.machine.end(pending, 0.0, reply=[b"later"])])
    assert await reply == [b"later"]
    await engine.close()
    with pytest.raises(ClientClosed):
        engine.ask(PendingRequest([b"1"]))
