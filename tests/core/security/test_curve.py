from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from nacl.public import Box, PrivateKey, PublicKey

from core.constants import ProtocolErrorCode
from core.errors import AuthenticationRefused, HandshakeError, LocalProtocolError, RemoteProtocolError
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import CookieKeys, key_pair, public_key
from core.zmtp.commands import command, encode_metadata
from core.zmtp.frames import encode_message
from core.zmtp.zap import ZapReply, ZapRequest
from tests.scenes.damaged_commands import mutations

if TYPE_CHECKING:
    from collections.abc import Callable

METADATA_MAX = 64
CLIENT_METADATA = encode_metadata([(b"Socket-Type", b"DEALER"), (b"User-Id", b"me")])
SERVER_METADATA = encode_metadata([(b"Socket-Type", b"ROUTER")])
ACCEPTED = ZapReply(b"200", b"OK", b"alice", {b"Department": b"7", b"Socket-Type": b"PUB"})
CLIENT_SECRET = bytes(range(1, 33))
SERVER_SECRET = bytes(range(101, 133))
CLIENT_PUBLIC = public_key(CLIENT_SECRET)
SERVER_PUBLIC = public_key(SERVER_SECRET)


def counting(start: int) -> Callable[[int], bytes]:
    """Return octets that are as good as random to the code and the same in each run."""
    state = [start]

    def random_bytes(count: int) -> bytes:
        state[0] += 1
        return bytes((state[0] * 7 + n) % 256 for n in range(count))

    return random_bytes


def client(start: int = 0) -> CurveClient:
    return CurveClient(
        CLIENT_METADATA,
        secret_key=CLIENT_SECRET,
        public_key=CLIENT_PUBLIC,
        server_key=SERVER_PUBLIC,
        random_bytes=counting(start),
        metadata_bytes_max=METADATA_MAX,
    )


def server(*, zap: ZapRequest | None = None, keys: CookieKeys | None = None, start: int = 100) -> CurveServer:
    return CurveServer(
        SERVER_METADATA,
        secret_key=SERVER_SECRET,
        cookie_keys=keys or CookieKeys(counting(200), 0.0),
        random_bytes=counting(start),
        zap=zap,
        metadata_bytes_max=METADATA_MAX,
    )


def connected() -> tuple[CurveClient, CurveServer]:
    ours, theirs = client(), server()
    (hello,) = ours.start()
    (welcome,) = theirs.receive(hello)
    (initiate,) = ours.receive(welcome)
    (ready,) = theirs.receive(initiate)
    ours.receive(ready)
    return ours, theirs


def conversation() -> dict[str, bytes]:
    """Every command of one handshake, for fixtures and damage."""
    ours, theirs = client(), server()
    (hello,) = ours.start()
    (welcome,) = theirs.receive(hello)
    (initiate,) = ours.receive(welcome)
    (ready,) = theirs.receive(initiate)
    return {"HELLO": hello, "WELCOME": welcome, "INITIATE": initiate, "READY": ready}


def client_in(state: str) -> CurveClient:
    subject, said = client(), conversation()
    if state != "new":
        subject.start()
    if state in ("welcomed", "complete"):
        subject.receive(said["WELCOME"])
    if state == "complete":
        subject.receive(said["READY"])
    return subject


def server_in(state: str) -> CurveServer:
    subject, said = server(zap=ZapRequest() if state == "asking" else None), conversation()
    subject.start()
    if state != "new":
        subject.receive(said["HELLO"])
    if state in ("asking", "complete"):
        subject.receive(said["INITIATE"])
    return subject


