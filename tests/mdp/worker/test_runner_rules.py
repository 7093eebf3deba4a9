"""The rules of runners, one by one and in random walks.

Every request ends once, in one way, and in as many places as there are.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from mdp.errors import HandlerError
from mdp.worker.handler import HandlerKind
from mdp.worker.runners import FRAME_OVERHEAD_BYTES
from tests.scenes.mdp_runner_ledger import NOW, REFUSAL, Ledger, staged, turns, until
from tests.scenes.mdp_runners import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator

    from mdp.request import Request


COROUTINE, GENERATOR, THREAD, INLINE = HandlerKind


# --- which runner works -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_concurrency_is_at_least_one(concurrency: int) -> None:
    with pytest.raises(ValueError, match=f"concurrency of {concurrency}"):
        Stage(lambda request: b"", concurrency)


@pytest.mark.parametrize("concurrency", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("given", [[1] * 9, [9], [1, 8], [4, 5]])
async def test_handlers_that_wait_have_all_places_within_a_few_iterations_and_no_more(concurrency: int, given: list[int]) -> None:
    """Requests are begun in the order in which they came; a place that becomes free is taken at once."""
    go_on: dict[bytes, asyncio.Event] = {}

    async def handler(request: Request) -> bytes:
        event = go_on[request.body[0]] = asyncio.Event()
        await event.wait()
        return request.body[0]

    stage, ledger = staged(handler, concurrency)
    requests = [stage.request(b"%d" % number) for number in range(sum(given))]
    at = 0
    for count in given:
        stage.runners.put(requests[at : at + count])
        at += count
    for ended in range(len(requests)):
        await turns(concurrency + 2)
        begun = min(ended + concurrency, len(requests))
        assert [*go_on] == [b"%d" % number for number in range(begun)]
        assert [*stage.runners.running] == requests[ended:begun]
        assert (stage.runners.waiting, stage.runners.idle) == (len(requests) - begun, False)
        go_on[b"%d" % ended].set()
    await stage.done()
    assert [*ledger.ends] == requests
    assert (stage.runners.idle, stage.runners.counters.handled, stage.runners.counters.replaced) == (True, len(requests), 0)
    await stage.runners.close()


class Later:
    """Can be awaited and is no coroutine."""

    def __await__(self) -> Generator[None, None, bytes]:
        yield
        return b"later"


async def test_a_handler_that_returns_what_can_be_awaited_is_one_that_waits() -> None:
    stage, _ = staged(lambda request: Later())
    for _ in range(3):
        stage.give(stage.request())
        await stage.done()
    assert stage.session.answers == [(b"later",)] * 3
    await stage.runners.close()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_request_is_not_started_in_a_runner_that_ends(which: int) -> None:
    async def handler(request: Request) -> bytes:
        await asyncio.sleep(0)
        return request.body[0]

    before = asyncio.all_tasks()
    stage, ledger = staged(handler, 2)
    stage.give(stage.request(), stage.request())
    await stage.done()
    await turns(3)
    tasks = sorted((task for task in asyncio.all_tasks() - before if "runner" in task.get_name()), key=lambda task: task.get_name())
    assert [task.get_name() for task in tasks] == ["mdp runner 0", "mdp runner 1"]

    def cancel_and_give() -> None:
        tasks[which].cancel()
        stage.runners.put([stage.request(b"now")])

    asyncio.get_running_loop().call_soon(cancel_and_give)
    await until(lambda: len(ledger.ends) == 3)
    assert set(ledger.ends.values()) == {"answered"}
    await until(lambda: stage.runners.counters.replaced)
    await stage.runners.close()
    assert (stage.runners.counters.replaced, stage.runners.counters.errors) == (1, 0)


class Walk:
    """Gives requests and takes them back in any order, and keeps what was done to each of them."""

    def __init__(self, kind: HandlerKind, seed: int) -> None:
        self.chance = Random(seed)
        self.kind = kind
        self.concurrency = 1 if kind is INLINE else self.chance.randint(1, 4)
        self.stage, self.ledger = staged(self._handler(), self.concurrency, kind=kind)
        self.waits: dict[Request, int] = {}
        self.wish: dict[Request, str] = {}  # how its handler ends
        self.given: list[Request] = []
        self.put: list[Request] = []
        self.begun: list[Request] = []
        self.active: set[Request] = set()
        self.most = 0
        self.dropped: dict[Request, bool] = {}  # whether it ran then
        self.released: list[Request] = []

    def _handler(self) -> Callable[[Request], Any]:
        async def coroutine(request: Request) -> bytes:
            self._begin(request)
            try:
                for _ in range(self.waits[request]):
                    await asyncio.sleep(0)
                return self._end(request)
            finally:
                self.active.discard(request)

        async def generator(request: Request) -> AsyncIterator[bytes]:
            yield await coroutine(request)

        def plain(request: Request) -> bytes:
            self._begin(request)
            try:
                return self._end(request)
            finally:
                self.active.discard(request)

        handlers: dict[HandlerKind, Callable[[Request], Any]] = {COROUTINE: coroutine, GENERATOR: generator}
        return handlers.get(self.kind, plain)

    def _begin(self, request: Request) -> None:
        assert request in self.stage.runners.running or self.kind is INLINE
        self.begun.append(request)
        self.active.add(request)
        self.most = max(self.most, len(self.active))

    def _end(self, request: Request) -> bytes:
        errors = {"fails": ValueError(), "refuses": HandlerError(text="no"), "exits": SystemExit()}
        if error := errors.get(self.wish[request]):
            raise error
        return request.body[0]

    def give(self) -> None:
        requests = [self.stage.request() for _ in range(self.chance.choice((1, 1, 1, 2, 5)))]
        for request in requests:
            self.waits[request] = self.chance.choice((0, 0, 1, 3, 9))
            self.wish[request] = self.chance.choice(("returns", "returns", "returns", "fails", "refuses", "exits"))
            request.expires_at = self.chance.choice((None, None, NOW - 1, NOW, NOW + 1))
        self.given += requests
        if self.chance.random() < 0.7:
            asyncio.get_running_loop().call_soon(self._put, requests)
        else:
            self._put(requests)

    def _put(self, requests: list[Request]) -> None:
        self.put += requests
        self.stage.runners.put(requests)

    def drop(self) -> None:
        if present := [one for one in self.put if one not in self.ledger.ends]:
            request = self.chance.choice(present)
            runs = request in self.stage.runners.running
            if not request.cancelled:
                self.dropped[request] = runs
            assert self.stage.runners.drop(request) is not runs

    def release(self) -> None:
        if present := [one for one in self.put if one not in self.ledger.ends and not one.cancelled]:
            request = self.chance.choice(present)
            runs = request in self.stage.runners.running
            assert self.stage.runners.release(request) is not runs
            if not runs:
                self.released.append(request)

    async def go(self, steps: int) -> None:
        for _ in range(steps):
            (act,) = self.chance.choices((self.give, self.drop, self.release, None), (50, 15, 7, 28))
            if act is None:
                await turns(self.chance.randint(1, 4))
            else:
                act()
        await until(lambda: self.stage.runners.idle and len(self.put) == len(self.given))
        await turns(3)

    def ends_of(self, request: Request) -> set[str | None]:
        """Return which ends would be right."""
        well = "answered" if self.wish[request] == "returns" else "HANDLER_ERROR"
        if request in self.released or self.dropped.get(request) is False:
            return {None}
        if request in self.dropped:
            return {"CANCELLED", "answered"} if well == "answered" else {"CANCELLED"}  # it may have been on its last step
        return {"DEADLINE_EXCEEDED" if request.expires_at is not None and request.expires_at <= NOW else well}


@pytest.mark.parametrize("kind", [COROUTINE, GENERATOR, THREAD, INLINE])
@pytest.mark.parametrize("seed", range(12))
async def test_every_request_ends_once_in_one_way_and_is_counted(kind: HandlerKind, seed: int) -> None:
    """Anything in any order, against what was done to each request."""
    walk = Walk(kind, seed)
    await walk.go(40)
    ends, ledger, counters = walk.ledger.ends, walk.ledger, walk.stage.runners.counters
    wrong = [(walk.given.index(one), ends.get(one), right) for one in walk.given if ends.get(one) not in (right := walk.ends_of(one))]
    assert wrong == []
    called = [one for one in walk.put if ends.get(one) not in {None, "DEADLINE_EXCEEDED"}]
    assert walk.begun == called or (kind is THREAD and {*walk.begun} == {*called} and len(walk.begun) == len(called))
    assert walk.most <= walk.concurrency
    assert REFUSAL not in ledger.outgoing
    ways = [*ends.values()]
    assert counters.handled == ways.count("answered")
    assert counters.errors == ways.count("HANDLER_ERROR")
    assert counters.refusals == sum(walk.wish[one] == "refuses" for one, end in ends.items() if end == "HANDLER_ERROR")
    assert counters.expired == ways.count("DEADLINE_EXCEEDED")
    assert counters.cancelled == sum(ends.get(one) != "answered" for one in walk.dropped)
    assert (counters.lost, counters.replaced, counters.overdue, walk.stage.runners.running) == (0, 0, 0, {})
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("mdp runner")]
    assert len(tasks) <= (0 if kind is INLINE else walk.concurrency)
    await walk.stage.runners.close()
    assert (counters.left, counters.replaced) == (0, 0)


# --- what ends a runner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [COROUTINE, GENERATOR, INLINE])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("can_refuse", [False, True])
@pytest.mark.parametrize(
    ("error", "ends"), [(ValueError, False), (SystemExit, False), (asyncio.CancelledError, False), (GeneratorExit, True)]
)
async def test_whatever_a_handler_raises_its_request_has_failed_and_the_next_is_served(
    kind: HandlerKind, at_once: bool, can_refuse: bool, error: type[BaseException], ends: bool
) -> None:
    """P6. A coroutine that is closed has to end, and its runner with it.

    A dialect without a word for it gives the request back.
    """

    def plain(request: Request) -> bytes:
        if request.body[0] == b"bad":
            raise error
        return request.body[0]

    async def coroutine(request: Request) -> bytes:
        if not at_once:
            await asyncio.sleep(0)
        return plain(request)

    async def generator(request: Request) -> AsyncIterator[bytes]:
        yield await coroutine(request)

    handler: Any = {COROUTINE: coroutine, GENERATOR: generator, INLINE: plain}[kind]
    stage, ledger = staged(handler, kind=kind)
    await stage.warm()
    ledger.ends.clear()
    stage.flushes = 0
    ledger.can_refuse = can_refuse
    bad, fine = stage.request(b"bad"), stage.request(b"fine")
    if at_once:
        stage.give(bad)
        stage.give(fine)
    else:
        stage.give(bad, fine)
    await until(lambda: fine in ledger.ends)
    await until(lambda: stage.runners.idle)
    counters = stage.runners.counters
    assert ledger.ends == ({bad: "HANDLER_ERROR"} if can_refuse else {}) | {fine: "answered"}
    assert [type(one) for one in stage.given_back] == ([] if can_refuse else [error])
    assert (counters.errors, counters.lost, counters.handled, counters.refusals) == (1, not can_refuse, 2, 0)
    begun_at_once = kind is COROUTINE and at_once
    assert counters.replaced == (ends and kind is not INLINE and not begun_at_once)
    await stage.runners.close()


@pytest.mark.parametrize("kind", [COROUTINE, INLINE])
@pytest.mark.parametrize("warm", [False, True])
def test_ctrl_c_in_a_handler_reaches_the_program(kind: HandlerKind, warm: bool) -> None:
    """Its request is answered for all the same."""
    found: list[Ledger] = []

    def plain(request: Request) -> bytes:
        if request.body[0] == b"stop":
            raise KeyboardInterrupt
        return b""

    async def coroutine(request: Request) -> bytes:
        return plain(request)

    async def main() -> None:
        stage, ledger = staged(plain if kind is INLINE else coroutine, kind=kind)
        found.append(ledger)
        if warm:
            await stage.warm()
        stage.give(stage.request(b"stop"))
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(main())
    assert [*found[0].ends.values()][warm:] == ["HANDLER_ERROR"]


# --- parts ----------------------------------------------------------------------------------------------------------------------


async def test_each_part_leaves_when_it_is_there_and_what_is_kept_may_be_as_much_as_the_limit() -> None:
    """MDP-43."""

    async def handler(request: Request) -> AsyncIterator[bytes]:
        for _ in range(int(request.body[0])):
            yield b""

    stage, ledger = staged(handler, kind=GENERATOR, parts_max_bytes=10 * FRAME_OVERHEAD_BYTES)
    stage.give(stage.request(b"11"))
    await stage.done()
    assert (ledger.parts, stage.flushes >= 11) == (11, True)
    ledger.can_send_parts = False
    for count in (b"10", b"11"):
        stage.give(stage.request(count))
        await stage.done()
    assert [*ledger.ends.values()] == ["answered", "answered", "HANDLER_ERROR"]
    await stage.runners.close()
