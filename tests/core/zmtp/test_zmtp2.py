"""Framing of ZMTP 1.0, properties of 2.0 and 1.0 peers, and two machines of any versions back to back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import HandshakeError, RemoteProtocolError
from core.security.plain import PlainClient
from core.zmtp.commands import encode_metadata
from core.zmtp.connection import ACCEPTS, Connection, State
from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_command, encode_message
from core.zmtp.greeting import Generation, StagedGreeting, greeting
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism
from core.zmtp.zmtp2 import Zmtp1Decoder, zmtp1_frames, zmtp1_identity, zmtp2_greeting, zmtp2_tail

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
FRAMES = st.binary(max_size=20) | st.sampled_from([0, 252, 253, 254, 255, 256, 300]).map(bytes)


def decoder(**limits: int) -> Zmtp1Decoder:
    return Zmtp1Decoder(Decoder(on_command=lambda _: None, **limits))


def connection(oldest: int, socket_type: bytes = b"DEALER", identity: bytes = b"") -> Connection:
    metadata = encode_metadata([(b"Socket-Type", socket_type)])
    mechanism = NullMechanism(metadata, metadata_bytes_max=1000)
    return Connection(socket_type, mechanism, ConnectionLimits(), lambda: None, oldest=oldest, identity=identity)


@pytest.mark.parametrize(
    ("size", "header"), [(0, "01 00"), (253, "FE 00"), (254, "FF 00000000000000FF 00"), (70_000, "FF 0000000000011171 00")]
)
def test_zmtp_19_the_length_counts_the_flags(size: int, header: str) -> None:
    assert zmtp1_frames(encode_message([bytes(size)])) == bytes.fromhex(header) + bytes(size)


@given(st.lists(st.lists(FRAMES, min_size=1, max_size=4), max_size=4), st.integers(1, 400))
def test_zmtp_19_what_is_turned_is_turned_back_however_it_is_split(messages: list[list[bytes]], step: int) -> None:
    octets = zmtp1_frames(b"".join(encode_message(frames) for frames in messages))
    made = decoder()
    heard = [message for at in range(0, len(octets), step) for message in made.feed(octets[at : at + step])]
    assert heard == messages


def test_zmtp_19_a_long_length_may_be_short_and_reserved_flags_are_not_looked_at() -> None:
    assert [*decoder().feed(bytes.fromhex("FF 0000000000000002 FF 61 02 FE 62"))] == [[b"a", b"b"]]


@pytest.mark.parametrize(
    "bad", ["00", "FF 0000000000000000", "FF FFFFFFFFFFFFFFFF 00", "FF 0100000000000002 00", "FF 0000000100000000 00", "66 00"]
)
def test_zmtp_19_zmtp_73_a_fault_is_found_on_the_header_and_what_came_before_is_heard(bad: str) -> None:
    clear = Decoder(on_command=lambda _: None, frame_bytes_max=100, message_bytes_max=10**6)
    assert [*Zmtp1Decoder(clear).feed(b"\x02\x00a" + bytes.fromhex(bad))] == [[b"a"]]
    assert isinstance(clear.failure, RemoteProtocolError)


@pytest.mark.parametrize("kind", ACCEPTS)
@pytest.mark.parametrize("identity", [b"", b"me", b"i" * 255])
def test_zmtp_16_zmtp_17_a_tail_is_read_back(kind: bytes, identity: bytes) -> None:
    octets = SIGNATURE + b"\x01" + zmtp2_tail(kind, identity)
    said_as = {b"XPUB": b"PUB", b"XSUB": b"SUB"}.get(kind, kind)
    assert zmtp2_greeting(octets + b"more") == (said_as, identity, len(octets))
    assert all(zmtp2_greeting(octets[:end]) is None for end in range(11, len(octets)))


@pytest.mark.parametrize("tail", [b"\x0b", b"\xff", b"\x05\x01", b"\x05\x04", b"\x05\x02" + (256).to_bytes(8, "big")])
def test_zmtp_17_zmtp_44_what_no_2_0_peer_says_is_refused(tail: bytes) -> None:
    with pytest.raises(HandshakeError):
        zmtp2_greeting(SIGNATURE + b"\x01" + tail)


@pytest.mark.parametrize(
    ("octets", "identity"),
    [
        (b"\x01\x00", b""),
        (b"\x03\x00id", b"id"),
        (b"\x03\x01id", b"id"),
        (b"\xfe\x00" + b"i" * 253, b"i" * 253),
        (b"\xff" + (3).to_bytes(8, "big") + b"\x00id", b"id"),
        (b"\xff" + (256).to_bytes(8, "big") + b"\x01" + b"i" * 255, b"i" * 255),
    ],
)
def test_zmtp_20_an_identity_of_1_0_is_read_when_it_is_whole(octets: bytes, identity: bytes) -> None:
    assert zmtp1_identity(octets) == zmtp1_identity(octets + b"more") == (identity, len(octets))
    assert all(zmtp1_identity(octets[:end]) is None for end in range(1, len(octets)))


@pytest.mark.parametrize(
    ("octets", "at"),
    [
        (b"\x01\x02", 1),
        (b"GET /", 1),
        (b"\x00\x00", 0),
        (b"\xff" + bytes(7) + b"\x02\x02x", 9),
        (b"\xff" + (257).to_bytes(8, "big") + b"\x00", 0),
        (b"\xff\x01" + bytes(6) + b"\x03\x00id", 0),
    ],
)
def test_zmtp_20_what_is_no_identity_is_refused_where_it_is_wrong(octets: bytes, at: int) -> None:
    with pytest.raises(HandshakeError) as caught:
        zmtp1_identity(octets)
    assert caught.value.offset == at


def test_zmtp_16_an_identity_of_2_0_may_have_the_long_form_and_may_be_the_last_of_a_read() -> None:
    octets = SIGNATURE + b"\x01\x05\x02" + (2).to_bytes(8, "big") + b"id"
    assert zmtp2_greeting(octets) == zmtp2_greeting(octets + b"more") == (b"DEALER", b"id", len(octets))
    assert all(zmtp2_greeting(octets[:end]) is None for end in range(11, len(octets)))


@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_zmtp_19_a_long_length_comes_octet_by_octet(size: int) -> None:
    octets = b"\xff" + (size + 1).to_bytes(8, "big") + b"\x00" + bytes(size)
    made = decoder()
    for octet in octets[: 10 if size else 9]:
        assert [*made.feed(bytes((octet,)))] == []
    assert [*made.feed(octets[10 if size else 9 :])] == [[bytes(size)]]


@pytest.mark.parametrize("octets", [b"\x00\x00", b"GET ", b"\x16\x03\x01", b"\xff" + bytes(9), b"\xff" + bytes(6) + b"\x01\x01\x00"])
def test_zmtp_20_zmtp_44_what_no_1_0_peer_says_is_refused(octets: bytes) -> None:
    with pytest.raises(HandshakeError):
        zmtp1_identity(octets)


@pytest.mark.parametrize("oldest", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 3, 64])
def test_zmtp_04_zmtp_14_a_greeting_in_stages_says_all_in_the_end_and_never_too_much(oldest: int, step: int) -> None:
    whole, theirs = greeting(b"NULL"), greeting(b"NULL")
    staged = StagedGreeting(whole, oldest)
    said = staged.begin()
    assert len(said) == {1: 10, 2: 11, 3: 64}[oldest]
    for end in range(step, 64 + step, step):
        said += staged.go_on(theirs[:end])
        known = min(end, 64)
        assert len(said) >= (10 if known < 10 else 11 if known < 11 else 64)
        assert oldest == 3 or known > 10 or len(said) <= 11
    assert said == whole


@pytest.mark.parametrize("octets", [b"\x01", b"\xff" + bytes(9), SIGNATURE + b"\x00", SIGNATURE + b"\x01\x05"])
def test_zmtp_14_an_older_peer_is_not_sent_what_it_cannot_read(octets: bytes) -> None:
    staged = StagedGreeting(greeting(b"NULL"), 1)
    said = staged.begin() + staged.go_on(octets)
    assert len(said) == (11 if octets.startswith(SIGNATURE) else 10)


@pytest.mark.parametrize("one_oldest", [1, 2, 3])
@pytest.mark.parametrize("other_oldest", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 10, 1000])
def test_zmtp_04_no_two_of_ours_wait_for_each_other(one_oldest: int, other_oldest: int, step: int) -> None:
    one, other = connection(one_oldest, identity=b"one"), connection(other_oldest, b"ROUTER")
    to_other, to_one = one.greet(), other.greet()
    while to_one or to_other:
        other.receive(to_other[:step])
        one.receive(to_one[:step])
        to_other, to_one = to_other[step:] + one.take_output(), to_one[step:] + other.take_output()
    assert one.state is other.state is State.TRAFFIC
    assert one.generation is other.generation is Generation.V3
    assert one.minor == other.minor == 1


def test_zmtp_13_a_mechanism_that_checks_peers_makes_every_older_one_a_failure() -> None:
    for octets in (b"\x01\x00", b"\xff" + bytes(9), SIGNATURE + b"\x01\x05\x00\x00"):
        client = PlainClient(b"", username=b"u", password=b"p", metadata_bytes_max=1000)
        made = Connection(b"DEALER", client, ConnectionLimits(), lambda: None, oldest=1, identity=b"me")
        assert len(made.greet()) == 64
        assert [*made.receive(octets + b"\x02\x00a\x00\x01a")] == []
        assert isinstance(made.failure, HandshakeError)
        assert made.take_output() == b""


def test_damaged_octets_of_old_peers_break_nothing() -> None:
    """A slice of `tests/fuzz/test_million.py` in which every input has something of an old peer."""
    chance = random.Random(1)
    sound = [
        b"\x03\x00id" + zmtp1_frames(encode_message([b"a", bytes(300)])),
        SIGNATURE + b"\x01\x05\x00\x02id" + encode_message([b"a", b"b"]),
    ]
    for _ in range(3000):
        octets = bytearray(chance.choice(sound))
        for _ in range(chance.randrange(4)):
            octets[chance.randrange(len(octets))] = chance.choice((0, 1, 2, 4, 127, 255, chance.randrange(256)))
        made = connection(1, b"ROUTER")
        at = chance.randrange(len(octets) + 1)
        heard = [*made.receive(bytes(octets[:at])), *made.receive(bytes(octets[at:]))]
        assert made.failure is None or isinstance(made.failure, RemoteProtocolError)
        assert sum(len(frame) for message in heard for frame in message) <= len(octets)


def test_zmtp_18_zmtp_60_commands_of_a_2_0_peer_are_dropped_and_counted_one_by_one() -> None:
    made = connection(2, b"ROUTER")
    made.greet()
    octets = SIGNATURE + b"\x01" + zmtp2_tail(b"DEALER", b"me")
    ping = encode_command(b"\x04PING\0\0")
    assert [*made.receive(octets + ping + encode_message([b"one"]) + ping)] == [[b"one"]]
    made.take_output()
    assert [*made.receive(ping + encode_message([b"two"]))] == [[b"two"]]
    assert (made.dropped, made.failure, made.take_output()) == (3, None, b"")
