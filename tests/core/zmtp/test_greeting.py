"""core.zmtp.greeting: our 64 octets, and what the first octets of a peer say."""

from __future__ import annotations

import pytest

from core.errors import HandshakeError, MechanismMismatch
from core.zmtp.greeting import Generation, StagedGreeting, generation, greeting, looks_like, peer_minor

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
NULL = b"NULL".ljust(20, b"\0")


@pytest.mark.parametrize(
    ("mechanism", "as_server", "role"), [(b"NULL", False, 0), (b"NULL", True, 0), (b"PLAIN", True, 1), (b"CURVE", False, 0)]
)
def test_zmtp_01_zmtp_09_a_greeting_has_its_64_octets(mechanism: bytes, as_server: bool, role: int) -> None:
    octets = greeting(mechanism, as_server=as_server)
    assert octets == b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism + bytes(20 - len(mechanism)) + bytes((role,)) + bytes(31)
    assert greeting(mechanism, padding=bytes(7) + b"\x01")[:10] == SIGNATURE


@pytest.mark.parametrize(
    ("octets", "found"),
    [
        (b"", Generation.UNKNOWN),
        (b"\x01", Generation.V1),
        (b"\xfe" + bytes(70), Generation.V1),
        (b"\xff", Generation.UNKNOWN),
        (SIGNATURE[:9], Generation.UNKNOWN),
        (b"\xff" + bytes(9), Generation.V1),
        (b"\xff" + bytes(8) + b"\x02\x03", Generation.V1),
        (SIGNATURE, Generation.UNKNOWN),
        (b"\xff" + bytes(8) + b"\x01", Generation.UNKNOWN),
        (SIGNATURE + b"\x01", Generation.V2),
        (SIGNATURE + b"\x02", Generation.V3),
        (SIGNATURE + b"\x03", Generation.V3),
        (SIGNATURE + b"\xff", Generation.V3),
    ],
)
def test_the_generation_of_a_peer_is_known_by_its_first_octets(octets: bytes, found: Generation) -> None:
    assert generation(octets) is found


def test_a_revision_that_nobody_has_is_refused() -> None:
    with pytest.raises(HandshakeError, match="revision 0") as caught:
        generation(SIGNATURE + b"\x00")
    assert caught.value.offset == 10


@pytest.mark.parametrize(("version", "minor"), [(b"\x03\x00", 0), (b"\x03\x01", 1), (b"\x03\x02", 1), (b"\x04\x00", 1), (b"\x02\x01", 0)])
def test_zmtp_06_the_minor_version_is_the_lower_one_and_ours_for_a_later_major(version: bytes, minor: int) -> None:
    assert peer_minor(SIGNATURE + version + NULL + bytes(32), b"NULL") == minor


@pytest.mark.parametrize("theirs", [b"PLAIN".ljust(20, b"\0"), b"NULL" + bytes(15) + b"\x01", bytes(20), b"\xff" * 20])
def test_zmtp_07_all_twenty_octets_of_a_mechanism_count(theirs: bytes) -> None:
    with pytest.raises(MechanismMismatch, match="we have 'NULL'") as caught:
        peer_minor(SIGNATURE + b"\x03\x01" + theirs + bytes(32), b"NULL")
    assert caught.value.offset == 12


@pytest.mark.parametrize(
    ("octets", "most"),
    [
        (b"", 10),
        (SIGNATURE[:9], 10),
        (b"\x01" + SIGNATURE[1:] + b"\x03", 10),
        (b"\xff" + bytes(8) + b"\x02\x03", 10),
        (SIGNATURE, 11),
        (SIGNATURE + b"\x01", 11),
        (SIGNATURE + b"\x02", 64),
        (SIGNATURE + b"\x03\x00", 64),
    ],
)
def test_zmtp_04_zmtp_14_each_stage_waits_for_what_the_peer_has_said(octets: bytes, most: int) -> None:
    whole = greeting(b"NULL")
    staged = StagedGreeting(whole, 1)
    assert staged.begin() == whole[:10]
    assert staged.go_on(octets) == whole[10:most]
    assert staged.go_on(octets) == b""
    assert staged.go_on(SIGNATURE + b"\x03") == whole[most:]


def test_zmtp_14_what_was_said_is_not_said_again() -> None:
    whole = greeting(b"NULL")
    for oldest, begun in ((2, 11), (3, 64)):
        staged = StagedGreeting(whole, oldest)
        assert staged.begin() == whole[:begun]
        assert staged.go_on(SIGNATURE) == b""
        assert staged.go_on(SIGNATURE + b"\x03") == whole[begun:]


@pytest.mark.parametrize(
    ("octets", "name"),
    [
        *((verb.encode(), "HTTP") for verb in ("GET /x", "POST /x", "HTTP/1.1 400", "HEAD /", "PUT /x", "OPTIONS *", "DELETE /x")),
        *((verb.encode(), "HTTP") for verb in ("PATCH /x", "CONNECT a:1", "PRI * HTTP/2.0")),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"SSH-2.0-x", "SSH"),
        (b"\x16\x02\x01", "something other than ZMTP"),
        (b"GETTING", "something other than ZMTP"),
        (b"SSH_", "something other than ZMTP"),
        (b"", "something other than ZMTP"),
    ],
)
def test_zmtp_44_other_protocols_have_their_names(octets: bytes, name: str) -> None:
    assert looks_like(octets) == name
