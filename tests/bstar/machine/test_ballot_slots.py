"""bstar.machine.ballot_slots: what a file of either version says, and what is left of it after any damage to one copy."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import StoreDamaged
from bstar.machine.ballot import COUNTER_MAX, Record, RecordRole
from bstar.machine.ballot_slots import FILE_OCTETS, SLOT_OCTETS, Contents, decode_file, encode_slot

RECORD = Record(RecordRole.SERVER, 0x1122334455667788, 3, 7)
NEWER = RECORD._replace(counter=8)
HEAD = bytes.fromhex("894253544152 0d0a 02 01 1122334455667788 0000000000000003 0000000000000007 0000000000000005")
SLOT_USED = len(HEAD) + 4
VERSION_1 = bytes.fromhex("894253544152 0d0a 01 01 1122334455667788 0000000000000003 0000000000000007")


def signed(head: bytes) -> bytes:
    return head + zlib.crc32(head).to_bytes(4, "big")


def test_bytes_of_a_slot() -> None:
    """BST-27: the layout of the specification, byte by byte."""
    slot = encode_slot(RECORD, 5)
    assert slot == signed(HEAD).ljust(4096, b"\0")
    assert (len(slot), FILE_OCTETS) == (SLOT_OCTETS, 8192)


def test_the_greatest_counter_is_read_and_no_greater_one() -> None:
    most = RECORD._replace(counter=COUNTER_MAX)
    assert decode_file(encode_slot(most, 5) * 2, RecordRole.SERVER).record == most
    with pytest.raises(StoreDamaged):
        decode_file(encode_slot(RECORD._replace(counter=COUNTER_MAX + 1), 5) * 2, RecordRole.SERVER)


def test_file_of_the_first_version_is_read() -> None:
    assert decode_file(signed(VERSION_1), RecordRole.SERVER) == Contents(RECORD, 0, 0, 0)
    assert len(signed(VERSION_1)) == 38


@given(
    st.builds(
        Record,
        st.just(RecordRole.SERVER),
        st.integers(1, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, COUNTER_MAX),
    ),
    st.integers(1, 2**64 - 2),
)
def test_record_comes_back(record: Record, sequence: int) -> None:
    assert decode_file(encode_slot(record, sequence) * 2, RecordRole.SERVER) == Contents(record, sequence, 0, 2)


@pytest.mark.parametrize("newer", [0, 1])
def test_the_copy_that_was_written_last_counts_whatever_is_in_it(newer: int) -> None:
    """After `bstar ballot reset` it is the lower counter."""
    slots = [encode_slot(NEWER, 5), encode_slot(RECORD, 6)]
    octets = b"".join(slots if newer else reversed(slots))
    assert decode_file(octets, RecordRole.SERVER) == Contents(RECORD, 6, 1 - newer, 2)


@pytest.mark.parametrize("number", [0, 1])
def test_any_flipped_bit_of_one_copy_leaves_the_other(number: int) -> None:
    whole = encode_slot(RECORD, 5) * 2
    for bit in range(SLOT_USED * 8):
        octets = bytearray(whole)
        octets[number * SLOT_OCTETS + bit // 8] ^= 1 << bit % 8
        assert decode_file(bytes(octets), RecordRole.SERVER) == Contents(RECORD, 5, number, 1)


@pytest.mark.parametrize("number", [0, 1])
def test_write_that_ends_after_any_byte_leaves_the_old_or_the_new(number: int) -> None:
    """The slot that was being written is the torn one; it is also the first to be written next time."""
    old, new = encode_slot(RECORD, 5), encode_slot(NEWER, 6)
    for length in (*range(SLOT_USED + 1), SLOT_OCTETS):
        torn = new[:length] + old[length:]
        if number == 0:
            found = decode_file(torn + old, RecordRole.SERVER)
            done, first = torn == new, 1
        else:
            found = decode_file(new + torn, RecordRole.SERVER)
            done, first = True, 0
        assert found.record == (NEWER if done else RECORD)
        if torn not in (old, new):
            assert (found.first, found.whole) == (number, 1)
        elif number == 0:
            assert found.first == (first if done else 0)


def test_newer_copy_counts_wherever_it_is() -> None:
    assert decode_file(encode_slot(RECORD, 5) + encode_slot(NEWER, 6), RecordRole.SERVER) == Contents(NEWER, 6, 0, 2)
    assert decode_file(encode_slot(NEWER, 6) + encode_slot(RECORD, 5), RecordRole.SERVER) == Contents(NEWER, 6, 1, 2)


def test_no_copy_is_whole() -> None:
    with pytest.raises(StoreDamaged, match="no copy in the ballot file is whole"):
        decode_file(bytes(FILE_OCTETS), RecordRole.SERVER)


def test_every_flipped_bit_of_the_first_version_is_noticed() -> None:
    for bit in range(38 * 8):
        octets = bytearray(signed(VERSION_1))
        octets[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_file(bytes(octets), RecordRole.SERVER)
        except StoreDamaged:
            continue
        pytest.fail(f"bit {bit} flipped: {found}")


def test_every_other_length_is_noticed() -> None:
    whole = encode_slot(RECORD, 5) * 2
    for length in (*range(38), 39, SLOT_OCTETS, FILE_OCTETS - 1):
        with pytest.raises(StoreDamaged, match=f"{length} bytes"):
            decode_file(whole[:length], RecordRole.SERVER)
    with pytest.raises(StoreDamaged, match="8193 bytes"):
        decode_file(whole + b"\0", RecordRole.SERVER)


def changed(at: int, value: bytes) -> bytes:
    return signed(HEAD[:at] + value + HEAD[at + len(value) :]).ljust(SLOT_OCTETS, b"\0") * 2


@pytest.mark.parametrize(
    "octets, reason",
    [
        (changed(8, b"\x03"), "version 3"),
        (changed(9, b"\x02"), "belongs to a witness"),
        (changed(10, bytes(8)), "out of range"),
        (changed(26, b"\xff"), "out of range"),
        (changed(34, b"\xff" * 8), "out of range"),
        (changed(0, b"x"), "not a ballot file"),
        (bytes(38), "not a ballot file"),
    ],
)
def test_files_that_are_whole_and_wrong(octets: bytes, reason: str) -> None:
    with pytest.raises(StoreDamaged, match=reason):
        decode_file(octets, RecordRole.SERVER)


def test_a_witness_without_grants_has_no_node() -> None:
    record = Record(RecordRole.WITNESS, 0, 1, 0)
    assert decode_file(encode_slot(record, 1) * 2, RecordRole.WITNESS).record == record
    with pytest.raises(StoreDamaged, match="belongs to a server"):
        decode_file(encode_slot(RECORD, 1) * 2, RecordRole.WITNESS)
