"""A Titanic whose context the program ends: it says so at once, and no request counts as failed for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
import titanic
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAST = DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1)


@pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])
async def test_a_store_whose_context_ends_says_so_and_dead_letters_nothing(
    end: Callable[[core.Context], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def hangs(request: mdp.Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    def service(context: core.Context) -> titanic.Service:
        store = titanic.Store(titanic.RealDisk(tmp_path), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096)))
        return titanic.Service(place, store, titanic.ServiceOptions(dispatch=FAST, max_attempts=1), context=context)

    async with mdp.Broker() as broker:
        place = broker.bind("tcp://127.0.0.1:*")
        async with core.Context() as context, service(context) as first, titanic.Client(place) as client:
            waiting = asyncio.ensure_future(first.until_failed())
            async with mdp.Worker(place, "echo", handler=hangs) as worker:
                tickets = [await client.submit("echo", b"%d" % number) for number in range(2)]
                await eventually(lambda: worker.running == len(tickets))
                absent = await client.submit("absent", b"x")
                end(context)
                await asyncio.wait([waiting], timeout=10.0)
                assert isinstance(waiting.exception(), core.ContextTerminated)
                await asyncio.sleep(0.1)  # of its clock
        assert not context.on_end
        async with core.Context() as context, service(context), titanic.Client(place) as client, mdp.Worker(place, "echo", handler=echo):
            assert [await client.ticket(one.uuid).result(100) for one in tickets] == [[b"0"], [b"1"]]
            assert await client.ticket(absent.uuid).fetch() is None
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
