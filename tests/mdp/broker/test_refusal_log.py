"""Nothing is refused or dropped without a counter and a line in the log; lines are bounded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import mdp
from core.daemon.logs import RateLimitedLog
from mdp.broker.counters import Counters
from mdp.broker.refusal_log import ORDINARY, REFUSALS, RefusalLog
from mdp.observe.broker_metrics import BrokerMetrics
from tests.scenes.mdp_handlers import echo
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.waiting import eventually


def test_every_counter_is_a_refusal_or_ordinary() -> None:
    assert set(REFUSALS) | ORDINARY == set(Counters().as_dict())
    assert not ORDINARY & set(REFUSALS)


def test_the_specification_has_a_row_for_each() -> None:
    text = (Path(__file__).parents[3] / "specs" / "mdp.md").read_text(encoding="utf-8")
    table = text.partition("### 4.6 Refusals")[2].partition("\n## ")[0]
    assert [name for name in REFUSALS if f"`{name}`" not in table] == []


def test_a_kind_is_written_at_once_and_then_with_what_came_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(RateLimitedLog(logging.getLogger("mdp.broker.refusal_log"), clock=lambda: now))
    for now, busy in ((0.0, 0), (1.0, 3), (2.0, 10), (60.9, 12), (61.0, 12), (200.0, 12)):  # noqa: B007 - the clock reads it
        refusals.look({"error_busy": busy, "accepted": busy}, {"BUSY": "the queue is full"})
    lines: list[dict[str, Any]] = [vars(record) for record in caplog.records]
    assert [(line["counter"], line["count"], line["total"]) for line in lines] == [("error_busy", 3, 3), ("error_busy", 9, 12)]
    assert {line["reason"] for line in lines} == {"the queue is full"}


async def test_a_broker_writes_what_it_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.Broker(start_hold_ms=0) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "echo", handler=echo, dialect="0.1"), mdp.Client(where) as client:
            await client.request("echo", b"x", wait=True)
            for _ in range(3):
                with pytest.raises(mdp.NoService):
                    await client.request("nobody", b"x")
                with pytest.raises(mdp.TooLarge):
                    await client.request("echo", *[b"x"] * 1021)
            await eventually(lambda: len([record for record in caplog.records if record.name == "mdp.broker.refusal_log"]) >= 2)
        lines = {vars(record)["counter"]: vars(record) for record in caplog.records if record.name == "mdp.broker.refusal_log"}
        assert set(lines) == {"error_no_service", "error_too_large"}
        assert lines["error_too_large"]["reason"] == "frames of the request: 1021, at most 1019"


async def test_a_disconnected_peer_is_in_the_metrics_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(where) as peer:
            await peer.shake(b"DEALER")
            await peer.send(message(*[b"x"] * 1025))
            await peer.rest()
        assert broker.counters["socket_cut_message_parts"] == 1
        families = {family.name: family for family in BrokerMetrics(broker, broker.watch(), lambda: 0.0).families()}
        assert families["mdp_socket_cut_message_parts"].samples == [((), 1)]
        assert "message of 1025 frames or more, at most 1024 are taken" in caplog.text


async def test_a_peer_of_no_known_dialect_is_described_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with mdp.Broker(heartbeat_ms=50) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with await WirePeer.connect(where) as peer:
            await peer.shake(b"DEALER")
            for _ in range(2):
                await peer.send(message(b"MDPX02", b"\x01", b"the secret payload"))
            await eventually(lambda: "peer of no known dialect" in caplog.text)
        (line,) = [vars(record) for record in caplog.records if "no known dialect" in record.msg]
        assert line["args"] == ("3 frames of 6, 1, 18 bytes, the first begin with 4d4450583032, 01",)
        assert line["address"].startswith("127.0.0.1")
        assert broker.counters["unknown_dialect"] == 1
