"""Replies kept by idempotency key, so that a request sent twice is executed once (IDM-01 to IDM-05).

Pure. A key belongs to a service. From the acceptance of a request with a key until it fails, or until its reply is dropped because of its
age or the limits, every request with that key gets the same answer: requests that arrive while it runs wait for it, later ones are
answered from the cache. The same key with another body is an error. Streams are kept and sent again part by part.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final

from core.machine.bounded_msgpack import unpack
from mdp.broker.requests.records import SharedExecution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.broker.limits import BrokerOptions

# Memory of an execution in addition to the octets of its answer: record, two dictionary entries, key.
EXECUTION_OVERHEAD_BYTES = 512
_DIGEST_BYTES = 16
# Keys of one question: the answer is computed while nothing else is done.
KEYS_MAX: Final = 10_000
_OK: Final = b"200"
_MALFORMED: Final = b"400"
_KEPT: Final = b"k"
_RUNS: Final = b"r"
_UNKNOWN: Final = b"-"


def digest_of(body: bytes) -> bytes:
    """Return the digest of a body (encoded frames), by which bodies are compared."""
    from hashlib import blake2b  # here: see `core.security.curve_keys.same_octets`

    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


class ReplyCache:
    """Executions by service and key; answered ones are bounded in number, octets and age (IDM-04)."""

    def __init__(self, options: BrokerOptions) -> None:
        self.size = 0  # octets of all kept answers, and of the parts kept of running executions
        self._options = options
        self._running: dict[tuple[bytes, bytes], SharedExecution] = {}
        self._done: OrderedDict[tuple[bytes, bytes], SharedExecution] = OrderedDict()  # oldest answer first
        self._looked_at = -inf  # time of the last search for answers that are too old

    def __len__(self) -> int:
        return len(self._done)

    def find(self, service: bytes, key: bytes, now: float) -> SharedExecution | None:
        """Return the execution of a key, running or answered and not too old, None without one."""
        name = (service, key)
        execution = self._running.get(name)
        if execution is None:
            if now != self._looked_at:  # once per batch
                self._looked_at = now
                self.forget_old(now)
            execution = self._done.get(name)
        return execution

    def begin(self, service: bytes, key: bytes, digest: bytes) -> SharedExecution:
        execution = SharedExecution((service, key), digest)
        self._running[execution.name] = execution
        return execution

    def add_part(self, execution: SharedExecution, body: bytes) -> None:
        """Keep a PARTIAL for later requests with the key, within the limits."""
        limits = self._options
        if not execution.shared:
            return
        self._drop_for(len(body))
        if execution.size + len(body) > limits.parts_max_bytes or self.size + len(body) > limits.results_max_bytes:
            self._forget_parts(execution)
            execution.shared = False
            return
        execution.parts.append(body)
        execution.size += len(body)
        self.size += len(body)

    def complete(self, execution: SharedExecution, reply: bytes, now: float) -> None:
        """Keep the answer (IDM-02: before it is sent); drop the oldest ones beyond the limits."""
        self._running.pop(execution.name, None)
        execution.request = None
        execution.followers.clear()  # otherwise their records would be kept as long as the answer
        execution.reply = reply
        execution.done_at = now
        added = len(reply) + EXECUTION_OVERHEAD_BYTES
        self._drop_for(added)
        if not execution.shared or self.size + added > self._options.results_max_bytes:
            self._forget_parts(execution)
            return
        execution.size += added
        self.size += added
        self._done[execution.name] = execution
        if len(self._done) > self._options.results_max:
            self._drop_oldest()

    def abandon(self, execution: SharedExecution) -> None:
        """Remove an execution that failed: the next request with its key is executed."""
        execution.request = None
        self._forget_parts(execution)
        self._running.pop(execution.name, None)

    def forget_old(self, now: float) -> None:
        """Drop answers that are older than `results_ms`."""
        before = now - self._options.results_ms / 1000
        while self._done and next(iter(self._done.values())).done_at <= before:
            self._drop_oldest()

    def _drop_for(self, octets: int) -> None:
        while self._done and self.size + octets > self._options.results_max_bytes:
            self._drop_oldest()

    def _forget_parts(self, execution: SharedExecution) -> None:
        execution.parts.clear()
        self.size -= execution.size
        execution.size = 0

    def _drop_oldest(self) -> None:
        _, execution = self._done.popitem(last=False)
        self.size -= execution.size


def state_of_keys(body: Sequence[bytes], owner: bytes, replies: ReplyCache, now: float) -> list[bytes]:
    """Return the body frames of the answer to `mmi.keys`, by which a client knows what it would be answered.

    Args:
        body: of the question: a msgpack array of keys, and the name of a service.
        owner: prefix of the peer's keys.
        replies: executions by key.
        now: monotonic seconds.
    """
    if len(body) != 2:
        return [_MALFORMED]
    try:
        keys: object = unpack(body[0])
    except ValueError:
        return [_MALFORMED]
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        return [_MALFORMED]
    states: list[bytes] = []
    for key in keys:
        if not isinstance(key, bytes):
            return [_MALFORMED]
        execution = replies.find(body[1], owner + key, now)
        states.append(_UNKNOWN if execution is None else _RUNS if execution.reply is None else _KEPT)
    return [_OK, b"".join(states)]
