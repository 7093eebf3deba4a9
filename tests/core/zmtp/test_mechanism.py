"""core.zmtp.mechanism: NULL, what an ERROR means, and what a mechanism without encryption refuses (ZMTP-34 to 36, ZMTP-47)."""

from __future__ import annotations

import pytest

from core.constants import ProtocolErrorCode
from core.errors import AuthenticationRefused, HandshakeError
from core.security.plain import PlainClient
from core.zmtp.commands import encode_metadata
from core.zmtp.mechanism import NullMechanism, PeerError, check_metadata, refusal, sealed_too_long
from core.zmtp.zap import ZapReply, ZapRequest

METADATA = encode_metadata([(b"Socket-Type", b"DEALER")])
READY = b"\x05READY" + METADATA


def null(zap: ZapRequest | None = None, limit: int = 100) -> NullMechanism:
    return NullMechanism(METADATA, metadata_bytes_max=limit, zap=zap)


@pytest.mark.parametrize("status", [b"300", b"400", b"500"])
def test_zmtp_47_statuses_are_refusals_of_the_credentials(status: bytes) -> None:
    error = refusal(b"\x03" + status)
    assert isinstance(error, AuthenticationRefused)
    assert error.status == status


@pytest.mark.parametrize("reason", [b"", b"200", b"Invalid mechanism", b"\xff"])
def test_zmtp_47_any_other_reason_is_one_of_the_configuration(reason: bytes) -> None:
    error = refusal(bytes((len(reason),)) + reason)
    assert type(error) is PeerError
    assert reason.decode("ascii", "backslashreplace").encode() in str(error).replace("\\\\", "\\").encode()


def test_errors_about_sizes_have_the_numbers() -> None:
    check_metadata(bytes(10), 10)
    with pytest.raises(HandshakeError, match="metadata of 11 bytes, at most 10") as caught:
        check_metadata(bytes(11), 10)
    assert caught.value.code == ProtocolErrorCode.ZMTP_INVALID_METADATA
    error = sealed_too_long(8, 7)
    assert (error.kind, error.size, error.limit) == ("frame_bytes", 8, 7)


def test_zmtp_34_both_sides_send_ready_at_once_and_take_one() -> None:
    mechanism = null()
    assert (mechanism.bare, mechanism.encrypts, mechanism.as_server, mechanism.complete) == (True, False, False, False)
    assert mechanism.start() == [READY]
    assert mechanism.receive(READY) == []
    assert (mechanism.complete, mechanism.peer_metadata) == (True, {b"socket-type": b"DEALER"})
    with pytest.raises(HandshakeError, match="expected READY"):
        mechanism.receive(READY)


@pytest.mark.parametrize("body", [b"\x05HELLO", b"\x00", b"\x04PING\x00\x00"])
def test_zmtp_36_anything_else_is_refused(body: bytes) -> None:
    mechanism = null()
    with pytest.raises(HandshakeError, match="expected READY") as caught:
        mechanism.receive(body)
    assert (caught.value.code, mechanism.complete) == (ProtocolErrorCode.ZMTP_UNEXPECTED_COMMAND, False)


def test_zmtp_36_zmtp_47_an_error_of_the_peer_ends_the_handshake() -> None:
    with pytest.raises(AuthenticationRefused):
        null().receive(b"\x05ERROR\x03400")
    with pytest.raises(PeerError):
        null().receive(b"\x05ERROR\x02no")


def test_metadata_beyond_the_limit_is_refused() -> None:
    null(limit=len(METADATA)).receive(READY)
    mechanism = null(limit=len(METADATA) - 1)
    with pytest.raises(HandshakeError, match="at most"):
        mechanism.receive(READY)
    assert not mechanism.complete


def test_zap_06_ready_waits_for_the_verdict() -> None:
    question = ZapRequest(domain=b"d")
    mechanism = null(question)
    assert (mechanism.bare, mechanism.start(), mechanism.zap_request) == (False, [], question)
    mechanism.receive(READY)
    mechanism = null(question)
    mechanism.start()
    assert mechanism.authenticated(ZapReply(b"200", user_id=b"ann", metadata={b"Shift": b"night"})) == [READY]
    mechanism.receive(READY)
    assert mechanism.peer_metadata == {b"socket-type": b"DEALER", b"user-id": b"ann", b"shift": b"night"}
    mechanism = null(question)
    mechanism.start()
    with pytest.raises(AuthenticationRefused):
        mechanism.authenticated(ZapReply(b"400"))
    assert not mechanism.complete


def test_a_mechanism_without_encryption_opens_and_seals_nothing_and_costs_nothing() -> None:
    mechanism = null()
    assert mechanism.work(READY) == 0
    with pytest.raises(HandshakeError, match="NULL does not seal frames"):
        mechanism.seal(0, b"x")
    with pytest.raises(HandshakeError, match="NULL does not seal frames"):
        mechanism.seal_frames(b"\x00\x01x")
    with pytest.raises(HandshakeError, match="NULL does not open frames"):
        mechanism.open(b"x")
    with pytest.raises(HandshakeError, match="NULL does not open frames: 3"):
        mechanism.open_frames(b"\x00\x01x", 0, 100, [])


def test_a_client_asks_nobody_about_its_server() -> None:
    client = PlainClient(METADATA, username=b"u", password=b"p", metadata_bytes_max=100)
    assert not client.bare
    with pytest.raises(HandshakeError, match="no authentication was asked for"):
        client.authenticated(ZapReply(b"200"))
