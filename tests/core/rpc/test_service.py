"""core.rpc.service: what every server does at its beginning, for its timer and at its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import core
from core.machine.deadlines import TIMER_S_MIN
from core.rpc.service import Service, sent
from core.runtime import supervision
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINT = "inproc://service"


class Served(Service):
    def __init__(self, context: core.Context | None = None, *, endpoint: str = ENDPOINT, fails: bool = False) -> None:
        super().__init__(context, None, {"sndhwm": 7})
        self._timer = supervision.current().timer("test clock", self.tick)
        self.steps: list[str] = []
        self.ticked, self.stopping = asyncio.Event(), asyncio.Event()
        self.endpoint, self.fails = endpoint, fails

    def tick(self) -> None:
        self.steps.append("tick")
        self.ticked.set()

    def wake_in(self, *delays_s: float) -> None:
        for delay_s in delays_s:
            self._wake_at(asyncio.get_running_loop().time() + delay_s)

    def fail(self, error: Exception) -> None:
        self._failed(error)

    async def _start(self) -> None:
        self.steps.append("start")
        self.socket = self._bound(core.REP, self.endpoint, linger_ms=0, **self._options)
        if self.fails:
            raise RuntimeError

    async def _stop(self) -> None:
        self.steps.append("stop")


async def test_sockets_are_closed_and_waiting_ends_with_the_block() -> None:
    async with Served() as served:
        waiting = asyncio.ensure_future(served.serve_forever())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert served.socket.sndhwm == 7
    await waiting
    assert (served.steps, served.socket.closed, served._context.closed) == (["start", "stop"], True, True)


@pytest.mark.parametrize(("endpoint", "error"), [(ENDPOINT, RuntimeError), ("tcp://nowhere", core.ZMQError)])
async def test_a_start_that_fails_leaves_nothing(endpoint: str, error: type[Exception]) -> None:
    served = Served(endpoint=endpoint, fails=True)
    with pytest.raises(error):
        await served.__aenter__()
    assert served.steps == ["start", "stop"]


async def test_a_given_context_stays_open() -> None:
    async with core.Context() as context:
        for _ in range(2):
            async with Served(context):
                pass
            assert not context.closed


async def test_the_timer_is_only_set_to_an_earlier_time() -> None:
    async with Served() as served:
        served.wake_in(60.0, -1.0, 60.0)
        async with asyncio.timeout(100):
            await served.ticked.wait()
    assert served.steps == ["start", "tick", "stop"]


async def test_a_time_that_has_passed_is_the_shortest_timer_and_none_changes_nothing() -> None:
    async with Served() as served:
        timer = served._timer
        assert timer is not None
        served._wake_at(None)
        assert timer.when is None
        now = asyncio.get_running_loop().time()
        served._wake_at(now + 60.0)
        assert timer.when == now + 60.0
        served._wake_at(now - 5.0)
        assert now + TIMER_S_MIN <= timer.when < now + 60.0


async def test_a_message_is_sent_now_or_not_at_all() -> None:
    async with core.Context() as context:
        pull, push, router = context.socket(core.PULL), context.socket(core.PUSH), context.socket(core.ROUTER, router_mandatory=1)
        assert not sent(push, [b"nobody is connected"])
        assert not sent(router, [b"nobody", b"x"])
        pull.bind("inproc://pull")
        push.connect("inproc://pull")
        assert sent(push, [b"a", b"b"])
        assert await pull.recv_multipart() == [b"a", b"b"]
        context.term()
        assert not sent(push, [b"the program has ended the context"])


async def test_a_reply_that_cannot_be_sent_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    counters: Counter[str] = Counter()
    async with Served() as served, asyncio.timeout(100):
        push, pull = served._context.socket(core.PUSH, linger=0), served._context.socket(core.PULL, max_parts=2)
        served._send_reply(push, [b"nobody is connected"], counters)
        assert counters == {"reply_undelivered": 1}
        pull.bind("tcp://127.0.0.1:*")
        watch = Watch(push)
        push.connect(pull.last_endpoint)
        await watch.peers()
        served._send_reply(push, [b"1", b"2", b"3"], counters)
        assert counters == {"reply_undelivered": 1, "reply_too_large": 1}
        assert "reply dropped: frames of a message: 3, the peer takes 2" in caplog.text
        served._send_reply(push, [b"1", b"2"], counters)
        assert await pull.recv_multipart() == [b"1", b"2"]
        assert counters.total() == 2


async def test_the_timer_is_off_before_what_runs_is_ended() -> None:
    class Looking(Served):
        async def _stop(self) -> None:
            assert self._timer is not None
            self.steps.append(f"timer at {self._timer.when}")

    async with Looking() as served:
        served.wake_in(60.0)
    assert served.steps == ["start", "timer at None"]


async def test_an_error_that_ends_it_is_raised_by_waiting() -> None:
    async with Served() as served:
        served.fail(ZeroDivisionError())
        served.fail(RuntimeError())  # the first counts
        with pytest.raises(ZeroDivisionError):
            await served.serve_forever()
    assert served.socket.closed


async def test_an_error_that_ends_it_need_not_be_waited_for() -> None:
    async with Served() as served:
        served.fail(ZeroDivisionError())
    assert served.socket.closed


async def test_a_timer_that_is_set_during_the_end_does_not_fire() -> None:
    class Late(Served):
        async def _stop(self) -> None:
            await super()._stop()
            self.wake_in(0.001)

    async with Late() as served:
        pass
    assert served._timer is not None
    assert served._timer.when is None


@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_end_that_is_cancelled_or_fails_leaves_nothing_open(cancelled: bool) -> None:
    class Stuck(Served):
        async def _stop(self) -> None:
            await super()._stop()
            self.stopping.set()
            if not cancelled:
                raise RuntimeError
            await asyncio.Event().wait()

    served = Stuck()
    await served.__aenter__()
    waiting = asyncio.ensure_future(served.serve_forever())
    ending = asyncio.ensure_future(served.__aexit__(None, None, None))
    await served.stopping.wait()
    if cancelled:
        ending.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else RuntimeError):
        await ending
    await waiting
    assert served.socket.closed


@pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])
async def test_a_context_that_the_program_ends_ends_the_service(end: Callable[[core.Context], None]) -> None:
    async with core.Context() as context:
        async with Served(context) as served:
            served.wake_in(0.001)
            waiting = asyncio.ensure_future(served.serve_forever())
            await asyncio.sleep(0)
            end(context)
            await asyncio.wait([waiting], timeout=10.0)
            assert isinstance(waiting.exception(), core.ContextTerminated)
            served.wake_in(0.001)  # what is called once more
            assert served._timer is not None
            assert served._timer.when is None
        assert (served.steps, served.socket.closed) == (["start", "stop"], True)


async def test_a_service_that_has_ended_is_not_told_of_the_end_of_its_context() -> None:
    async with core.Context() as context:
        async with Served(context):
            pass
        with pytest.raises(RuntimeError):
            await Served(context, fails=True).__aenter__()
        assert not context.on_end
