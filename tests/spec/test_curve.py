"""CURVE (RFC 25, RFC 26): one test per rule that concerns the mechanism alone; faults C1, C2, C6.

`initiate_by_hand` is a client written out with the ciphers only, so that it can lie wherever a test wants it to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nacl.bindings import crypto_box_afternm, crypto_box_beforenm, crypto_box_open_afternm

from core.errors import AuthenticationRefused, HandshakeError, RemoteProtocolError
from core.options import Options
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import COOKIE_LIFETIME_S, CookieKeys, key_pair
from core.zmtp.commands import encode_metadata
from core.zmtp.connection import Connection, State
from core.zmtp.frames import encode_frame
from core.zmtp.limits import ConnectionLimits
from core.zmtp.z85 import encode
from core.zmtp.zap import ZapRequest, must_ask, verdict_without_handler
from tests.core.security.test_curve import counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.frames import Message

METADATA = encode_metadata([(b"Socket-Type", b"DEALER"), (b"Identity", b"")])
CLIENT_PUBLIC, CLIENT_SECRET = key_pair(counting(1))
SERVER_PUBLIC, SERVER_SECRET = key_pair(counting(2))
OTHER_PUBLIC, OTHER_SECRET = key_pair(counting(3))
CRYPTOGRAPHIC, KEY_EXCHANGE, SEQUENCE = 0x11000001, 0x10000003, 0x10000002
MALFORMED_MESSAGE, MALFORMED_HELLO, MALFORMED_INITIATE, MALFORMED_WELCOME = 0x10000012, 0x10000013, 0x10000014, 0x10000017

# u-coordinates of few multiples: the shared key would be the same for every secret. Two of order 8, and the small ones.
_PRIME = 2**255 - 19
_ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_ORDER = [value.to_bytes(32, "little") for value in (0, 1, *_ORDER_8, _PRIME - 1, _PRIME, _PRIME + 1)]


def client(*, server_key: bytes = SERVER_PUBLIC, random_bytes: Callable[[int], bytes] | None = None) -> CurveClient:
    return CurveClient(
        METADATA,
        secret_key=CLIENT_SECRET,
        server_key=server_key,
        random_bytes=random_bytes or counting(10),
        metadata_bytes_max=8192,
    )


def server(*, keys: CookieKeys | None = None, zap: ZapRequest | None = None, seed: int = 50) -> CurveServer:
    return CurveServer(
        METADATA,
        secret_key=SERVER_SECRET,
        cookie_keys=keys or CookieKeys(counting(90), 0.0),
        random_bytes=counting(seed),
        zap=zap,
        metadata_bytes_max=8192,
    )


def greeted(keys: CookieKeys | None = None) -> tuple[CurveClient, CurveServer, bytes]:
    """Return a client, a server that sent WELCOME, and the client's INITIATE."""
    ours, theirs = client(), server(keys=keys)
    (welcome,) = theirs.receive(ours.start()[0])
    (initiate,) = ours.receive(welcome)
    return ours, theirs, initiate


def connected() -> tuple[CurveClient, CurveServer]:
    ours, theirs, initiate = greeted()
    ours.receive(theirs.receive(initiate)[0])
    return ours, theirs


def hello_by_hand(*, nonce: int = 1, zeros: bytes = bytes(64), padding: bytes = bytes(72)) -> bytes:
    transient, transient_secret = key_pair(counting(10))
    short = nonce.to_bytes(8, "big")
    key = crypto_box_beforenm(SERVER_PUBLIC, transient_secret)
    return b"\x05HELLO\x01\x00" + padding + transient + short + crypto_box_afternm(zeros, b"CurveZMQHELLO---" + short, key)