def test_two_machines_back_to_back() -> None:
    ours, theirs = client(), server(zap=ZapRequest(domain=b"global", address=b"127.0.0.1"))
    assert theirs.start() == []
    (hello,) = ours.start()
    (welcome,) = theirs.receive(hello)
    (initiate,) = ours.receive(welcome)
    assert theirs.receive(initiate) == []
    assert theirs.zap_request == ZapRequest(b"CURVE", b"global", b"127.0.0.1", credentials=(CLIENT_PUBLIC,))
    assert not theirs.complete
    (ready,) = theirs.authenticated(ACCEPTED)
    assert theirs.zap_request is None
    assert theirs.complete
    assert not ours.complete
    assert ours.receive(ready) == []
    assert ours.complete
    assert ours.peer_metadata == {b"socket-type": b"ROUTER"}
    proved = {b"user-id": b"alice", b"curve-key": CLIENT_PUBLIC}
    assert theirs.peer_metadata == {b"socket-type": b"DEALER", b"department": b"7", **proved}
    assert (ours.user_id, theirs.user_id) == (None, "alice")
    assert theirs.client_key == CLIENT_PUBLIC
    for sender, receiver in ((ours, theirs), (theirs, ours)):
        for flags in range(4):
            for body in (b"", b"x", bytes(70_000)):
                sealed = sender.seal(flags, body)
                assert len(sealed) == 33 + len(body)
                assert receiver.open(sealed) == (flags, body)


def test_without_a_judge_ready_follows_at_once() -> None:
    ours, theirs = connected()
    assert ours.complete
    assert theirs.complete
    assert theirs.zap_request is None
    assert theirs.user_id is None


@pytest.mark.parametrize("status,words", [(b"300", []), (b"400", [b"\x05ERROR\x03400"]), (b"500", [b"\x05ERROR\x03500"])])
def test_a_refused_client(status: bytes, words: list[bytes]) -> None:
    subject = server_in("asking")
    with pytest.raises(AuthenticationRefused) as caught:
        subject.authenticated(ZapReply(status))
    assert caught.value.status == status
    assert subject.last_words == words
    assert not subject.complete


def test_known_answers_computed_independently() -> None:
    """Take each command apart with another interface to the ciphers, by the offsets of the layout table."""
    said = conversation()
    hello, welcome, initiate, ready = said.values()

    transient_secret = counting(0)(32)
    transient = PublicKey(public_key(transient_secret))
    to_server = Box(PrivateKey(transient_secret), PublicKey(SERVER_PUBLIC))
    assert hello[:80] == b"\x05HELLO\x01\x00" + bytes(72)
    assert hello[80:112] == bytes(transient)
    assert hello[112:120] == (1).to_bytes(8, "big")
    assert to_server.decrypt(hello[120:], b"CurveZMQHELLO---" + hello[112:120]) == bytes(64)

    assert welcome[:8] == b"\x07WELCOME"
    content = to_server.decrypt(welcome[24:], b"WELCOME-" + welcome[8:24])
    server_transient, cookie = PublicKey(content[:32]), content[32:]
    assert bytes(server_transient) == public_key(counting(100)(32))
    assert len(cookie) == 96

    assert initiate[:9] == b"\x08INITIATE"
    assert initiate[9:105] == cookie
    assert initiate[105:113] == (2).to_bytes(8, "big")
    session = Box(PrivateKey(transient_secret), server_transient)
    content = session.decrypt(initiate[113:], b"CurveZMQINITIATE" + initiate[105:113])
    assert content[:32] == CLIENT_PUBLIC
    assert content[128:] == CLIENT_METADATA
    vouch = Box(PrivateKey(CLIENT_SECRET), server_transient).decrypt(content[48:128], b"VOUCH---" + content[32:48])
    assert vouch == bytes(transient) + SERVER_PUBLIC

    assert ready[:6] == b"\x05READY"
    assert ready[6:14] == (1).to_bytes(8, "big")
    assert session.decrypt(ready[14:], b"CurveZMQREADY---" + ready[6:14]) == SERVER_METADATA

    ours, theirs = connected()
    message = ours.seal(1, b"body")
    assert message[:16] == b"\x07MESSAGE" + (3).to_bytes(8, "big")
    assert session.decrypt(message[16:], b"CurveZMQMESSAGEC" + message[8:16]) == b"\x01body"
    message = theirs.seal(2, b"\x04PING\x00\x00")
    assert message[:16] == b"\x07MESSAGE" + (2).to_bytes(8, "big")
    assert session.decrypt(message[16:], b"CurveZMQMESSAGES" + message[8:16]) == b"\x02\x04PING\x00\x00"


