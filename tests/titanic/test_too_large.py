"""Messages too large for Titanic or a worker end with a reason, at once; the largest allowed ones work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import titanic
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# Of 1,024 frames: command, service and options of the request to titanic.request, the service it is for, and two of Titanic's options.
KEYED_MAX = 1018
REPLY_MAX = 1022  # command and status of the answer to titanic.reply
SLOW = DispatchOptions(retry_s=30.0)  # nothing here is to be tried twice


class Scene:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.runs = 0

    async def frames(self, request: mdp.Request) -> list[bytes]:
        """Answer with so many frames as are asked for."""
        self.runs += 1
        return [b"x"] * int(request.body[0])

    async def count(self, request: mdp.Request) -> bytes:
        self.runs += 1
        return b"%d" % len(request.body)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        scene = Scene(broker.bind("tcp://127.0.0.1:*"))
        store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096)))
        service = titanic.Service(scene.endpoint, store, titanic.ServiceOptions(dispatch=SLOW), context=context, seed=1)
        async with service:
            yield scene
            assert broker.counters["socket_protocol_errors"] == 0
            assert broker.stats["letters"] == 0


async def test_the_largest_request_is_stored_and_answered_and_a_larger_one_is_refused_here(scene: Scene) -> None:
    async with mdp.Worker(scene.endpoint, "count", handler=scene.count), titanic.Client(scene.endpoint) as client:
        await client.submit("count", b"x")
        with pytest.raises(mdp.TooLarge) as caught:
            await client.submit("count", *[b"x"] * (KEYED_MAX + 1), key="k")
        assert caught.value.size - caught.value.limit == 1
        ticket = await client.submit("count", *[b"x"] * KEYED_MAX, key="k")
        assert await ticket.result(timeout=100) == [b"%d" % KEYED_MAX]


@pytest.mark.parametrize("extra", [1, 2, 3])
async def test_a_reply_that_could_never_be_fetched_is_a_dead_letter_with_both_numbers(scene: Scene, extra: int) -> None:
    async with mdp.Worker(scene.endpoint, "frames", handler=scene.frames), titanic.Client(scene.endpoint) as client:
        most = await client.submit("frames", b"%d" % REPLY_MAX)
        assert await most.result(timeout=100) == [b"x"] * REPLY_MAX
        scene.runs = 0
        ticket = await client.submit("frames", b"%d" % (REPLY_MAX + extra))
        with pytest.raises(titanic.DeadLettered, match=f"frames of the reply: {REPLY_MAX + extra}, at most 102[23]"):
            await ticket.result(timeout=100)
        assert scene.runs == 1


async def test_a_request_that_its_worker_does_not_take_is_a_dead_letter_at_once(scene: Scene) -> None:
    low: dict[str, Any] = {"socket_options": {"max_parts": 100}}
    async with mdp.Worker(scene.endpoint, "count", handler=scene.count, **low), titanic.Client(scene.endpoint) as client:
        fits = await client.submit("count", *[b"x"] * 98)
        assert await fits.result(timeout=100) == [b"98"]
        ticket = await client.submit("count", *[b"x"] * 99)
        with pytest.raises(titanic.DeadLettered, match="frames of the request: 99, at most 98"):
            await ticket.result(timeout=100)


async def test_a_request_that_was_stored_where_more_is_taken_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    """The broker of today takes less than the one through which it came: the store finds out before it sends."""
    disk: dict[str, Any] = {"log": titanic.LogOptions(reserve_bytes=4096)}
    uuid = ""
    for most in (1024, 20):
        async with core.Context() as context, mdp.Broker(context=context, socket_options={"max_parts": most}) as broker:
            scene = Scene(broker.bind("tcp://127.0.0.1:*"))
            store = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(**disk))
            options = titanic.ServiceOptions(dispatch=SLOW)
            async with titanic.Service(scene.endpoint, store, options, context=context, seed=1), titanic.Client(scene.endpoint) as client:
                if most == 1024:
                    uuid = (await client.submit("count", *[b"x"] * 50)).uuid
                    continue
                async with mdp.Worker(scene.endpoint, "count", handler=scene.count):
                    with pytest.raises(titanic.DeadLettered, match="frames of the request: 50, at most 17"):
                        await client.ticket(uuid).result(timeout=100)
                    assert scene.runs == 0