def initiate_by_hand(
    welcome: bytes,
    *,
    nonce: int = 2,
    client_key: bytes = CLIENT_PUBLIC,
    vouching_secret: bytes = CLIENT_SECRET,
    vouched: bytes | None = None,
    server_key: bytes = SERVER_PUBLIC,
    metadata: bytes = METADATA,
) -> bytes:
    transient, transient_secret = key_pair(counting(10))
    hello_key = crypto_box_beforenm(SERVER_PUBLIC, transient_secret)
    content = crypto_box_open_afternm(welcome[24:], b"WELCOME-" + welcome[8:24], hello_key)
    server_transient, cookie = content[:32], content[32:]
    vouch = crypto_box_afternm(
        (transient if vouched is None else vouched) + server_key,
        b"VOUCH---" + bytes(16),
        crypto_box_beforenm(server_transient, vouching_secret),
    )
    short = nonce.to_bytes(8, "big")
    key = crypto_box_beforenm(server_transient, transient_secret)
    box = crypto_box_afternm(client_key + bytes(16) + vouch + metadata, b"CurveZMQINITIATE" + short, key)
    return b"\x08INITIATE" + cookie + short + box


def refused(subject: CurveServer | CurveClient, body: bytes, code: int) -> None:
    with pytest.raises(HandshakeError) as caught:
        subject.receive(body)
    assert caught.value.code == code
    assert subject.last_words == []
    assert not subject.complete


def test_curve_01_hello_has_72_octets_of_padding_and_200_in_all() -> None:
    (hello,) = client().start()
    assert len(hello) == 200
    assert hello[:80] == b"\x05HELLO\x01\x00" + bytes(72)


@pytest.mark.parametrize("change", [slice(0, 199), slice(0, 6), slice(0, 112)])
def test_curve_02_hello_of_another_length(change: slice) -> None:
    refused(server(), hello_by_hand()[change], MALFORMED_HELLO)
    refused(server(), hello_by_hand() + b"\x00", MALFORMED_HELLO)


@pytest.mark.parametrize("version", [b"\x00\x00", b"\x01\x01", b"\x02\x00"])
def test_curve_02_hello_of_another_version(version: bytes) -> None:
    hello = hello_by_hand()
    refused(server(), hello[:6] + version + hello[8:], MALFORMED_HELLO)


def test_curve_02_hello_that_does_not_open() -> None:
    hello = hello_by_hand()
    refused(server(), hello[:-1] + bytes((hello[-1] ^ 1,)), CRYPTOGRAPHIC)
    (for_another,) = client(server_key=OTHER_PUBLIC).start()
    refused(server(), for_another, CRYPTOGRAPHIC)


def test_curve_02_hello_that_does_not_hold_zeros() -> None:
    refused(server(), hello_by_hand(zeros=bytes(63) + b"\x01"), CRYPTOGRAPHIC)


def test_curve_03_short_nonces_of_both_sides() -> None:
    ours, theirs = client(), server()
    (hello,) = ours.start()
    (initiate,) = ours.receive(theirs.receive(hello)[0])
    (ready,) = theirs.receive(initiate)
    ours.receive(ready)
    in_order = [hello[112:120], initiate[105:113], ours.seal(0, b"")[8:16], ours.seal(0, b"")[8:16]]
    assert [int.from_bytes(nonce, "big") for nonce in in_order] == [1, 2, 3, 4]
    in_order = [ready[6:14], theirs.seal(0, b"")[8:16], theirs.seal(0, b"")[8:16]]
    assert [int.from_bytes(nonce, "big") for nonce in in_order] == [1, 2, 3]


@pytest.mark.parametrize("hello,initiate,good", [(1, 2, True), (1, 9, True), (0, 1, True), (1, 1, False), (5, 4, False)])
def test_curve_03_the_nonce_of_initiate_is_greater_than_that_of_hello(hello: int, initiate: int, good: bool) -> None:
    subject = server()
    (welcome,) = subject.receive(hello_by_hand(nonce=hello))
    body = initiate_by_hand(welcome, nonce=initiate)
    if good:
        subject.receive(body)
        assert subject.complete
    else:
        refused(subject, body, SEQUENCE)