@pytest.mark.parametrize("name", ["HELLO", "WELCOME", "INITIATE", "READY", "PING", ""])
@pytest.mark.parametrize("state,accepts", [("new", None), ("started", "WELCOME"), ("welcomed", "READY"), ("complete", None)])
def test_client_takes_each_command_in_its_turn_only(state: str, accepts: str | None, name: str) -> None:
    body = {**conversation(), "PING": b"\x04PING\0\0", "": b"\x00"}[name]
    subject = client_in(state)
    if name == accepts:
        subject.receive(body)
        assert subject.complete is (name == "READY")
        return
    with pytest.raises(HandshakeError) as caught:
        subject.receive(body)
    assert caught.value.code == 0x10000001
    assert subject.last_words == []  # a client never says ERROR


@pytest.mark.parametrize("name", ["HELLO", "WELCOME", "INITIATE", "READY", "PING", "ERROR", ""])
@pytest.mark.parametrize("state,accepts", [("new", "HELLO"), ("greeted", "INITIATE"), ("asking", None), ("complete", None)])
def test_server_takes_each_command_in_its_turn_only(state: str, accepts: str | None, name: str) -> None:
    body = {**conversation(), "PING": b"\x04PING\0\0", "ERROR": b"\x05ERROR\x03400", "": b"\x00"}[name]
    subject = server_in(state)
    if name == accepts:
        (answer,) = subject.receive(body)
        assert answer.startswith(b"\x07WELCOME" if name == "HELLO" else b"\x05READY")
        return
    with pytest.raises(HandshakeError) as caught:
        subject.receive(body)
    assert caught.value.code == 0x10000001
    assert subject.last_words == []


@pytest.mark.parametrize("state", ["started", "welcomed"])
def test_client_takes_an_error_as_refusal(state: str) -> None:
    with pytest.raises(AuthenticationRefused) as caught:
        client_in(state).receive(b"\x05ERROR\x03400")
    assert caught.value.status == b"400"


def test_metadata_is_measured_before_it_is_decrypted() -> None:
    ours = CurveClient(
        bytes(METADATA_MAX + 1),
        secret_key=CLIENT_SECRET,
        server_key=SERVER_PUBLIC,
        random_bytes=counting(0),
        metadata_bytes_max=METADATA_MAX,
    )
    theirs = server()
    (welcome,) = theirs.receive(ours.start()[0])
    (initiate,) = ours.receive(welcome)
    with pytest.raises(HandshakeError) as caught:
        theirs.receive(initiate)
    assert caught.value.code == 0x10000014
    with pytest.raises(HandshakeError) as caught:
        client_in("welcomed").receive(b"\x05READY" + bytes(24 + METADATA_MAX + 1))
    assert caught.value.code == 0x10000016


def test_the_peers_metadata_is_checked_inside_the_box() -> None:
    for metadata in (b"\x00", CLIENT_METADATA + b"\x01"):
        ours = CurveClient(
            metadata,
            secret_key=CLIENT_SECRET,
            server_key=SERVER_PUBLIC,
            random_bytes=counting(0),
            metadata_bytes_max=METADATA_MAX,
        )
        theirs = server()
        (initiate,) = ours.receive(theirs.receive(ours.start()[0])[0])
        with pytest.raises(HandshakeError) as caught:
            theirs.receive(initiate)
        assert caught.value.code == 0x10000018
        assert not theirs.complete


@pytest.mark.parametrize(
    "changes",
    [
        {"secret_key": b""},
        {"secret_key": bytes(31)},
        {"server_key": bytes(33)},
        {"public_key": SERVER_PUBLIC},  # of another pair
    ],
)
def test_wrong_keys_of_our_own(changes: dict[str, bytes]) -> None:
    keys = {"secret_key": CLIENT_SECRET, "server_key": SERVER_PUBLIC, "public_key": CLIENT_PUBLIC, **changes}
    with pytest.raises(LocalProtocolError):
        CurveClient(b"", random_bytes=counting(0), metadata_bytes_max=METADATA_MAX, **keys)


