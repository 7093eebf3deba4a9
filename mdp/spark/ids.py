"""Names for requests that come out the same when Spark runs a task again.

Pure. Spark repeats tasks: after a crash, speculatively, or because a second action evaluates the same frame. A request whose name is
drawn at random would be executed again; one whose name follows from the row is recognised by Titanic or by a service that keeps
the keys it has seen. The row's position is no good name: a recomputed shuffle may deliver the rows of a partition in another order.
So the name is made of what the row asks, and of how many rows before it in the partition asked the same.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["PartitionKeys", "payload_digest"]

# 128 bits: a collision among 10^12 rows has a chance of 10^-15.
_DIGEST_BYTES = 16


def payload_digest(frames: Iterable[bytes]) -> bytes:
    """Return a digest of 16 bytes of body frames `[body…]`; the borders between the frames count."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for frame in frames:
        digest.update(len(frame).to_bytes(8, "big"))
        digest.update(frame)
    return digest.digest()


class PartitionKeys:
    """The keys of one partition of one job: H(job, partition, H(payload), occurrence).

    Keeps one digest and one number per distinct payload of the partition, about 150 bytes each; a key column costs nothing.

    Args:
        job: name of the job, the same for every attempt at it.
        partition: number of the partition in the job.
    """

    def __init__(self, job: str, partition: int) -> None:
        name = job.encode()
        self._seed = blake2b(len(name).to_bytes(8, "big") + name + partition.to_bytes(8, "big"), digest_size=_DIGEST_BYTES).digest()
        self._occurrences: dict[bytes, int] = {}

    def next(self, frames: Sequence[bytes]) -> str:
        """Return the key, 32 hexadecimal digits, of the next row that asks with the body frames `[body…]`."""
        payload = payload_digest(frames)
        occurrence = self._occurrences.get(payload, 0)
        self._occurrences[payload] = occurrence + 1
        return blake2b(self._seed + payload + occurrence.to_bytes(8, "big"), digest_size=_DIGEST_BYTES).hexdigest()
