"""Two connections back to back, without a transport: greeting, handshake, traffic."""

from __future__ import annotations

import pytest

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, RemoteProtocolError
from core.zmtp.commands import command, decode_metadata, encode_metadata, error_reason, ping, pong
from core.zmtp.connection import ACCEPTS, PONGS_MAX, Connection, State
from core.zmtp.frames import encode_command, encode_message
from core.zmtp.greeting import greeting
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism


def connection(socket_type: bytes = b"DEALER", identity: bytes | None = None, limits: ConnectionLimits | None = None) -> Connection:
    properties = [(b"Socket-Type", socket_type)]
    if identity is not None:
        properties.append((b"Identity", identity))
    mechanism = NullMechanism(encode_metadata(properties), metadata_bytes_max=1000)
    made = Connection(socket_type, mechanism, limits or ConnectionLimits(), lambda: None)
    return made


def ready_pair(one_type: bytes = b"DEALER", other_type: bytes = b"ROUTER") -> tuple[Connection, Connection]:
    one, other = connection(one_type, b"one"), connection(other_type)
    to_other, to_one = one.greet(), other.greet()
    while to_one or to_other:
        other.receive(to_other)
        one.receive(to_one)
        to_one, to_other = other.take_output(), one.take_output()
    return one, other


def test_two_connections_become_ready_and_know_each_other() -> None:
    one, other = ready_pair()
    assert one.state is other.state is State.TRAFFIC
    assert (other.peer_type, other.peer_identity, other.minor) == (b"DEALER", b"one", 1)
    assert [*one.receive(encode_message([b"a", b"b"]))] == [[b"a", b"b"]]


def test_everything_in_one_read_greeting_handshake_and_messages() -> None:
    other = connection(b"ROUTER")
    ready = encode_command(command(b"READY", encode_metadata([(b"Socket-Type", b"DEALER")])))
    assert [*other.receive(greeting(b"NULL") + ready + encode_message([b"at once"]))] == [[b"at once"]]


@pytest.mark.parametrize("theirs", ACCEPTS)
@pytest.mark.parametrize("ours", ACCEPTS)
def test_zmtp_49_the_matrix_is_symmetric_and_held_on_both_sides(ours: bytes, theirs: bytes) -> None:
    one, other = ready_pair(ours, theirs)
    legal = theirs in ACCEPTS[ours]
    assert (ours in ACCEPTS[theirs]) is legal
    assert (one.state is State.TRAFFIC) is (other.state is State.TRAFFIC) is legal
    assert (one.failure is None) is legal


def test_zmtp_50_zmtp_51_a_ping_is_answered_with_at_most_16_octets_of_its_context() -> None:
    one, _ = ready_pair()
    one.receive(encode_command(command(b"PING", b"\x00\x0a" + b"c" * 20)))
    assert one.take_output() == encode_command(command(b"PONG", b"c" * 16))
    assert one.ping_ttl_ms == 1000


def test_zmtp_52_a_ping_too_short_for_a_ttl_ends_the_connection() -> None:
    one, _ = ready_pair()
    one.receive(encode_command(command(b"PING", b"\x00")))
    assert isinstance(one.failure, RemoteProtocolError)
    assert [*one.receive(encode_message([b"more"]))] == []


def test_w6_a_flood_of_pings_leaves_a_bounded_number_of_pongs() -> None:
    one, _ = ready_pair()
    one.receive(encode_command(ping(0)) * 1000)
    assert len(one.take_output()) == PONGS_MAX * len(encode_command(pong(b"\0\0")[0]))
    assert one.dropped == 1000 - PONGS_MAX


def test_zmtp_54_zmtp_55_the_ttl_goes_in_tenths_of_a_second_and_stays_below_the_wrap() -> None:
    assert [ping(ttl)[5:] for ttl in (0, 99, 1000, 65_500, 6_553_599)] == [b"\0\0", b"\0\0", b"\0\x0a", b"\x02\x8f", b"\x02\x8f"]
    assert pong(b"\xff\xff")[1] == 6_553_500


