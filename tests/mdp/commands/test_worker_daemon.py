"""mdp.commands.worker_daemon: the body of `mdp worker`, run without the command."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import core
import mdp
from mdp.commands.worker_daemon import WorkerDaemonOptions, serve_workers
from tests.scenes.lifetime import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def test_all_services_answer_while_their_resources_last(endpoint: str, client: mdp.Client) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        events.append("made")
        yield
        events.append("released")

    async def answer(request: mdp.Request) -> bytes:
        events.append(request.service)
        return b"done"

    context = core.Context()
    workers = [mdp.Worker(endpoint, name, handler=answer, context=context) for name in ("one", "two")]
    async with running(serve_workers, WorkerDaemonOptions([endpoint], workers, context, resources)) as daemon:
        for name in ("one", "two"):
            assert await client.request(name, b"x", wait=True) == [b"done"]
    assert daemon.fields["services"] == ["one", "two"]
    assert events == ["made", "one", "two", "released"]
    assert context.closed
