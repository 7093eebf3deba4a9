"""A handler that is called at once, in the name of a runner that waits: nothing it can look at tells it so."""

from __future__ import annotations

import asyncio
import contextvars
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest

from mdp.handler import HandlerKind, PartsTooLarge
from mdp.request import Request
from mdp.runners import FRAME_OVERHEAD_BYTES, Runners

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class Session:
    """Stands in for the session of a request: keeps what is answered."""

    def __init__(self) -> None:
        self.answers: list[Sequence[bytes]] = []
        self.refusals: list[str] = []
        self.outgoing: list[bytes] = []
        self.parts = 0
        self.can_refuse = True
        self.can_send_parts = True

    def answer(self, request: Request, body: Sequence[bytes]) -> None:
        self.answers.append(body)

    def send_part(self, request: Request, body: Sequence[bytes]) -> None:
        self.parts += 1

    def refuse(self, request: Request, code: str, text: str) -> None:
        self.refusals.append(code)

    def holds(self, request: Request) -> bool:
        return True


class Stage:
    """Runners with one handler, given requests by the loop itself, as a socket's receiver is called."""

    def __init__(
        self,
        handler: Callable[[Request], Any],
        concurrency: int = 2,
        *,
        kind: HandlerKind = HandlerKind.COROUTINE,
        parts_max_bytes: int = 2**30,
    ) -> None:
        self.session = Session()
        self.idle = asyncio.Event()
        self.given_back: list[BaseException] = []
        self.runners = Runners(
            handler,
            kind,
            concurrency,
            parts_max_bytes=parts_max_bytes,
            clock=time.monotonic,
            on_answer=lambda: None,
            on_give_back=lambda request, error: self.given_back.append(error),
            on_idle=self.idle.set,
            room=self._room,
        )

    async def _room(self, request: Request) -> None:
        """There always is."""

    def request(self, body: bytes = b"x") -> Request:
        return Request("echo", [body], b"token", b"token", self.session)

    async def warm(self) -> None:
        """Let one request pass, so that there is a runner."""
        self.give(self.request(b"warm"))
        await self.done()
        self.session.answers.clear()

    def give(self, *requests: Request) -> None:
        asyncio.get_running_loop().call_soon(self.runners.put, list(requests))

    async def done(self) -> None:
        self.idle.clear()
        async with asyncio.timeout(10):
            await self.idle.wait()

    async def __aenter__(self) -> Stage:
        await self.warm()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runners.close()


async def test_a_handler_that_never_waits_is_done_in_the_same_turn() -> None:
    async def echo(request: Request) -> bytes:
        return request.body[0]

    async with Stage(echo) as stage:
        turns: list[int] = []

        def give() -> None:
            stage.runners.put([stage.request(b"now")])
            turns.append(len(stage.session.answers))

        asyncio.get_running_loop().call_soon(give)
        await stage.done()
        assert (turns, stage.session.answers) == ([1], [(b"now",)])
        assert (stage.runners.idle, stage.runners.counters.handled) == (True, 2)


async def test_a_handler_has_a_task_a_context_and_timeouts_before_and_after_it_waits() -> None:
    async def look(request: Request) -> bytes:
        before = asyncio.current_task()
        SEEN.set(request.body[0].decode())
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        assert asyncio.current_task() is before is not None
        return SEEN.get().encode()

    async with Stage(look) as stage:
        for body in (b"one", b"two"):
            stage.give(stage.request(body))
            await stage.done()
        assert stage.session.answers == [(b"one",), (b"two",)]
        assert SEEN.get() == "nothing"


