"""One side of a handshake against octets written out: three generations, steps, limits, refusals (ZMTP-01 to ZMTP-21, ZMTP-31 to 48)."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest

from core.constants import ProtocolErrorCode as Code
from core.errors import AuthenticationRefused, HandshakeError
from core.zmtp.connection import ACCEPTS, Connection, State
from core.zmtp.greeting import Generation
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import Mechanism, NullMechanism
from core.zmtp.zap import ZapReply, ZapRequest
from tests.core.security.test_curve import client, server
from tests.scenes.raw_octets import COMMAND, LONG, MORE, at_once, command, frame, greeting, message, octet_by_octet, properties, ready

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
OURS = properties((b"Socket-Type", b"ROUTER"))


def at_random(octets: bytes) -> list[bytes]:
    rng = random.Random(len(octets))
    cuts = sorted(rng.randrange(len(octets) + 1) for _ in range(6))
    return [octets[start:end] for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]


DELIVERIES = [at_once, octet_by_octet, at_random]


class Heard:
    """A connection, its input, and its output."""

    def __init__(
        self, socket_type: bytes = b"ROUTER", mechanism: Mechanism | None = None, limits: ConnectionLimits | None = None, **options: Any
    ) -> None:
        self.readies = 0
        made = mechanism or NullMechanism(properties((b"Socket-Type", socket_type)), metadata_bytes_max=1000)
        self.connection = Connection(socket_type, made, limits or ConnectionLimits(), self.on_ready, **options)
        self.said = self.connection.greet()
        self.messages: list[list[bytes]] = []

    def on_ready(self) -> None:
        self.readies += 1
        assert self.messages == []
        self.connection.decoder.head = [b"head"]  # before the first message is decoded

    def hear(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.messages += self.connection.receive(piece)
            self.said += self.connection.take_output()


@dataclass(frozen=True)
class Talk:
    """The bytes of a peer, and the expected result."""

    octets: bytes  # of the peer
    said: bytes  # by us, after what goes out first
    messages: tuple[tuple[bytes, ...], ...] = ((b"head", b"a", b"b"),)
    kind: bytes = b"ROUTER"
    oldest: int = 3
    identity: bytes = b""  # ours
    peer: tuple[bytes, bytes] = (b"DEALER", b"me")
    generation: Generation = Generation.V3
    minor: int = 1


AB = message(b"a", b"b")
NULL_READY = command(b"READY", OURS)
FIRST_AB = b"\x02\x01a\x02\x00b"
TALKS = {
    "3.1": Talk(greeting() + ready(b"DEALER", b"me") + AB, NULL_READY),
    "3.0": Talk(greeting(version=(3, 0)) + ready(b"DEALER", b"me") + AB, NULL_READY, minor=0),
    "3.9": Talk(greeting(version=(3, 9)) + ready(b"DEALER", b"me") + AB, NULL_READY),
    "4.0": Talk(greeting(version=(4, 0)) + ready(b"DEALER", b"me") + AB, NULL_READY),
    "3.1, where old ones are welcome": Talk(greeting() + ready(b"DEALER", b"me") + AB, NULL_READY, oldest=1, identity=b"us"),
    "an identity of 255 octets": Talk(greeting() + ready(b"DEALER", b"i" * 255) + AB, NULL_READY, peer=(b"DEALER", b"i" * 255)),
    "an identity like a generated one": Talk(greeting() + ready(b"DEALER", b"\0me") + AB, NULL_READY, peer=(b"DEALER", b"")),
    "an identity of a zero octet": Talk(greeting() + ready(b"DEALER", b"\0") + AB, NULL_READY, peer=(b"DEALER", b"")),
    "an identity with a zero octet behind": Talk(greeting() + ready(b"DEALER", b"m\0") + AB, NULL_READY, peer=(b"DEALER", b"m\0")),
    "no Socket-Type": Talk(greeting() + command(b"READY", properties((b"Identity", b"me"))) + AB, NULL_READY, peer=(b"", b"me")),
    "no property": Talk(greeting() + command(b"READY") + AB, NULL_READY, peer=(b"", b"")),
    "READY without the COMMAND bit": Talk(greeting() + command(b"READY", ready(b"DEALER", b"me")[8:], 0) + AB, NULL_READY),
    "READY with MORE": Talk(greeting() + command(b"READY", ready(b"DEALER", b"me")[8:], COMMAND | MORE) + AB, NULL_READY),
    "READY in the long form": Talk(greeting() + command(b"READY", ready(b"DEALER", b"me")[8:], COMMAND | LONG) + AB, NULL_READY),
    "2.0": Talk(SIGNATURE + b"\x01\x05\x00\x02me" + AB, b"\x06\x00\x02us", oldest=2, identity=b"us", generation=Generation.V2, minor=0),
    "2.0, where 1.0 is welcome": Talk(
        SIGNATURE + b"\x01\x05\x00\x02me" + AB, b"\x03\x06\x00\x00", oldest=1, generation=Generation.V2, minor=0
    ),
    "2.0 with an identity in the long form": Talk(
        SIGNATURE + b"\x01\x05\x02" + bytes(7) + b"\x02me" + AB, b"\x03\x06\x00\x00", oldest=1, generation=Generation.V2, minor=0
    ),
    "2.0 to a PUB": Talk(
        SIGNATURE + b"\x01\x02\x00\x00" + frame(b"\x01t"),
        b"\x01\x00\x00",
        ((b"head", b"\x01t"),),
        kind=b"PUB",
        oldest=2,
        peer=(b"SUB", b""),
        generation=Generation.V2,
        minor=0,
    ),
    "1.0": Talk(b"\x03\x00me" + FIRST_AB, b"us", oldest=1, identity=b"us", peer=(b"", b"me"), generation=Generation.V1, minor=0),
    "1.0 without an identity": Talk(b"\x01\x00" + FIRST_AB, b"", oldest=1, peer=(b"", b""), generation=Generation.V1, minor=0),
    "1.0 with a long identity": Talk(
        b"\xff" + bytes(7) + b"\x03\x00me" + FIRST_AB, b"us", oldest=1, identity=b"us", peer=(b"", b"me"), generation=Generation.V1, minor=0
    ),
    "1.0 to a PUB": Talk(b"\x01\x00", b"", ((b"\x01",),), kind=b"PUB", oldest=1, peer=(b"", b""), generation=Generation.V1, minor=0),
    "1.0 to an XPUB": Talk(
        b"\x01\x00" + FIRST_AB,
        b"",
        ((b"\x01",), (b"head", b"a", b"b")),
        kind=b"XPUB",
        oldest=1,
        peer=(b"", b""),
        generation=Generation.V1,
        minor=0,
    ),
}


@pytest.mark.parametrize("deliver", DELIVERIES)
@pytest.mark.parametrize("name", TALKS)
def test_a_welcome_peer_is_taken_however_its_octets_come(name: str, deliver: Any) -> None:
    talk = TALKS[name]
    heard = Heard(talk.kind, oldest=talk.oldest, identity=talk.identity)
    made = heard.connection
    padding = (len(talk.identity) + 1 if talk.oldest == 1 else 0).to_bytes(8, "big")
    first = greeting(padding=padding)
    assert heard.said == first[: {1: 10, 2: 11, 3: 64}[talk.oldest]]
    heard.hear(deliver(talk.octets))
    expected = first + command(b"READY", properties((b"Socket-Type", talk.kind))) if talk.generation is Generation.V3 else first[:10]
    if talk.generation is Generation.V2:
        expected = first[:11] + talk.said.removeprefix(b"\x03")
    elif talk.generation is Generation.V1:
        expected += talk.said
    assert heard.said == expected
    assert heard.messages == [list(frames) for frames in talk.messages]
    assert (heard.readies, made.state, made.failure) == (1, State.TRAFFIC, None)
    assert (made.peer_type, made.peer_identity) == talk.peer
    assert (made.generation, made.minor, made.dropped, made.work) == (talk.generation, talk.minor, 0, 0)
    heard.messages.clear()
    heard.hear([FIRST_AB if talk.generation is Generation.V1 else AB])
    assert heard.messages == [[b"head", b"a", b"b"]]


def test_a_connection_that_has_heard_nothing_knows_nothing() -> None:
    made = Heard().connection
    assert (made.state, made.failure, made.peer_type, made.peer_identity) == (State.GREETING, None, b"", b"")
    assert (made.generation, made.minor, made.gated, made.work) == (Generation.UNKNOWN, 0, False, 0)
    assert (made.ping_ttl_ms, made.dropped, made.take_output(), made.translates) == (0, 0, b"", False)


MISMATCH = b"a ROUTER socket does not talk to "
REFUSED: dict[str, tuple[bytes, int, str, Code, int | None, bytes]] = {
    # octets of the peer, the oldest that is welcome: reason, code, offset, and what is said last
    "2.0 is too old": (SIGNATURE + b"\x01", 3, "peer speaks ZMTP 2.0", Code.ZMTP_UNSPECIFIED, 0, b""),
    "1.0 is too old": (b"\x03", 3, "peer speaks ZMTP 1.0", Code.ZMTP_UNSPECIFIED, 0, b""),
    "1.0 is older than 2.0": (b"\x03", 2, "peer speaks ZMTP 1.0", Code.ZMTP_UNSPECIFIED, 0, b""),
    "HTTP": (b"GET / HTTP/1.1\r\n", 3, "peer speaks ZMTP 1.0", Code.ZMTP_UNSPECIFIED, 0, b""),
    "another type": (
        greeting() + ready(b"SUB"),
        3,
        "a ROUTER socket does not talk to SUB",
        Code.ZMTP_INVALID_METADATA,
        None,
        command(b"ERROR", bytes((len(MISMATCH) + 3,)) + MISMATCH + b"SUB"),
    ),
    "no name for a type": (
        greeting() + ready(b""),
        3,
        "a socket without a type",
        Code.ZMTP_INVALID_METADATA,
        None,
        command(b"ERROR", bytes((len(MISMATCH) + 23,)) + MISMATCH + b"a socket without a type"),
    ),
    "a type of many octets": (
        greeting() + ready(b"Y" * 300),
        3,
        "YYYY",
        Code.ZMTP_INVALID_METADATA,
        None,
        command(b"ERROR", b"\xff" + (MISMATCH + b"Y" * 300)[:255]),
    ),
    "another type of 2.0, which has no ERROR": (SIGNATURE + b"\x01\x02\x00\x00", 2, "SUB", Code.ZMTP_INVALID_METADATA, None, b""),
    "an identity that is too long": (greeting() + ready(b"DEALER", bytes(256)), 3, "256 bytes", Code.ZMTP_INVALID_METADATA, None, b""),
    "a message": (greeting() + b"\x01\x00", 3, "message before", Code.ZMTP_UNEXPECTED_COMMAND, None, b""),
    "a long message": (greeting() + b"\x03", 3, "message before", Code.ZMTP_UNEXPECTED_COMMAND, None, b""),
    "another command": (greeting() + command(b"PING", b"\0\0"), 3, "expected READY", Code.ZMTP_UNEXPECTED_COMMAND, None, b""),
}


@pytest.mark.parametrize("deliver", DELIVERIES)
@pytest.mark.parametrize("name", REFUSED)
def test_another_peer_is_refused_with_a_reason_however_its_octets_come(name: str, deliver: Any) -> None:
    octets, oldest, reason, code, offset, last = REFUSED[name]
    heard = Heard(oldest=oldest)
    heard.hear(deliver(octets))
    made = heard.connection
    assert isinstance(made.failure, HandshakeError)
    assert reason in str(made.failure)
    assert (made.failure.code, made.state, heard.readies, heard.messages) == (code, State.CLOSED, 0, [])
    assert offset is None or made.failure.offset == offset
    first = heard.said[: {1: 10, 2: 11, 3: 64}[oldest]]
    rest = heard.said[len(first) :]
    assert rest.removeprefix(b"\x06\x00\x00" if oldest == 2 else NULL_READY) == last
    heard.hear([AB])
    assert heard.messages == []


# -- limits and steps


class Steps(NullMechanism):
    """A handshake of several commands, each answered, until one of them is READY.

    Attributes:
        costs: key agreements of a command, by its body.
    """

    costs: dict[bytes, int]

    def __init__(self, **costs: int) -> None:
        super().__init__(OURS, metadata_bytes_max=1000)
        self.costs = {name.encode(): cost for name, cost in costs.items()}

    def work(self, body: bytes) -> int:
        return self.costs.get(body[1 : 1 + body[0]], 0)

    def receive(self, body: bytes) -> list[bytes]:
        return super().receive(body) if body.startswith(b"\x05READY") else [b"\x02OK" + body[:1], b"\x04MORE"]


STEPS = command(b"HELLO", b"1") + command(b"INITIATE", bytes(300)) + ready(b"DEALER", b"me")
STEPS_BYTES = 7 + 309 + len(ready(b"DEALER", b"me")) - 2


@pytest.mark.parametrize("deliver", DELIVERIES)
def test_every_step_is_answered_in_order(deliver: Any) -> None:
    heard = Heard(mechanism=Steps())
    heard.hear(deliver(greeting() + STEPS + AB))
    answers = b"".join(frame(body, COMMAND) for body in (b"\x02OK\x05", b"\x04MORE", b"\x02OK\x08", b"\x04MORE"))
    assert heard.said == greeting() + NULL_READY + answers
    assert (heard.messages, heard.connection.peer_identity) == ([[b"head", b"a", b"b"]], b"me")


@pytest.mark.parametrize("deliver", DELIVERIES)
@pytest.mark.parametrize("room", [0, -1])
def test_zmtp_75_all_commands_of_a_handshake_count_together(room: int, deliver: Any) -> None:
    heard = Heard(mechanism=Steps(), limits=ConnectionLimits(handshake_bytes=STEPS_BYTES + room))
    heard.hear(deliver(greeting() + STEPS))
    assert (heard.connection.failure is None, heard.readies) == ((True, 1) if room == 0 else (False, 0))
    assert room == 0 or f"more than {STEPS_BYTES - 1} bytes" in str(heard.connection.failure)


@pytest.mark.parametrize("deliver", DELIVERIES)
def test_c3_a_step_that_costs_waits_for_its_turn_and_nothing_overtakes_it(deliver: Any) -> None:
    heard = Heard(mechanism=Steps(INITIATE=3))
    made = heard.connection
    made.gated = True
    heard.hear(deliver(greeting() + STEPS + AB))
    answer = frame(b"\x02OK\x05", COMMAND) + frame(b"\x04MORE", COMMAND)
    assert (made.work, made.state, heard.readies, heard.messages) == (3, State.HANDSHAKE, 0, [])
    assert heard.said == greeting() + NULL_READY + answer
    assert [*made.receive(b"")] == []
    assert (made.work, made.state) == (3, State.HANDSHAKE)
    heard.messages += made.permit()
    assert (made.work, made.state, heard.readies, heard.messages) == (0, State.TRAFFIC, 1, [[b"head", b"a", b"b"]])
    assert made.take_output() == frame(b"\x02OK\x08", COMMAND) + frame(b"\x04MORE", COMMAND)


@pytest.mark.parametrize("gated", [False, True])
def test_c3_what_costs_nothing_or_is_not_gated_does_not_wait(gated: bool) -> None:
    heard = Heard(mechanism=Steps(**({} if gated else {"INITIATE": 3})))
    heard.connection.gated = gated
    heard.hear([greeting() + STEPS])
    assert (heard.connection.state, heard.connection.work) == (State.TRAFFIC, 0)


# -- an authenticator


def asked(limit: int = 100) -> Heard:
    """A connection whose peer is authenticated before READY is sent."""
    mechanism = NullMechanism(OURS, metadata_bytes_max=1000, zap=ZapRequest(domain=b"d"))
    heard = Heard(mechanism=mechanism, limits=ConnectionLimits(handshake_bytes=limit))
    heard.hear([greeting()])
    assert (heard.said, mechanism.zap_request is None) == (greeting(), False)
    return heard


def test_zmtp_35_what_comes_while_the_authenticator_thinks_is_kept_and_looked_at_then() -> None:
    heard = asked()
    made = heard.connection
    early = ready(b"DEALER", b"me") + AB
    for at in range(len(early)):
        made.buffer(early[at : at + 1])
    assert (made.state, made.failure, made.take_output()) == (State.HANDSHAKE, None, b"")
    assert [*made.resume(ZapReply(b"200", user_id=b"ann"))] == [[b"head", b"a", b"b"]]
    assert (made.take_output(), made.peer_identity) == (NULL_READY, b"me")


@pytest.mark.parametrize(("octets", "kept"), [(100, True), (101, False)])
def test_what_comes_while_the_authenticator_thinks_is_bounded(octets: int, kept: bool) -> None:
    heard = asked()
    heard.connection.buffer(bytes(50))
    heard.connection.buffer(bytes(octets - 50))
    assert (heard.connection.failure is None) is kept
    assert kept or "more than 100 bytes" in str(heard.connection.failure)


def test_zap_05_a_refused_peer_gets_an_error_and_nothing_more() -> None:
    heard = asked()
    made = heard.connection
    made.buffer(ready(b"DEALER", b"me") + AB)
    assert [*made.resume(ZapReply(b"400"))] == []
    assert isinstance(made.failure, AuthenticationRefused)
    assert made.take_output() == command(b"ERROR", b"\x03400")
    assert (made.state, heard.readies) == (State.CLOSED, 0)


def test_the_shell_ends_a_handshake_with_the_last_words_of_the_mechanism() -> None:
    heard = asked()
    heard.connection.mechanism.last_words = [b"\x03BYE", b"\x05AGAIN"]
    error = HandshakeError("the shell's")
    heard.connection.refuse(error)
    assert heard.connection.failure is error
    assert heard.connection.take_output() == frame(b"\x03BYE", COMMAND) + frame(b"\x05AGAIN", COMMAND)
    assert [*heard.connection.receive(b"more")] == []


# -- traffic, and its end


def test_answers_to_pings_may_wait_for_what_else_there_is_to_say() -> None:
    heard = Heard(b"XPUB")
    heard.hear([greeting() + ready(b"SUB")])
    made = heard.connection
    assert (made.pinged, made.pongs) == (False, [])
    made.receive(command(b"PING", b"\0\0ab"))
    made.outgoing.append(b"other")
    assert made.pinged
    assert [made.take_output(pongs=False), made.take_output(pongs=False)] == [b"other", b""]
    made.outgoing.append(b"first")
    assert [made.take_output(), made.take_output()] == [b"first" + command(b"PONG", b"ab"), b""]


def test_w6_unsent_pongs_are_counted_anew_when_they_have_left() -> None:
    heard = Heard()
    heard.hear([greeting() + ready(b"DEALER") + command(b"PING", b"\0\x0a") * 64])
    assert heard.said == greeting() + NULL_READY + command(b"PONG") * 64
    for _ in range(2):
        heard.said = b""
        heard.hear([command(b"PING", b"\0\x0a") * 64])
        assert heard.said == command(b"PONG") * 64
    assert (heard.connection.dropped, heard.connection.ping_ttl_ms) == (0, 1000)


SUBSCRIBED = {
    "3.1": (greeting() + ready(b"PUB"), 3, command(b"SUBSCRIBE", b"t"), command(b"CANCEL", b"t")),
    "3.0": (greeting(version=(3, 0)) + ready(b"PUB"), 3, frame(b"\x01t"), frame(b"\x00t")),
    "2.0": (SIGNATURE + b"\x01\x01\x00\x00", 2, frame(b"\x01t"), frame(b"\x00t")),
    "1.0": (b"\x01\x00", 1, b"\x03\x00\x01t", b"\x03\x00\x00t"),
}


@pytest.mark.parametrize("name", SUBSCRIBED)
def test_zmtp_61_a_subscription_has_the_form_the_peer_knows(name: str) -> None:
    octets, oldest, subscribe, cancel = SUBSCRIBED[name]
    heard = Heard(b"SUB", oldest=oldest)
    heard.hear([octets])
    made = heard.connection
    assert (made.subscription(b"t", True), made.subscription(b"t", False)) == (subscribe, cancel)
    assert made.translates is (name == "1.0")
    assert made.send_command(b"\x01X") == frame(b"\x01X", COMMAND)
    if made.translates:
        assert made.translate(AB) == FIRST_AB


def secured() -> tuple[Heard, Heard]:
    """A client and a server of CURVE that know each other."""
    one, other = Heard(b"DEALER", client()), Heard(b"ROUTER", server())
    to_one, to_other = other.said, one.said
    while to_one or to_other:
        one.said = other.said = b""
        one.hear([to_one])
        other.hear([to_other])
        to_one, to_other = other.said, one.said
    return one, other


def test_curve_12_commands_and_messages_travel_sealed_and_come_out_in_their_order() -> None:
    one, other = secured()
    assert one.connection.state is other.connection.state is State.TRAFFIC
    assert one.connection.translates
    assert other.connection.translates
    octets = one.connection.send_command(b"\x04PING\0\x0aab") + one.connection.translate(AB) + one.connection.send_command(b"\x04NONE")
    assert b"PING" not in octets
    other.hear(octet_by_octet(octets))
    assert other.messages == [[b"head", b"a", b"b"]]
    assert (other.connection.dropped, other.connection.ping_ttl_ms) == (1, 1000)
    one.hear([other.said])
    assert (one.connection.dropped, one.connection.failure) == (0, None)
    assert one.connection.subscription(b"topic", True)[-20:] != command(b"SUBSCRIBE", b"topic")[-20:]
    other.messages.clear()
    other.hear([one.connection.translate(AB)])
    assert other.messages == [[b"head", b"a", b"b"]]
    sealed = one.connection.send_command(b"\x04PING\0\0")
    assert other.connection.mechanism.open(sealed[2:]) == (2, b"\x04PING\0\0")
    damaged = bytearray(one.connection.translate(AB))
    damaged[-1] ^= 1
    other.hear([bytes(damaged)])
    assert (other.connection.failure is None, other.connection.state) == (False, State.CLOSED)


class Secret(NullMechanism):
    """NULL that claims to encrypt: shows without keys what is sent in clear."""

    encrypts = True


@pytest.mark.parametrize(("server", "told"), [(True, command(b"ERROR", b"\x19socket types do not match")), (False, b"")])
def test_zmtp_12_curve_14_only_a_server_says_that_types_differ_and_not_which(server: bool, told: bytes) -> None:
    mechanism = Secret(OURS, metadata_bytes_max=1000)
    mechanism.as_server = server
    heard = Heard(mechanism=mechanism)
    heard.hear([greeting(as_server=0) + ready(b"SUB")])
    assert heard.said[64:] == NULL_READY + told
    assert str(heard.connection.failure) == "a ROUTER socket does not talk to SUB"


def kept(work: Any) -> int:
    """Return how many more bytes are allocated after some work."""
    tracemalloc.start()
    work()
    octets, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return octets


@pytest.mark.parametrize("way", ["failed", "ended", "ended in its traffic", "after the end"])
def test_nothing_of_a_peer_is_held_when_its_connection_is_over(way: str) -> None:
    heard = Heard(limits=ConnectionLimits(handshake_bytes=10**6))
    made = heard.connection
    heard.hear([greeting() + (ready(b"DEALER") if "traffic" in way else b"")])

    def work() -> None:
        if way == "after the end":
            made.end()
        begun = frame(bytes(500_000), MORE if "traffic" in way else COMMAND)
        made.receive(begun[:-1])
        if way == "failed":
            made.refuse(HandshakeError("enough"))
        elif way != "after the end":
            made.end()
        assert [*made.receive(begun)] == []

    assert kept(work) < 100_000
    assert (made.state, made.decoder.begun, heard.readies) == (State.CLOSED, False, int("traffic" in way))


def test_a_stream_that_has_ended_calls_nobody() -> None:
    heard = Heard()
    made = heard.connection
    made.end()
    assert [*made.decoder.feed(command(b"PING", b"\0\0") + AB)] == [[b"a", b"b"]]
    assert (made.take_output(), made.dropped) == (b"", 0)


@pytest.mark.parametrize("kind", [kind for kind in ACCEPTS if kind not in (b"PUB", b"XPUB")])
def test_zmtp_33_subscriptions_are_for_publishers(kind: bytes) -> None:
    heard = Heard(kind)
    heard.hear([greeting() + ready(next(iter(ACCEPTS[kind]))) + command(b"SUBSCRIBE", b"t") + command(b"CANCEL", b"t")])
    assert (heard.messages, heard.connection.dropped, heard.connection.failure) == ([], 2, None)


def test_zmtp_56_a_pong_is_taken_and_not_counted() -> None:
    heard = Heard()
    heard.hear([greeting() + ready(b"DEALER") + command(b"PONG", b"x") + AB])
    assert (heard.messages, heard.connection.dropped) == ([[b"head", b"a", b"b"]], 0)