def test_curve_04_replayed_and_reordered_messages_are_refused_and_gaps_are_not() -> None:
    ours, theirs = connected()
    first, second, third = (ours.seal(0, b"%d" % n) for n in range(3))
    assert theirs.open(first) == (0, b"0")
    assert theirs.open(third) == (0, b"2")
    for replay in (first, second, third):
        with pytest.raises(RemoteProtocolError) as caught:
            theirs.open(replay)
        assert caught.value.code == SEQUENCE


def test_curve_04_a_forged_high_nonce_does_not_shut_out_what_follows() -> None:
    ours, theirs = connected()
    with pytest.raises(RemoteProtocolError):
        theirs.open(b"\x07MESSAGE" + b"\xff" * 8 + bytes(17))
    assert theirs.open(ours.seal(0, b"genuine")) == (0, b"genuine")


def test_curve_05_a_message_cannot_be_reflected() -> None:
    ours, theirs = connected()
    reflected = [ours.seal(0, b"to the server") for _ in range(5)][-1]
    with pytest.raises(RemoteProtocolError) as caught:
        ours.open(reflected)
    assert caught.value.code == CRYPTOGRAPHIC
    assert theirs.open(reflected) == (0, b"to the server")


def test_curve_06_long_nonces_are_fresh_random_octets() -> None:
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes((len(asked),)) * count

    ours, theirs = client(random_bytes=random_bytes), server()
    theirs._random_bytes = random_bytes
    hello = ours.start()[0]
    welcome = theirs.receive(hello)[0]
    ours.receive(welcome)
    # c', then s', half a cookie key, the nonces of cookie and WELCOME, then that of the vouch
    assert asked == [32, 32, 32, 16, 16, 16]
    assert welcome[8:24] == b"\x05" * 16


def test_curve_07_a_cookie_opens_once_and_only_where_it_was_given() -> None:
    keys = CookieKeys(counting(90), 0.0)
    _, theirs, initiate = greeted(keys)
    theirs.receive(initiate)
    other = server(keys=keys, seed=60)  # same secrets, same client, HELLO replayed
    other.receive(hello_by_hand())
    refused(other, initiate, CRYPTOGRAPHIC)
    again = server(keys=keys, seed=50)
    again.receive(hello_by_hand())
    damaged = initiate[:9] + bytes((initiate[9] ^ 1,)) + initiate[10:]
    refused(again, damaged, CRYPTOGRAPHIC)
    with pytest.raises(HandshakeError):
        again.receive(initiate)  # the one try is spent
    for subject in (theirs, other, again):  # the key of the cookie cannot be made again from anything in our memory later
        assert subject._cookie_half == b""


@pytest.mark.parametrize("age_s,good", [(0.0, True), (29.0, True), (COOKIE_LIFETIME_S, False), (1_000.0, False)])
def test_curve_07_a_cookie_goes_stale(age_s: float, good: bool) -> None:
    keys = CookieKeys(counting(90), 0.0)
    _, theirs, initiate = greeted(keys)
    keys.rotate(age_s / 2)
    keys.rotate(age_s)
    if good:
        theirs.receive(initiate)
        assert theirs.complete
    else:
        refused(theirs, initiate, KEY_EXCHANGE)


def test_curve_07_the_server_keeps_no_transient_key_between_welcome_and_initiate() -> None:
    _, theirs, _ = greeted()
    kept = {value for value in vars(theirs).values() if isinstance(value, bytes)}
    transient_secret = counting(50)(32)
    assert transient_secret not in kept
    assert theirs._key == b""


def test_curve_08_a_vouch_by_the_owner_of_the_key_is_taken() -> None:
    subject = server()
    subject.receive(initiate_by_hand(subject.receive(hello_by_hand())[0]))
    assert subject.complete
    assert subject.client_key == CLIENT_PUBLIC


