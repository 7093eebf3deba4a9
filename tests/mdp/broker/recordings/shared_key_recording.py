"""Ends of requests with one key, whatever each of them has asked for, and whatever happens to one of them.

`shared_key_recording.txt` has the options of the three requests, and how each ends: what is sent to each client before the event, then,
and after it, and which numbers changed in all. `python -m tests.mdp.broker.recordings.shared_key_recording` writes it again, after an
intended change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdp.wire.commands import worker_error, worker_heartbeat, worker_partial, worker_return
from mdp.wire.events import Cancel, Disconnect, Failure, Final, Heartbeat, Partial, Ping, Recall, Work, parse_at_client, parse_at_worker
from mdp.wire.options import decode_request_options
from tests.mdp.broker.recordings.recorded_scene import Tale
from tests.scenes.mdp_dispatcher import number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FILE", "ends", "read"]

FILE = Path(__file__).with_name("shared_key_recording.txt")

WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "once": {"once": True},
    "short": {"deadline_ms": 1500},
    "long": {"deadline_ms": 6500},
    "wait": {"wait": True},
}


class Case(Tale):
    """A tale of clients C1, C2 and C3 with one key, told in short."""

    def __init__(self) -> None:
        super().__init__(watched=False, parts_max_bytes=40)
        self.before = self.machine.stats()
        self.steps: list[str] = []

    def take(self, out: list[list[bytes]], twins: list[list[bytes]]) -> list[list[bytes]]:
        decoded = super().take(out, twins)
        said = [f"{peer.decode()} {self.told(peer, frames)}" for peer, *frames in sorted(decoded, key=lambda message: message[0])]
        self.steps += [text for text in said if not text.endswith("beat")]
        return decoded

    def told(self, peer: bytes, frames: list[bytes]) -> str:
        event = parse_at_worker(frames) if peer.startswith(b"W") else parse_at_client(frames)
        match event:
            case Final(body=body) | Partial(body=body):
                return f"{type(event).__name__.lower()} {b' '.join(body).decode()}"
            case Failure(code=code, text=text):
                return f"{code} ({text})"
            case Work(options=options, body=body):
                wish = decode_request_options(options)
                left = "" if wish.deadline_ms is None else f" within {wish.deadline_ms}"
                return f"work {b' '.join(body).decode()}{left}{' once' if wish.once else ''} delivery {wish.delivery}"
            case Heartbeat() | Ping():
                return "beat"
            case Cancel() | Recall() | Disconnect():
                return type(event).__name__.lower()
            case _:
                raise AssertionError(event)

    def mark(self, text: str = "/") -> None:
        self.steps.append(text)

    def all_ask(self, first: str, second: str, third: str) -> None:
        for peer, wish in ((b"C1", first), (b"C2", second), (b"C3", third)):
            self.asks("0.3", peer, key=b"k", **WISHES[wish])
            self.later(0.1)

    def last_token(self) -> bytes:
        return self.tokens[b"W1"][-1]


def answers(it: Case) -> None:
    it.ends("0.3")


def streams(it: Case) -> None:
    it.says(b"W1", worker_partial("0.3", it.last_token(), [b"part"]))
    it.asks("0.3", b"C4", key=b"k")
    it.ends("0.3")


def streams_much(it: Case) -> None:
    for _ in range(3):
        it.says(b"W1", worker_partial("0.3", it.last_token(), [b"part" * 4]))
    it.asks("0.3", b"C4", key=b"k")
    it.ends("0.3")


def streams_and_is_lost(it: Case) -> None:
    it.says(b"W1", worker_partial("0.3", it.last_token(), [b"part"]))
    it.goes(b"W1")


def fails(it: Case) -> None:
    it.says(b"W1", worker_error(it.token(), "HANDLER_ERROR", "no"))


def keeps_to_the_deadline(it: Case) -> None:
    it.says(b"W1", worker_error(it.token(), "DEADLINE_EXCEEDED", "late"))


def streams_and_keeps_to_the_deadline(it: Case) -> None:
    it.says(b"W1", worker_partial("0.3", it.last_token(), [b"part"]))
    it.says(b"W1", worker_error(it.token(), "DEADLINE_EXCEEDED", "late"))


def is_lost(it: Case) -> None:
    it.goes(b"W1")


def is_lost_for_good(it: Case) -> None:
    """A client that waits has exactly its time from then on.

    All others have theirs until the broker's next check of them.
    """
    it.goes(b"W1")
    it.later(4.9)
    it.mark()
    it.later(0.2)
    it.mark()
    it.later(1.0)


def is_lost_twice(it: Case) -> None:
    it.goes(b"W1")
    it.comes("0.3", b"W2")
    it.goes(b"W2")


def first_goes(it: Case) -> None:
    it.goes(b"C1")
    it.asks("0.3", b"C1", key=b"k")
    it.ends("0.3")


def first_cancels(it: Case) -> None:
    it.says(b"C1", client_cancel(number(1)))
    it.says(b"C2", client_cancel(number(2)))
    it.goes(b"W1")


def second_cancels(it: Case) -> None:
    it.says(b"C2", client_cancel(number(2)))
    it.goes(b"C3")
    it.says(b"C1", client_cancel(number(1)))


def all_go(it: Case) -> None:
    it.goes(b"C1", b"C3", b"C2")
    it.asks("0.3", b"C4", key=b"k", once=True)
    it.goes(b"C4")
    it.goes(b"W1")


def all_go_and_it_is_answered(it: Case) -> None:
    it.goes(b"C3", b"C2", b"C1")
    it.ends("0.3")


def is_asked_back(it: Case) -> None:
    it.asks("0.3", b"C5", b"other")
    it.goes(b"C1")
    it.comes("0.3", b"W2", concurrency=1)
    it.later(0.3)
    for token in it.tokens[b"W1"]:
        if token in {key[-8:] for key in it.machine.directory.workers[b"W1"].recalled}:
            it.says(b"W1", worker_return(token))


def is_given_back_when_all_went(it: Case) -> None:
    it.goes(b"C1", b"C2", b"C3")
    it.comes("0.3", b"W2", concurrency=1)
    it.later(0.3)
    it.says(b"W1", worker_error(it.token(), "DEADLINE_EXCEEDED", "late"))


def time_passes(it: Case) -> None:
    for _ in range(9):
        it.says(b"W1", worker_heartbeat("0.3"))
        it.later(0.9)


def stops(it: Case) -> None:
    it.calls("stop")


def nobody_comes(it: Case) -> None:
    it.later(8.0)


def one_comes_late(it: Case) -> None:
    it.later(2.0)
    it.comes("0.3", b"W1")
    it.ends("0.3")


def one_comes_and_is_lost(it: Case) -> None:
    """A request that always waited keeps its time.

    For a follower without a time of its own, time counts from the loss.
    """
    it.comes("0.3", b"W1")
    it.asks("0.3", b"C4", key=b"k")
    it.later(1.5)
    it.says(b"W1", worker_heartbeat("0.3"))
    it.later(1.5)
    it.goes(b"W1")
    it.later(2.8)
    it.mark()
    it.later(3.0)
    it.mark()


def one_is_lost_beside_one_that_is_busy(it: Case) -> None:
    """The time limit of requests that waited for a worker ends when one has come: they wait on."""
    it.comes("0.3", b"W1", credit=2)
    it.comes("0.3", b"W2")
    it.asks("0.3", b"C6", b"busy")
    it.later(0.5)
    it.goes(b"W1")
    for _ in range(8):
        it.later(0.8)
        it.says(b"W2", worker_heartbeat("0.3"))


def one_comes_and_is_busy(it: Case) -> None:
    it.goes(b"C2")
    it.comes("0.3", b"W1", b"other")
    it.later(4.0)
    it.goes(b"C1", b"C3")


def is_asked_back_for(it: Case, *others: bytes) -> None:
    """It had not begun: another may."""
    it.comes("0.3", b"W2", concurrency=1)
    it.later(0.1)
    it.goes(*others)
    it.says(b"W1", worker_return(it.last_token()))


def is_asked_back_for_another(it: Case) -> None:
    is_asked_back_for(it)


def is_asked_back_and_waits(it: Case) -> None:
    is_asked_back_for(it, b"W2")


def is_asked_back_for_the_second(it: Case) -> None:
    is_asked_back_for(it, b"C1", b"W2")


def is_asked_back_for_nobody(it: Case) -> None:
    is_asked_back_for(it, b"C3", b"C2", b"C1", b"W2")


def keeps_to_the_deadline_beside_another(it: Case) -> None:
    it.comes("0.3", b"W2")
    keeps_to_the_deadline(it)


WORKS = (
    answers,
    streams,
    streams_much,
    streams_and_is_lost,
    fails,
    keeps_to_the_deadline,
    keeps_to_the_deadline_beside_another,
    streams_and_keeps_to_the_deadline,
    is_lost,
    is_lost_for_good,
    is_lost_twice,
    first_goes,
    first_cancels,
    second_cancels,
    all_go,
    all_go_and_it_is_answered,
    is_asked_back,
    is_given_back_when_all_went,
    time_passes,
    stops,
)
WAITS = (
    nobody_comes,
    one_comes_late,
    one_comes_and_is_lost,
    one_is_lost_beside_one_that_is_busy,
    one_comes_and_is_busy,
    first_cancels,
    second_cancels,
    stops,
)
BEHIND = (is_asked_back_for_another, is_asked_back_and_waits, is_asked_back_for_the_second, is_asked_back_for_nobody)
HERE = "one works"
BUSY = "one works on something else"
ABSENT = "nobody is there"


def _told(there: str, wishes: tuple[str, str, str], happens: Callable[[Case], None]) -> str:
    it = Case()
    if there != ABSENT:
        it.comes("0.3", b"W1", credit=3, concurrency=1)
        if there == BUSY:
            it.asks("0.3", b"C0", b"else")
    else:
        it.asks("0.3", b"C0", b"else", wait=True)  # the service is known, and something waits for it
    it.all_ask(*wishes)
    it.mark("/")
    happens(it)
    it.mark("/")
    if it.machine.directory.accepting:
        it.later(2.0)
        it.comes("0.3", b"W9")
        it.asks("0.3", b"C9", key=b"k")
        if b"W9" in it.tokens:
            it.ends("0.3", b"W9", b"z")
        it.later(6.0)
    numbers = it.machine.stats()
    changed = [f"{name} {now - it.before[name]:+d}" for name, now in numbers.items() if now != it.before[name]]
    return f"{', '.join(it.steps)} = {', '.join(changed)}"


CASES = {
    f"{there}, {happens.__name__}, first {first}": (there, happens, first)
    for there, every in ((HERE, WORKS), (BUSY, BEHIND), (ABSENT, WAITS))
    for happens in every
    for first in WISHES
}


def ends(name: str) -> list[str]:
    """Return how a case ends: each end, and before it for which wishes it is the one."""
    there, happens, first = CASES[name]
    found: dict[str, list[str]] = {}
    for wishes in (*((first, second, "long") for second in WISHES), (first, "long", "plain")):
        found.setdefault(_told(there, wishes, happens), []).append(" ".join(wishes))
    return [line for end, wishes in found.items() for line in (", ".join(wishes), f"    {end}")]


def read() -> Iterator[tuple[str, list[str]]]:
    """Read how all cases have to end."""
    for block in FILE.read_text(encoding="utf-8").split("\n== ")[1:]:
        name, *lines = block.rstrip("\n").split("\n")
        yield name, lines


if __name__ == "__main__":
    written = ["Written by `python -m tests.mdp.shared_ends`, which says what it means.", ""]
    for title in CASES:
        written += [f"== {title}", *ends(title), ""]
    FILE.write_text("\n".join(written), encoding="utf-8")
