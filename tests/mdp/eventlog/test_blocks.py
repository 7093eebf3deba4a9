"""mdp.eventlog.format: where a segment is damaged, to the byte, and blocks that are read or written in two."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from mdp.eventlog.format import (
    ANSWERED,
    BLOCK_BYTES_MAX,
    HEADER_BYTES,
    Block,
    Clock,
    Damage,
    NotAnEventLog,
    decode_header,
    decode_segment,
    encode_block,
    encode_header,
    events_of,
    halves,
    whole_blocks,
)

HEADER = encode_header(Clock(1_700_000_000_000_000, 50.0))
WHOLE = encode_block(Block(ANSWERED, 1, 52.5, b"echo"))
AT = HEADER_BYTES + len(WHOLE)  # of the second block
NOTHING = struct.pack(">II", 0, 0)  # a block without a body
TOO_LARGE = struct.pack(">II", BLOCK_BYTES_MAX + 1, 0)
LARGEST = struct.pack(">II", BLOCK_BYTES_MAX, 0)
NO_COLUMNS = struct.pack(">II", 1, crc32(b"\x90")) + b"\x90"


@pytest.mark.parametrize(
    ("rest", "reason", "torn"),
    [
        (b"1234567", "begins 7 bytes before the end", True),
        (LARGEST + b"x", "ends after 1", True),
        (TOO_LARGE + b"x", "the limit is", False),
        (NOTHING, "does not match its checksum", False),
        (WHOLE[:-1] + b"x", "does not match its checksum", False),
        (NO_COLUMNS, "invalid columns", False),
    ],
)
def test_the_second_block_is_damaged(rest: bytes, reason: str, torn: bool) -> None:
    first, damage = decode_segment(HEADER + WHOLE + rest)
    assert isinstance(first, Block)
    assert isinstance(damage, Damage)
    assert (damage.offset, damage.torn) == (AT, torn)
    assert reason in damage.reason
    if rest is not NO_COLUMNS:  # only its checksum is looked at
        assert whole_blocks(WHOLE + rest, HEADER_BYTES) == (AT, damage)


def test_blocks_that_begin_after_some_bytes_are_not_read() -> None:
    size, three = len(WHOLE), WHOLE * 3
    for most, count in ((1, 1), (size, 1), (size + 1, 2), (2 * size, 2), (3 * size, 3), (None, 3)):
        assert whole_blocks(three, 1000, most) == (1000 + count * size, None)


def test_a_file_that_begins_otherwise_is_no_segment() -> None:
    with pytest.raises(NotAnEventLog, match="does not begin"):
        decode_header(b"x" + HEADER[1:])


def test_a_block_is_halved() -> None:
    block = Block(ANSWERED, 5, 52.5, b"echo", ids=bytes(40), attempts=[1, 2, 3, 4, 5])
    first, rest = halves(block)
    assert (first.events, first.attempts, len(first.ids), first.service) == (2, [1, 2], 16, b"echo")
    assert (rest.events, rest.attempts, len(rest.ids), rest.service) == (3, [3, 4, 5], 24, b"echo")


def test_columns_of_different_lengths_are_no_events() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(events_of(Block(ANSWERED, 2, 52.5, b"echo", attempts=[1, 2], opened=[1.0]), Clock(0, 0.0)))
