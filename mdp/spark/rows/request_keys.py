"""Request keys that are equal when Spark runs a task again.

Pure. Spark repeats tasks: after a crash, speculatively, or because a second action evaluates the same frame. A request with a random key
would be executed again; a key derived from the row is recognised by Titanic or by a service that remembers keys. The row's position is
not usable: a recomputed shuffle may deliver the rows of a partition in another order. So the key is derived from the request and the
number of equal requests before it in the partition.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from mdp.wire.options import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import TaskContext

# 128 bits: the probability of a collision among 10^12 rows is 10^-15.
_DIGEST_BYTES = 16


def micro_batch_of(context: TaskContext | None) -> tuple[str | None, str | None]:
    if context is None:
        return None, None
    return context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")


def short_key(key: str) -> str:
    """Return a key that brokers and stores accept: a longer or empty one is replaced by its digest."""
    octets = key.encode()
    return key if 0 < len(octets) <= KEY_BYTES_MAX else blake2b(octets, digest_size=16).hexdigest()


class PartitionKeys:
    """Keys of one partition of a job: H(H(job, partition), request), and for the n-th repetition of a request H(that, n).

    The job's name is the same for every attempt at it. Memory is one digest and one number per distinct request of the partition, about
    150 bytes; a key column needs none.
    """

    def __init__(self, job: str, partition: int, scope: str | None = None) -> None:
        self._seed = blake2b(_joined((job.encode(), str(partition).encode())), digest_size=_DIGEST_BYTES).digest()
        self._repetitions: dict[bytes, int] = {}
        self._scope = scope  # in which a user's key is one request, None for everywhere

    def of(self, key: str) -> str:
        return short_key(key if self._scope is None else f"{self._scope}/{key}")

    def next(self, frames: Sequence[bytes]) -> str:
        """Return the key, 32 hexadecimal digits, of the next row with the body frames `[body…]`."""
        digest = blake2b(_joined(frames), digest_size=_DIGEST_BYTES, key=self._seed).digest()
        repetition = self._repetitions.get(digest, 0)
        self._repetitions[digest] = repetition + 1
        if repetition:
            digest = blake2b(str(repetition).encode(), digest_size=_DIGEST_BYTES, key=digest).digest()
        return digest.hex()


def _joined(frames: Sequence[bytes]) -> bytes:
    # With lengths, so that frame boundaries matter.
    return b"".join([b"%d:%b" % (len(frame), frame) for frame in frames])
