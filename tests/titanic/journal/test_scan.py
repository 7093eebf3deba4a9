"""Results of a scan of arbitrary bytes, compared with a scan that checks every offset (specs/titanic.md §3, §4)."""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest

from titanic.errors import JournalError, VersionTooNew
from titanic.journal.record import (
    HEADER_BYTES,
    Damage,
    Record,
    SegmentHeader,
    check_version,
    decode_one,
    end_of_data,
    first_sequence,
    scan,
    scan_sealed,
    seed_of,
)

STORE = bytes(range(16))
SEED = seed_of(STORE)
MARK = b"\xf5TJ\x8d"
FIRST = 1
SEEDS = 40
ROUNDS = 40


def made(
    sequence: int, body: bytes, *, kind: int = 1, zero: int = 0, size: int | None = None, mark: bytes = MARK, wrong: str = ""
) -> bytes:
    """Return a record with sums that are right, but for the one that is to be wrong."""
    length = len(body) if size is None else size
    uuid = crc32(b"%d" % sequence).to_bytes(4, "big") * 4
    head = bytes((kind, zero)) + length.to_bytes(4, "big") + sequence.to_bytes(8, "big") + max(0, sequence - 1).to_bytes(8, "big") + uuid
    value = crc32(head, SEED)
    check = crc32(body, value) ^ (wrong == "checksum")
    head_check = (value & 0xFFFF) ^ (wrong == "head")
    padding = (b"\0\0\0\0\0\0\x01" if wrong == "padding" else bytes(7))[len(body) % 8 - 1 :] if len(body) % 8 else b""
    return mark + check.to_bytes(4, "big") + head_check.to_bytes(2, "big") + head + body + padding


def pieces(random: Random) -> bytes:
    """Return what may stand in a segment behind its header.

    Records mostly, each by one thing or another not as it should be.
    """
    out, sequence = b"", FIRST
    for _ in range(random.randrange(8)):
        sequence = max(0, sequence + random.choice((0, 0, 0, 0, 0, 1, 2, 7, 90, -1, -2, 2**40)))
        body = random.randbytes(random.choice((0, 1, 7, 8, 9, 16, 50)))
        if random.random() < 0.2:  # a record within a body, of which the scan must know nothing as long as the outer one is good
            body += made(sequence + random.choice((0, 1, 5)), b"inner") + body
        out += random.choice(
            (
                *[made(sequence, body)] * 8,
                made(sequence, body, wrong="checksum"),
                made(sequence, body, wrong="head"),
                made(sequence, body, wrong="padding"),
                made(sequence, body, kind=random.choice((0, 5, 6))),
                made(sequence, body, zero=1),
                made(sequence, body, mark=random.choice((bytes(4), b"\xf5TJ\x8c"))),
                made(sequence, body, size=random.choice((0, 2**31 + 1, len(body) + 1, 2**20))),
                bytes(random.randrange(1, 9) * 8),
                random.randbytes(random.choice((3, 8, 64))),
            )
        )
        sequence = max(sequence + 1, FIRST)
        if sequence > 2**39:
            sequence = FIRST + random.randrange(9)
    data = bytes(HEADER_BYTES) + out + bytes(random.choice((0, 0, 3, 8, 200)))
    return data[: HEADER_BYTES + random.randrange(len(data) - HEADER_BYTES + 1)] if random.random() < 0.4 else data