async def test_a_handler_that_times_out_by_itself_is_told_so() -> None:
    async def late(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return b"late"
        raise AssertionError("never")

    async with Stage(late) as stage:
        stage.give(stage.request())
        await stage.done()
        assert stage.session.answers == [(b"late",)]


@pytest.mark.parametrize("waits_for", ["a future", "the next turn", "a future that is done"])
async def test_a_handler_is_cancelled_before_its_runner_has_taken_it_over(waits_for: str) -> None:
    ended: list[str] = []

    async def wait(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            if waits_for == "the next turn":
                await asyncio.sleep(0)
                await asyncio.Event().wait()
            else:
                future = asyncio.get_running_loop().create_future()
                if waits_for == "a future that is done":
                    asyncio.get_running_loop().call_soon(future.set_result, None)
                await future
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return b"never"

    async with Stage(wait) as stage:
        request = stage.request()

        def give_and_drop() -> None:
            stage.runners.put([request])
            assert request in stage.runners.running
            assert not stage.runners.drop(request)

        asyncio.get_running_loop().call_soon(give_and_drop)
        await stage.done()
        assert (ended, stage.session.answers, stage.session.refusals) == (["cancelled"], [], ["CANCELLED"])
        stage.give(stage.request(b"warm"))  # the runner goes on
        await stage.done()
        assert stage.session.answers == [(b"",)]


async def test_a_handler_that_fails_at_once_or_later_is_refused_and_the_next_is_served() -> None:
    async def fail(request: Request) -> bytes:
        if request.body[0] == b"later":
            await asyncio.sleep(0)
        if request.body[0] != b"warm":
            raise KeyError("secret")
        return b""

    async with Stage(fail) as stage:
        for body in (b"now", b"later", b"warm"):
            stage.give(stage.request(body))
            await stage.done()
        assert (stage.session.refusals, stage.session.answers) == (["HANDLER_ERROR"] * 2, [(b"",)])
        assert stage.runners.counters.errors == 2


async def test_a_reply_that_is_none_is_refused_as_a_failure() -> None:
    async def nonsense(request: Request) -> Any:
        return b"" if request.body[0] == b"warm" else 7

    async with Stage(nonsense) as stage:
        stage.give(stage.request())
        await stage.done()
        assert (stage.session.refusals, stage.session.answers) == (["HANDLER_ERROR"], [])


async def test_closing_ends_a_handler_that_was_just_begun() -> None:
    ended = asyncio.Event()

    async def wait(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b"never"

    async with Stage(wait) as stage:
        asyncio.get_running_loop().call_soon(stage.runners.put, [stage.request()])
        await asyncio.sleep(0)
        await stage.runners.close()
        assert ended.is_set()
        assert stage.session.answers == []


async def test_called_from_a_task_requests_wait_for_a_runner() -> None:
    """A task cannot stand in for another while it runs itself."""

    async def echo(request: Request) -> bytes:
        assert asyncio.current_task() is not None
        return request.body[0]

    async with Stage(echo) as stage:
        stage.runners.put([stage.request(b"a"), stage.request(b"b")])
        stage.runners.put([stage.request(b"c")])
        assert stage.session.answers == []
        await stage.done()
        assert stage.session.answers == [(b"a",), (b"b",), (b"c",)]


@pytest.mark.parametrize("in_parts", [True, False])
async def test_a_generator_that_never_waits_lets_the_loop_go_on(in_parts: bool) -> None:
    """Neither its body nor the room for its parts gives the loop a turn, and without one nobody could cancel it."""
    others_had_a_turn: list[bool] = []

    async def hurry(request: Request) -> AsyncIterator[bytes]:
        if request.body[0] != b"warm":
            asyncio.get_running_loop().call_soon(others_had_a_turn.append, True)
            for _ in repeat(None, 2_000_000):  # an end, so that without a turn the test fails and does not hang
                if others_had_a_turn:
                    break
                yield b"x"

    async with Stage(hurry, kind=HandlerKind.GENERATOR) as stage:
        stage.session.can_send_parts = in_parts
        stage.give(stage.request())
        await stage.done()
        assert others_had_a_turn
        assert 0 < (stage.session.parts if in_parts else len(stage.session.answers[0])) < 2_000_000


async def test_an_endless_generator_that_never_waits_is_cancelled() -> None:
    async def endless(request: Request) -> AsyncIterator[bytes]:
        if request.body[0] != b"warm":
            asyncio.get_running_loop().call_soon(stage.runners.drop, request)
            while True:
                yield b"x"

    async with Stage(endless, kind=HandlerKind.GENERATOR) as stage:
        stage.give(stage.request())
        await stage.done()
        assert (stage.session.answers, stage.session.refusals) == ([], ["CANCELLED"])


@pytest.mark.parametrize("part", [b"", b"x" * 100, [b"", b"xy", b""]])
async def test_what_a_generator_yields_is_kept_up_to_a_limit_where_parts_cannot_be_sent(part: bytes | list[bytes]) -> None:
    """MDP-43. Frames without octets are limited too: each costs what an object costs."""
    limit = 10_000
    frames = [part] if isinstance(part, bytes) else part
    fit = limit // sum(len(frame) + FRAME_OVERHEAD_BYTES for frame in frames)
    closed: list[int] = []

    async def yields(request: Request) -> AsyncIterator[bytes | list[bytes]]:
        count = 0
        try:
            while count < int(request.body[0]):
                count += 1
                yield part
        finally:
            closed.append(count)

    stage = Stage(yields, kind=HandlerKind.GENERATOR, parts_max_bytes=limit)
    stage.session.can_send_parts = stage.session.can_refuse = False
    for asked_for in (fit, 10**9, fit):
        stage.give(stage.request(b"%d" % asked_for))
        await stage.done()
    await stage.runners.close()
    assert closed == [fit, fit + 1, fit]
    assert stage.session.answers == [frames * fit, frames * fit]
    assert [type(error) for error in stage.given_back] == [PartsTooLarge]
    assert isinstance(error := stage.given_back[0], PartsTooLarge)
    assert error.limit_bytes == limit
    counters = stage.runners.counters
    assert (counters.handled, counters.errors, counters.lost, counters.parts_dropped) == (2, 1, 1, 1)


async def test_parts_that_can_be_sent_have_no_limit() -> None:
    limit, count = 10_000, 300

    async def yields(request: Request) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 100

    stage = Stage(yields, kind=HandlerKind.GENERATOR, parts_max_bytes=limit)
    stage.give(stage.request())
    await stage.done()
    await stage.runners.close()
    assert (stage.session.parts, stage.session.answers, stage.given_back) == (count, [(b"",)], [])
    assert stage.runners.counters.parts_dropped == 0
