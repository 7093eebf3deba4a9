"""Records and headers byte by byte (specs/titanic.md §3, §4), and a scan that resynchronizes."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanic.errors import JournalError, VersionTooNew
from titanic.journal.checkpoint import Checkpoint
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.record import (
    HEADER_BYTES,
    Damage,
    Record,
    RecordKind,
    SegmentHeader,
    decode_one,
    encode,
    first_sequence,
    record_size,
    scan,
    scan_sealed,
    seed_of,
)
from titanic.journal.record_bodies import (
    Close,
    Dead,
    Request,
    Tick,
    check_body,
    decode_attempts,
    encode_attempts,
    encode_close,
    encode_reply,
    encode_request,
    reply_frames,
    request_frames,
    request_headers,
)

STORE = bytes(range(100, 116))
SEED = seed_of(STORE)
UUID = bytes(range(16))


def test_a_record_byte_by_byte() -> None:
    (octets,) = encode([(RecordKind.REPLY, UUID, b"hello")], 7, 6, SEED)
    head = bytes.fromhex("02 00 00000005 0000000000000007 0000000000000006") + UUID
    check = crc32(head, crc32(STORE))
    assert octets == (
        b"\xf5TJ\x8d" + crc32(b"hello", check).to_bytes(4, "big") + (check & 0xFFFF).to_bytes(2, "big") + head + b"hello\0\0\0"
    )
    assert len(octets) == record_size(5) == 56


def test_a_segment_header_byte_by_byte() -> None:
    octets = SegmentHeader(STORE, 3, 1000, 99).encode()
    head = b"\x89TSJ\r\n\x1a\n" + bytes.fromhex("0001 01 00 00000040") + STORE
    head += (3).to_bytes(8, "big") + (1000).to_bytes(8, "big") + (99).to_bytes(8, "big") + bytes(4)
    assert octets == head + crc32(head).to_bytes(4, "big")
    assert len(octets) == HEADER_BYTES
    assert SegmentHeader.decode(octets, "x") == SegmentHeader(STORE, 3, 1000, 99)


@pytest.mark.parametrize(("at", "wrong"), [(11, b"\x01"), (12, (65).to_bytes(4, "big")), (56, b"\x00\x00\x00\x01")])
def test_a_segment_header_with_fields_of_a_later_version_is_refused(at: int, wrong: bytes) -> None:
    octets = bytearray(SegmentHeader(STORE, 3, 1000, 99).encode())
    octets[at : at + len(wrong)] = wrong
    octets[-4:] = crc32(octets[:-4]).to_bytes(4, "big")
    with pytest.raises(JournalError, match="does not know"):
        SegmentHeader.decode(bytes(octets), "x")


def test_bodies_byte_by_byte() -> None:
    frames = b"\x01\x04echo\x00\x01x"
    assert (
        encode_request(1, 2, 3, 4, b"k", frames)
        == bytes.fromhex("0000000000000001 0000000000000002 0000000000000003 0004 0001") + b"k" + frames
    )
    numbers = bytes.fromhex("0000000000000001 0000000000000002 0000000000000003 0004 8001")
    assert encode_request(1, 2, 3, 4, b"k", frames, b"ann") == numbers + b"k\x03ann" + frames
    assert encode_request(1, 2, 3, 4, b"", frames, b"ann") == numbers[:-1] + b"\0\x03ann" + frames
    assert Close(1, 2, OPEN, b"k", b"d" * 16, b"ann").encode()[-22:] == b"\x01k\x03ann" + b"d" * 16
    assert encode_reply(5, b"\x00\x01y") == bytes(7) + b"\x05\x00\x01y"
    close = Close(1, 2, OPEN, b"k", b"d" * 16)
    assert close.encode() == bytes.fromhex("0000000000000001 0000000000000002 ffffffffffffffff 0001") + b"k" + b"d" * 16
    assert Dead(1, 2, "é").encode() == bytes.fromhex("0000000000000001 00000002 c3a9")
    assert Tick(1, 2).encode() == bytes.fromhex("0000000000000001 0000000000000002")
    assert encode_attempts(9) == bytes.fromhex("00000009")


def test_bodies_are_read_as_they_were_written() -> None:
    long = b"s" * 255
    frames = b"\x01\xff" + long + b"\x02" + (300).to_bytes(8, "big") + b"y" * 300
    body = encode_request(1, 2, 3, 4, b"key", frames)
    assert Request.decode(body) == Request(1, 2, 3, 4, b"key", long, 31)
    assert request_frames(body) == frames[257:]
    for key, owner in ((b"key", b"a" * 255), (b"", b"ann")):
        owned = encode_request(1, 2, 3, 4, key, frames, owner)
        assert Request.decode(owned) == Request(1, 2, 3, 4, key, long, 29 + len(key) + len(owner), owner)
        assert request_frames(owned) == frames[257:]
    assert reply_frames(encode_reply(1, frames)) == frames
    for item in (
        Close(1, 2, 3, b"k", b"d" * 16),
        Close(1, 2, 3, b"", b""),
        Close(1, 2, 3, b"k", b"d" * 16, b"ann"),
        Dead(1, 2, "why"),
        Tick(1, 2),
    ):
        assert type(item).decode(item.encode()) == item
    assert decode_attempts(encode_attempts(7)) == 7


def test_a_service_whose_frame_is_long_is_read_too() -> None:
    """A client may send a short frame with a header of nine bytes."""
    body = encode_request(1, 2, 3, 4, b"", b"\x03" + (4).to_bytes(8, "big") + b"echo" + b"\x00\x01x")
    assert Request.decode(body).service == b"echo"
    assert request_frames(body) == b"\x00\x01x"


@pytest.mark.parametrize("owner", [b"", b"ann"])
@pytest.mark.parametrize("key", [b"", b"key"])
def test_headers_of_a_request_are_found_and_must_end_within_it(key: bytes, owner: bytes) -> None:
    frames = b"\x01\x04echo\x00\x01x"
    for headers in (b"", b"\x81\xa1a\xa1b", b"h" * 300):
        body = encode_request(1, 2, 3, 4, key, frames, owner, headers)
        assert (request_headers(body), request_frames(body)) == (headers, b"\x00\x01x")
        assert Request.decode(body)[:6] == (1, 2, 3, 4, key, b"echo")
        assert Request.decode(body).owner == owner
        for end in range(len(body) - len(frames) + 1):
            with pytest.raises(ValueError, match="too short"):
                Request.decode(body[:end])


def test_the_owner_of_a_close_must_end_within_it() -> None:
    body = encode_close(1, 2, 3, b"k", b"", b"ann")
    assert Close.decode(body) == Close(1, 2, 3, b"k", b"", b"ann")
    for end in range(len(body)):
        with pytest.raises(ValueError, match="body of a CLOSE is too short"):
            Close.decode(body[:end])


def test_what_a_body_must_be_is_checked_by_its_kind() -> None:
    good = {
        RecordKind.REQUEST: encode_request(1, 2, 3, 4, b"k", b"\x01\x04echo\x00\x01x"),
        RecordKind.CLOSE: encode_close(1, 2, 3, b"k", b"d" * 16),
        RecordKind.DEAD: Dead(1, 2, "why").encode(),
        RecordKind.TICK: Tick(1, 2).encode(),
    }
    for kind, body in good.items():
        check_body(kind, bytes(16), body)
        with pytest.raises(ValueError, match="body of a"):
            check_body(kind, bytes(16), body[:5])
    check_body(RecordKind.TICK, UUID, encode_attempts(3))
    for uuid, body in ((UUID, Tick(1, 2).encode()), (bytes(16), encode_attempts(3)), (bytes(16), Tick(1, 2).encode() + b"x")):
        with pytest.raises(ValueError, match="body of a TICK has the wrong size"):
            check_body(RecordKind.TICK, uuid, body)
    for uuid in (UUID, bytes(16)):
        check_body(RecordKind.REPLY, uuid, b"")


@given(st.binary(max_size=60))
def test_a_body_that_is_none_is_a_value_error_and_nothing_else(body: bytes) -> None:
    for decode in (Request.decode, Close.decode, Dead.decode, Tick.decode, decode_attempts, request_frames):
        try:
            found = decode(body)
        except ValueError:
            continue
        assert found is not None


records = st.lists(st.tuples(st.sampled_from(list(RecordKind)), st.binary(min_size=16, max_size=16), st.binary(max_size=50)), max_size=8)


@given(records, st.integers(1, 2**40), st.integers(0, 64))
def test_what_is_encoded_is_scanned(drafts: list[tuple[RecordKind, bytes, bytes]], first: int, zeros: int) -> None:
    data = bytes(HEADER_BYTES) + b"".join(encode(drafts, first, first - 1, SEED)) + bytes(zeros)
    found = list(scan(data, SEED, HEADER_BYTES, first))
    assert [(r.kind, r.uuid, r.body) for r in found if isinstance(r, Record)] == drafts
    assert [r.sequence for r in found if isinstance(r, Record)] == list(range(first, first + len(drafts)))
    for record in found:
        assert isinstance(record, Record)
        assert record.offset % 8 == 0
        one = decode_one(data[record.offset : record.offset + record.size], SEED)
        assert one is not None
        assert one._replace(offset=record.offset) == record


@pytest.mark.parametrize("first", [1, 255, 256, 511, 65_500, 2**32 - 200])
def test_sequences_go_on_past_a_whole_byte(first: int) -> None:
    drafts = [(RecordKind.REPLY, UUID, b"x" * (number % 9)) for number in range(600)]
    octets = encode(drafts, first, first - 1, SEED)
    found = [item for item in scan(bytes(HEADER_BYTES) + b"".join(octets), SEED, HEADER_BYTES, first) if isinstance(item, Record)]
    assert [record.sequence for record in found] == list(range(first, first + 600))
    assert [record.size for record in found] == list(map(len, octets))
    assert {record.durable for record in found} == {first - 1}


@given(st.binary(max_size=400), st.integers(0, 400), st.integers(0, 10))
def test_a_scan_of_anything_ends_and_covers_what_it_reads(noise: bytes, at: int, count: int) -> None:
    good = b"".join(encode([(RecordKind.TICK, UUID, b"body")] * count, 5, 4, SEED))
    data = bytearray(bytes(HEADER_BYTES) + good)
    data[HEADER_BYTES + at : HEADER_BYTES + at + len(noise)] = noise
    end = HEADER_BYTES
    for item in scan(bytes(data), SEED, HEADER_BYTES, 5):
        assert item.offset <= end or (isinstance(item, Damage) and item.kind == "padding")
        end = max(end, item.offset + (item.size if isinstance(item, Record) else item.length))
    assert not any(data[end:])


def test_another_store_s_records_are_none() -> None:
    data = bytes(HEADER_BYTES) + b"".join(encode([(RecordKind.TICK, UUID, b"")], 1, 0, seed_of(bytes(16))))
    (item,) = scan(data, SEED, HEADER_BYTES, 1)
    assert isinstance(item, Damage)


def test_a_sealed_segment_ends_where_the_next_begins() -> None:
    octets = encode([(RecordKind.TICK, UUID, b"")] * 5, 1, 0, SEED)
    data = bytes(HEADER_BYTES) + b"".join(octets)
    assert [i.sequence for i in scan_sealed(data, SEED, 1, 3) if isinstance(i, Record)] == [1, 2, 3]
    cut = data[: HEADER_BYTES + 100]
    *good, missing = scan_sealed(cut, SEED, 1, 5)
    assert len(good) == 2
    assert isinstance(missing, Damage)
    assert (missing.first, missing.last) == (3, 5)
    assert first_sequence(data, SEED) == 1
    assert first_sequence(bytes(100), SEED) is None


def test_manifest_and_checkpoint_go_there_and_back() -> None:
    manifest = Manifest(STORE, (Span(1, 1, 9), Span(4, 10, OPEN)), (Accepted(1, 64, 48, 2, 2),))
    assert Manifest.decode(manifest.encode(), "manifest") == manifest
    checkpoint = Checkpoint(STORE, 4, 77, [["c", 1, 2, 3], ["k", b"x", 2**64 - 1]])
    assert Checkpoint.decode(checkpoint.encode(), "checkpoint") == checkpoint
    two = manifest._replace(accepted=(Accepted(1, 64, 48, 2, 2), Accepted(4, 80, 56, 11, 12), Accepted(5, 0, 8, 13, 13)))
    assert Manifest.decode(two.encode(), "manifest") == two


def test_heads_of_manifest_and_checkpoint_byte_by_byte() -> None:
    """specs/titanic.md §6, §7."""
    rest = b"\x00\x01\x01\x00" + STORE
    manifest = Manifest(STORE, (Span(1, 2, 3),), ()).encode()
    counts, span = bytes.fromhex("00000001 00000000"), bytes.fromhex("0000000000000001 0000000000000002 0000000000000003")
    assert manifest[:-4] == b"\x89TSM\r\n\x1a\n" + rest + counts + span
    checkpoint = Checkpoint(STORE, 4, 77, [5, 6]).encode()
    assert checkpoint[:-4] == b"\x89TSC\r\n\x1a\n" + rest + bytes.fromhex("0000000000000004 000000000000004d 00000002 0506")


def checked(data: bytes) -> bytes:
    return data + crc32(data).to_bytes(4, "big")


def test_a_manifest_that_is_too_short_is_damaged_though_its_checksum_is_right() -> None:
    octets = Manifest(STORE, (Span(1, 1, 9),), ()).encode()
    with pytest.raises(JournalError, match="manifest is too short"):
        Manifest.decode(checked(octets[:-12]), "x")


def test_a_checkpoint_with_wrong_items_is_damaged_though_its_checksum_is_right() -> None:
    octets = Checkpoint(STORE, 4, 77, [5, 6]).encode()[:-4]
    for data, reason in (
        (octets[:-1] + b"\xc1", "an item that cannot be decoded"),
        (octets[:-1], "1 of 2 items"),
        (octets + b"\x07", "3 of 2 items"),
    ):
        with pytest.raises(JournalError, match=reason):
            Checkpoint.decode(checked(data), "x")


@pytest.mark.parametrize("kind", [Manifest, Checkpoint])
def test_a_newer_manifest_or_checkpoint_is_distinguished_from_a_damaged_one(kind: type[Manifest | Checkpoint]) -> None:
    """S12."""
    octets = Manifest(STORE, (), ()).encode() if kind is Manifest else Checkpoint(STORE, 1, 1, []).encode()
    newer = octets[:8] + b"\x00\x02" + octets[10:-4]
    with pytest.raises(VersionTooNew):
        kind.decode(newer + crc32(newer).to_bytes(4, "big"), "x")
    with pytest.raises(JournalError) as caught:
        kind.decode(newer + octets[-4:], "x")
    assert caught.value.name == "DAMAGED"
