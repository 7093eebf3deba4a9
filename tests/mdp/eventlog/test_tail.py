"""Following a growing log: every whole block once, in pieces of any size, with torn, damaged, new or removed segments."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdp.eventlog.files import EventLogWriter, segment_number, segments
from mdp.eventlog.format import ANSWERED, HEADER_BYTES, Block, Clock, Damage, decode_blocks, encode_block, encode_header
from mdp.eventlog.log_options import EventLogOptions
from mdp.eventlog.tail import LogRemoved, Place, end_of_log, newest_segment, read_run, runs

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = Clock(1_700_000_000_000_000, 50.0)
BEGINNING = Place(0, HEADER_BYTES)


def block(number: int) -> bytes:
    return encode_block(Block(ANSWERED, 1, 100.0 + number, b"echo", ids=number.to_bytes(8, "big")))


def write(directory: Path, segment: int, octets: bytes, header: bytes = encode_header(CLOCK)) -> Path:
    path = directory / f"events-{segment:016x}.mdpe"
    path.write_bytes(header + octets)
    return path


def between(directory: Path, at: Place, stop: Place, **options: bool) -> list[int]:
    """Return the numbers of the blocks between two places."""
    found = []
    for run in runs(str(directory), at, stop, **options):
        for read in decode_blocks(run.path.read_bytes()[run.start : run.end], run.start):
            assert not isinstance(read, Damage)
            found.append(int.from_bytes(read.ids))
    return found


def follow(directory: Path, at: Place, most: int | None = None, **options: bool) -> tuple[Place, list[int]]:
    """Return the place after a step and what the step has read."""
    end = end_of_log(str(directory), at, None, most, **options)
    return end, between(directory, at, end, **options)


def test_evt_12_a_block_that_is_not_written_to_its_end_is_waited_for(tmp_path: Path) -> None:
    octets = block(1) + block(2)
    for size in range(len(octets) + 1):
        path = write(tmp_path, 1, octets[:size])
        at, found = follow(tmp_path, BEGINNING)
        assert found == [1, 2][: size // len(block(1))]
        path.write_bytes(encode_header(CLOCK) + octets + block(3))
        at, more = follow(tmp_path, at)
        assert found + more == [1, 2, 3]
        assert follow(tmp_path, at) == (at, [])


def test_a_log_without_a_segment_or_with_half_a_header_has_nothing_yet(tmp_path: Path) -> None:
    assert follow(tmp_path, BEGINNING) == (BEGINNING, [])
    assert newest_segment(str(tmp_path)) == BEGINNING
    write(tmp_path, 3, b"", header=b"MDPEVT")
    at, found = follow(tmp_path, BEGINNING)
    assert (at, found) == (Place(3, HEADER_BYTES), [])
    write(tmp_path, 3, block(1))
    assert follow(tmp_path, at)[1] == [1]


@pytest.mark.parametrize("tail", [b"", b"\0", block(9)[:-1], block(9)[:-1] + b"?", b"\xff" * 50, bytes(64)])
def test_evt_12_what_is_wrong_at_the_end_of_a_segment_is_passed_over_when_there_is_another(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, block(1) + tail)
    at, found = follow(tmp_path, BEGINNING)
    with caplog.at_level(logging.ERROR):
        assert follow(tmp_path, at) == (at, [])
    assert not caplog.records  # it may still be written
    write(tmp_path, 2, b"")
    at, more = follow(tmp_path, at)
    assert at == Place(2, HEADER_BYTES)
    write(tmp_path, 2, block(2))
    write(tmp_path, 3, block(3))
    at, rest = follow(tmp_path, at)
    assert [*found, *more, *rest] == [1, 2, 3]
    # What is read at once is the same.
    assert between(tmp_path, BEGINNING, at) == [1, 2, 3]
    assert bool(caplog.records) == (tail in (block(9)[:-1] + b"?", b"\xff" * 50, bytes(64)))


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), most=st.one_of(st.none(), st.integers(1, 400)))
def test_every_block_comes_once_in_steps_of_any_size(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int | None) -> None:
    directory = tmp_path_factory.mktemp("log")
    number = 0
    for segment, count in enumerate(sizes, 1):
        write(directory, segment, b"".join(block(number + n) for n in range(count)))
        number += count
    at, found = BEGINNING, []
    while True:
        after, step = follow(directory, at, most)
        if after == at:
            break
        assert most is None or len(step) <= -(-most // len(block(0)))
        found += step
        at = after
    assert found == list(range(number))


def test_what_is_between_two_places_does_not_change_when_the_log_grows(tmp_path: Path) -> None:
    write(tmp_path, 1, block(1) + block(2))
    at, _ = follow(tmp_path, BEGINNING)
    write(tmp_path, 1, block(1) + block(2) + block(3))
    write(tmp_path, 2, block(4))
    assert between(tmp_path, BEGINNING, at) == [1, 2]
    assert follow(tmp_path, at)[1] == [3, 4]


def test_segments_that_are_gone_are_an_error_or_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 1, block(1))
    at, _ = follow(tmp_path, BEGINNING)
    for segment in (3, 4):
        write(tmp_path, segment, block(segment))
    (tmp_path / f"events-{1:016x}.mdpe").unlink()
    with pytest.raises(LogRemoved, match="no longer has segment 0000000000000001: it continues with 0000000000000003"):
        follow(tmp_path, at)
    assert follow(tmp_path, at, skip_lost=True)[1] == [3, 4]
    assert "0000000000000001" in caplog.text
    # One in the middle, after the end was looked for.
    end = end_of_log(str(tmp_path), BEGINNING)
    write(tmp_path, 5, block(5))
    (tmp_path / f"events-{4:016x}.mdpe").unlink()
    with pytest.raises(LogRemoved):
        between(tmp_path, Place(3, HEADER_BYTES), Place(5, end.octet))
    # The directory of another log: its numbers are smaller.
    with pytest.raises(LogRemoved, match="another log"):
        follow(tmp_path, Place(9, HEADER_BYTES), skip_lost=True)


def test_a_segment_that_was_read_to_its_end_may_go(tmp_path: Path) -> None:
    first = write(tmp_path, 1, block(1))
    write(tmp_path, 2, b"")
    at, _ = follow(tmp_path, BEGINNING)
    first.unlink()
    assert follow(tmp_path, at) == (at, [])


def test_a_writer_is_followed_over_many_segments(tmp_path: Path) -> None:
    options = EventLogOptions(events_segment_bytes=1000, events_max_bytes=10**6, events_flush_ms=1)
    at, found, number = BEGINNING, [], 0
    with EventLogWriter(tmp_path, options) as writer:
        while segment_number(segments(tmp_path)[-1]) < 5:
            writer.append(Block(ANSWERED, 1, 1.0, b"echo", ids=number.to_bytes(8, "big")))
            number += 1
            at, more = follow(tmp_path, at)
            found += more
    found += follow(tmp_path, at)[1]
    assert found == list(range(number))


@pytest.mark.parametrize("skip_lost", [False, True])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_a_log_that_took_the_place_of_another_is_not_read_from_the_middle(tmp_path: Path, more: int, skip_lost: bool) -> None:
    """With blocks as long as those before, and with others; a log that ends before the place was waited for."""
    write(tmp_path, 1, block(1) + block(2))
    at, _ = follow(tmp_path, BEGINNING)
    for octets in (block(7), block(7) + block(8) + block(9), encode_block(Block(ANSWERED, 1, 100.0, b"echo" * more)) * 3):
        write(tmp_path, 1, octets, encode_header(Clock(CLOCK.wall_us + 1, 50.0)))
        with pytest.raises(LogRemoved, match="no longer has segment 0000000000000001: it is another log"):
            follow(tmp_path, at, skip_lost=skip_lost)
    # Also between two places, and when it is read.
    with pytest.raises(LogRemoved, match="another log"):
        between(tmp_path, BEGINNING, at, skip_lost=skip_lost)
    for run in runs(str(tmp_path), BEGINNING):
        write(tmp_path, 1, block(7))
        with pytest.raises(FileNotFoundError, match="another log took its place"):
            read_run(run.path, run.start, run.end, run.made_us)
        break
    # A place that an earlier version has noted does not say of which log it is.
    assert follow(tmp_path, Place(1, HEADER_BYTES))[1]
