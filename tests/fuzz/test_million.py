"""One million damaged inputs: whatever comes, no error but `RemoteProtocolError`, and never more held than was sent.

On the sources as they are a tenth of them. `FUZZ_TIMES=20 pytest tests/fuzz/test_million.py` does twenty million. Each input is made from a
correct one by a seeded chance; a failure names target and number, and is repeated by running the test again.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from core.errors import LocalProtocolError, RemoteProtocolError
from core.pattern.subscriptions import PublisherSubscriptions
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import CookieKeys
from core.security.plain import PlainClient, PlainServer
from core.zmtp.commands import command, decode_metadata, encode_metadata, parse_command, ping
from core.zmtp.connection import Connection
from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_command, encode_message
from core.zmtp.greeting import greeting
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism
from core.zmtp.zap import ZapRequest
from core.zmtp.zmtp2 import zmtp1_frames
from mdp.wire.commands import client_request, worker_final, worker_ready
from mdp.wire.events import parse_at_broker, parse_at_client, parse_at_worker
from tests.scenes.hunts import examples
from tests.scenes.mdp_messages import worker_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMES = int(os.environ.get("FUZZ_TIMES", "0"))
METADATA = encode_metadata([(b"Socket-Type", b"DEALER"), (b"Identity", b"fuzz")])
LIMITS = ConnectionLimits(message_bytes=64 * 1024, parts=64)
ZAP = ZapRequest(b"PLAIN", b"domain", b"127.0.0.1")
KEYS = [bytes((n,)) * 32 for n in (1, 2)]
MESSAGES = [encode_message(frames) for frames in ([b""], [b"body"], [b"a", b"b" * 300, b""], [b"x" * 255] * 2)]
READY = encode_command(command(b"READY", METADATA))
# Peers of ZMTP 1.0 and 2.0: an identity, and a message of two frames.
OLD = [b"\x05\x00fuzz" + zmtp1_frames(MESSAGES[2]), b"\xff" + bytes(7) + b"\x05\x7f\x01\x05\x00\x04fuzz" + MESSAGES[2]]


class Damage:
    """Makes inputs out of correct ones; the same ones for the same seed."""

    def __init__(self, corpus: Sequence[bytes], seed: str) -> None:
        self._corpus = corpus
        self._chance = random.Random(seed)

    def next(self) -> bytes:
        chance, number = self._chance, self._chance.random
        octets = self._corpus[int(number() * len(self._corpus))]
        how = number()
        if how < 0.1:
            return chance.randbytes(int(number() * 80))
        at = int(number() * (len(octets) + 1))
        if how < 0.25:
            return octets[:at]
        if how < 0.4:
            other = self._corpus[int(number() * len(self._corpus))]
            return octets[:at] + other[int(number() * len(other)) :]
        if how < 0.5:
            return octets[:at] + chance.randbytes(1 + int(number() * 9)) + octets[at:]
        damaged = bytearray(octets)
        for _ in range(1 + int(number() * 3) if octets else 0):
            damaged[int(number() * len(damaged))] = (0, 1, 2, 4, 127, 128, 255, int(number() * 256))[int(number() * 8)]
        return bytes(damaged)


def traffic(octets: bytes, at: int) -> None:
    decoder = Decoder(on_command=lambda body: None, message_bytes_max=LIMITS.message_bytes, parts_max=LIMITS.parts)
    heard = [*decoder.feed(octets[:at])]
    if decoder.failure is None:
        heard += decoder.feed(octets[at:])
    assert decoder.failure is None or isinstance(decoder.failure, RemoteProtocolError)
    assert sum(len(frame) for message in heard for frame in message) <= len(octets)


def from_the_greeting(octets: bytes, at: int) -> None:
    connection = Connection(b"ROUTER", NullMechanism(METADATA, metadata_bytes_max=1000), LIMITS, lambda: None, oldest=1, identity=b"fuzz")
    for piece in (octets[:at], octets[at:]):
        if connection.failure is None:
            connection.receive(piece)
    assert connection.failure is None or isinstance(connection.failure, RemoteProtocolError)
    assert len(connection.take_output()) <= len(octets) + 1024


def plain(octets: bytes, at: int) -> None:
    server = PlainServer(METADATA, zap=ZAP, metadata_bytes_max=1000)
    client = PlainClient(METADATA, username=b"user", password=b"word", metadata_bytes_max=1000)
    client.start()
    for side in (server, client):
        try:
            side.receive(octets)
        except RemoteProtocolError:
            continue


COOKIES = CookieKeys(lambda count: bytes(count), 0.0)


def curve_server(octets: bytes, at: int) -> None:
    server = CurveServer(
        METADATA, secret_key=KEYS[0], cookie_keys=COOKIES, random_bytes=lambda count: bytes(count), zap=None, metadata_bytes_max=1000
    )
    try:
        server.receive(octets)
    except RemoteProtocolError:
        return


def commands(octets: bytes, at: int) -> None:
    for parse in (parse_command, decode_metadata):
        try:
            parse(octets)
        except RemoteProtocolError:
            continue


STORE: PublisherSubscriptions[int] = PublisherSubscriptions(subscription_octets_max=10_000, topic_octets_max=64)


def subscriptions(octets: bytes, at: int) -> None:
    try:
        STORE.receive(at % 7, at % 3 > 0, octets)
    except RemoteProtocolError:
        STORE.detach(at % 7)
    assert set(STORE.match(octets)) <= set(range(7))


def majordomo(octets: bytes, at: int) -> None:
    frames = octets.split(b"|")
    for parse in (parse_at_broker, parse_at_client, parse_at_worker):
        parse(frames)


def hello() -> bytes:
    client = CurveClient(METADATA, secret_key=KEYS[1], server_key=KEYS[0], random_bytes=lambda count: bytes(count), metadata_bytes_max=1000)
    return client.start()[0]


NUMBER = b"12345678"
MDP = [
    b"|".join(frames)
    for frames in (
        client_request("0.1", b"echo", [b"x"]),
        client_request("0.2", b"echo", [b"x", b"y"]),
        client_request("0.3", b"echo", [b"x"], id=NUMBER),
        worker_ready("0.1", b"echo"),
        worker_ready("0.3", b"echo", options=b"\x81\xa6credit\x02"),
        worker_request("0.1", NUMBER, [b"x"]),
        worker_final("0.3", NUMBER, [b"x"]),
        worker_final("0.1", NUMBER, [b"x"]),
        [b"MDPC03\x05" + NUMBER],
    )
]
TARGETS: list[tuple[Callable[[bytes, int], None], int, list[bytes]]] = [
    (traffic, 400_000, [*MESSAGES, b"".join(MESSAGES), MESSAGES[1] + encode_command(ping(10, b"ctx")) + MESSAGES[2]]),
    (from_the_greeting, 150_000, [greeting(b"NULL") + READY + MESSAGES[2], greeting(b"NULL") + READY, greeting(b"PLAIN"), *OLD]),
    (
        plain,
        100_000,
        [command(b"HELLO", b"\x04user\x04word"), command(b"WELCOME", b""), command(b"INITIATE", METADATA), command(b"ERROR", b"\x03400")],
    ),
    (curve_server, 50_000, [hello(), command(b"INITIATE", bytes(300)), command(b"MESSAGE", bytes(33))]),
    (commands, 100_000, [METADATA, command(b"READY", METADATA), command(b"PING", b"\0\0")]),
    (subscriptions, 50_000, [b"", b"topic", b"topic.more", b"t" * 70]),
    (majordomo, 150_000, MDP),
]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("target", "count", "corpus"), TARGETS, ids=[target.__name__ for target, _, _ in TARGETS])
def test_a_million_damaged_inputs(target: Callable[[bytes, int], None], count: int, corpus: list[bytes]) -> None:
    damage = Damage(corpus, target.__name__)
    inputs = count * TIMES or examples(count)
    for number in range(inputs):
        octets = damage.next()
        try:
            target(octets, number % (len(octets) + 1))
        except (LocalProtocolError, ValueError, LookupError, TypeError, AssertionError, OverflowError, RuntimeError) as error:
            pytest.fail(f"{target.__name__} {number}: {octets.hex()}: {type(error).__name__} {error}")
    assert number == inputs - 1


def test_they_are_a_million() -> None:
    assert sum(count for _, count, _ in TARGETS) == 1_000_000