@pytest.mark.parametrize(
    "lie,code",
    [
        ({"client_key": OTHER_PUBLIC}, CRYPTOGRAPHIC),  # somebody else's key
        ({"vouching_secret": OTHER_SECRET}, CRYPTOGRAPHIC),
        ({"vouched": OTHER_PUBLIC}, KEY_EXCHANGE),  # a vouch for another connection
        ({"server_key": OTHER_PUBLIC}, KEY_EXCHANGE),  # a vouch for another server: it is relayed to us
    ],
)
def test_curve_08_any_other_vouch_is_refused(lie: dict[str, bytes], code: int) -> None:
    subject = server()
    (welcome,) = subject.receive(hello_by_hand())
    body = initiate_by_hand(welcome, **lie)  # type: ignore[arg-type]
    refused(subject, body, code)
    assert subject.client_key == b""
    assert subject.peer_metadata == {}


def test_curve_09_metadata_travels_inside_the_boxes_only() -> None:
    ours, theirs, initiate = greeted()
    (ready,) = theirs.receive(initiate)
    for body in (initiate, ready):
        assert b"Socket-Type" not in body
        assert b"DEALER" not in body
    ours.receive(ready)
    assert ours.peer_metadata == {b"socket-type": b"DEALER", b"identity": b""}
    assert theirs.peer_metadata == {**ours.peer_metadata, b"curve-key": CLIENT_PUBLIC}


def in_traffic(mechanism: CurveServer) -> Connection:
    subject = Connection(b"DEALER", mechanism, ConnectionLimits(), lambda: None)
    subject.state = State.TRAFFIC
    return subject


@pytest.mark.parametrize("outer", [0, 4])
def test_curve_10_11_a_message_goes_out_as_plain_frames_and_comes_in_with_or_without_command_bit(outer: int) -> None:
    ours, theirs = connected()
    sender = Connection(b"DEALER", ours, ConnectionLimits(), lambda: None)
    octets = sender.translate(encode_frame(b"a", more=True) + encode_frame(bytes(300)))
    assert octets[0] == 0
    assert octets[2 + octets[1]] == 2
    receiver = in_traffic(theirs)
    toggled = bytes((outer,)) + octets[1 : 2 + octets[1]] + bytes((outer | 2,)) + octets[3 + octets[1] :]
    messages: list[Message] = [*receiver.receive(toggled)]
    assert receiver.failure is None
    assert messages == [[b"a", bytes(300)]]


def test_curve_12_commands_have_inner_flag_02_and_the_bits_above_mean_nothing() -> None:
    ours, theirs = connected()
    assert ours.seal(2, b"\x04PING\x00\x00") != b""
    assert theirs.open(ours.seal(3, b"x")) == (3, b"x")
    key, nonce = ours._key, (100).to_bytes(8, "big")
    reserved = crypto_box_afternm(b"\xfdx", b"CurveZMQMESSAGEC" + nonce, key)
    assert theirs.open(b"\x07MESSAGE" + nonce + reserved) == (1, b"x")


@pytest.mark.parametrize(
    "body,code",
    [
        (b"", MALFORMED_MESSAGE),
        (b"\x07MESSAGE", MALFORMED_MESSAGE),
        (b"\x07MESSAGE" + b"\x00" * 7 + b"\x09" + bytes(16), MALFORMED_MESSAGE),  # 32 octets: too short for the flags
        (b"\x07MESSAGE" + b"\x00" * 7 + b"\x09" + bytes(17), CRYPTOGRAPHIC),
        (b"\x05READY" + bytes(40), MALFORMED_MESSAGE),
        (b"\x04PING\x00\x00" + bytes(40), MALFORMED_MESSAGE),
        (b"plain text of more than thirty-three octets", MALFORMED_MESSAGE),
    ],
)
def test_curve_13_what_is_no_message_or_does_not_open_ends_the_connection(body: bytes, code: int) -> None:
    _, theirs = connected()
    with pytest.raises(RemoteProtocolError) as caught:
        theirs.open(body)
    assert caught.value.code == code
    assert theirs.last_words == []  # a server never says ERROR to a bad MESSAGE


@pytest.mark.parametrize("status", [b"300", b"400", b"500"])
def test_curve_14_a_client_that_gets_error_stops(status: bytes) -> None:
    subject = client()
    subject.start()
    with pytest.raises(AuthenticationRefused) as caught:
        subject.receive(b"\x05ERROR\x03" + status)
    assert caught.value.status == status
    assert subject.last_words == []


