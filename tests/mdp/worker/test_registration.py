"""Ends of a worker's registrations: at once, and in the log."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import WORKER_READY_03, worker_disconnect
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_scripted_broker import give
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from mdp.request import Request
    from tests.scenes.mdp_scripted_broker import StandIn


MINUTE_MS = 60_000  # nothing is noticed by the clock


async def registered(stand_in: StandIn) -> bytes:
    """Return the peer of the next READY."""
    while True:
        peer, frames = await stand_in.next()
        if frames[0] == WORKER_READY_03:
            return peer


async def test_the_log_says_why_a_worker_registers_again(stand_in: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mdp.worker")
    place = stand_in.endpoint
    async with Worker(place, "echo", handler=echo, reconnect_ms=1, heartbeat_ms=MINUTE_MS, blocked_s=0):  # a pause is no line
        stand_in.send(await registered(stand_in), *worker_disconnect("0.3"))
        stand_in.cut(await registered(stand_in))
        await registered(stand_in)
    up, again = f"echo: registered at {place}, MDP/0.3", f"echo: connected again after T s, to {place}"
    lines = [record.getMessage() for record in caplog.records]
    said = [re.sub(r"after [\d.]+ s", "after T s", line) for line in lines if line.startswith("echo: ")]
    assert said[:7] == [up, f"echo: disconnected by {place}", up, again, f"echo: connection to {place} lost", up, again]


@pytest.mark.parametrize("end", ["cut", "disconnect"])
async def test_the_handler_of_a_request_ends_at_once_with_its_connection(stand_in: StandIn, end: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> list[bytes]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return request.body

    async with Worker(stand_in.endpoint, "echo", handler=wait, heartbeat_ms=MINUTE_MS):
        peer = await registered(stand_in)
        give(stand_in, peer, 1)
        await begun.wait()
        if end == "cut":
            stand_in.cut(peer)
        else:
            stand_in.send(peer, *worker_disconnect("0.3"))
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
