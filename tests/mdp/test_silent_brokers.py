"""Brokers that are asked which dialect they speak and do not answer, or late.

What has told its limits at the hello is one of ours.
"""

from __future__ import annotations

import asyncio

import pytest

import mdp
from mdp.client.client import Client
from mdp.session import probe
from mdp.wire.commands import CLIENT_FINAL_03, MDPW03, V01, V03, worker_final
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_scripted_broker import PROBE, StandIn, give, number
from tests.scenes.waiting import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.05)


async def asked(broker: StandIn) -> bytes:
    """Return the next peer that asked for the dialect and got no answer."""
    async with asyncio.timeout(PATIENCE_S):
        return await broker.asked.get()


async def test_a_broker_of_ours_that_answers_late_is_used_with_its_dialect() -> None:
    """It had stood still: nothing was sent in MDP/0.1 meanwhile, which has no NO_SERVICE, no CANCEL and no numbers."""
    async with StandIn(protocol=None, tells=True) as broker, Client(broker.endpoint) as client:
        open_all_the_time = client.request("echo", b"x", timeout=PATIENCE_S)
        peer = await asked(broker)
        with pytest.raises(mdp.Timeout, match="it accepted the connection and does not answer"):
            await client.request("echo", b"short", timeout=0.2, attempts=1)
        assert broker.inbox.empty()
        broker.send(peer, *PROBE[:3], b"200")
        peer, frames = await broker.next()
        broker.send(peer, CLIENT_FINAL_03 + number(frames), b"y")
        assert await open_all_the_time == [b"y"]
        assert client.dialect == V03


async def test_a_worker_waits_for_a_late_broker_of_ours_too(caplog: pytest.LogCaptureFixture) -> None:
    async with StandIn(protocol=None, tells=True) as broker, Worker(broker.endpoint, "echo", handler=echo):
        peer = await asked(broker)
        await eventually(lambda: "it accepted the connection and does not answer" in caplog.text)
        broker.send(peer, *PROBE[:3], b"200")
        assert (await broker.next())[1][0].startswith(MDPW03)


async def test_a_silent_broker_of_ours_is_asked_again_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SILENCES_MAX", 2)
    async with StandIn(protocol=None, tells=True) as broker, Client(broker.endpoint) as client:
        client.request("echo", b"x", timeout=PATIENCE_S)
        first = await asked(broker)
        assert await asked(broker) != first
        assert broker.inbox.empty()


async def test_of_several_brokers_the_next_is_tried() -> None:
    async with StandIn(protocol=None, tells=True) as silent, StandIn() as other, Client([silent.endpoint, other.endpoint]) as client:
        client.request("echo", b"x", timeout=PATIENCE_S)
        await asked(silent)
        _, frames = await other.next()
        assert number(frames)
        assert client.endpoint == other.endpoint


async def test_a_broker_without_announced_limits_is_used_with_0_1_and_a_late_answer_changes_nothing() -> None:
    """It may be any broker of RFC 7, for which the query is a request to a service without workers."""
    async with StandIn(protocol=None) as broker, Client(broker.endpoint) as client:
        reply = client.request("echo", b"x", timeout=PATIENCE_S)
        late = await asked(broker)
        peer, frames = await broker.next()
        assert frames == [b"", b"MDPC01", b"echo", b"x"]
        broker.send(late, *PROBE[:3], b"200")
        broker.send(peer, b"", b"MDPC01", b"echo", b"y")
        assert await reply == [b"y"]
        assert client.dialect == V01
        assert broker.inbox.empty()


async def test_a_worker_uses_0_1_with_a_broker_without_announced_limits() -> None:
    async with StandIn(protocol=None) as broker, Worker(broker.endpoint, "echo", handler=echo):
        peer, frames = await broker.next()
        assert frames[:3] == [b"", b"MDPW01", b"\x01"]
        give(broker, peer, 1, dialect=V01)
        assert (await broker.next())[1][:3] == worker_final(V01, b"\0" * 8, [b"x"])[:3]
