"""Where a request crosses its handler, its connection or its worker: every runner is there afterwards (MDP-22, MDP-24)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from mdp.wire.commands import WORKER_CANCEL_03, WORKER_ERROR_03, WORKER_FINAL_03, worker_disconnect
from mdp.worker.worker import Worker
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mdp.client.client import Client
    from mdp.request import Request

CONCURRENCY = 3


class Handlers:
    """A handler for each everyday way to wait, with what they went through.

    Attributes:
        running: bodies that are worked on.
        cleaned: bodies whose clean-up came to its end.
        go_on: lets handlers return.
        cleanup: what a cancelled handler waits for before it ends.
    """

    def __init__(self) -> None:
        self.running: set[bytes] = set()
        self.cleaned: list[bytes] = []
        self.go_on = asyncio.Event()
        self.cleanup = asyncio.Event()

    async def wait(self, request: Request) -> bytes:
        if request.body[0] == b"quick":
            return b"quick"
        self.running.add(request.body[0])
        try:
            await self.go_on.wait()
        finally:
            self.running.discard(request.body[0])
            await self.cleanup.wait()
            self.cleaned.append(request.body[0])
        return request.body[0]

    async def parts(self, request: Request) -> AsyncIterator[bytes]:
        yield await self.wait(request)

    def of_kind(self, kind: str) -> Callable[[Request], Any]:
        return self.parts if kind == "generator" else self.wait


async def all_run(stand_in: StandIn, peer: bytes, handlers: Handlers, first: int, count: int = CONCURRENCY) -> None:
    """Give as many requests as there are runners, and wait until each has one."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    for number, body in enumerate(bodies, first):
        give(stand_in, peer, number, body)
    await eventually(lambda: handlers.running.issuperset(bodies))


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
@pytest.mark.parametrize("ends", ["cancelled twice", "cancelled and sent away", "sent away in the clean-up", "cut in the clean-up"])
async def test_a_request_that_ends_twice_cancels_its_handler_once(stand_in: StandIn, kind: str, ends: str) -> None:
    handlers = Handlers()
    options: dict[str, Any] = {"concurrency": CONCURRENCY, "reconnect_ms": 20, "drain_s": 0}
    async with Worker(stand_in.endpoint, "wait", handler=handlers.of_kind(kind), **options) as worker:
        peer, _ = await stand_in.next()
        await all_run(stand_in, peer, handlers, 0)
        cancels = [WORKER_CANCEL_03 + token(number) for number in range(CONCURRENCY)]
        for cancel in cancels:
            stand_in.send(peer, cancel)
        if ends == "cancelled twice":
            for cancel in cancels:
                stand_in.send(peer, cancel)
        elif ends == "cancelled and sent away":
            stand_in.send(peer, *worker_disconnect("0.3"))
        await eventually(lambda: not handlers.running)
        if ends == "sent away in the clean-up":
            stand_in.send(peer, *worker_disconnect("0.3"))
        elif ends == "cut in the clean-up":
            stand_in.cut(peer)
        if ends != "cancelled twice":
            peer, _ = await stand_in.next()
        handlers.cleanup.set()
        await eventually(lambda: len(handlers.cleaned) == CONCURRENCY)
        if ends == "cancelled twice":
            assert {(await stand_in.next())[1][0] for _ in range(CONCURRENCY)} == {WORKER_ERROR_03 + token(n) for n in range(CONCURRENCY)}
        await all_run(stand_in, peer, handlers, 10)
        assert worker.running == CONCURRENCY
        handlers.go_on.set()


async def cancels_itself(request: Request) -> bytes:
    """An everyday way to stop a job from within."""
    if request.body[0] == b"later":
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    if request.body[0] != b"fine":
        task.cancel()
    if request.body[0] == b"and returns":
        return b"returned"
    if request.body[0] == b"and fails":
        raise ValueError
    await asyncio.sleep(0)
    return request.body[0]


async def cancelled_by_another(request: Request) -> bytes:
    task = asyncio.current_task()
    assert task is not None
    if request.body[0] != b"fine":
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.Event().wait()
    return request.body[0]


async def raises_in_a_group(request: Request) -> bytes:
    async def child() -> None:
        if request.body[0] != b"fine":
            raise asyncio.CancelledError if request.body[0] == b"later" else KeyError

    async with asyncio.TaskGroup() as group:
        group.create_task(child())
        await asyncio.sleep(0.001)
    if request.body[0] == b"later":
        raise KeyError
    return request.body[0]


@pytest.mark.parametrize("handler", [cancels_itself, cancelled_by_another, raises_in_a_group])
@pytest.mark.parametrize("body", [b"at once", b"later", b"and fails"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_whose_task_is_cancelled_by_the_program_has_failed_and_the_worker_goes_on(
    endpoint: str, client: Client, handler: Callable[[Request], Any], body: bytes, concurrency: int
) -> None:
    async with Worker(endpoint, "job", handler=handler, concurrency=concurrency) as worker:
        assert await client.request("job", b"fine", wait=True) == [b"fine"]
        for _ in range(2 * concurrency + 1):  # more often than there are runners
            with pytest.raises(mdp.HandlerError):
                await client.request("job", body)
        failed = [client.request("job", body) for _ in range(2 * concurrency + 1)]
        assert await asyncio.gather(*(client.request("job", b"fine") for _ in range(20))) == [[b"fine"]] * 20
        assert {type(error) for error in await asyncio.gather(*failed, return_exceptions=True)} == {mdp.HandlerError}
        assert (worker.running, worker.waiting) == (0, 0)


async def test_a_handler_that_cancels_its_task_and_returns_has_answered_and_the_next_is_not_cancelled(
    endpoint: str, client: Client
) -> None:
    async with Worker(endpoint, "job", handler=cancels_itself, concurrency=1):
        assert await client.request("job", b"fine", wait=True) == [b"fine"]
        replies = [client.request("job", body) for body in (b"and returns", b"fine", b"and returns", b"fine")]
        assert await asyncio.gather(*replies) == [[b"returned"], [b"fine"]] * 2


async def test_runners_that_ended_are_replaced_while_requests_wait_and_counted(endpoint: str, client: Client) -> None:
    async with Worker(endpoint, "job", handler=cancelled_by_another, concurrency=2, credit=100) as worker:
        errors = await asyncio.gather(*(client.request("job", b"bad", wait=True) for _ in range(9)), return_exceptions=True)
        assert [type(error) for error in errors] == [mdp.HandlerError] * 9
        await eventually(lambda: worker.runner_counters.replaced == 9)
        assert worker.runner_counters.errors == 9


async def test_a_stopped_thread_keeps_its_runner_until_it_ends(stand_in: StandIn) -> None:
    """A thread cannot be stopped.

    What it was given is not answered, and nothing is begun in its place, before it has ended.
    """
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def handler(request: Request) -> bytes:
        begun.release()
        if request.body[0] != b"quick":
            go_on.wait(30)
        return request.body[0]

    async with Worker(stand_in.endpoint, "wait", handler=handler, concurrency=1) as worker:
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1, b"slow")
        assert await asyncio.to_thread(begun.acquire, True, 30)
        give(stand_in, peer, 2, b"quick")
        stand_in.send(peer, WORKER_CANCEL_03 + token(1))
        await eventually(lambda: worker.session_counters.cancelled)
        assert (worker.running, worker.waiting) == (1, 1)
        go_on.set()
        assert (await stand_in.next())[1][:2] == [WORKER_ERROR_03 + token(1), b"CANCELLED"]
        assert (await stand_in.next())[1] == [WORKER_FINAL_03 + token(2), b"quick"]
