"""Reports of progress, and their frame (PRG-01, PRG-02)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from mdp.wire.commands import PROGRESS_BYTES_MAX, TEXT_BYTES_MAX
from mdp.wire.policies import Rate
from mdp.wire.progress import Progress, RateWait, decode_progress, decode_rate_wait, encode_progress, encode_rate_wait


@pytest.mark.parametrize("progress", [Progress(), Progress(0), Progress(0.25, "page 3"), Progress(1.0), Progress(text="é" * 500)])
def test_it_comes_as_it_was_reported(progress: Progress) -> None:
    assert decode_progress(encode_progress(progress)) == progress


@pytest.mark.parametrize(
    ("progress", "shown"),
    [(Progress(), ""), (Progress(0.254), "25%"), (Progress(0.5, "half"), "50% half"), (Progress(text="waits"), "waits")],
)
def test_it_is_shown_as_a_line(progress: Progress, shown: str) -> None:
    assert str(progress) == shown


@pytest.mark.parametrize("done", [-0.1, 1.1, float("nan"), float("inf"), "0.5"])
def test_a_share_is_a_number_from_0_to_1(done: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Progress(done)


def test_a_text_is_text() -> None:
    with pytest.raises(TypeError, match="bytes"):
        Progress(0.5, b"half")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "x" + "é" * 5000])
def test_a_long_text_is_shortened(text: str) -> None:
    octets = encode_progress(Progress(0.5, text))
    assert len(octets) <= PROGRESS_BYTES_MAX
    read = decode_progress(octets)
    assert read is not None
    assert text.startswith(read.text)
    assert len(read.text.encode()) in (TEXT_BYTES_MAX - 1, TEXT_BYTES_MAX)


@pytest.mark.parametrize(
    "octets",
    [
        b"x",
        b"\xc1",
        msgpack.packb([0.5]),
        msgpack.packb({"done": 2}),
        msgpack.packb({"done": "half"}),
        msgpack.packb({"done": float("nan")}),
        msgpack.packb({"text": b"half"}),
        b"\x81" * 500,
        bytes(PROGRESS_BYTES_MAX + 1),
    ],
)
def test_what_is_none_is_not_read(octets: bytes) -> None:
    assert decode_progress(octets) is None


def test_entries_of_later_drafts_are_skipped_and_texts_are_one_line() -> None:
    assert decode_progress(msgpack.packb({"done": 1, "eta_s": 3})) == Progress(1.0)
    assert decode_progress(msgpack.packb({"text": "a\n\x1b[2J"})) == Progress(text=b"a\n\x1b[2J".hex())


def test_a_rate_that_a_request_waits_for() -> None:
    """POL-05."""
    wait = RateWait(Rate(2.5, burst=3), 17)
    assert decode_rate_wait(encode_rate_wait(wait)) == wait
    assert str(wait) == "held back by the rate of this service, 2.5 requests a second with a burst of 3; 17 requests waited"
    assert str(RateWait(Rate(1), 1)) == "held back by the rate of this service, 1 request a second with a burst of 1; 1 request waited"
    rate = {"per_s": 1.0, "burst": 1}
    for entries in ({}, {"rate": 1, "waiting": 1}, {"rate": rate}, {"rate": rate, "waiting": 1.5}, {"rate": {"per_s": -1.0}, "waiting": 1}):
        assert decode_rate_wait(msgpack.packb(entries)) is None
    for octets in (b"", b"\x01", b"\xff", b"\x81\xa4rate", encode_rate_wait(wait) + bytes(PROGRESS_BYTES_MAX)):
        assert decode_rate_wait(octets) is None
