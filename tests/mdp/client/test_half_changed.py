"""A client without memory in the middle of a change: no request waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mdp.client import requester
from mdp.client.client import Client
from mdp.client.replies import PendingFuture
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_PROGRESS_03
from tests.scenes.builds import replaces_names
from tests.scenes.loops import take_no_report_of
from tests.scenes.mdp_scripted_broker import StandIn, number

pytestmark = [pytest.mark.faults, replaces_names]


@pytest.fixture(autouse=True)
async def reported(watched_loop: None) -> None:
    """Expect the error in reports of the event loop."""
    take_no_report_of(MemoryError)


def without_memory_once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    """Have the next call of a function fail, and those after it succeed."""
    usual = getattr(place, name)

    def fails(*arguments: Any) -> Any:
        monkeypatch.setattr(place, name, usual)
        raise MemoryError

    monkeypatch.setattr(place, name, fails)


@pytest.mark.parametrize("at", ["a later message", "a caller"])
async def test_what_was_settled_before_has_its_reply_and_the_rest_is_sent_again(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async with Client(stand_in.endpoint, timeout=1000.0) as client:
        first, second = client.request("echo", b"1"), client.request("echo", b"2")
        peer, asked = await stand_in.next()
        _, other = await stand_in.next()
        if at == "a caller":
            without_memory_once(monkeypatch, PendingFuture, "notify")
            stand_in.send(peer, CLIENT_FINAL_03 + number(asked), b"1")
        else:
            without_memory_once(monkeypatch, requester, "parse_at_client")
            stand_in.send_together(peer, [CLIENT_FINAL_03 + number(asked), b"1"], [CLIENT_PROGRESS_03 + number(other), b"x"])
        await asyncio.wait([first], timeout=10.0)
        assert first.result() == [b"1"]
        peer, again = await stand_in.next()
        assert again == other
        stand_in.send(peer, CLIENT_FINAL_03 + number(again), b"2")
        assert await second == [b"2"]
