"""Counters of runners, and requests that they pass over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mdp.errors import HandlerError
from mdp.worker.handler import HandlerKind
from tests.scenes.mdp_runners import Stage

if TYPE_CHECKING:
    from mdp.request import Request


async def test_a_request_that_waits_can_be_released_and_one_that_runs_cannot() -> None:
    """BEY-03: what was recalled and not begun is passed over, and counted as nothing."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    called: list[bytes] = []

    async def handler(request: Request) -> bytes:
        called.append(request.body[0])
        begun.set()
        await go_on.wait()
        return request.body[0]

    stage = Stage(handler, 1)
    runs, recalled, behind = (stage.request(body) for body in (b"runs", b"recalled", b"behind"))
    stage.give(runs, recalled, behind)
    await begun.wait()
    assert (stage.runners.release(runs), stage.runners.release(recalled)) == (False, True)
    assert (runs.cancelled, recalled.cancelled) == (False, True)
    go_on.set()
    await stage.done()
    await stage.runners.close()
    assert called == [b"runs", b"behind"]
    assert stage.session.answers == [(b"runs",), (b"behind",)]
    counters = stage.runners.counters
    assert (counters.handled, counters.cancelled, counters.errors) == (2, 0, 0)


@pytest.mark.parametrize("kind", [HandlerKind.COROUTINE, HandlerKind.INLINE, HandlerKind.THREAD])
async def test_a_refusal_is_counted_as_one_and_a_fault_is_none(kind: HandlerKind) -> None:
    """BEY-16."""

    def refuses(request: Request) -> bytes:
        if request.body[0] == b"refuse":
            raise HandlerError(text="no")
        raise ZeroDivisionError

    async def waits(request: Request) -> bytes:
        return refuses(request)

    stage = Stage(waits if kind is HandlerKind.COROUTINE else refuses, 1, kind=kind)
    for body in (b"refuse", b"fault", b"refuse"):
        stage.give(stage.request(body))
        await stage.done()
    await stage.runners.close()
    counters = stage.runners.counters
    assert (counters.errors, counters.refusals, counters.handled, counters.lost) == (3, 2, 0, 0)
    assert len(stage.session.refusals) == 3