def test_a_server_key_of_low_order_is_our_own_fault() -> None:
    subject = CurveClient(b"", secret_key=CLIENT_SECRET, server_key=bytes(32), random_bytes=counting(0), metadata_bytes_max=METADATA_MAX)
    with pytest.raises(LocalProtocolError):
        subject.start()


def test_a_server_key_of_the_wrong_length() -> None:
    with pytest.raises(LocalProtocolError):
        CurveServer(
            b"",
            secret_key=bytes(31),
            cookie_keys=CookieKeys(counting(0), 0.0),
            random_bytes=counting(0),
            zap=None,
            metadata_bytes_max=METADATA_MAX,
        )


def test_a_reply_nobody_asked_for_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        server_in("complete").authenticated(ACCEPTED)


def test_nonces_end_before_they_repeat() -> None:
    ours, theirs = connected()
    ours._sent = 2**64 - 2
    assert theirs.open(ours.seal(0, b"last")) == (0, b"last")
    with pytest.raises(LocalProtocolError):
        ours.seal(0, b"one too many")
    with pytest.raises(RemoteProtocolError):  # nothing is greater than the last nonce
        theirs.open(b"\x07MESSAGE" + bytes(8) + bytes(17))


def test_nonces_of_frames_end_before_they_repeat() -> None:
    ours, theirs = connected()
    ours._sent = 2**64 - 2
    frames: list[bytes] = []
    octets = ours.seal_frames(encode_message([b""]))
    assert theirs.open_frames(octets, 0, 1000, frames) == len(octets)
    with pytest.raises(LocalProtocolError, match="used up"):
        ours.seal_frames(encode_message([b""]))


def test_no_two_frames_have_one_nonce_whatever_seals_them() -> None:
    ours, _ = connected()
    octets = ours.seal_frames(encode_message([b"a", b"b"])) + ours.seal_frames(encode_message([b"c"])) + b"\x00\x22" + ours.seal(0, b"d")
    nonces = [int.from_bytes(octets[at + 10 : at + 18], "big") for at in range(0, len(octets), 36)]
    assert [after - before for before, after in pairwise(nonces)] == [1, 1, 1]


@pytest.mark.parametrize(("size", "header"), [(222, b"\x00\xff"), (223, b"\x02" + (256).to_bytes(8, "big"))])
def test_zmtp_22_an_outer_frame_has_the_form_of_its_size(size: int, header: bytes) -> None:
    octets = connected()[0].seal_frames(encode_message([bytes(size)]))
    assert octets.startswith(header + b"\x07MESSAGE")
    assert len(octets) == len(header) + size + 33


def test_curve_03_a_first_nonce_may_be_zero_and_a_message_has_a_greater_one_than_ready() -> None:
    ours, theirs = client(), server()
    ours._sent = -1
    (hello,) = ours.start()
    assert hello[112:120] == bytes(8)
    (initiate,) = ours.receive(theirs.receive(hello)[0])
    ours.receive(theirs.receive(initiate)[0])
    assert ours.complete
    theirs._sent = 0
    with pytest.raises(RemoteProtocolError) as caught:
        ours.open(theirs.seal(0, b"the nonce of READY"))
    assert caught.value.code == ProtocolErrorCode.ZMTP_INVALID_SEQUENCE


def test_c3_the_work_of_a_command_is_that_of_the_state_and_none_for_a_wrong_size() -> None:
    said = conversation()
    new, greeted, complete = server_in("new"), server_in("greeted"), server_in("complete")
    assert [new.work(said["HELLO"]), new.work(said["HELLO"][1:]), new.work(said["INITIATE"])] == [2, 0, 0]
    assert [greeted.work(bytes(size)) for size in (257, 257 + METADATA_MAX, 258 + METADATA_MAX)] == [3, 3, 0]
    assert [complete.work(said["HELLO"]), complete.work(said["INITIATE"])] == [0, 0]