@pytest.mark.parametrize("body", [b"", b"\x05PIN", b"\x07UNKNOWN", command(b"READY"), command(b"ERROR", b"\x00")])
def test_zmtp_32_zmtp_83_other_commands_after_the_handshake_are_dropped(body: bytes) -> None:
    one, _ = ready_pair()
    assert [*one.receive(encode_command(body) + encode_message([b"next"]))] == [[b"next"]]
    assert one.dropped == 1
    assert one.failure is None


@pytest.mark.parametrize(("socket_type", "expected"), [(b"XPUB", [[b"\x01t"], [b"\x00t"]]), (b"PUB", [[b"\x01t"], [b"\x00t"]])])
def test_zmtp_62_subscriptions_come_out_in_message_form(socket_type: bytes, expected: list[list[bytes]]) -> None:
    _, publisher = ready_pair(b"SUB", socket_type)
    octets = encode_command(command(b"SUBSCRIBE", b"t")) + encode_command(command(b"CANCEL", b"t"))
    assert [*publisher.receive(octets)] == expected


def test_zmtp_33_other_sockets_drop_subscriptions() -> None:
    _, router = ready_pair()
    assert [*router.receive(encode_command(command(b"SUBSCRIBE", b"t")))] == []


def test_messages_before_a_fault_in_the_same_read_are_delivered() -> None:
    one, _ = ready_pair()
    assert [*one.receive(encode_message([b"good"]) + b"\x02" + b"\xff" * 8)] == [[b"good"]]
    assert one.failure is not None


@pytest.mark.parametrize("octets", [b"\x01\x05", b"\x01\x05ready", b"\x03" + bytes(8)])
def test_zmtp_78_a_message_before_the_handshake_is_refused_on_its_header(octets: bytes) -> None:
    made = connection()
    made.receive(greeting(b"NULL") + octets)
    assert isinstance(made.failure, HandshakeError)
    assert made.failure.code == Code.ZMTP_UNEXPECTED_COMMAND


def test_a_peer_of_another_kind_gets_the_type_of_the_socket_it_has_met() -> None:
    one, other = connection(b"SUB"), connection(b"ROUTER")
    other.receive(one.greet())
    other.receive(encode_command(command(b"READY", encode_metadata([(b"Socket-Type", b"SUB")]))))
    reason = b"a ROUTER socket does not talk to SUB"
    assert str(other.failure) == reason.decode()
    assert encode_command(command(b"ERROR", bytes((len(reason),)) + reason)) in other.take_output()


def test_zmtp_75_a_handshake_of_too_many_octets_is_refused_on_its_header() -> None:
    made = connection(limits=ConnectionLimits(handshake_bytes=600))
    made.receive(greeting(b"NULL") + b"\x06" + (601).to_bytes(8, "big"))
    assert made.failure is not None


def test_the_head_is_the_shells_to_set() -> None:
    _, router = ready_pair()
    router.decoder.head = [b"id"]
    batch = router.receive(encode_message([b"a", b"b", b"c"]))
    assert (batch.peer, [*batch]) == (b"id", [[b"id", b"a", b"b", b"c"]])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"\x01A\0\0\0\x01x\x01a\0\0\0\x01y", {b"a": b"y"}),
        (b"\x0bSocket-Type\0\0\0\x03SUB", {b"socket-type": b"SUB"}),
    ],
)
def test_zmtp_37_zmtp_43_names_in_any_case_and_the_last_one_counts(data: bytes, expected: dict[bytes, bytes]) -> None:
    assert decode_metadata(data) == expected


@pytest.mark.parametrize("data", [b"\0\0\0\0\0", b"\x05abc", b"\x01a\0\0\0", b"\x01a\0\0\0\x02x", b"\x01a\0\0\0\0\x01", b"\xff"])
def test_zmtp_41_zmtp_42_malformed_metadata(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_metadata(data)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x03ab"])
def test_zmtp_80_an_error_shorter_than_its_reason(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        error_reason(data)
