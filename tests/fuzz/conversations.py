"""Conversations in octets, made up by chance: correct ones in every encoding the RFC allows, cut ones, and damaged ones.

Everything a conversation is made of comes from the `random.Random` it is given, so a number names it. Nothing here knows `core`.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.scenes.raw_octets import COMMAND, LONG, MORE, command, frame, greeting, properties

__all__ = ["MARK", "SENTINEL", "Conversation", "conversation"]

SENTINEL = b"the end"
MARK = b"|"  # ends the name of its conversation, with which the first frame of every message begins
SIZES = (0, 0, 1, 2, 7, 10, 100, 253, 254, 255, 256, 257, 300, 1000, 8192, 9000)
TYPES = (b"PUSH",) * 20 + (b"PULL", b"DEALER", b"push", b"")  # to a PULL; the last few are refused


class Conversation(NamedTuple):
    """Text of one peer.

    Attributes:
        kind: what was done to it, for messages of failed tests.
        octets: all of it.
    """

    kind: str
    octets: bytes


def body(chance: random.Random) -> bytes:
    return bytes((chance.randrange(256),)) * chance.choice(SIZES)


def one_frame(chance: random.Random, flags: int = 0, begin: bytes = b"") -> bytes:
    """A frame; short bodies in the long form too."""
    return frame(begin + body(chance), flags | (LONG if chance.random() < 0.2 else 0))


def one_message(chance: random.Random, name: bytes) -> bytes:
    more = chance.choice((0, 0, 1, 2, 5))
    first = one_frame(chance, MORE if more else 0, name)
    return first + b"".join(one_frame(chance, MORE if left else 0) for left in reversed(range(more)))


def one_ping(chance: random.Random) -> bytes:
    return command(b"PING", chance.randbytes(2) + chance.randbytes(chance.randrange(17)), COMMAND | (LONG if chance.random() < 0.2 else 0))


def traffic(chance: random.Random, name: bytes) -> list[bytes]:
    """Messages, with PINGs between them and between their frames."""
    pieces = []
    for _ in range(chance.randrange(6)):
        pieces.append(one_message(chance, name))
        if chance.random() < 0.2:
            pieces.append(one_ping(chance))
        if chance.random() < 0.1:
            pieces += [one_frame(chance, MORE, name), one_ping(chance), one_frame(chance, 0, name)]
    return [*pieces, frame(name + SENTINEL)]


def a_ready(chance: random.Random) -> bytes:
    """READY with its properties in any order, any case, and with others that mean nothing.

    libzmq takes no notice of a `socket-type` that is not written `Socket-Type` (RFC 37: any case), so what it would have to refuse is
    written that way.
    """
    kind = chance.choice(TYPES)
    pairs = [(b"Socket-Type", kind), (b"Identity", chance.randbytes(chance.randrange(5)))]
    if chance.random() < 0.3:
        pairs.append((b"X-" + b"n" * chance.randrange(1, 20), chance.randbytes(chance.randrange(30))))
    chance.shuffle(pairs)
    if chance.random() < 0.3 and kind == b"PUSH":
        pairs = [(name.upper() if chance.random() < 0.5 else name.lower(), value) for name, value in pairs]
    return command(b"READY", properties(*pairs), COMMAND | (LONG if chance.random() < 0.2 else 0))


def conversation(seed: int) -> Conversation:
    """Return conversation number `seed`."""
    chance = random.Random(seed)
    begin = greeting(padding=chance.randbytes(8) if chance.random() < 0.3 else bytes(8), version=(3, chance.choice((0, 1, 1, 1, 2, 9))))
    pieces = [begin, a_ready(chance), *traffic(chance, b"%d" % seed + MARK)]
    kind = chance.choice(("whole", "whole", "cut", "removed", "twice", "swapped"))
    if kind == "cut":
        octets = b"".join(pieces)
        return Conversation(kind, octets[: chance.randrange(len(octets))])
    if kind != "whole" and len(pieces) > 3:
        at = chance.randrange(2, len(pieces) - 1)
        if kind == "removed":
            del pieces[at]
        elif kind == "twice":
            pieces.insert(at, pieces[at])
        else:
            pieces[at], pieces[-1] = pieces[-1], pieces[at]
    return Conversation(kind, b"".join(pieces))
