"""core.zmtp.commands: bodies of commands and metadata, octet by octet."""

from __future__ import annotations

import pytest

from core.constants import ProtocolErrorCode
from core.errors import HandshakeError, RemoteProtocolError
from core.zmtp.commands import command, decode_metadata, encode_metadata, error_reason, parse_command, ping, pong


@pytest.mark.parametrize(
    ("name", "data", "body"), [(b"READY", b"x", b"\x05READYx"), (b"", b"", b"\x00"), (b"n" * 255, b"", b"\xff" + b"n" * 255)]
)
def test_a_command_is_its_name_with_a_length_and_its_data(name: bytes, data: bytes, body: bytes) -> None:
    assert command(name, data) == body
    assert parse_command(body) == (name, data)


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x06READY", b"\xff" + b"n" * 254])
def test_a_command_shorter_than_its_name_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="shorter than its name") as caught:
        parse_command(body)
    assert caught.value.code == ProtocolErrorCode.ZMTP_MALFORMED_COMMAND_UNSPECIFIED


def test_zmtp_37_zmtp_43_properties_have_names_of_any_case_and_the_last_of_a_name_wins() -> None:
    octets = encode_metadata([(b"Identity", b"me"), (b"X-A", b""), (b"x-a", b"v" * 300)])
    assert octets == b"\x08Identity\x00\x00\x00\x02me\x03X-A\x00\x00\x00\x00\x03x-a\x00\x00\x01\x2c" + b"v" * 300
    assert decode_metadata(octets) == {b"identity": b"me", b"x-a": b"v" * 300}
    assert decode_metadata(b"") == {}
    assert decode_metadata(octets[:9] + bytes(4)) == {b"identity": b""}


@pytest.mark.parametrize("first", [b"", b"\x01a\x00\x00\x00\x01b"])
@pytest.mark.parametrize(
    "bad", [b"\x00", b"\x00\x00\x00\x00\x00", b"\x01", b"\x01a", b"\x01a\x00\x00\x00", b"\x01a\x00\x00\x00\x01", b"\x01a\x01\x00\x00\x01bb"]
)
def test_zmtp_41_zmtp_42_metadata_that_ends_early_or_has_no_name_is_refused_where_it_is_wrong(first: bytes, bad: bytes) -> None:
    with pytest.raises(HandshakeError, match="malformed metadata") as caught:
        decode_metadata(first + bad)
    assert (caught.value.code, caught.value.offset) == (ProtocolErrorCode.ZMTP_INVALID_METADATA, len(first))


def test_zmtp_47_a_reason_has_its_length_and_what_follows_is_not_looked_at() -> None:
    assert error_reason(b"\x03400") == error_reason(b"\x03400more") == b"400"
    assert error_reason(b"\x00") == b""


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x04400"])
def test_zmtp_47_zmtp_80_an_error_shorter_than_its_reason_is_refused(data: bytes) -> None:
    with pytest.raises(HandshakeError, match="shorter than its reason") as caught:
        error_reason(data)
    assert caught.value.code == ProtocolErrorCode.ZMTP_MALFORMED_COMMAND_ERROR


@pytest.mark.parametrize(("ttl_ms", "tenths"), [(0, 0), (99, 0), (100, 1), (25_650, 256), (65_500, 655), (65_600, 655), (10**9, 655)])
def test_zmtp_54_zmtp_55_a_ping_has_its_time_to_live_in_tenths_of_a_second(ttl_ms: int, tenths: int) -> None:
    assert ping(ttl_ms) == b"\x04PING" + tenths.to_bytes(2, "big")
    assert pong(tenths.to_bytes(2, "big")) == (b"\x04PONG", tenths * 100)


def test_zmtp_51_sixteen_bytes_of_a_context_are_sent_and_repeated() -> None:
    context = bytes(range(17))
    assert ping(0, context) == b"\x04PING\x00\x00" + context[:16]
    assert pong(b"\x00\x0a" + context) == (b"\x04PONG" + context[:16], 1000)
    assert pong(b"\x00\x0a" + context[:3]) == (b"\x04PONG" + context[:3], 1000)


@pytest.mark.parametrize("data", [b"", b"\x00"])
def test_zmtp_52_a_ping_without_a_time_to_live_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="without a TTL") as caught:
        pong(data)
    assert caught.value.code == ProtocolErrorCode.ZMTP_MALFORMED_COMMAND_UNSPECIFIED
