"""mdp.session.shared_connection: which workers share a connection, and which get its end, its silence and its strays."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.session.shared_connection import Channel, SharedConnections
from mdp.wire.channels import CHANNELS_MAX, channel_frame
from tests.scenes.mdp_messages import read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.zmtp.scan import Batch

NOWHERE = "inproc://nobody"


class Calls:
    """Opens channels, and keeps the calls that each gets."""

    def __init__(self, context: core.Context) -> None:
        self.context = context
        self.shared = SharedConnections()
        self.said: dict[Channel, list[Any]] = {}

    def open(self, endpoint: str = NOWHERE, context: core.Context | None = None, **options: Any) -> Channel:
        said: list[Any] = []

        def on_batch(batch: Batch) -> None:
            said.append(batch.messages())

        def on_stray(number: int) -> None:
            said.append(number)

        channel = self.shared.open(
            context or self.context,
            endpoint,
            options,
            on_joined=lambda: said.append("joined"),
            on_batch=on_batch,
            on_lost=lambda: said.append("lost"),
            on_refused=lambda: said.append("refused"),
            on_stray=on_stray,
        )
        self.said[channel] = said
        return channel


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    async with core.Context() as context:
        yield Calls(context)


async def test_channels_of_the_same_context_endpoint_and_options_share_a_connection(calls: Calls) -> None:
    """CHN-01."""
    first = calls.open()
    assert calls.open().trunk is first.trunk
    assert calls.open("inproc://other").trunk is not first.trunk
    assert calls.open(rcvhwm=5).trunk is not first.trunk
    async with core.Context() as context:
        assert calls.open(context=context).trunk is not first.trunk
    assert first.frame == channel_frame(1)
    assert (first.closed, first.heard_at, first.trunk._linger_ms) == (False, 0.0, 0)


async def test_a_connection_whose_numbers_are_used_up_takes_no_further_worker(calls: Calls) -> None:
    first = calls.open()
    first.trunk._numbers = count(CHANNELS_MAX - 1)
    last = [calls.open(), calls.open()]
    assert [channel.trunk is first.trunk for channel in last] == [True, True]
    assert last[1].frame == channel_frame(CHANNELS_MAX)
    assert calls.open().trunk is not first.trunk


async def test_all_but_the_one_that_ends_it_get_the_end_once_and_no_other_joins_then(calls: Calls) -> None:
    """CHN-09."""
    channels = [calls.open() for _ in range(3)]
    channels[1].abandon()
    channels[0].abandon()
    assert [calls.said[channel] for channel in channels] == [["lost"], [], ["lost"]]
    assert calls.open().trunk is not channels[0].trunk
    channels[0].trunk._joined()  # the socket has connected again
    assert calls.said[channels[0]] == ["lost"]


async def test_a_silent_connection_is_lost_to_all_unless_another_heard_of_it_in_the_second_half(calls: Calls) -> None:
    """CHN-09."""
    now = asyncio.get_running_loop().time()
    silent, other = calls.open(), calls.open()
    silent.heard_at, other.heard_at = now - 400, now - 100
    silent.silent()
    assert calls.said[other] == []
    other.heard_at = now - 300
    silent.silent()
    assert (calls.said[silent], calls.said[other]) == ([], ["lost"])


async def test_a_worker_alone_on_its_connection_is_no_other_that_was_heard(calls: Calls) -> None:
    silent = calls.open()
    silent.heard_at = asyncio.get_running_loop().time() + 100
    assert not silent.trunk.lives_without(silent)


async def test_all_get_a_refusal(calls: Calls) -> None:
    channels = [calls.open(), calls.open()]
    channels[0].trunk._refused()
    assert [calls.said[channel] for channel in channels] == [["refused"], ["refused"]]


async def test_messages_are_for_the_worker_of_their_channel_and_one_gets_the_number_of_strays(calls: Calls) -> None:
    channels = [calls.open(), calls.open()]
    trunk, (one, other) = channels[0].trunk, [channel.frame for channel in channels]
    before = asyncio.get_running_loop().time()
    trunk._received(read([[one, b"1"], [one, b"2", b"3"], [other], [channel_frame(9), b"x"], [channel_frame(9), b"y"]]))
    assert calls.said[channels[0]] == [[[b"1"], [b"2", b"3"]], 2]
    assert calls.said[channels[1]] == [[[b""]]]
    assert calls.shared.stray == 2
    assert all(channel.heard_at >= before for channel in channels)
    trunk._received(read([[channel_frame(9), b"z"]]))
    assert calls.shared.stray == 3


async def test_a_connection_is_closed_once_with_its_last_worker_and_with_the_longest_linger(calls: Calls) -> None:
    """CHN-10."""
    first, last = calls.open(), calls.open()
    trunk = first.trunk
    first.close(50)
    await first.wait_closed()
    assert not trunk._closed
    assert calls.open().trunk is trunk
    calls.said.popitem()[0].close()
    first.close(90)  # it has left
    last.close(20)
    last.close(20)
    assert (trunk._closed, trunk._linger_ms, calls.shared._trunks) == (True, 50, [])
    await last.wait_closed()
    assert not calls.context._sockets
    assert not calls.context._closing
    trunk._joined()
    assert calls.said[last] == []
    assert calls.open().trunk is not trunk


async def test_a_worker_joins_a_connection_that_is_up_in_the_next_iteration_unless_one_of_them_has_ended(calls: Calls) -> None:
    first = calls.open()
    first.trunk._up = True
    before = asyncio.get_running_loop().time()
    joins, left = calls.open(), calls.open()
    assert calls.said[joins] == []
    left.close()
    await asyncio.sleep(0)
    assert (calls.said[joins], calls.said[left], calls.said[first]) == (["joined"], [], [])
    assert joins.heard_at >= before
    late = calls.open()
    first.abandon()
    await asyncio.sleep(0)
    assert calls.said[late] == ["lost"]


async def test_a_broker_without_channels_gets_a_connection_for_each_worker(calls: Calls) -> None:
    """CHN-07."""
    channels = [calls.open() for _ in range(3)]
    trunk = channels[0].trunk
    trunk._joined()
    assert [calls.said[channel] for channel in channels] == [["joined"], [], []]
    assert len({channel.trunk for channel in channels}) == len(calls.shared._trunks) == 3
    assert [(channel.frame, channel.prefix) for channel in channels] == [(b"", b"")] * 3
    channels[1].trunk._joined()
    assert calls.said[channels[1]] == ["joined"]
    trunk._received(read([[b"1"], [b"2"]]))
    assert calls.said[channels[0]] == ["joined", [[b"1"], [b"2"]]]
    further = calls.open()
    assert further.trunk not in {channel.trunk for channel in channels}
    assert further.frame == channel_frame(1)


async def test_the_worker_that_leaves_last_waits_for_the_end_of_the_connection(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = calls.open(), calls.open()
    waited: list[core.Socket] = []

    async def note(socket: core.Socket) -> None:
        waited.append(socket)

    monkeypatch.setattr(core.Socket, "wait_closed", note)
    first.close()
    await first.wait_closed()
    assert waited == []
    last.close()
    await last.wait_closed()
    monkeypatch.undo()
    assert len(waited) == 1
    await waited[0].wait_closed()