@pytest.mark.parametrize(
    "domain,enforce,asks,lets_in",
    [(b"", False, True, True), (b"global", False, True, True), (b"global", True, True, False), (b"", True, False, True)],
)
def test_curve_15_who_is_asked_and_what_happens_without_a_handler(domain: bytes, enforce: bool, asks: bool, lets_in: bool) -> None:
    assert must_ask(b"CURVE", domain, enforce_domain=enforce) is asks
    if asks:
        assert verdict_without_handler(b"CURVE", enforce_domain=enforce).accepted is lets_in


def test_curve_15_the_credential_is_the_raw_key() -> None:
    subject = server(zap=ZapRequest(domain=b"global", address=b"::1"))
    assert subject.receive(initiate_by_hand(subject.receive(hello_by_hand())[0])) == []
    assert subject.zap_request == ZapRequest(b"CURVE", b"global", b"::1", credentials=(CLIENT_PUBLIC,))


def test_curve_16_transient_keys_are_made_for_each_connection() -> None:
    source = counting(10)
    one, other = client(random_bytes=source), client(random_bytes=source)
    assert one.start()[0][80:112] != other.start()[0][80:112]


def test_curve_17_keys_are_taken_raw_or_as_z85() -> None:
    for key in (SERVER_PUBLIC, encode(SERVER_PUBLIC), encode(SERVER_PUBLIC).decode()):
        assert Options(curve_serverkey=key).curve_serverkey == SERVER_PUBLIC


@pytest.mark.parametrize("size", [0, 100, 256])
def test_c1_short_initiate_is_refused_before_anything_is_opened(size: int) -> None:
    _, theirs, initiate = greeted()
    refused(theirs, b"\x08INITIATE" + initiate[9:size], MALFORMED_INITIATE)


def test_c1_oversize_metadata_inside_the_box() -> None:
    subject = server()
    (welcome,) = subject.receive(hello_by_hand())
    refused(subject, initiate_by_hand(welcome, metadata=bytes(8193)), MALFORMED_INITIATE)
    subject = server()
    (welcome,) = subject.receive(hello_by_hand())
    lying = b"\x0bSocket-Type\x7f\xff\xff\xffDEALER"
    refused(subject, initiate_by_hand(welcome, metadata=lying), 0x10000018)


@pytest.mark.parametrize("length", [8, 167, 169])
def test_c1_welcome_of_another_length(length: int) -> None:
    subject = client()
    (hello,) = subject.start()
    (welcome,) = server().receive(hello)
    refused(subject, (welcome + b"\x00")[:length], MALFORMED_WELCOME)


def test_c2_hello_and_initiate_are_taken_once() -> None:
    _, theirs, initiate = greeted()
    with pytest.raises(HandshakeError):
        theirs.receive(hello_by_hand())
    _, theirs, initiate = greeted()
    theirs.receive(initiate)
    for replay in (hello_by_hand(), initiate):
        with pytest.raises(HandshakeError):
            theirs.receive(replay)


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: point.hex()[:8])
def test_c6_low_order_keys_of_a_client_are_refused(point: bytes) -> None:
    hello = hello_by_hand()
    refused(server(), hello[:80] + point + hello[112:], KEY_EXCHANGE)
    subject = server()
    (welcome,) = subject.receive(hello)
    refused(subject, initiate_by_hand(welcome, client_key=point), KEY_EXCHANGE)


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: point.hex()[:8])
def test_c6_low_order_keys_of_a_server_are_refused(point: bytes) -> None:
    subject = client()
    (hello,) = subject.start()
    nonce = bytes(16)
    box = crypto_box_afternm(point + bytes(96), b"WELCOME-" + nonce, crypto_box_beforenm(hello[80:112], SERVER_SECRET))
    refused(subject, b"\x07WELCOME" + nonce + box, KEY_EXCHANGE)
