"""Growth without a clock: calls of a request while others wait, and of a chunk of a large body."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.micro_dispatcher import CREDIT, pairs_03
from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_message

if TYPE_CHECKING:
    from collections.abc import Callable

FLAT = 1.05
CHUNK_BYTES = 64 * 1024


def calls_of(work: Callable[[], Any]) -> int:
    """Count the calls that some work makes; compiled code is not seen."""
    count = 0

    def counts(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(counts)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_request_costs_the_same_however_many_are_queued() -> None:
    def calls(queued: int) -> int:
        run = pairs_03(1, CREDIT, CREDIT + queued)
        return calls_of(lambda: run(1000))

    assert calls(10_000) <= FLAT * calls(1000)


def test_a_chunk_of_a_body_costs_the_same_however_large_the_body_is() -> None:
    def calls(chunks: int) -> float:
        octets = encode_message([bytes(chunks * CHUNK_BYTES)])
        decoder = Decoder(on_command=lambda _: None)
        pieces = [octets[at : at + CHUNK_BYTES] for at in range(0, len(octets), CHUNK_BYTES)]
        return calls_of(lambda: [decoder.feed(piece) for piece in pieces]) / chunks

    assert calls(200) <= FLAT * calls(20)