def record_at(data: bytes, at: int) -> Record | str:
    """Return the record that begins somewhere, or what is wrong with it."""
    head = data[at : at + 48]
    if len(head) < 48:
        return "length"
    if head[:4] != MARK:
        return "head" if any(head[:4]) else "zeroed"
    value = crc32(head[10:], SEED)
    size = int.from_bytes(head[12:16], "big")
    if head[8:10] != (value % 2**16).to_bytes(2, "big") or head[11] or head[10] not in {1, 2, 3, 4, 5}:
        return "head"
    body = data[at + 48 : at + 48 + size]
    if len(body) != size:
        return "length"
    if head[4:8] != crc32(body, value).to_bytes(4, "big"):
        return "checksum"
    sequence, durable = int.from_bytes(head[16:24], "big"), int.from_bytes(head[24:32], "big")
    return Record(head[10], head[32:48], body, sequence, durable, at, 48 + (size + 7) // 8 * 8)


def looked_at(data: bytes, begin: int, first: int) -> list[Record | Damage]:
    """Return what a scan should find."""
    found: list[Record | Damage] = []
    at, expected = begin, first
    while at < len(data):
        record = record_at(data, at)
        if isinstance(record, Record) and record.sequence < expected:
            found.append(Damage(at, len(data[at : at + record.size]), "duplicate", expected, expected - 1, record.uuid))
            at += record.size
        elif isinstance(record, Record):
            if record.sequence > expected:
                found.append(Damage(at, 0, "missing", expected, record.sequence - 1, b""))
            found.append(record)
            expected = record.sequence + 1
            padding = data[at + 48 + len(record.body) : at + record.size]
            if any(padding):
                found.append(Damage(at + 48 + len(record.body), len(padding), "padding", record.sequence, record.sequence - 1, record.uuid))
            at += record.size
        else:
            uuid = data[at + 32 : at + 48]
            uuid = uuid if len(uuid) == 16 and any(uuid) else b""
            behind = [record_at(data, later) for later in range(at - at % 8 + 8, len(data), 8)]
            ahead = [one for one in behind if isinstance(one, Record) and 0 <= one.sequence - expected <= (one.offset - at) // 48 + 1]
            if ahead:
                found.append(Damage(at, ahead[0].offset - at, record, expected, ahead[0].sequence - 1, uuid))
                at, expected = ahead[0].offset, ahead[0].sequence
                continue
            used = len(data.rstrip(b"\0"))
            end = min((used + 7) // 8 * 8, len(data))
            return [*found, Damage(at, end - at, record, expected, -1, uuid)] if end > at else found
    return found


def sealed(data: bytes, first: int, last: int) -> list[Record | Damage]:
    """Return what a scan of a segment should find that is known to end with a sequence."""
    found: list[Record | Damage] = []
    expected, at = first, HEADER_BYTES
    for item in looked_at(data, HEADER_BYTES, first):
        ends = item.sequence if isinstance(item, Record) else item.last
        if ends > last or ends == -1:
            break
        if isinstance(item, Record):
            expected, at = item.sequence + 1, item.offset + item.size
        elif item.first > last:
            continue  # of what was superseded
        else:
            expected, at = max(expected, item.last + 1), item.offset + item.length
        found.append(item)
    if expected <= last:
        behind = looked_at(data, at, expected)[:1]
        kind, uuid = (behind[0].kind, behind[0].uuid) if behind and isinstance(behind[0], Damage) else ("missing", b"")
        found.append(Damage(at, max(0, len(data) - at), kind, expected, last, uuid))
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_scan_finds_what_is_there_and_names_what_is_not(seed: int) -> None:
    """S2, S3, S4: exactly, with its place, length, kind, sequences and UUID."""
    random = Random(seed)
    for _ in range(ROUNDS):
        data = pieces(random)
        assert list(scan(data, SEED, HEADER_BYTES, FIRST)) == looked_at(data, HEADER_BYTES, FIRST), data.hex()
        assert list(scan(data[HEADER_BYTES:], SEED, 0, FIRST)) == looked_at(data[HEADER_BYTES:], 0, FIRST), data.hex()
        last = FIRST + random.randrange(9)
        assert list(scan_sealed(data, SEED, FIRST, last)) == sealed(data, FIRST, last), (last, data.hex())
        good = [record for at in range(0, len(data), 8) if isinstance(record := record_at(data, at), Record)]
        assert first_sequence(data, SEED) == (good[0].sequence if good else None)
        assert first_sequence(data[HEADER_BYTES:], SEED) == first_sequence(data, SEED)
        for record in good:
            octets = data[record.offset : record.offset + record.size]
            assert decode_one(octets, SEED) == record._replace(offset=0)
            assert decode_one(octets[: 47 + len(record.body)], SEED) is None


def test_what_is_missing_behind_a_cut_in_the_padding_has_no_length() -> None:
    whole = bytes(HEADER_BYTES) + made(FIRST, b"x")
    for cut in range(8):
        data = whole[: len(whole) - cut]
        *_, missing = scan_sealed(data, SEED, FIRST, FIRST + 1)
        assert missing == Damage(len(whole), 0, "missing", FIRST + 1, FIRST + 1, b"")


def header(**other: int) -> bytes:
    """Return a segment header with a right checksum and other numbers."""
    numbers = {"version": 1, "algorithm": 1, "zero": 0, "length": 64, "zeros": 0} | other
    head = b"\x89TSJ\r\n\x1a\n" + numbers["version"].to_bytes(2, "big") + bytes((numbers["algorithm"], numbers["zero"]))
    head += numbers["length"].to_bytes(4, "big") + STORE + b"".join(n.to_bytes(8, "big") for n in (3, 1000, 99))
    head += numbers["zeros"].to_bytes(4, "big")
    return head + crc32(head).to_bytes(4, "big")


def spoilt(octets: bytes, at: int) -> bytes:
    return octets[:at] + bytes((octets[at] ^ 1,)) + octets[at + 1 :]


@pytest.mark.parametrize(
    ("octets", "said"),
    [
        (b"", "0 bytes are too short"),
        (header()[:63], "63 bytes are too short"),
        (spoilt(header(), 0), "does not begin with the magic"),
        (spoilt(header(), 7), "does not begin with the magic"),
        (header(version=0), "version 0, checksum algorithm 01"),
        (header(version=256)[:-1] + b"?", "version 256, checksum algorithm 01"),
        (header(version=2)[:-1] + b"?", "version 2, checksum algorithm 01"),
        (header(algorithm=0), "version 1, checksum algorithm 00"),
        (header(algorithm=2), "version 1, checksum algorithm 02"),
        *((spoilt(header(), at), "bad checksum") for at in (11, 15, 16, 31, 32, 55, 59, 60, 63)),
        (header(zero=1), "does not know"),
        (header(zeros=1), "does not know"),
        (header(length=63), "does not know"),
        (header(length=65), "does not know"),
    ],
)
def test_a_header_that_is_none_is_reported_with_its_fault(octets: bytes, said: str) -> None:
    with pytest.raises(JournalError, match=said) as caught:
        SegmentHeader.decode(octets, "x.seg")
    assert (caught.value.path, caught.value.name) == ("x.seg", "DAMAGED")


@pytest.mark.parametrize("version", [2, 256, 65535])
def test_a_header_of_a_newer_program_is_believed_when_it_is_whole(version: int) -> None:
    """S12."""
    with pytest.raises(VersionTooNew):
        SegmentHeader.decode(header(version=version), "x")


def test_a_header_may_have_anything_behind_it() -> None:
    assert SegmentHeader.decode(header() + b"anything", "x") == SegmentHeader(STORE, 3, 1000, 99)


@pytest.mark.parametrize(("size", "good"), [(8, False), (9, False), (10, False), (11, True), (12, True)])
def test_a_file_is_of_a_version_when_both_numbers_are_there(size: int, good: bool) -> None:
    if good:
        check_version(header()[:size], header()[:8], "x", True)
        return
    with pytest.raises(JournalError, match="version"):
        check_version(header()[:size], header()[:8], "x", True)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_the_end_of_the_data_is_behind_the_last_byte_that_is_not_zero(size: int) -> None:
    for data in (b"", b"x", b"x" * 70_000, b"x" + bytes(65_536) + b"y", bytes(9)):
        assert end_of_data(data + bytes(size)) == len(data.rstrip(b"\0"))