def test_a_secret_key_of_another_length_is_refused_also_without_its_public_key() -> None:
    for length in (0, 31, 33):
        with pytest.raises(LocalProtocolError, match=f"secret key of {length} bytes"):
            CurveClient(b"", secret_key=bytes(length), server_key=SERVER_PUBLIC, random_bytes=counting(0), metadata_bytes_max=0)


def test_curve_07_a_handshake_that_begins_after_the_keys_of_cookies_have_changed_completes() -> None:
    keys = CookieKeys(counting(200), 0.0, lifetime_s=60.0)
    keys.rotate(40.0)
    ours, theirs = client(), server(keys=keys)
    (initiate,) = ours.receive(theirs.receive(ours.start()[0])[0])
    keys.rotate(80.0)
    ours.receive(theirs.receive(initiate)[0])
    assert ours.complete
    assert theirs.complete


def test_curve_16_the_client_keeps_no_transient_secret_after_welcome() -> None:
    ours, said = client(), conversation()
    ours.start()
    transient, hello_key = ours._transient_secret, ours._hello_key
    assert len(transient) == len(hello_key) == 32
    ours.receive(said["WELCOME"])
    assert {transient, hello_key}.isdisjoint(value for value in vars(ours).values() if isinstance(value, bytes))


def test_key_pairs() -> None:
    public, secret = key_pair(counting(5))
    assert secret == counting(5)(32)
    assert public == public_key(secret)
    with pytest.raises(LocalProtocolError):
        public_key(b"short")


def test_cookie_keys_serve_half_their_life_and_open_for_as_long_again() -> None:
    """CURVE-07."""
    keys = CookieKeys(counting(0), 10.0, lifetime_s=60.0)
    half = bytes(32)
    first = keys.cookie_key(0, half)
    assert first is not None
    assert len(first) == 32
    assert first != keys.cookie_key(0, b"\x01" + bytes(31))
    keys.rotate(39.9)
    assert keys.generation == 0
    keys.rotate(40.0)
    assert keys.generation == 1
    assert keys.cookie_key(0, half) == first
    assert keys.cookie_key(1, half) not in (None, first)
    keys.rotate(70.0)
    assert keys.cookie_key(0, half) is None
    assert keys.cookie_key(1, half) is not None
    assert keys.cookie_key(3, half) is None
    keys.rotate(1_000.0)  # after a long pause nothing old is left
    assert keys.generation == 3
    assert keys.cookie_key(2, half) is None


def test_sealed_nonces_count_up_by_one() -> None:
    for side in connected():
        nonces = [int.from_bytes(side.seal(0, b"")[8:16], "big") for _ in range(5)]
        assert all(after == before + 1 for before, after in pairwise(nonces))


@pytest.mark.parametrize("state", ["new", "greeted", "asking", "complete"])
def test_damaged_commands_raise_protocol_errors_only_at_the_server(state: str) -> None:
    keys = CookieKeys(counting(200), 0.0)
    for seed, body in enumerate((*conversation().values(), command(b"ERROR", b"\x03400"))):
        for damaged in mutations(body, seed, 300):
            subject = server_in(state) if state != "new" else server(keys=keys)
            before = subject.complete
            try:
                subject.receive(damaged)
            except RemoteProtocolError:
                assert subject.complete is before


@pytest.mark.parametrize("state", ["started", "welcomed"])
def test_damaged_commands_raise_protocol_errors_only_at_the_client(state: str) -> None:
    for seed, body in enumerate((*conversation().values(), command(b"ERROR", b"\x03400"))):
        for damaged in mutations(body, seed, 300):
            subject = client_in(state)
            try:
                subject.receive(damaged)
            except RemoteProtocolError:
                assert not subject.complete


def test_damaged_messages_raise_protocol_errors_only_and_spoil_nothing() -> None:
    ours, theirs = connected()
    for seed, frame in enumerate((b"", b"x", b"frame of some length", bytes(300))):
        genuine = ours.seal(1, frame)
        for damaged in mutations(genuine, seed, 2_000):
            if damaged != genuine:
                with pytest.raises(RemoteProtocolError):
                    theirs.open(damaged)
        assert theirs.open(genuine) == (1, frame)
