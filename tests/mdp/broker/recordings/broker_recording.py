"""Recorded scenes of the broker's machine, step by step.

What peers send, what each of them receives, octet by octet, and which numbers change.

`broker_recording.txt` has all of them as they have to go. After an intended change, `python -m
tests.mdp.broker.recordings.broker_recording` writes that file again, and the difference shows what peers will see of it. Numbers that the
broker gives to requests are called `#1`, `#2`, in the order in which workers see them: which numbers the broker chooses is not recorded.
`due` is when the machine wants its next tick, from now on; `log` are the events for watchers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mdp.wire.commands import (
    client_heartbeat,
    worker_disconnect,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ready,
    worker_return,
)
from tests.mdp.broker.recordings.dialect_tales import dialect_tales
from tests.mdp.broker.recordings.recorded_scene import Tale
from tests.scenes.mdp_dispatcher import DIALECTS, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["FILE", "TALES", "read", "tell"]

FILE = Path(__file__).with_name("broker_recording.txt")


TALES: dict[str, Callable[[], Tale]] = dialect_tales()


def tale(name: str) -> Callable[[Callable[[], Tale]], Callable[[], Tale]]:
    def keep(made: Callable[[], Tale]) -> Callable[[], Tale]:
        TALES[name] = made
        return made

    return keep


@tale("what a client may wish for")
def wishes() -> Tale:
    it = Tale()
    it.asks("0.3", b"C1")
    it.comes("0.3", credit=9, concurrency=3)
    for options in (
        {"once": True},
        {"wait": True},
        {"deadline_ms": 0},
        {"deadline_ms": 1500},
        {"deadline_ms": 2500, "wait": True, "once": True},
        {"user": "bob"},
        {"trace": {"traceparent": "00-abc"}, "other": 1},
        {"key": b"k", "deadline_ms": 700},
        {"deadline_ms": -1},
    ):
        it.asks("0.3", b"C1", **options)
    it.later(1.0)
    it.says(b"C1", client_cancel(number(2)))
    it.says(b"C1", client_cancel(number(2)))
    it.says(b"C1", client_heartbeat())
    it.goes(b"W1")
    it.later(0.2)
    it.comes("0.3", b"W2", credit=9)
    it.says(b"C1", [b"MDPC03\x01" + number(99), b"echo", b"x"])  # what was accepted before is not what is refused here
    it.later(2.0)
    it.calls("drain")
    it.asks("0.3", b"C1", wait=True)
    it.calls("stop")
    return it


@tale("questions, and dead letters")
def questions() -> Tale:
    it = Tale()
    it.comes("0.3")
    for client in DIALECTS:
        for service, about in ((b"mmi.service", b"echo"), (b"mmi.service", b"none"), (b"mmi.protocol", b"MDP/0.2"), (b"mmi.x", b"")):
            it.asks(client, b"C1", about, service=service)
        it.asks(client, b"C1", b"one", b"too many", service=b"mmi.service")
    it.asks("0.3", b"C1", b"deadly")
    for peer in (b"W2", b"W3"):
        it.goes(b"W%d" % (int(peer[1:]) - 1))
        it.comes("0.3", peer)
    it.asks("0.3", b"C2", b"", service=b"mmi.dlq")
    (letter,) = it.machine.dead_letters
    for about in (b"%d" % letter.number, b"99", b"x"):
        it.asks("0.3", b"C2", about, service=b"mmi.dlq.retry")
        it.asks("0.3", b"C3", about, service=b"mmi.dlq.retry")
        it.asks("0.3", b"C3", about, b"more", service=b"mmi.dlq.retry")
    it.goes(b"W3")
    it.comes("0.3", b"W4", b"echo")
    it.ends("0.3", b"W4")
    it.asks("0.3", b"C2", b"", service=b"mmi.dlq")
    it.asks("0.3", b"C2", b"echo", service=b"mmi.disable")
    it.asks("0.3", b"C2", service=b"echo", wait=True)
    it.asks("0.1", b"C1", service=b"echo")
    it.asks("0.3", b"C2", b"echo", service=b"mmi.enable")
    it.asks("0.3", b"C2", service=b"echo")
    it.asks("0.3", b"C2", b"echo", service=b"mmi.drain")
    it.asks("0.3", b"C2", service=b"echo")
    return it


@tale("what is nothing")
def nothing() -> Tale:
    it = Tale(workers_max=2, services_max=2)
    for peer in (b"C1", b"W1"):
        for frames in (
            [b""],
            [b"", b""],
            [b"", b"MDPC01"],
            [b"", b"MDPC01", b"echo"],
            [b"", b"MDPC01", b"", b"x"],
            [b"", b"MDPC02", b"echo", b"x"],
            [b"x", b"MDPC01", b"echo", b"x"],
            [b"x", b"MDPW01", b"\x03", number(1), b"", b"x"],
            [b"MDPC02", b"\x01", b"echo"],
            [b"MDPC02", b"\x09", b"echo", b"x"],
            [b"MDPC03\x01" + number(1), b"echo", b"x"],
            [b"MDPC03\x01" + number(1), b"", b"", b"x"],
            [b"MDPC03\x01" + number(1)[1:], b"echo", b"", b"x"],
            [b"MDPC03\x01" + number(1), b"a\x00b" * 100, b"", b"x"],
            [b"MDPC03\x07" + number(1)],
            [b"", b"MDPW01", b"\x03", number(1), b"", b"x"],
            [b"MDPW02", b"\x04", number(1), b"", b"x"],
            [b"MDPW03\x04" + number(1), b"x"],
            [b"MDPW03\x03" + number(1), b"x"],
            [b"MDPW03\x08" + number(1)],
        ):
            it.says(peer, frames)
            if peer == b"W1" and peer not in it.machine.directory.workers:
                it.comes("0.3", b"W1")
                it.asks("0.3", b"C1", wait=True)
    it.comes("0.1", b"W1")
    it.comes("0.3", b"W2", credit=-1)
    it.comes("0.3", b"W2", b"mmi.x")
    it.comes("0.3", b"W2", b"")
    it.comes("0.3", b"W2", b"second")
    it.comes("0.3", b"W3", b"second")
    it.says(b"W2", worker_disconnect("0.3"))
    it.comes("0.3", b"W3", b"third")
    it.asks("0.3", b"C9", service=b"fourth", wait=True)
    it.asks("0.3", b"C9", service=b"second", wait=True)
    it.asks("0.1", b"C8", service=b"fifth")
    it.says(b"W1", worker_ready("0.3", b"echo"))
    return it


@tale("workers are lost among others")
def lost() -> Tale:
    it = Tale(deliveries_max=9)
    for peer in (b"W1", b"W2", b"W3", b"W4"):
        it.comes("0.3", peer, credit=2, concurrency=2)
        it.later(0.07)
    it.comes("0.1", b"W5")
    for _ in range(6):
        it.asks("0.3", b"C1")
    it.later(0.3)
    it.goes(b"W2")
    it.later(0.05)
    it.says(b"W3", worker_heartbeat("0.3"))
    it.later(0.9)
    it.says(b"W1", worker_disconnect("0.3"))
    it.later(0.02)
    it.ends("0.3", b"W3")
    it.later(0.9)
    it.goes(b"W3", b"W5")
    it.later(0.04)
    it.says(b"W4", worker_heartbeat("0.3"))
    it.later(0.04)
    it.says(b"W4", worker_heartbeat("0.3"))
    while it.tokens.get(b"W4"):
        it.ends("0.3", b"W4")
    it.later(1.9)
    it.comes("0.3", b"W6")
    it.later(0.9)
    it.says(b"W4", worker_disconnect("0.3"))  # with nothing in flight
    it.asks("0.3", b"C1")
    it.goes(b"W6")
    it.comes("0.3", b"W7")
    it.later(3.5)
    return it


def lost_after(how: str) -> Tale:
    """Whether the loss of a worker is one alone, or the second of two."""
    it = Tale(deliveries_max=9)
    for peer in (b"W1", b"W2", b"W3"):
        it.comes("0.3", peer)
    it.asks("0.3", b"C1", wait=True)
    it.asks("0.3", b"C1", service=b"other", wait=True)
    it.later(0.2)
    if how == "is gone":
        it.goes(b"W2")
    elif how == "leaves":
        it.says(b"W2", worker_disconnect("0.3"))
    it.later(0.1)
    it.says(b"W3", worker_heartbeat("0.3"))
    it.later(0.1)
    it.goes(b"W1")
    it.later(3.2)
    it.says(b"C1", client_cancel(number(1)))
    return it


for _how in ("nothing", "is gone", "leaves"):
    TALES[f"a worker is lost after another {_how}"] = lambda how=_how: lost_after(how)  # type: ignore[misc]


@tale("a lost request whose time is over when it may go to any worker")
def too_late() -> Tale:
    it = Tale(queue_ms=2900)
    for peer in (b"W1", b"W2"):
        it.comes("0.3", peer)
    it.asks("0.1", b"C1")
    it.later(0.05)
    it.goes(b"W2")
    it.later(0.05)
    it.comes("0.3", b"W3", heartbeat_ms=9000)
    it.later(0.05)
    it.goes(b"W1")
    it.later(3.9)
    return it


@tale("a worker that holds more than it can begin")
def ahead() -> Tale:
    it = Tale()
    it.comes("0.3", b"W1", credit=8, concurrency=2)
    for _ in range(7):
        it.asks("0.3", b"C1")
    it.asks("0.3", b"C1", once=True)
    it.later(0.1)
    it.comes("0.3", b"W2", credit=4, concurrency=1)
    it.later(0.0015)
    it.later(0.5)
    for place in (2, 3, 6):
        it.says(b"W1", worker_return(it.tokens[b"W1"][place]))
        it.later(0.0021)
    while it.tokens[b"W2"]:
        it.ends("0.3", b"W2")
        it.later(0.004)
    it.says(b"W1", worker_return(it.tokens[b"W1"][5]))
    while it.tokens[b"W2"]:
        it.ends("0.3", b"W2")
    it.ends("0.3", b"W1")
    it.later(0.1)
    it.says(b"W1", worker_return(it.tokens[b"W1"][0]))  # it was not asked for that
    it.later(0.5)
    return it


@tale("what is just within the limits, and one more")
def limits() -> Tale:
    it = Tale(parts_max_bytes=20, queue_max=4, queue_max_bytes=40, client_queue_max=3, memory_max_bytes=2600)
    it.comes("0.3")
    for size in (18, 19):
        it.asks("0.1", b"C1")
        it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [b"p" * size]))
        it.ends("0.3")
    it.asks("0.1", b"C1")
    for body in ([b"12345678"], [b"1234", b"56"], [b""]):
        it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], body))
    it.ends("0.3")
    room = 2600 - 512 - 3
    for size in (room - 2 - 9, room - 2 - 8):
        it.asks("0.1", b"C1", b"m" * (size - 1 - 512 - 9))
        it.asks("0.1", b"C1")
        it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [b"p" * 8]))
        while it.tokens[b"W1"]:
            it.ends("0.3")
    for dialect in DIALECTS:
        it.asks(dialect, b"C2", b"m" * (2600 - 512 - 9 - (2 if dialect == "0.3" else 0)))
        it.ends("0.3")
        it.asks(dialect, b"C2", b"m" * (2600 - 512 - 9 - (2 if dialect == "0.3" else 0) + 1))
        it.asks(dialect, b"C3", b"held")
        full = 10 if dialect == "0.3" else 16
        for size in (9, 9, full + 1, full, 0):
            it.asks(dialect, b"C4", b"q" * size)
        it.goes(b"C3", b"C4")
        it.ends("0.3")
    return it


@tale("parts when there is little room")
def room() -> Tale:
    it = Tale(parts_max_bytes=1000, memory_max_bytes=700)
    it.comes("0.3")
    for size in (182, 183, 184, 185, 186):
        it.asks("0.1", b"C1")
        it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [b"p" * size]))
        it.ends("0.3")
    return it


@tale("one key, many ways")
def keys() -> Tale:
    it = Tale(results_max=2, results_ms=3000, results_max_bytes=1200, guarded=False)
    it.comes("0.3", credit=4)
    it.says(b"C1", *(it.request("0.3", key=b"k%d" % count) for count in (1, 2, 1, 3)))
    it.asks("0.3", b"C2", b"other", key=b"k1")
    it.asks("0.3", b"C2", key=b"k1", deadline_ms=900, trace={"a": "b"})
    it.says(b"W1", *(worker_final("0.3", it.token(), [b"y"]) for _ in range(3)))
    it.asks("0.3", b"C2", key=b"k1")
    it.asks("0.3", b"C2", b"other", key=b"k3")
    it.asks("0.3", b"C2", key=b"k3")
    it.asks("0.3", b"C3", key=b"k9")
    it.goes(b"C3")
    it.asks("0.3", b"C2", key=b"k9", other="later")
    it.asks("0.3", b"C4", key=b"k9", once=True)
    it.goes(b"C2")
    it.goes(b"W1")
    it.comes("0.3", b"W2")
    it.later(2.0)
    it.asks("0.3", b"C5", key=b"k3")
    it.later(1.1)
    it.asks("0.3", b"C5", key=b"k3")
    it.calls("drain")
    it.asks("0.3", b"C5", key=b"k3")
    it.calls("stop")
    return it


@tale("one key, and peers that take less")
def narrow_keys() -> Tale:
    it = Tale(narrow=(b"C2",), parts_max_bytes=60_000)
    it.comes("0.3", credit=4)
    for body in (b"s", b"m" * 31_000):
        for peer in (b"C1", b"C2", b"C3"):
            it.asks("0.3", peer, key=body[:1])
        it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [body]))
        it.ends("0.3", b"W1", body)
        it.asks("0.3", b"C2", key=body[:1])
    it.asks("0.3", b"C1", key=b"late")
    it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [b"small"]))
    it.says(b"W1", worker_partial("0.3", it.tokens[b"W1"][0], [b"m" * 31_000]))
    it.asks("0.3", b"C2", key=b"late")
    it.asks("0.3", b"C3", key=b"late")
    it.goes(b"C1", b"C3")
    it.asks("0.3", b"C2", key=b"late")
    it.asks("0.3", b"C3", key=b"late")
    it.ends("0.3")
    for first in (b"C2", b"C1"):
        it.asks("0.3", first, key=b"f" + first)
        it.asks("0.3", b"C3", key=b"f" + first)
        it.asks("0.3", b"C2", key=b"f" + first)
        it.ends("0.3", b"W1", b"m" * 31_000)
    return it


@tale("a broker that begins")
def begins() -> Tale:
    it = Tale(start_hold_ms=2000)
    it.calls("peer_joined", b"C1")
    it.machine.begin(it.now)
    it.twin.begin(it.now)
    it.machine.request_table.timer_changed = True
    it.asks("0.3", b"C1")
    it.asks("0.3", b"C1", wait=True, service=b"two")
    it.asks("0.3", b"C2", key=b"k", service=b"two")
    it.asks("0.3", b"C3", key=b"k", wait=True, service=b"two")
    it.asks("0.1", b"C4")
    it.asks("0.2", b"C5", service=b"two")
    it.asks("0.3", b"C6", service=b"three")
    it.later(1.0)
    it.comes("0.3", b"W1", b"three")
    it.goes(b"W1")
    it.later(1.5)
    it.asks("0.3", b"C1")
    it.comes("0.3", b"W2")
    it.later(1.0)
    it.calls("peer_joined", b"W2")
    it.later(4.0)
    return it


def tell(name: str) -> list[str]:
    """Return the lines of a tale."""
    return TALES[name]().lines


def read() -> Iterator[tuple[str, list[str]]]:
    """Read all tales as they were written down."""
    for block in FILE.read_text(encoding="utf-8").split("\n== ")[1:]:
        name, *lines = block.rstrip("\n").split("\n")
        yield name, lines


if __name__ == "__main__":
    told = ["Written by `python -m tests.mdp.broker_tales`, which says what it means.", ""]
    for title in TALES:
        told += [f"== {title}", *tell(title), ""]
    FILE.write_text("\n".join(told), encoding="utf-8")
