"""core.rpc.client_engine: clients whose context the program ends; each says so at once, and tries nothing any longer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import bstar
import core
import core.blocking
import core.errors
import freelance
import mdp
import pirate
import titanic
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    Make: TypeAlias = Callable[..., Any]

ENDS = pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])
CLOSED = (mdp.ClientClosed, core.errors.ClientClosed)
# Nothing is given up in the time of a test.
PATIENT: dict[str, Any] = {"timeout": 1000.0}
MAKE: dict[str, Make] = {
    "mdp": lambda place, **own: mdp.Client(place, **PATIENT, **own),
    "mdp 0.1": lambda place, **own: mdp.Client(place, dialect="0.1", **PATIENT, **own),
    "mdp 0.3": lambda place, **own: mdp.Client(place, dialect="0.3", **PATIENT, **own),
    "titanic": lambda place, **own: titanic.Client(place, **PATIENT, **own),
    "bstar": lambda place, **own: bstar.Client(place, place, patience=1000.0, **own),
    "bstar stock": lambda place, **own: bstar.Client(place, place, stock=True, patience=1000.0, **PATIENT, **own),
    "freelance model 1": lambda place, **own: freelance.Client([place], model=1, try_timeout=1000.0, **own),
    "freelance model 2": lambda place, **own: freelance.Client([place], model=2, **PATIENT, **own),
    "freelance model 3": lambda place, **own: freelance.Client([place], model=3, **PATIENT, **own),
    "pirate": lambda place, **own: pirate.Client(place, **PATIENT, **own),
}
SYNC: dict[str, Make] = {
    "mdp": lambda place, **own: mdp.SyncClient(place, **PATIENT, **own),
    "titanic": lambda place, **own: titanic.SyncClient(place, **PATIENT, **own),
    "freelance": lambda place, **own: freelance.SyncClient([place], **PATIENT, **own),
}


def asks(client: Any) -> Any:
    """Ask any client."""
    if isinstance(client, titanic.Client):
        return client.mmi("service", "echo")
    if isinstance(client, titanic.SyncClient):
        return client.submit("echo", b"x")
    return client.request(*(["echo", b"x"] if isinstance(client, mdp.Client | mdp.SyncClient) else [b"x"]))


@ENDS
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("make", MAKE.values(), ids=[*MAKE])
async def test_what_is_open_ends_with_the_context_and_what_comes_is_refused(
    make: Make, connected: bool, end: Callable[[core.Context], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with core.Context() as there, core.Context() as context:
        silent = there.socket(core.ROUTER, linger=0)
        silent.bind("tcp://127.0.0.1:*")
        watch, place = Watch(silent), silent.last_endpoint
        if not connected:
            silent.close()
            await silent.wait_closed()
        async with make(place, context=context) as client:
            asked = asyncio.ensure_future(asks(client))
            if connected:
                await watch.peers()
            await asyncio.sleep(0)
            end(context)
            await asyncio.wait([asked], timeout=10.0)
            error = asked.exception()
            assert isinstance(error, CLOSED)
            assert isinstance(error.__cause__, core.ContextTerminated)
            with pytest.raises(CLOSED):
                await asks(client)
            if connected and end is core.Context.term:
                await watch.lost()
        assert not context.on_end
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("make", SYNC.values(), ids=[*SYNC])
def test_a_thread_that_waits_is_woken_when_another_one_ends_the_context(make: Make) -> None:
    context = core.Context()
    with core.blocking.Context() as there, there.socket(core.ROUTER, linger=0) as silent, ThreadPoolExecutor(1) as pool:
        silent.bind("tcp://127.0.0.1:*")
        with make(silent.last_endpoint, context=context) as client:
            asked = pool.submit(asks, client)
            silent.recv_multipart()
            context.term()
            assert isinstance(asked.exception(timeout=10.0), CLOSED)
            with pytest.raises(CLOSED):
                asks(client)


@pytest.mark.parametrize("make", MAKE.values(), ids=[*MAKE])
async def test_a_client_that_was_closed_is_not_told_of_the_end_of_its_context(make: Make) -> None:
    async with core.Context() as context:
        async with make("tcp://127.0.0.1:9", context=context):
            assert len(context.on_end) == 1
        assert not context.on_end
