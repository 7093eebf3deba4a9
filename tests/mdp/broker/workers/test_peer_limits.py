"""Limits of peers: which are lower than the broker's, and which requests and replies fit (MDP/0.3, TOO_LARGE)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.zmtp.frames import encode_message
from core.zmtp.limits import PeerLimits
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.channels import FRAME_BYTES
from mdp.wire.commands import ID_BYTES, NUMBERED_BYTES
from mdp.wire.size_limits import ANY_SIZE, USUAL
from tests.scenes.mdp_dispatcher import DIALECTS

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

PEER, OTHER = b"peer", b"other"
CHANNEL = b"\0\0\0\0\x01" + PEER
ENVELOPE = 9 * 1024


def hops(told: PeerLimits | None = None, own: PeerLimits = USUAL) -> Hops:
    """Return the limits of a broker to which one peer, that has told these, is connected."""
    made = Hops(own, lambda peer: told if peer == PEER else None)
    made.joined(PEER)
    return made


@pytest.mark.parametrize(
    ("told", "narrow"),
    [
        (None, False),
        (USUAL, False),
        (PeerLimits(parts=2000, message_bytes=2**40), False),
        (PeerLimits(parts=1023), True),
        (PeerLimits(message_bytes=USUAL.message_bytes - 1), True),
        (PeerLimits(frame_bytes=USUAL.message_bytes), True),
    ],
)
def test_a_peer_with_a_lower_limit_is_narrow_until_it_leaves(told: PeerLimits | None, narrow: bool) -> None:
    made = hops(told)
    assert (made.is_narrow(PEER), made.is_narrow(CHANNEL), made.is_narrow(OTHER)) == (narrow, narrow, False)
    made.left(PEER)
    assert not made.is_narrow(PEER)


@pytest.mark.parametrize(
    ("own", "narrow"),
    [
        (PeerLimits(message_bytes=2 * ENVELOPE), False),
        (PeerLimits(message_bytes=2 * ENVELOPE - 1), True),
        (PeerLimits(frame_bytes=2 * ENVELOPE), False),
        (PeerLimits(frame_bytes=2 * ENVELOPE - 1), True),
        (PeerLimits(parts=16), False),
        (PeerLimits(parts=15), True),
    ],
)
def test_every_peer_of_a_broker_whose_limits_an_envelope_fills_is_narrow(own: PeerLimits, narrow: bool) -> None:
    assert hops(own=own).is_narrow(PEER) is narrow


def test_limits_of_peers_that_have_told_none() -> None:
    made = hops()
    assert [made.of(PEER, dialect) for dialect in DIALECTS] == [None, None, USUAL]
    on_channel = PeerLimits(USUAL.parts - 1, USUAL.message_bytes - FRAME_BYTES)
    assert made.of(CHANNEL, "0.3") == on_channel
    told = PeerLimits(10, 1000, 500)
    assert (hops(told).of(PEER, "0.1"), hops(told).of(CHANNEL, "0.3")) == (told, PeerLimits(9, 1000 - FRAME_BYTES, 500))


def test_how_many_bytes_need_no_check() -> None:
    assert (hops().small(PEER, "0.1"), hops().small(PEER, "0.3")) == (ANY_SIZE, 2 * (1024 - 5))
    assert hops(PeerLimits(parts=20_000)).small(PEER, "0.3") == 2 * (1024 - 5)
    assert hops(PeerLimits(parts=20_000, message_bytes=10_000)).small(PEER, "0.3") == 10_000 - ENVELOPE
    assert hops(PeerLimits(parts=20_000, message_bytes=20_000)).small(PEER, "0.3") == 2 * (1024 - 5)


@pytest.mark.parametrize("told", [PeerLimits(message_bytes=10_000), PeerLimits(frame_bytes=10_000)])
def test_a_request_surely_fits_whose_bytes_and_those_of_any_envelope_do(told: PeerLimits) -> None:
    most = 10_000 - ENVELOPE
    for octets, fits in ((most, True), (most + 1, False)):
        tail = encode_message([bytes(octets - 9)])
        assert len(tail) == octets
        assert hops(told).surely(PEER, "0.3", tail) is fits
        assert hops().surely(PEER, "0.3", tail)
        assert hops().surely(PEER, "0.1", tail)


def test_a_request_surely_fits_whose_frames_and_those_of_any_envelope_do() -> None:
    made = hops(PeerLimits(parts=10))
    for frames in ([b""] * 5, [bytes(300)] * 5, [bytes(300), b"", b"\x01" * 20, bytes(256), b""]):
        assert made.surely(PEER, "0.3", encode_message(frames))
        assert not made.surely(PEER, "0.3", encode_message([*frames, b""]))
    assert made.surely(PEER, "0.3", b"")
    assert hops().surely(PEER, "0.1", encode_message([b""] * 2000))
    assert not hops().surely(PEER, "0.3", encode_message([b""] * 1020))


@pytest.mark.parametrize(("dialect", "frames", "octets"), [("0.1", 5, 7 + ID_BYTES), ("0.2", 4, 7 + ID_BYTES), ("0.3", 2, NUMBERED_BYTES)])
def test_a_request_fits_a_worker_with_the_envelope_of_its_dialect(dialect: Dialect, frames: int, octets: int) -> None:
    few = hops(PeerLimits(parts=10))
    assert few.work(PEER, dialect, encode_message([b"x"] * (10 - frames)), 0) is None
    error = few.work(PEER, dialect, encode_message([b"x"] * (11 - frames)), 0)
    assert error is not None
    assert error.text == f"frames of the request: {11 - frames}, at most {10 - frames}"
    options = 20 if dialect == "0.3" else 0
    short = hops(PeerLimits(message_bytes=1000))
    most = 1000 - octets - options
    assert short.work(PEER, dialect, encode_message([bytes(most)]), options) is None
    error = short.work(PEER, dialect, encode_message([bytes(most + 1)]), options)
    assert error is not None
    assert error.text == f"bytes of the request: {most + 1}, at most {most}"


@pytest.mark.parametrize(("dialect", "frames", "octets"), [("0.1", 3, 6 + 4), ("0.2", 3, 7 + 4), ("0.3", 1, NUMBERED_BYTES)])
def test_a_reply_fits_a_client_with_the_envelope_of_its_dialect(dialect: Dialect, frames: int, octets: int) -> None:
    few = hops(PeerLimits(parts=10))
    assert few.reply(PEER, dialect, b"echo", encode_message([b"x"] * (10 - frames))) is None
    error = few.reply(PEER, dialect, b"echo", encode_message([b"x"] * (11 - frames)))
    assert error is not None
    assert error.text == f"frames of the reply: {11 - frames}, at most {10 - frames}"
    short = hops(PeerLimits(message_bytes=1000))
    assert short.reply(PEER, dialect, b"echo", encode_message([bytes(1000 - octets)])) is None
    assert short.reply(PEER, dialect, b"echo", encode_message([bytes(1001 - octets)])) is not None
    assert hops().reply(PEER, dialect, b"echo", encode_message([b"x"] * 2000)) is None  # as the broker has received it
