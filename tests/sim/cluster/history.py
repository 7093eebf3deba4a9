"""Requests of a run and what became of them; checks of what was promised about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.cluster.world import World

__all__ = ["History", "Operation"]


@dataclass(eq=False, slots=True)
class Operation:
    """One request.

    Attributes:
        mode: "plain", "once", "key", "stored", …
        body: number that is sent: of the first request with this key.
        bound_s: it settles in this time when nothing fails.
        ended: when, None before; `result` is its reply, `error` its error.
        life: identifies the life of the client, which takes open requests with it.
    """

    number: int
    client: str
    life: object
    mode: str
    begun: float
    bound_s: float
    key: bytes = b""
    body: int = 0
    ended: float | None = None
    result: bytes | None = None
    error: str = ""
    accepted: float | None = None  # when a store acknowledged it
    ticket: str = ""  # of an accepted request
    runs: list[tuple[float, str]] = field(default_factory=list)  # executions: when, by which worker

    @property
    def id(self) -> bytes:
        return b"%d" % self.number


class History:
    """All requests of a run, by number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: list[Operation] = []
        self.counts: Counter[str] = Counter()
        self._by_key: dict[bytes, list[Operation]] = {}

    def begin(self, client: str, life: object, mode: str, bound_s: float, key: bytes = b"") -> Operation:
        number = len(self.operations)
        first = self._by_key[key][0].number if key in self._by_key else number
        operation = Operation(number, client, life, mode, self.world.now, bound_s, key, first)
        self.operations.append(operation)
        self.counts[f"begun {mode}"] += 1
        if key:
            self._by_key.setdefault(key, []).append(operation)
        self.world.mark("request", client, f"{mode} {operation.number}")
        return operation

    def accepted(self, operation: Operation) -> None:
        operation.accepted = self.world.now
        self.counts[f"accepted {operation.mode}"] += 1
        self.world.mark("accepted", operation.client, str(operation.number))

    def settle(self, operation: Operation, result: bytes | None, error: str = "") -> None:
        if operation.ended is not None:
            self.world.violated(f"request {operation.number} of {operation.client} ended twice")
        operation.ended, operation.result, operation.error = self.world.now, result, error
        self.counts[f"answered {operation.mode}" if result is not None else f"{error} {operation.mode}"] += 1
        self.world.mark("reply" if result is not None else "error", operation.client, f"{operation.number} {error}")
        late_s = self.world.now - operation.begun - operation.bound_s
        if result is not None and not result.startswith(operation.key or operation.id + b" "):
            self.world.violated(f"request {operation.number} of {operation.client} got another one's reply {result[:60]!r}")
        if late_s > 0 and error == "":
            self.counts["late"] += 1

    def run(self, number: int, worker: str) -> Operation:
        """Note an execution."""
        operation = self.operations[number]
        operation.runs.append((self.world.now, worker))
        if operation.mode == "once" and len(operation.runs) > 1:
            self.world.violated(f"request {number} with `once` was executed twice, by {operation.runs}")
        return operation

    # ---- checks at the end

    def open(self) -> list[Operation]:
        """Return requests without an end whose client still waits."""
        return [one for one in self.operations if one.ended is None and _waits(one.life)]

    def check_keys(self, kept_s: float) -> None:
        """Check that requests with one key have one reply, for as long as what keeps the replies must keep it."""
        for key, operations in self._by_key.items():
            kept: Operation | None = None  # first with the present reply
            for one in sorted((one for one in operations if one.result is not None), key=_ended):
                if kept is None or (one.result != kept.result and one.begun > _ended(kept) + kept_s):
                    kept = one
                elif one.result != kept.result:
                    self.world.violated(f"key {key!r} has the replies {kept.result!r} and {one.result!r}")

    def check_linear(self) -> None:
        """Check that no reply of a key is older than one that was given before its request began.

        A reply names its execution. When the kept replies were lost another execution may follow, but an older one may not return, unless
        another worker had executed it: that one has its own reply of the key, and may be asked again.
        """
        for key, operations in self._by_key.items():
            given = sorted((one.ended, _execution(one.result)) for one in operations if one.ended is not None and one.result is not None)
            at, newest = 0, 0
            for one in sorted((one for one in operations if one.result is not None), key=_begun):
                while at < len(given) and given[at][0] < one.begun:
                    newest = max(newest, given[at][1])
                    at += 1
                assert one.result is not None
                this, runs = _execution(one.result), operations[0].runs
                if this < newest and runs[this - 1][1] == runs[newest - 1][1]:
                    self.world.violated(f"key {key!r} got the reply of execution {this} after that of {newest}")

    def check_accepted(self, mode: str, share: float) -> None:
        """A share of the requests of a mode was accepted; else a run shows nothing."""
        begun, accepted = self.counts[f"begun {mode}"], self.counts[f"accepted {mode}"]
        if accepted < share * begun:
            self.world.violated(f"only {accepted} of {begun} requests were accepted: {dict(self.counts)}")

    def check_answers(self, modes: dict[str, float]) -> None:
        """A share of the requests of each mode was answered; else a run shows nothing."""
        for mode, share in modes.items():
            begun, answered = self.counts[f"begun {mode}"], self.counts[f"answered {mode}"]
            if answered < share * begun:
                self.world.violated(f"only {answered} of {begun} requests of mode {mode} were answered: {dict(self.counts)}")


def _execution(result: bytes) -> int:
    """Return which execution of its request a reply is of; see `scenarios.majordomo`."""
    return int(result.rpartition(b".")[2])


def _begun(operation: Operation) -> float:
    return operation.begun


def _ended(operation: Operation) -> float:
    assert operation.ended is not None
    return operation.ended


def _waits(life: object) -> bool:
    return bool(getattr(life, "alive", False))
