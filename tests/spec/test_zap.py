"""ZAP (RFC 27): the frames of both sides, one test per rule. What needs sockets is in tests/interop/test_security.py."""

from __future__ import annotations

import pytest

from core.errors import HandshakeError, RemoteProtocolError
from core.zmtp.zap import ZAP_ENDPOINT, ZapReply, ZapRequest, must_ask, verdict_without_handler

REQUEST = [b"", b"1.0", b"1", b"global", b"127.0.0.1", b"me", b"PLAIN", b"admin", b"secret"]
REPLY = [b"", b"1.0", b"1", b"200", b"OK", b"admin", b""]
ASKED = ZapRequest(b"PLAIN", b"global", b"127.0.0.1", b"me", (b"admin", b"secret"))
MALFORMED, BAD_ID, BAD_VERSION, BAD_STATUS, BAD_METADATA = (0x20000001 + n for n in range(5))


def replaced(frames: list[bytes], at: int, frame: bytes) -> list[bytes]:
    return [*frames[:at], frame, *frames[at + 1 :]]


def refused(frames: list[bytes], code: int) -> None:
    with pytest.raises(HandshakeError) as caught:
        ZapReply.decode(frames, ASKED)
    assert caught.value.code == code


def test_zap_01_the_frames_and_their_order() -> None:
    assert ZAP_ENDPOINT == "inproc://zeromq.zap.01"
    assert ASKED.encode() == REQUEST
    assert ZapRequest.decode(REQUEST) == ASKED
    assert ZapReply(b"200", b"OK", b"admin").encode(ASKED) == REPLY
    assert ZapReply.decode(REPLY, ASKED) == ZapReply(b"200", b"OK", b"admin")


@pytest.mark.parametrize("mechanism,credentials", [(b"NULL", ()), (b"CURVE", (bytes(32),)), (b"GSSAPI", (b"a", b"b", b"c"))])
def test_zap_01_credentials_by_mechanism(mechanism: bytes, credentials: tuple[bytes, ...]) -> None:
    frames = [*REQUEST[:6], mechanism, *credentials]
    assert ZapRequest.decode(frames).credentials == credentials
    if mechanism != b"GSSAPI":
        with pytest.raises(RemoteProtocolError):
            ZapRequest.decode([*frames, b"one too many"])


@pytest.mark.parametrize("size", range(9))
def test_zap_01_a_request_that_ends_early(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        ZapRequest.decode(REQUEST[:size])


def test_zap_01_a_request_of_another_version() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ZapRequest.decode(replaced(REQUEST, 1, b"2.0"))
    assert caught.value.code == BAD_VERSION


@pytest.mark.parametrize("size", [0, 1, 5, 6, 8])
def test_zap_02_a_reply_of_another_number_of_frames(size: int) -> None:
    refused(([*REPLY, b""])[:size], MALFORMED)


def test_zap_02_a_reply_without_delimiter() -> None:
    refused(replaced(REPLY, 0, b"x"), MALFORMED)


@pytest.mark.parametrize("version", [b"", b"1.1", b"1.0\x00"])
def test_zap_02_a_reply_of_another_version(version: bytes) -> None:
    refused(replaced(REPLY, 1, version), BAD_VERSION)


@pytest.mark.parametrize("request_id", [b"", b"2", b"11"])
def test_zap_02_a_reply_to_another_request(request_id: bytes) -> None:
    refused(replaced(REPLY, 2, request_id), BAD_ID)


@pytest.mark.parametrize("status", [b"", b"20", b"2000", b"201", b"100", b"600", b"-200", b" 200", b"200 ", b"\x00\x00\xc8"])
def test_zap_03_any_other_status(status: bytes) -> None:
    refused(replaced(REPLY, 3, status), BAD_STATUS)


@pytest.mark.parametrize("status", [b"200", b"300", b"400", b"500"])
def test_zap_03_the_four_statuses(status: bytes) -> None:
    reply = ZapReply.decode(replaced(REPLY, 3, status), ASKED)
    assert reply.status_code == status
    assert reply.accepted is (status == b"200")


def test_zap_04_user_id_and_properties() -> None:
    reply = ZapReply.decode(replaced(REPLY, 6, b"\x05Shift\x00\x00\x00\x05night"), ASKED)
    assert reply.user_id == b"admin"
    assert reply.metadata == {b"shift": b"night"}


@pytest.mark.parametrize("metadata", [b"\x00", b"\x05Shift", b"\x05Shift\x00\x00\x00\x06night", b"\x05Shift\xff\xff\xff\xffnight"])
def test_zap_04_malformed_properties(metadata: bytes) -> None:
    refused(replaced(REPLY, 6, metadata), BAD_METADATA)


def test_zap_06_null_asks_only_where_there_is_a_domain() -> None:
    assert not must_ask(b"NULL", b"", enforce_domain=False)
    assert must_ask(b"NULL", b"global", enforce_domain=False)
    assert verdict_without_handler(b"NULL", enforce_domain=False).accepted
    assert not verdict_without_handler(b"NULL", enforce_domain=True).accepted


@pytest.mark.parametrize("request_id", [b"", b"1", bytes(300)])
def test_zap_09_a_handler_echoes_opaque_ids(request_id: bytes) -> None:
    request = ZapRequest.decode(replaced(REQUEST, 2, request_id))
    assert ZapReply(b"200").encode(request)[2] == request_id


def test_zap_11_a_handler_behind_proxies_returns_the_whole_envelope() -> None:
    envelope = [b"router", b"\x00\x01\x02\x03\x04", b"proxy"]
    request = ZapRequest.decode(envelope + REQUEST)
    assert request.envelope == tuple(envelope)
    assert request.encode() == envelope + REQUEST
    assert ZapReply(b"400").encode(request)[:4] == [*envelope, b""]


def test_zap_11_a_stack_without_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ZapRequest.decode([b"id"] * 1000 + REQUEST)
