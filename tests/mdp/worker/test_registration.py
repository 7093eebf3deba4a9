"""Lines of the log about a worker's registrations."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from mdp.wire.commands import WORKER_READY_03, worker_disconnect
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    import pytest

    from tests.scenes.mdp_scripted_broker import StandIn


async def registered(stand_in: StandIn) -> bytes:
    """Return the peer of the next READY."""
    while True:
        peer, frames = await stand_in.next()
        if frames[0] == WORKER_READY_03:
            return peer


async def test_the_log_says_why_a_worker_registers_again(stand_in: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mdp.worker")
    place = stand_in.endpoint
    async with Worker(place, "echo", handler=echo, reconnect_ms=1):
        stand_in.send(await registered(stand_in), *worker_disconnect("0.3"))
        stand_in.cut(await registered(stand_in))
        await registered(stand_in)
    up, again = f"echo: registered at {place}, MDP/0.3", f"echo: connected again after T s, to {place}"
    lines = [record.getMessage() for record in caplog.records]
    said = [re.sub(r"after [\d.]+ s", "after T s", line) for line in lines if line.startswith("echo: ")]
    assert said[:7] == [up, f"echo: disconnected by {place}", up, again, f"echo: connection to {place} lost", up, again]
