"""Event log: every byte of it, the result of a crash, limits on disk and in memory (`specs/events.md`)."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from typing import TYPE_CHECKING
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdp.eventlog.files import EventLogWriter, read_events, segments
from mdp.eventlog.format import (
    ANSWERED,
    BLOCK_BYTES_MAX,
    DROPPED,
    HEADER_BYTES,
    WORKER_READY,
    Block,
    Clock,
    Damage,
    NotAnEventLog,
    decode_header,
    decode_segment,
    encode_block,
    encode_header,
    events_of,
)
from mdp.eventlog.log_options import EventLogOptions

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = Clock(1_700_000_000_000_000, 50.0)
TWO = Block(
    ANSWERED, 2, 52.5, b"echo", b"\x00w", [b"\x00a", b"\x00b"], bytes(range(16)), [1, 2], [50.5, 51.0], [51.5, 52.0], [20, 30], [5, 6]
)


def blocks_of(octets: bytes) -> list[Block | Damage]:
    return list(decode_segment(octets))


def sealed(body: bytes) -> bytes:
    """Return a block with a length and checksum that are right."""
    return struct.pack(">II", len(body), crc32(body)) + body


def test_evt_05_the_header_to_the_byte() -> None:
    octets = encode_header(CLOCK)
    assert octets == b"MDPEVT\r\n" + bytes.fromhex("0001 0020 00000000 00060a24181e4000 4049000000000000")
    assert decode_header(octets) == CLOCK


def test_a_block_to_the_byte() -> None:
    octets = encode_block(Block(WORKER_READY, 1, 1.0, b"s", b"w", code="0.3"))
    body = bytes.fromhex("9e0701cb3ff0000000000000c40173c40177c400c40000cb0000000000000000cb00000000000000000000a3302e33a0")
    assert octets[:4] == len(body).to_bytes(4, "big")
    assert octets[8:] == body


def test_columns_become_one_row_for_each_event() -> None:
    first, second = events_of(TWO, CLOCK)
    assert first.time == second.time == CLOCK.wall_us + 2_500_000
    assert (first.client, second.client) == ("0061", "0062")
    assert (first.request_id, second.request_id) == ("0001020304050607", "08090a0b0c0d0e0f")
    assert (first.kind, first.service, first.worker) == ("answered", "echo", "0077")
    assert (first.accepted_at, first.queue_us, first.service_us) == (CLOCK.wall_us + 500_000, 1_000_000, 1_000_000)
    assert (second.attempts, second.request_bytes, second.reply_bytes) == (2, 30, 6)


def test_what_never_happened_is_none() -> None:
    (event,) = events_of(Block(WORKER_READY, 1, 51.0, b"s", b"w"), CLOCK)
    assert (event.accepted_at, event.dispatched_at, event.queue_us, event.service_us) == (None, None, None, None)
    assert (event.request_id, event.client) == ("", "")


def test_evt_06_other_files_are_refused() -> None:
    for octets in (b"", b"MDPEVT", b"X" * 40, encode_header(CLOCK).replace(b"\x00\x01\x00\x20", b"\x00\x02\x00\x20")):
        with pytest.raises(NotAnEventLog):
            decode_header(octets)


def test_evt_07_a_tail_torn_anywhere_costs_only_its_own_block() -> None:
    whole = encode_header(CLOCK) + encode_block(TWO)
    last = encode_block(TWO)
    for cut in range(1, len(last)):
        *good, damage = blocks_of(whole + last[:cut])
        assert good == blocks_of(whole)
        assert isinstance(damage, Damage)
        assert damage.torn
        assert damage.offset == len(whole)


def test_evt_08_every_flipped_bit_is_noticed() -> None:
    whole = encode_header(CLOCK) + encode_block(TWO)
    for place in range(HEADER_BYTES * 8, len(whole) * 8):
        octets = bytearray(whole)
        octets[place // 8] ^= 1 << place % 8
        (damage,) = blocks_of(bytes(octets))
        assert isinstance(damage, Damage)


@given(st.lists(st.one_of(st.integers(), st.binary(), st.text(), st.floats(allow_nan=False), st.lists(st.integers())), max_size=16))
def test_evt_08_a_body_that_is_none_of_ours_never_raises(columns: list[object]) -> None:
    try:
        body = msgpack.packb(columns)
    except (OverflowError, ValueError):
        body = b"\xc1"
    found = blocks_of(encode_header(CLOCK) + sealed(body))
    assert all(isinstance(item, Damage) or list(events_of(item, CLOCK)) for item in found)


@pytest.mark.parametrize("place", [None, 3, 9, 13], ids=lambda place: "the block" if place is None else f"column {place}")
@pytest.mark.parametrize(
    "filling", [b"\xdd\x00\x00\xff\xf0", b"\xdc\xff\xf0", b"\x90", b"\x91", b"\x81\xa1k", b"\xd4\x05\x00"], ids=bytes.hex
)
def test_evt_08_a_body_that_claims_what_it_has_not_costs_what_it_weighs(filling: bytes, place: int | None) -> None:
    """Arrays in arrays that claim 65,520 elements each: 64 KiB made half a gigabyte."""
    octets = filling * (65_536 // len(filling))
    if place is not None:
        columns = [msgpack.packb(column) for column in TWO]
        columns[place] = octets
        octets = b"\x9e" + b"".join(columns)
    segment = encode_header(CLOCK) + sealed(octets)
    tracemalloc.start()
    try:
        (found,) = blocks_of(segment)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, Damage)
    assert peak < 32 * len(octets)


@given(st.binary(max_size=200))
def test_evt_08_any_bytes_never_raise(octets: bytes) -> None:
    assert all(isinstance(item, (Block, Damage)) for item in decode_segment(encode_header(CLOCK) + octets))


def test_evt_09_later_columns_are_skipped() -> None:
    from struct import pack
    from zlib import crc32

    body = msgpack.packb([*TWO, "later"])
    (block,) = blocks_of(encode_header(CLOCK) + pack(">II", len(body), crc32(body)) + body)
    assert isinstance(block, Block)
    assert list(events_of(block, CLOCK)) == list(events_of(TWO, CLOCK))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    with EventLogWriter(tmp_path / "log", clock=lambda: CLOCK) as writer:
        for _ in range(10):
            writer.append(TWO)
    assert writer.written == 20
    assert list(read_events(tmp_path / "log")) == list(events_of(TWO, CLOCK)) * 10
    with EventLogWriter(tmp_path / "log", clock=lambda: CLOCK) as writer:
        writer.append(TWO)
    assert len(segments(tmp_path / "log")) == 2
    assert len(list(read_events(tmp_path / "log"))) == 22


def test_evt_03_the_directory_stays_within_its_limit(tmp_path: Path) -> None:
    limit = 8000
    (tmp_path / "events-notours.mdpe").write_bytes(b"x")
    for _ in range(60):
        with EventLogWriter(tmp_path, EventLogOptions(events_max_bytes=limit), clock=lambda: CLOCK) as writer:
            for _ in range(5):
                writer.append(TWO)
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= limit
    assert len(list(read_events(tmp_path))) >= 20
    assert (tmp_path / "events-notours.mdpe").exists()


def test_a_full_buffer_drops_and_says_how_many(tmp_path: Path) -> None:
    options = EventLogOptions(events_buffer_bytes=3 * len(encode_block(TWO)), events_flush_ms=60_000)
    with EventLogWriter(tmp_path, options, clock=lambda: CLOCK) as writer:
        for _ in range(10):
            writer.append(TWO)
        assert writer.dropped == 14
    *answered, gap = read_events(tmp_path)
    assert len(answered) == 6
    assert (gap.kind, gap.text) == ("dropped", "14")


def test_a_wall_clock_that_jumps_begins_another_segment(tmp_path: Path) -> None:
    """EVT-05: times in the old segment do not change."""
    now = [CLOCK]
    options = EventLogOptions(events_flush_ms=60_000)
    with EventLogWriter(tmp_path, options, clock=lambda: now[0]) as writer:
        now[0] = Clock(CLOCK.wall_us + 3_600_000_000, 50.0)
        writer.append(TWO)
    assert len(segments(tmp_path)) == 2
    assert next(read_events(tmp_path)).time == CLOCK.wall_us + 3_600_000_000 + 2_500_000


def test_a_directory_that_fails_is_named_and_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "log"
    writer = EventLogWriter(place, EventLogOptions(events_flush_ms=60_000), clock=lambda: CLOCK)
    shutil.rmtree(place)
    writer.append(TWO)
    writer.close()
    assert writer.trouble
    assert (writer.written, writer.dropped) == (0, 2)


def test_a_segment_that_another_program_removes_is_followed_by_the_next(tmp_path: Path) -> None:
    with EventLogWriter(tmp_path, EventLogOptions(events_flush_ms=60_000), clock=lambda: CLOCK) as writer:
        (first,) = segments(tmp_path)
        first.unlink()
        writer.append(TWO)
    assert len(list(read_events(tmp_path))) == writer.written == 2
    assert segments(tmp_path) > [first]  # a number that was given once is never given again: a reader may be behind it


def test_damage_is_reported_with_file_and_place(tmp_path: Path) -> None:
    with EventLogWriter(tmp_path, clock=lambda: CLOCK) as writer:
        writer.append(TWO)
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (tmp_path / "events-00000000000000ff.mdpe").write_bytes(b"MDP")
    found: list[tuple[Path, Damage]] = []
    assert list(read_events(tmp_path, lambda *what: found.append(what))) == []
    assert [(where.name, damage.offset) for where, damage in found] == [(path.name, HEADER_BYTES), ("events-00000000000000ff.mdpe", 0)]


def test_options_are_positive() -> None:
    with pytest.raises(ValueError, match="events_flush_ms"):
        EventLogOptions(events_flush_ms=0)
    assert DROPPED == 9


def test_what_is_given_up_while_the_log_closes_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The clock fails while the last blocks are written, and others come meanwhile."""
    closing = False

    def clock() -> Clock:
        if closing:
            writer.append(Block(ANSWERED, 5, 1.0, b"s"))
            raise RuntimeError("no time")
        return Clock(0, 0.0)

    writer = EventLogWriter(tmp_path, EventLogOptions(events_flush_ms=3_600_000), clock=clock)
    writer.append(Block(ANSWERED, 3, 1.0, b"s"))
    closing = True
    writer.close()
    assert (writer.written, writer.dropped) == (0, 8)
    assert "events were given up when the log was closed" in caplog.text
    writer.append(Block(ANSWERED, 2, 1.0, b"s"))
    assert writer.dropped == 10
    assert list(read_events(tmp_path)) == []


def test_events_of_one_iteration_beyond_a_blocks_limit_are_several_blocks(tmp_path: Path) -> None:
    """A reader would take a larger one for damage and stop there."""
    count, long = 70_001, b"s" * 255
    ids = b"".join(n.to_bytes(8, "big") for n in range(count))
    block = Block(ANSWERED, count, 1.0, [long] * count, b"w", b"c", ids, opened=[float(n) for n in range(count)])
    assert len(encode_block(block)) > BLOCK_BYTES_MAX
    damaged: list[object] = []
    with EventLogWriter(tmp_path, EventLogOptions(events_buffer_bytes=4 * BLOCK_BYTES_MAX)) as writer:
        writer.append(block)
        writer.append(Block(ANSWERED, 1, 2.0, b"last"))
    assert (writer.written, writer.dropped) == (count + 1, 0)
    events = list(read_events(tmp_path, lambda *damage: damaged.append(damage)))
    assert damaged == []
    assert [event.request_id for event in events] == [f"{n:016x}" for n in range(count)] + [""]
    assert {(event.service, event.worker, event.client) for event in events[:-1]} == {(long.decode(), b"w".hex(), b"c".hex())}
    assert events[-1].service == "last"
