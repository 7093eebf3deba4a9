"""Hostile messages of 64 KiB, beside honest ones: `python -m benchmarks.hostile_messages`.

Each is decoded in turn with the others, and the least CPU time of some rounds counts. At most 3 times the honest message is wanted:
of typed services, of chunks of rows for Titanic, and of their lists of stages.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack

from mdp.typed.schemas import Schema, TypeMismatch
from tests.scenes.hostile_messages import HONEST, HOSTILE, SIZE
from titanic.wire.batch_frames import BatchChunk, decode_stages, encode_rows, rows_max

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoding = Callable[[], object]

ROUNDS = 9
WANTED = 3.0


def typed(annotation: Any, octets: bytes) -> Decoding:
    """Decode as the typed service does, refused or not."""
    schema = Schema(annotation)

    def decode() -> None:
        try:
            schema.unpack(octets)
        except TypeMismatch:
            pass

    return decode


def short_rows() -> bytes:
    """Return as many of the shortest rows as a chunk may have, and one that fills it up."""
    rows = [(b"k", [b""])] * (rows_max(SIZE) - 2)
    return bytes(msgpack.packb([*rows, (b"k", [bytes(SIZE - len(msgpack.packb(rows)) - 16)])]))


def groups() -> dict[str, tuple[Decoding, dict[str, Decoding]]]:
    """Return each kind of message: the honest one, and the hostile ones by name."""
    chunk = partial(BatchChunk.decode, b"echo")
    rows = encode_rows([(b"job-7/3/%06d" % number, [b"x" * 64]) for number in range(750)])
    stages = msgpack.packb([(b"job-7/%d/0" % number, 1) for number in range(4_200)])
    short_stages = msgpack.packb([(b"s", 1)] * 7_500 + [(b"s" * 200, 1)] * 130)
    return {
        "typed": (typed(Any, HONEST), {name: typed(annotation, make()) for name, (annotation, make) in HOSTILE.items()}),
        "rows": (partial(chunk, rows), {"the shortest rows": partial(chunk, short_rows())}),
        "stages": (partial(decode_stages, stages), {"the shortest stages": partial(decode_stages, short_stages)}),
    }


def took_ns(decode: Decoding) -> int:
    """Decode once, and return its CPU time."""
    begun = time.process_time_ns()
    decode()
    return time.process_time_ns() - begun


def main() -> None:
    out = sys.stdout.write
    out(f"| message | times an honest one (at most {WANTED:.0f} wanted) |\n|---|---|\n")
    for kind, (honest, hostile) in groups().items():
        least = dict.fromkeys(hostile, sys.maxsize)
        usual = sys.maxsize
        for _ in range(ROUNDS):  # whatever else the machine does only adds
            usual = min(usual, took_ns(honest))
            least = {name: min(least[name], took_ns(decode)) for name, decode in hostile.items()}
        for name, cost in least.items():
            out(f"| {kind}: {name} | {cost / usual:.1f} |\n")


if __name__ == "__main__":
    main()
