"""Peers disconnected because of a limit: a log line with both numbers, a counter by reason, and the monitor's event."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import core
from tests.scenes.raw_octets import COMMAND, MORE, WirePeer, frame, message
from tests.scenes.waiting import Watch, eventually

TCP = "tcp://127.0.0.1:*"
COUNTERS = ("cut_frame_bytes", "cut_message_bytes", "cut_message_parts", "cut_command_bytes", "cut_partial_bytes", "cut_progress")

# What is sent, to a socket with which options, which counter it is, and the two numbers.
CASES: dict[str, tuple[bytes, dict[str, Any], str, int, int]] = {
    "frame": (frame(b"x" * 301), {"maxmsgsize": 300}, "cut_frame_bytes", 301, 300),
    "frame by its header": (frame(b"x" * 70_000)[:9], {"maxmsgsize": 1000}, "cut_frame_bytes", 70_000, 1000),
    "message": (message(b"x" * 60, b"y" * 60), {"max_message_bytes": 100}, "cut_message_bytes", 120, 100),
    "frames": (message(*[b"x"] * 9), {"max_parts": 8}, "cut_message_parts", 9, 8),
    "frames one by one": (b"".join([frame(b"x", MORE)] * 9), {"max_parts": 8}, "cut_message_parts", 9, 8),
    "command": (frame(b"\x04PING", COMMAND | 2)[:1] + (70_000).to_bytes(8, "big"), {}, "cut_command_bytes", 70_000, 65_536),
    "unfinished": (frame(b"x" * 5000)[:4000], {"max_partial_bytes": 3000}, "cut_partial_bytes", 4000, 3000),
    "no progress": (frame(b"x" * 5000)[:9], {"frame_ivl": 30}, "cut_progress", 0, 1024),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_reason_is_logged_with_both_numbers_counted_and_told_to_the_monitor(case: str, caplog: pytest.LogCaptureFixture) -> None:
    octets, options, counter, size, limit = CASES[case]
    async with core.Context() as context:
        pull = context.socket(core.PULL, **options)
        watch = Watch(pull)
        pull.bind(TCP)
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUSH")
            await peer.send(octets)
            await peer.rest()
        await watch.lost()
        assert {name: getattr(pull.counters, name) for name in COUNTERS} == {name: int(name == counter) for name in COUNTERS}
        assert pull.counters.protocol_errors == 1
        (line,) = [record for record in caplog.records if record.name == "core.socket"]
        assert (line.levelno, vars(line)["size"], vars(line)["limit"]) == (logging.WARNING, size, limit)
        reason = watch.events[-1].reason
        assert str(size) in reason
        assert str(limit) in reason
        assert reason in line.getMessage()
        assert "127.0.0.1" in line.getMessage()


async def test_a_sealed_frame_that_is_too_long_is_one_of_them(caplog: pytest.LogCaptureFixture) -> None:
    public, secret = core.curve_keypair()
    async with core.Context() as context:
        pull = context.socket(core.PULL, maxmsgsize=70_000, tell_limits=0, curve_server=1, curve_secretkey=secret)
        pull.bind(TCP)
        ours, mine = core.curve_keypair()
        push = context.socket(core.PUSH, curve_serverkey=public, curve_publickey=ours, curve_secretkey=mine)
        push.connect(pull.last_endpoint)
        await push.send(b"x" * 80_000)
        await eventually(lambda: pull.counters.cut_frame_bytes)
        assert "at most" in caplog.text


async def test_a_peer_that_comes_again_and_again_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, max_parts=4)
        pull.bind(TCP)
        for n in range(1, 6):
            async with await WirePeer.connect(pull.last_endpoint) as peer:
                await peer.shake(b"PUSH")
                await peer.send(message(*[b"x"] * 5))
                await peer.rest()
            assert pull.counters.cut_message_parts == n
        assert len([record for record in caplog.records if record.name == "core.socket"]) == 1
        assert context.warnings.left_out == 4


async def test_other_broken_rules_are_logged_too_and_a_handshake_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL)
        pull.bind(TCP)
        async with await WirePeer.connect(pull.last_endpoint) as peer:
            await peer.shake(b"PUB")
            await peer.rest()
        assert pull.counters.handshakes_failed == 1
        assert [record.getMessage() for record in caplog.records if record.name == "core.socket" and "PUB" in record.getMessage()]
        assert sum(pull.counters.as_dict()[name] for name in COUNTERS) == 0
