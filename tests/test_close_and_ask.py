"""Every client settles what it was asked while it closes.

A request made just before, at or after its close, or one already on its way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

import bstar
import core
import freelance
import mdp
import pirate
import titanic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# Far beyond a test's time: a request that is settled only by its timeout is not settled.
LONG_S = 3600.0


class Kind(NamedTuple):
    """A kind of client.

    Attributes:
        make: one for an endpoint, in a context, with a timeout that outlasts the test.
        ask: makes a request of it.
        closed: what becomes of a request that is open when the client closes, or made afterwards.
    """

    make: Callable[[str, core.Context | None], Any]
    ask: Callable[[Any], Any]
    closed: tuple[type[BaseException], ...]


def ask_frames(client: Any) -> Any:
    return client.request(b"x")


def freelance_of(model: Literal[1, 2, 3]) -> Kind:
    def make(at: str, context: core.Context | None) -> Any:
        return freelance.Client([at], model=model, timeout=LONG_S, try_timeout=LONG_S / 2, context=context)

    return Kind(make, ask_frames, (freelance.ClientClosed,))


KINDS = {
    "mdp": Kind(
        lambda at, context: mdp.Client(at, timeout=LONG_S, context=context), lambda one: one.request("s", b"x"), (mdp.ClientClosed,)
    ),
    "mdp 0.1": Kind(
        lambda at, context: mdp.Client(at, timeout=LONG_S, dialect="0.1", context=context),
        lambda one: one.request("s", b"x"),
        (mdp.ClientClosed,),
    ),
    "titanic": Kind(
        lambda at, context: titanic.Client(at, timeout=LONG_S, context=context), lambda one: one.submit("s", b"x"), (mdp.ClientClosed,)
    ),
    "bstar": Kind(lambda at, context: bstar.Client(at, at, patience=LONG_S, context=context), ask_frames, (bstar.ClientClosed,)),
    "bstar stock": Kind(
        lambda at, context: bstar.Client(at, at, patience=LONG_S, timeout=LONG_S, stock=True, context=context),
        ask_frames,
        (bstar.ClientClosed,),
    ),
    "freelance 1": freelance_of(1),
    "freelance 2": freelance_of(2),
    "freelance 3": freelance_of(3),
    "pirate": Kind(lambda at, context: pirate.Client(at, timeout=LONG_S, context=context), ask_frames, (pirate.ClientClosed,)),
}


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A server that takes everything and answers nothing."""
    async with core.Context() as context:
        socket = context.socket(core.ROUTER, linger=0)
        socket.bind("tcp://127.0.0.1:*")
        socket.set_receiver(lambda batch: None)
        yield socket.last_endpoint


async def settled(asked: list[asyncio.Future[Any]], kind: Kind) -> None:
    """Wait until each request has ended, and look how."""
    done, pending = await asyncio.wait(asked, timeout=100)
    for one in pending:
        one.cancel()
    assert not pending, f"{len(pending)} of {len(asked)} requests were not settled"
    assert {type(one.exception()) for one in done} <= set(kind.closed)


def ask(client: Any, kind: Kind) -> asyncio.Future[Any]:
    """Make a request in this iteration of the event loop; an error raised at once is its end."""
    try:
        asked = kind.ask(client)
    except kind.closed as error:
        asked = asyncio.get_running_loop().create_future()
        asked.set_exception(error)
    future: asyncio.Future[Any] = asyncio.ensure_future(asked)
    return future


@pytest.mark.parametrize("own_context", [True, False])
@pytest.mark.parametrize("name", KINDS)
async def test_no_request_outlives_its_client(silent: str, name: str, own_context: bool) -> None:
    kind = KINDS[name]
    many = 1 if name == "pirate" else 3
    async with core.Context() as context:
        client = kind.make(silent, None if own_context else context)
        await client.__aenter__()
        asked = [ask(client, kind) for _ in range(many)]
        await asyncio.sleep(0.01)  # some of it is on its way, some waits: both have to end
        if many > 1:
            asked += [ask(client, kind) for _ in range(many)]
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.__aexit__(None, None, None))
        # Between the close and the end of the iteration, in which what was asked before the close still waits to be sent.
        asyncio.get_running_loop().call_soon(lambda: asked.extend(ask(client, kind) for _ in range(many)))
        if many > 1:
            asked += [ask(client, kind) for _ in range(many)]
        for _ in range(3):  # in the iteration in which it closes, and in those after it
            await asyncio.sleep(0)
            asked += [ask(client, kind) for _ in range(many)]
        await closing
        asked += [ask(client, kind) for _ in range(many)]
        await settled(asked, kind)


@pytest.mark.parametrize("name", KINDS)
async def test_no_request_made_right_after_another_is_left_by_a_close_between_them(silent: str, name: str) -> None:
    """The second and third request of one iteration are collected; the close comes between."""
    kind = KINDS[name]
    client = kind.make(silent, None)
    await client.__aenter__()
    await asyncio.sleep(0.01)
    asked = [ask(client, kind) for _ in range(1 if name == "pirate" else 2)]
    await client.__aexit__(None, None, None)
    asked += [ask(client, kind) for _ in range(3)]
    await settled(asked, kind)


@pytest.mark.parametrize("name", KINDS)
async def test_a_client_that_never_asked_anything_closes(silent: str, name: str) -> None:
    kind = KINDS[name]
    async with kind.make(silent, None) as client:
        pass
    await settled([ask(client, kind)], kind)
