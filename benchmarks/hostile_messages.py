"""Hostile messages of 64 KiB, beside honest ones: `python -m benchmarks.hostile_messages`.

Each is decoded in turn with the others, and the median of its CPU time counts. At most 3 times the honest message is wanted: of typed
services (the dearer of two: see `tests.scenes.hostile_messages`), of chunks of rows for Titanic, of their lists of stages, and of requests
that Titanic stores, where an honest one has 64 frames.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import msgpack

from mdp.typed.schemas import Schema, TypeMismatch
from tests.scenes.hostile_messages import HONEST, HOSTILE, OF_THEIR_KIND, SIZE
from titanic.store.store import Store
from titanic.wire.batch_frames import BatchChunk, decode_stages, encode_rows, rows_max

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoding = Callable[[], object]

ROUNDS = 9
SUBMITS = 10
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


def submit(store: Store, frames: list[bytes]) -> Decoding:
    """Have a store in memory take requests."""

    def take() -> None:
        for _ in range(SUBMITS):
            store.submit([b"echo", *frames], lambda reply: None)

    return take


def of_kind(annotation: Any, octets: bytes) -> list[Decoding]:
    """Return a hostile message, and one of its kind that is honest."""
    return [
        typed(annotation, octets),
        typed(annotation, OF_THEIR_KIND[annotation]()) if annotation in OF_THEIR_KIND else typed(Any, HONEST),
    ]


def groups(store: Store) -> dict[str, tuple[Decoding, dict[str, list[Decoding]]]]:
    """Return each kind of message: the honest one, and the hostile ones by name, each with further honest ones."""
    chunk = partial(BatchChunk.decode, b"echo")
    rows = encode_rows([(b"job-7/3/%06d" % number, [b"x" * 64]) for number in range(750)])
    stages = msgpack.packb([(b"job-7/%d/0" % number, 1) for number in range(4_200)])
    short_stages = msgpack.packb([(b"s", 1)] * 7_500 + [(b"s" * 200, 1)] * 130)
    return {
        "typed": (typed(Any, HONEST), {name: of_kind(annotation, make()) for name, (annotation, make) in HOSTILE.items()}),
        "rows": (partial(chunk, rows), {"the shortest rows": [partial(chunk, short_rows())]}),
        "stages": (partial(decode_stages, stages), {"the shortest stages": [partial(decode_stages, short_stages)]}),
        "stored": (
            submit(store, [bytes(1_024)] * 64),
            {
                "1,000 frames": [submit(store, [bytes(64)] * 1_000)],
                "1,000 frames of one byte": [submit(store, [*[b"x"] * 1_000, bytes(SIZE - 3_000)])],
            },
        ),
    }


def took_ns(decode: Decoding) -> int:
    """Decode once, and return its CPU time."""
    begun = time.process_time_ns()
    decode()
    return time.process_time_ns() - begun


async def main() -> None:
    out = sys.stdout.write
    out(f"| message | times an honest one (at most {WANTED:.0f} wanted) |\n|---|---|\n")
    store = Store(None, None)
    await store.open()
    for kind, (honest, hostile) in groups(store).items():
        usual: list[int] = []
        taken: dict[str, list[list[int]]] = {name: [[] for _ in several] for name, several in hostile.items()}
        for _ in range(ROUNDS):
            usual.append(took_ns(honest))
            for name, several in hostile.items():
                for one, decode in enumerate(several):
                    taken[name][one].append(took_ns(decode))
        for name, (cost, *others) in taken.items():
            out(f"| {kind}: {name} | {median(cost) / max(median(one) for one in (usual, *others)):.1f} |\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
