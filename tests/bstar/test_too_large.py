"""A request the pair has told it does not take fails at once with both numbers.

The others are answered, and no fail-over follows.
"""

from __future__ import annotations

import asyncio

import pytest

import core
from tests.scenes.bstar_sockets import Scene


async def test_a_client_hears_that_the_pair_takes_less() -> None:
    async with Scene(socket_options={"max_parts": 10}) as scene, scene.client() as client:
        assert await client.request(b"hello") == [b"hello"]
        await scene.settle()
        asked = [client.request(*[b"x"] * count) for count in (1, 50, 2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answers[0], answers[2]] == [[b"x"], [b"x"] * 2]
        assert isinstance(answers[1], core.MessageTooLarge)
        assert (answers[1].size, answers[1].limit) == (52, 10)
        assert client.counters["too_large"] == 1
        assert await client.request(b"again") == [b"again"]
        assert scene.serving() == [True, False]


async def test_a_request_that_waits_for_its_connection_too() -> None:
    async with Scene(socket_options={"max_parts": 10}) as scene, scene.client() as client:
        with pytest.raises(core.MessageTooLarge):
            await client.request(*[b"x"] * 50)
        assert await client.request(b"again") == [b"again"]


@pytest.mark.parametrize("over", [0, 1])
async def test_the_largest_request_with_the_usual_limits_and_one_frame_more(over: int) -> None:
    """The envelope has two frames. The pair continues either way, and no connection is closed."""
    async with Scene() as scene, scene.client() as client:
        assert await client.request(b"hello") == [b"hello"]
        frames = [b"x"] * (1022 + over)
        others = [client.request(b"%d" % n) for n in range(3)]
        if over:
            with pytest.raises(core.MessageTooLarge) as caught:
                await client.request(*frames)
            assert (caught.value.size, caught.value.limit) == (1025, 1024)
        else:
            assert await client.request(*frames) == frames
        assert await asyncio.gather(*others) == [[b"0"], [b"1"], [b"2"]]
        assert client.counters["repeated"] == 0
        assert scene.serving() == [True, False]
