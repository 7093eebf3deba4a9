"""Event log on a disk that becomes full: the rest can be read, and the gap is in the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mdp.eventlog.files import EventLogWriter, read_events, segments
from mdp.eventlog.format import ANSWERED, HEADER_BYTES, Block, Clock, Damage, encode_block
from mdp.eventlog.log_options import EventLogOptions
from tests.scenes.full_files import room_for
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.faults


def block(number: int) -> Block:
    return Block(ANSWERED, 1, 1.0, b"service-%d" % number, b"w", b"c", bytes(8))


def until(reached: Callable[[], object]) -> None:
    """Wait for the thread of a log."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_block_that_the_disk_takes_in_part_ends_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Behind half a block readers would find no other, though they count as written."""
    monkeypatch.setattr("mdp.eventlog.files._RETRY_S", 0.01)
    damaged: list[Damage] = []
    with EventLogWriter(tmp_path, EventLogOptions(events_flush_ms=1), clock=lambda: Clock(0, 0.0)) as writer:
        writer.append(block(1))
        until(lambda: writer.written == 1)
        with room_for(segments(tmp_path)[0], room):
            writer.append(block(2))
            until(lambda: writer.dropped)  # its trouble may be over again within a moment
        writer.append(block(3))
        until(lambda: writer.written == 2)
        assert (writer.dropped, writer.trouble) == (1, "")
    found = [event.service or event.text for event in read_events(tmp_path, lambda _, damage: damaged.append(damage))]
    assert sorted(found) == sorted(["service-1", "service-3", "1"])
    assert all(damage.torn for damage in damaged)


def test_a_full_disk_is_no_new_file_at_each_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.eventlog.files._RETRY_S", 0.001)
    options = EventLogOptions(events_flush_ms=1, events_max_bytes=4 * (HEADER_BYTES + len(encode_block(block(1)))))
    with EventLogWriter(tmp_path, options, clock=lambda: Clock(0, 0.0)) as writer:
        writer.append(block(1))
        until(lambda: writer.written == 1)
        (tmp_path / "short").write_bytes(b"")
        with room_for(tmp_path / "short", HEADER_BYTES - 1):
            for number in range(9):
                writer.append(block(1))
                until(lambda number=number: writer.dropped > number)  # type: ignore[misc]
        assert len(segments(tmp_path)) == 1
        writer.append(block(1))
        until(lambda: writer.written == 2)
    assert sum(int(event.text) for event in read_events(tmp_path) if event.kind == "dropped") == 9
