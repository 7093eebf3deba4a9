"""Reasons to cancel a handler that cross: it is cancelled once, and its clean-up has the time that was promised."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mdp.wire.commands import WORKER_CANCEL_03, WORKER_DISCONNECT_03
from mdp.worker.worker import Worker
from tests.scenes.mdp_runner_ledger import turns
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.request import Request

# One broker's word, or its end; and the end of the worker.
BROKER = ("cancel", "disconnect", "reset")
WORKER = ("leave", "abort")
CASES = [(first, then, "coroutine") for first in (*BROKER, "leave") for then in (*BROKER, *WORKER)]
CASES += [("abort", then, "coroutine") for then in WORKER]  # it is not connected any more
CASES += [("cancel", "leave", "generator"), ("leave", "cancel", "generator")]


class CleansUp:
    """Handlers whose clean-up waits until the test lets it end, and is noted when it was cut short."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.cleaned = 0
        self.cut_short = 0
        self.may_end = asyncio.Event()

    async def coroutine(self, request: Request) -> bytes:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
            await self._clean_up()
        return b""

    async def generator(self, request: Request) -> AsyncIterator[bytes]:
        yield await self.coroutine(request)

    async def _clean_up(self) -> None:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cut_short += 1
            raise
        self.cleaned += 1


async def _happens(what: str, broker: StandIn, peer: bytes, worker: Worker) -> asyncio.Task[None] | None:
    """Let one thing end the request; return the task of what goes on for longer."""
    match what:
        case "cancel":
            broker.send(peer, WORKER_CANCEL_03 + token(1))
        case "disconnect":
            broker.send(peer, WORKER_DISCONNECT_03)
        case "reset":
            broker.cut(peer)
        case "abort":
            return asyncio.create_task(worker.abort())
        case "leave":
            return asyncio.create_task(worker.__aexit__(None, None, None))
    return None


def _heard(worker: Worker) -> int:
    counters = worker.session_counters
    return counters.cancelled + counters.cancel_unknown + counters.sent_away + counters.abandoned + counters.connections


@pytest.mark.parametrize(("first", "then", "kind"), CASES, ids=lambda what: what)
async def test_a_handler_is_cancelled_once_whatever_comes_next(stand_in: StandIn, first: str, then: str, kind: str) -> None:
    handlers = CleansUp()
    handler: Any = getattr(handlers, kind)
    worker = Worker(stand_in.endpoint, "job", handler=handler, drain_s=0, cancel_s=60, concurrency=1, reconnect_ms=1)
    await worker.__aenter__()
    peer, _ = await stand_in.next()
    give(stand_in, peer, 1)
    await eventually(lambda: handlers.begun)
    ending = [await _happens(first, stand_in, peer, worker)]
    await eventually(lambda: handlers.cancelled)
    if first in ("disconnect", "reset"):
        peer, _ = await stand_in.next()  # it is registered again
    before = _heard(worker)
    ending.append(await _happens(then, stand_in, peer, worker))
    if then in BROKER:
        await eventually(lambda: _heard(worker) > before)
    await turns(20)  # more than a task needs to close, and another one to notice its cancellation
    assert (handlers.cut_short, handlers.cleaned) == (0, 0)
    handlers.may_end.set()
    if not any(ending):
        ending.append(await _happens("leave", stand_in, peer, worker))
    await asyncio.gather(*(one for one in ending if one is not None))
    await worker.__aexit__(None, None, None)
    assert (handlers.cancelled, handlers.cut_short, handlers.cleaned) == (1, 0, 1)
    assert worker.runner_counters.left == 0
