"""TSP frames: what is let in, and what each refusal says."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.zmtp.frames import decode_frames, encode_message
from titanic.errors import BadRequest
from titanic.wire.tsp import (
    ATTEMPTS_MAX,
    DELAY_MS_MAX,
    EXTENSIONS,
    KNOWN_MAX,
    OPTIONS_MARK,
    Options,
    encode_options,
    format_uuid,
    is_question,
    pack_headers,
    parse_request,
    parse_status,
    parse_uuid,
    unpack_headers,
)

RAW = bytes(range(16))


@pytest.mark.parametrize("frame", [b"000102030405060708090A0B0C0D0E0F", b"000102030405060708090a0b0c0d0e0f"])
def test_a_uuid_is_taken_in_either_case_and_given_in_upper_case(frame: bytes) -> None:
    """TSP-02."""
    assert parse_uuid(frame) == RAW
    assert format_uuid(RAW) == b"000102030405060708090A0B0C0D0E0F"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"../victim",
        b"0" * 31,
        b"0" * 33,
        b"G" * 32,
        b" " + b"0" * 31,
        b"0x" + b"0" * 30,
        b"\xff" * 32,
        b"00010203-0405-0607-0809-0A0B0C0D0E0F",
    ],
)
def test_anything_else_is_no_uuid(frame: bytes) -> None:
    """TSP-03."""
    assert parse_uuid(frame) is None


def test_hyphens_are_taken_where_they_are_allowed() -> None:
    """DIS-47."""
    assert parse_uuid(b"00010203-0405-0607-0809-0a0b0c0d0e0f", hyphens=True) == RAW
    assert parse_uuid(b"000102030-405-0607-0809-0a0b0c0d0e0f", hyphens=True) is None


@given(st.binary(max_size=80), st.booleans())
def test_whatever_comes_as_uuid_is_16_octets_or_nothing(frame: bytes, hyphens: bool) -> None:
    """TI2: no other error."""
    uuid = parse_uuid(frame, hyphens)
    assert uuid is None or len(uuid) == 16


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"200", 200),
        (b"200 OK", 200),
        (b"300", 300),
        (b"400 who", 400),
        (b"500", 500),
        (b"404", None),
        (b"2000", None),
        (b"20", None),
        (b"", None),
        (b"\xff\xff\xff", None),
    ],
)
def test_a_status_is_its_first_three_characters(frame: bytes, code: int | None) -> None:
    """TSP-04, TSP-05."""
    assert parse_status(frame) == code


def test_a_request_keeps_its_frames_exactly() -> None:
    """TSP-20."""
    frames = [b"echo", b"", b"a" * 300, b"", b"\x00\xff"]
    asked = parse_request(frames)
    assert asked.service == b"echo"
    assert decode_frames(asked.frames) == frames
    assert asked.options == Options()
    for body in ([b"x"], [b"x", b"y"]):
        asked = parse_request([b"echo", *body])
        assert asked.frames == encode_message([b"echo", *body])
        assert asked.body == body


@pytest.mark.parametrize("frames", [[], [b"echo"], [OPTIONS_MARK, b"\x80"], [OPTIONS_MARK, b"\x80", b"echo"]])
def test_fewer_than_service_and_body_is_refused(frames: list[bytes]) -> None:
    """TSP-07."""
    with pytest.raises(BadRequest):
        parse_request(frames)


def test_fewer_than_service_and_body_is_said_so_behind_options_too() -> None:
    """TSP-07."""
    for frames in ([OPTIONS_MARK, b"\x80"], [OPTIONS_MARK, b"\x80", b"echo"], [b"echo"]):
        with pytest.raises(BadRequest, match="a service and at least one body frame"):
            parse_request(frames)


def test_a_question_for_extensions_is_one_frame() -> None:
    assert is_question([EXTENSIONS])
    assert not any(map(is_question, ([], [b"echo"], [EXTENSIONS, b"x"], [b"x", EXTENSIONS])))


def test_names_that_were_checked_are_remembered_and_bounded() -> None:
    known: dict[bytes, tuple[bytes, ...]] = {}
    first, second = (parse_request([bytes(bytearray(b"echo")), b"x"], known) for _ in range(2))
    assert first.service is second.service
    assert parse_request((b"echo", b"x", b"y")).body == [b"x", b"y"]  # a list, whatever it came in
    once = parse_request([b"echo", b"x"])
    assert (
        (first.service, first.frames, first.body) == (second.service, second.frames, second.body) == (once.service, once.frames, once.body)
    )
    assert first.digest == second.digest == once.digest
    assert parse_request([b"mail", b"echo"], known).service == b"mail"  # a body that is the name of another service
    with pytest.raises(BadRequest):
        parse_request([b"mmi.x", b"echo"], known)
    for number in range(KNOWN_MAX - 2):
        parse_request([b"s%d" % number, b"x"], known)
    assert len(known) == KNOWN_MAX
    assert parse_request([b"echo", b"x"], known).service is first.service
    parse_request([b"one more", b"x"], known)
    assert set(known) == {b"one more"}


@pytest.mark.parametrize("service", [b"titanic.request", b"titanic.", b"mmi.service", b"", b"a" * 256, b"a\nb", b"\x1b[31m", b"\xe4"])
def test_services_that_must_not_be_stored_are_refused(service: bytes) -> None:
    """TSP-19, MDP-05."""
    with pytest.raises(BadRequest):
        parse_request([service, b"body"])


@pytest.mark.parametrize("service", [b"titanic", b"mmi", b"my.mmi.x", b"a" * 255, "Größe".encode()])
def test_every_other_service_of_a_broker_is_taken(service: bytes) -> None:
    assert parse_request([service, b"body"]).service == service


def test_options_go_there_and_back() -> None:
    options = Options(b"order-17", 1500, 60_000, 3)
    asked = parse_request([*encode_options(options), b"echo", b"x"])
    assert asked.options == options
    assert len(asked.digest) == 16
    assert encode_options(Options()) == []
    options = Options(b"k" * 255, DELAY_MS_MAX, DELAY_MS_MAX, ATTEMPTS_MAX, {"who": "ann"})
    assert parse_request([*encode_options(options), b"echo", b"x"]).options == options


def test_options_have_up_to_8192_bytes() -> None:
    for octets, reason in ((8192, "options are not a msgpack map"), (8193, "options of 8193 bytes, at most 8192")):
        with pytest.raises(BadRequest, match=reason):
            parse_request([OPTIONS_MARK, bytes(octets), b"echo", b"x"])


def test_headers_are_stored_and_come_back() -> None:
    assert (pack_headers({}), unpack_headers(b"")) == (b"", {})
    for headers in ({"who": "ann", "why": ""}, {"who": "x" * 1000}):
        assert unpack_headers(pack_headers(headers)) == headers
    for octets in (b"\xc1", msgpack.packb([]), msgpack.packb({"who": 1}), msgpack.packb({"who": {}})):
        with pytest.raises(ValueError, match="headers of a REQUEST"):
            unpack_headers(octets)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "text"},
        {"key": b"k" * 256},
        {"delay_ms": -1},
        {"delay_ms": 2**63},
        {"ttl_ms": 1.5},
        {"attempts": True},
        {"attempts": 65_536},
        {"ttl_ms": DELAY_MS_MAX + 1},
        {"headers": []},
        {"headers": {"who": 1}},
        {"other": 1},
        {1: 2},
        [],
        b"",
        {"key": msgpack.ExtType(1, b"x")},
    ],
)
def test_options_that_are_none_are_refused_and_not_ignored(options: object) -> None:
    with pytest.raises(BadRequest):
        parse_request([OPTIONS_MARK, msgpack.packb(options), b"echo", b"x"])


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans())
def test_whatever_comes_as_request_is_taken_or_a_bad_request(frames: list[bytes], marked: bool) -> None:
    """X2: nothing but BadRequest comes out."""
    if marked:
        frames = [OPTIONS_MARK, *frames]
    try:
        asked = parse_request(frames)
    except BadRequest:
        return
    assert asked.service


@pytest.mark.parametrize("bomb", [b"\xdf\xff\xff\xff\xff", b"\x91" * 1000, b"\xdd\xff\xff\xff\xff", b"\x80" * 2000])
def test_bombs_are_refused(bomb: bytes) -> None:
    """X2: sizes and depths that promise more than they bring."""
    with pytest.raises(BadRequest):
        parse_request([OPTIONS_MARK, bomb, b"echo", b"x"])


def test_the_digest_tells_requests_with_one_key_apart() -> None:
    """IDM-05."""
    head = encode_options(Options(b"k"))
    digests = {parse_request([*head, *frames]).digest for frames in ([b"a", b"bc"], [b"ab", b"c"], [b"a", b"b", b"c"], [b"b", b"bc"])}
    assert len(digests) == 4
