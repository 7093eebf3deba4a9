"""PLAIN (RFC 24): one test per rule, on the octets of conformance section 2."""

from __future__ import annotations

import pytest

from core.errors import AuthenticationRefused, HandshakeError, LocalProtocolError, RemoteProtocolError
from core.security.plain import PlainClient, PlainServer
from core.zmtp.frames import encode_command
from core.zmtp.zap import ZapReply, ZapRequest, must_ask, verdict_without_handler

METADATA = bytes.fromhex("0B") + b"Socket-Type" + bytes.fromhex("00000006") + b"DEALER"
HELLO = b"\x05HELLO\x05admin\x06secret"
MALFORMED_HELLO, MALFORMED_WELCOME, INVALID_METADATA = 0x10000013, 0x10000017, 0x10000018


def client(username: bytes = b"admin", password: bytes = b"secret") -> PlainClient:
    return PlainClient(METADATA, username=username, password=password, metadata_bytes_max=8192)


def server() -> PlainServer:
    return PlainServer(METADATA, zap=ZapRequest(), metadata_bytes_max=8192)


def welcomed_server() -> PlainServer:
    subject = server()
    subject.receive(HELLO)
    subject.authenticated(ZapReply(b"200"))
    return subject


def test_plain_01_roles_are_those_of_the_configuration() -> None:
    assert client().as_server is False
    assert client().start() != []
    assert server().as_server is True
    assert server().start() == []


def test_plain_02_names_are_length_prefixed() -> None:
    (hello,) = client().start()
    assert encode_command(hello) == bytes.fromhex("0413") + HELLO
    with pytest.raises(RemoteProtocolError):
        server().receive(b"HELLO   \x05admin\x06secret")
    with pytest.raises(HandshakeError):
        server().receive(b"\x08HELLO   \x05admin\x06secret")


@pytest.mark.parametrize(
    "credentials",
    [
        b"",
        b"\x00",
        b"\x05admin",
        b"\x05admi",
        b"\x06admin",
        b"\xff",
        b"\x05admin\x06secre",
        b"\x05admin\x06secrets",
        b"\x05admin\x06secret\x00",
        b"\x00\x00\x00",
    ],
)
def test_plain_03_malformed_credentials(credentials: bytes) -> None:
    subject = server()
    with pytest.raises(HandshakeError) as caught:
        subject.receive(b"\x05HELLO" + credentials)
    assert caught.value.code == MALFORMED_HELLO
    assert subject.zap_request is None
    assert subject.last_words == []


@pytest.mark.parametrize("extra", [b"\x00", b"\x05", bytes(100)])
def test_plain_04_welcome_is_eight_octets(extra: bytes) -> None:
    subject = client()
    subject.start()
    with pytest.raises(HandshakeError) as caught:
        subject.receive(b"\x07WELCOME" + extra)
    assert caught.value.code == MALFORMED_WELCOME


def test_plain_05_ready_completes_the_client_and_the_server_is_complete_with_its_own() -> None:
    subject = client()
    subject.start()
    assert subject.receive(b"\x07WELCOME") == [b"\x08INITIATE" + METADATA]
    assert not subject.complete
    assert subject.receive(b"\x05READY" + METADATA) == []
    assert subject.complete
    subject_server = welcomed_server()
    assert subject_server.receive(b"\x08INITIATE" + METADATA) == [b"\x05READY" + METADATA]
    assert subject_server.complete
    assert subject_server.peer_metadata == {b"socket-type": b"DEALER"}


@pytest.mark.parametrize("metadata", [b"\x00", METADATA[:-1], METADATA + b"\x01", b"\x0bSocket-Type\xff\xff\xff\xffDEALER"])
def test_plain_05_metadata_keeps_the_rules_of_null(metadata: bytes) -> None:
    with pytest.raises(HandshakeError) as caught:
        welcomed_server().receive(b"\x08INITIATE" + metadata)
    assert caught.value.code == INVALID_METADATA
    subject = client()
    subject.start()
    subject.receive(b"\x07WELCOME")
    with pytest.raises(HandshakeError) as caught:
        subject.receive(b"\x05READY" + metadata)
    assert caught.value.code == INVALID_METADATA


@pytest.mark.parametrize("enforce", [False, True])
def test_plain_06_nobody_to_ask_is_a_refusal(enforce: bool) -> None:
    assert must_ask(b"PLAIN", b"", enforce_domain=enforce)
    subject = server()
    subject.receive(HELLO)
    with pytest.raises(AuthenticationRefused):
        subject.authenticated(verdict_without_handler(b"PLAIN", enforce_domain=enforce))
    assert subject.last_words == []  # the server closes and says nothing


@pytest.mark.parametrize("status,words", [(b"400", [b"\x05ERROR\x03400"]), (b"500", [b"\x05ERROR\x03500"]), (b"300", [])])
def test_plain_07_400_and_500_are_sent_300_is_not(status: bytes, words: list[bytes]) -> None:
    subject = server()
    subject.receive(HELLO)
    with pytest.raises(AuthenticationRefused) as caught:
        subject.authenticated(ZapReply(status, b"text that stays here"))
    assert caught.value.status == status
    assert subject.last_words == words
    assert not subject.complete


@pytest.mark.parametrize("name", [b"\x05ERROR", b"\x5eRROR"])
@pytest.mark.parametrize("status", [b"300", b"400", b"500"])
def test_plain_08_both_spellings_of_error_are_one(name: bytes, status: bytes) -> None:
    subject = client()
    subject.start()
    with pytest.raises(AuthenticationRefused) as caught:
        subject.receive(name + b"\x03" + status)
    assert caught.value.status == status


@pytest.mark.parametrize("body", [b"\x5eRROR", b"\x5eRROR\x04400", b"\x05ERROR\x04400"])
def test_plain_08_an_error_shorter_than_its_reason_is_malformed(body: bytes) -> None:
    subject = client()
    subject.start()
    with pytest.raises(HandshakeError) as caught:
        subject.receive(body)
    assert caught.value.code == 0x10000015


def test_plain_09_a_hello_under_the_name_of_welcome_is_refused() -> None:
    with pytest.raises(HandshakeError):
        server().receive(b"\x07WELCOME\x05admin\x06secret")


@pytest.mark.parametrize("size", [0, 1, 255])
def test_plain_10_credentials_of_up_to_255_octets(size: int) -> None:
    (hello,) = client(b"u" * size, b"\x00" * size).start()
    subject = server()
    subject.receive(hello)
    assert subject.zap_request is not None
    assert subject.zap_request.credentials == (b"u" * size, b"\x00" * size)


@pytest.mark.parametrize("username,password", [(b"u" * 256, b""), (b"", b"p" * 256)])
def test_plain_10_longer_credentials_are_refused_here(username: bytes, password: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        client(username, password)
