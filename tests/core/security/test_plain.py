from __future__ import annotations

import pytest

from core.errors import AuthenticationRefused, HandshakeError, LocalProtocolError, RemoteProtocolError
from core.security.plain import PlainClient, PlainServer
from core.zmtp.commands import command, encode_metadata
from core.zmtp.mechanism import PeerError
from core.zmtp.zap import ZapReply, ZapRequest
from tests.scenes.damaged_commands import mutations

METADATA_MAX = 64
HELLO = b"\x05HELLO\x05admin\x06secret"
WELCOME = b"\x07WELCOME"
INITIATE = b"\x08INITIATE" + encode_metadata([(b"Socket-Type", b"DEALER"), (b"User-Id", b"root")])
READY = b"\x05READY" + encode_metadata([(b"Socket-Type", b"ROUTER")])
ERROR = b"\x05ERROR\x03400"
ACCEPTED = ZapReply(b"200", b"OK", b"admin", {b"Department": b"7", b"identity": b"other"})
# Everything either side could be sent, and what it makes of it in each state.
COMMANDS = {"HELLO": HELLO, "WELCOME": WELCOME, "INITIATE": INITIATE, "READY": READY, "PING": b"\x04PING\0\0", "": b"\x00"}


def client(username: bytes = b"admin", password: bytes = b"secret") -> PlainClient:
    return PlainClient(INITIATE[9:], username=username, password=password, metadata_bytes_max=METADATA_MAX)


def server() -> PlainServer:
    return PlainServer(READY[6:], zap=ZapRequest(domain=b"global", address=b"127.0.0.1"), metadata_bytes_max=METADATA_MAX)


def client_in(state: str) -> PlainClient:
    subject = client()
    if state != "new":
        subject.start()
    if state in ("welcomed", "complete"):
        subject.receive(WELCOME)
    if state == "complete":
        subject.receive(READY)
    return subject


def server_in(state: str) -> PlainServer:
    subject = server()
    subject.start()
    if state != "new":
        subject.receive(HELLO)
    if state in ("welcomed", "complete"):
        subject.authenticated(ACCEPTED)
    if state == "complete":
        subject.receive(INITIATE)
    return subject


def test_two_machines_back_to_back() -> None:
    ours, theirs = client(), server()
    assert theirs.start() == []
    (hello,) = ours.start()
    assert theirs.receive(hello) == []
    assert theirs.zap_request == ZapRequest(b"PLAIN", b"global", b"127.0.0.1", credentials=(b"admin", b"secret"))
    (welcome,) = theirs.authenticated(ACCEPTED)
    assert theirs.zap_request is None
    (initiate,) = ours.receive(welcome)
    (ready,) = theirs.receive(initiate)
    assert not ours.complete
    assert theirs.complete
    assert ours.receive(ready) == []
    assert ours.complete
    assert theirs.user_id == "admin"
    assert ours.user_id is None
    assert ours.peer_metadata == {b"socket-type": b"ROUTER"}
    # The authenticator's properties are added to the peer's; neither may replace the identity of the other.
    assert theirs.peer_metadata == {b"socket-type": b"DEALER", b"department": b"7", b"user-id": b"admin"}
    assert not ours.encrypts
    assert (ours.as_server, theirs.as_server) == (False, True)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("state,accepts", [("new", ""), ("started", "WELCOME"), ("welcomed", "READY"), ("complete", "")])
def test_client_takes_each_command_in_its_turn_only(state: str, accepts: str, name: str) -> None:
    subject = client_in(state)
    if name == accepts and accepts:
        assert subject.receive(COMMANDS[name]) == ([INITIATE] if name == "WELCOME" else [])
        return
    with pytest.raises(HandshakeError) as caught:
        subject.receive(COMMANDS[name])
    assert caught.value.code == 0x10000001
    assert subject.last_words == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("state,accepts", [("new", "HELLO"), ("asking", ""), ("welcomed", "INITIATE"), ("complete", "")])
def test_server_takes_each_command_in_its_turn_only(state: str, accepts: str, name: str) -> None:
    subject = server_in(state)
    if name == accepts and accepts:
        assert subject.receive(COMMANDS[name]) == ([READY] if name == "INITIATE" else [])
        return
    with pytest.raises(HandshakeError) as caught:
        subject.receive(COMMANDS[name])
    assert caught.value.code == 0x10000001


@pytest.mark.parametrize("state", ["started", "welcomed"])
@pytest.mark.parametrize("error", [ERROR, b"\x5eRROR\x03400"])
def test_client_takes_an_error_in_either_spelling_at_any_time(state: str, error: bytes) -> None:
    with pytest.raises(AuthenticationRefused) as caught:
        client_in(state).receive(error)
    assert caught.value.status == b"400"


def test_server_takes_an_error_for_the_refusal_it_is() -> None:
    with pytest.raises(PeerError):
        server_in("welcomed").receive(b"\x05ERROR\x02no")


def test_a_reply_nobody_asked_for_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        server().authenticated(ACCEPTED)


@pytest.mark.parametrize("size,fits", [(METADATA_MAX, True), (METADATA_MAX + 1, False)])
def test_metadata_is_measured_before_it_is_read(size: int, fits: bool) -> None:
    """PLAIN-05."""
    metadata = encode_metadata([(b"X-Fill", bytes(size - 11))])
    assert len(metadata) == size
    if fits:
        client_in("welcomed").receive(command(b"READY", metadata))
        server_in("welcomed").receive(command(b"INITIATE", metadata))
        return
    for subject, name in ((client_in("welcomed"), b"READY"), (server_in("welcomed"), b"INITIATE")):
        with pytest.raises(HandshakeError) as caught:
            subject.receive(command(name, metadata))
        assert caught.value.code == 0x10000018
        assert not subject.complete


@pytest.mark.parametrize("state", ["new", "asking", "welcomed"])
def test_damaged_commands_raise_protocol_errors_only_at_the_server(state: str) -> None:
    for seed, body in enumerate((HELLO, INITIATE, ERROR)):
        for damaged in mutations(body, seed, 2_000):
            subject = server_in(state)
            try:
                subject.receive(damaged)
            except RemoteProtocolError:
                assert not subject.complete


@pytest.mark.parametrize("state", ["started", "welcomed"])
def test_damaged_commands_raise_protocol_errors_only_at_the_client(state: str) -> None:
    for seed, body in enumerate((WELCOME, READY, ERROR, b"\x5eRROR\x03400")):
        for damaged in mutations(body, seed, 2_000):
            subject = client_in(state)
            try:
                subject.receive(damaged)
            except RemoteProtocolError:
                assert not subject.complete
