"""Changes of the broker's numbers with each event, all of them, and the moments of its timed actions.

Numbers are those of `stats()`: every counter and gauge that is not named in a row stays as it was.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import (
    client_heartbeat,
    client_request,
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ready,
)
from mdp.wire.events import Disconnect, Failure, Heartbeat, Ping, parse_at_client, parse_at_worker
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, batch, decoded, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.wire.commands import Dialect

BODY = b"abc"
HELD = 512 + len(BODY) + 2  # octets that a request counts as: what stands around it, its frame; and in MDP/0.3 the frame of its options
KEPT = HELD + 2

Change = dict[str, int]


class Story(Scene):
    """A scene in which one client asks and one worker works, told in few words."""

    token = b""

    def begins(self, client: Dialect = "0.3", worker: Dialect = "0.3", **options: object) -> Story:
        """Let a worker with credit for two have one request of a client."""
        self.ready(worker, b"W1", credit=2)
        self.ask(client, b"C1", BODY, options=dict(options))
        self.token = self.work(b"W1").id
        return self

    def waits(self, client: Dialect = "0.3", **options: object) -> Story:
        """Let a request wait for a service without workers."""
        self.ask(client, b"C1", BODY, options={"wait": True, **options} if client == "0.3" else {})
        return self

    @property
    def last(self) -> bytes:
        return number(self._ids)


def says(peer: bytes, frames: Callable[[Story], list[bytes]]) -> Callable[[Story], object]:
    return lambda story: story.send(peer, frames(story))


FINAL = says(b"W1", lambda story: worker_final("0.3", story.token, [b"y"]))
PART = says(b"W1", lambda story: worker_partial("0.3", story.token, [b"y"]))
ERROR = says(b"W1", lambda story: worker_error(story.token, "HANDLER_ERROR", "no"))
CANCEL = says(b"C1", lambda story: client_cancel(story.last))


def cancelled(story: Story) -> Story:
    CANCEL(story)
    return story


ROWS: dict[str, tuple[Callable[[Story], object], Callable[[Story], object], Change]] = {
    "a worker comes": (
        lambda story: story,
        lambda story: story.ready("0.3", b"W1"),
        {"workers_registered": 1, "workers": 1, "services": 1},
    ),
    "a request is given out": (
        lambda story: story.ready("0.3", b"W1"),
        lambda story: story.ask("0.3", b"C1", BODY),
        {"accepted": 1, "clients": 1, "running": 1, "memory_bytes": KEPT},
    ),
    "a request of MDP/0.1 is given out": (
        lambda story: story.ready("0.1", b"W1"),
        lambda story: story.ask("0.1", b"C1", BODY),
        {"accepted": 1, "clients": 1, "running": 1, "memory_bytes": HELD},
    ),
    "a request waits": (
        lambda story: story,
        lambda story: story.waits(),
        {"accepted": 1, "clients": 1, "queued": 1, "queued_bytes": 14, "services": 1, "memory_bytes": KEPT + 7},
    ),
    "a reply": (lambda story: story.begins(), FINAL, {"replies": 1, "closed": 1, "running": -1, "memory_bytes": -KEPT}),
    "a reply after a part": (
        lambda story: (story.begins(), PART(story)),
        FINAL,
        {"replies": 1, "closed": 1, "running": -1, "memory_bytes": -KEPT},
    ),
    "a reply nobody waits for": (lambda story: cancelled(story.begins()), FINAL, {"replies_unwanted": 1, "running": -1}),
    "a part": (lambda story: story.begins(), PART, {"partials": 1}),
    "a part that is kept for a client of MDP/0.1": (lambda story: story.begins("0.1"), PART, {"partials": 1, "memory_bytes": 3}),
    "a reply to parts that were kept": (
        lambda story: (story.begins("0.1"), PART(story)),
        FINAL,
        {"replies": 1, "closed": 1, "running": -1, "memory_bytes": -HELD - 3},
    ),
    "a part nobody waits for": (lambda story: cancelled(story.begins()), PART, {"partials_unwanted": 1}),
    "an error": (lambda story: story.begins(), ERROR, {"errors_forwarded": 1, "closed": 1, "running": -1, "memory_bytes": -KEPT}),
    "an error for a client of MDP/0.1": (
        lambda story: story.begins("0.1"),
        ERROR,
        {"silent_handler_error": 1, "closed": 1, "running": -1, "memory_bytes": -HELD},
    ),
    "an error nobody waits for": (lambda story: cancelled(story.begins()), ERROR, {"replies_unwanted": 1, "running": -1}),
    "a cancellation": (lambda story: story.begins(), CANCEL, {"error_cancelled": 1, "closed": 1, "memory_bytes": -KEPT}),
    "a cancellation of what waits": (
        lambda story: story.waits(),
        CANCEL,
        {"error_cancelled": 1, "closed": 1, "queued": -1, "queued_bytes": -14, "services": -1, "memory_bytes": -KEPT - 7},
    ),
    "a cancellation of nothing": (lambda story: story.begins(), says(b"C1", lambda _: client_cancel(bytes(8))), {"cancel_unknown": 1}),
    "a heartbeat of a client": (lambda story: story.begins(), says(b"C1", lambda _: client_heartbeat()), {"client_heartbeats": 1}),
    "a heartbeat of a worker": (
        lambda story: story.begins(),
        says(b"W1", lambda _: worker_heartbeat("0.3")),
        {"heartbeats_received": 1},
    ),
    "a request with the id of an open one": (
        lambda story: story.begins(),
        says(b"C1", lambda story: client_request("0.3", b"echo", [b"other"], id=story.last)),
        {"dropped_duplicate": 1},
    ),
    "a user that is claimed": (
        lambda story: story.ready("0.3", b"W1"),
        lambda story: story.ask("0.3", b"C1", BODY, options={"user": "bob"}),
        {"users_not_believed": 1, "accepted": 1, "clients": 1, "running": 1, "memory_bytes": KEPT},
    ),
    "a request for nobody": (lambda story: story, lambda story: story.ask("0.3", b"C1", BODY), {"error_no_service": 1}),
    "a request with bad options": (
        lambda story: story.begins(),
        lambda story: story.ask("0.3", b"C1", BODY, options={"deadline_ms": -1}),
        {"error_bad_request": 1},
    ),
    "a request without time": (
        lambda story: story.begins(),
        lambda story: story.ask("0.3", b"C1", BODY, options={"deadline_ms": 0}),
        {"error_deadline_exceeded": 1},
    ),
    "a question": (lambda story: story.begins(), lambda story: story.ask("0.3", b"C2", b"echo", service=b"mmi.service"), {"mmi": 1}),
    "a client goes": (
        lambda story: story.begins(),
        lambda story: story.lose(b"C1"),
        {"client_gone": 1, "closed": 1, "clients": -1, "memory_bytes": -KEPT},
    ),
    "a client goes that waits": (
        lambda story: story.waits(),
        lambda story: story.lose(b"C1"),
        {"client_gone": 1, "closed": 1, "clients": -1, "queued": -1, "queued_bytes": -14, "services": -1, "memory_bytes": -KEPT - 7},
    ),
    "a worker goes": (
        lambda story: story.begins(),
        lambda story: story.lose(b"W1"),
        {"workers_lost": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 7},
    ),
    "a worker leaves": (
        lambda story: story.begins(),
        says(b"W1", lambda _: worker_disconnect("0.3")),
        {"workers_left": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 7},
    ),
    "a worker goes with a request that may be given to one": (
        lambda story: story.begins(once=True),
        lambda story: story.lose(b"W1"),
        {"workers_lost": 1, "error_worker_lost": 1, "closed": 1, "workers": -1, "running": -1, "memory_bytes": -KEPT - 7},
    ),
    "a worker goes with half a reply": (
        lambda story: (story.begins(), PART(story)),
        lambda story: story.lose(b"W1"),
        {"workers_lost": 1, "error_worker_lost": 1, "closed": 1, "workers": -1, "running": -1, "memory_bytes": -KEPT},
    ),
    "a worker goes with parts that were kept": (
        lambda story: (story.begins("0.1"), PART(story)),
        lambda story: story.lose(b"W1"),
        {"workers_lost": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 5, "memory_bytes": -3},
    ),
    "a worker says the wrong thing": (
        lambda story: story.begins(),
        says(b"W1", lambda _: worker_ready("0.3", b"echo")),
        {"cut_unexpected": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 7},
    ),
    "a worker answers what it does not have": (
        lambda story: story.begins(),
        says(b"W1", lambda _: worker_final("0.3", bytes(8), [b"y"])),
        {"cut_unexpected": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 7},
    ),
    "a worker answers in another dialect": (
        lambda story: story.begins(),
        says(b"W1", lambda story: worker_final("0.1", story.token, [b"y"])),
        {"invalid_dialect": 1, "cut_invalid": 1, "redelivered": 1, "workers": -1, "running": -1, "queued": 1, "queued_bytes": 7},
    ),
    "a heartbeat of nobody": (lambda story: story, says(b"W9", lambda _: worker_heartbeat("0.3")), {"told_disconnect": 1}),
    "a farewell of nobody": (lambda story: story, says(b"W9", lambda _: worker_disconnect("0.3")), {"ignored_disconnect": 1}),
    "a worker of ours": (lambda story: story, lambda story: story.ready("0.3", b"W1", b"mmi.echo"), {"ready_refused": 1}),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_thing_that_happens_is_counted_by_its_name_and_changes_no_other_number(name: str) -> None:
    """BEY-16."""
    before, act, change = ROWS[name]
    story = Story()
    before(story)
    numbers = story.machine.stats()
    act(story)
    assert {key: now - numbers[key] for key, now in story.machine.stats().items() if now != numbers[key]} == change


# ---- time


class Clock(Scene):
    """A scene that notes what is sent to each peer, and when.

    Its interval is 1 s; three missed ones are too many, and so are 100 s of work.
    """

    def __init__(self, **options: float) -> None:
        super().__init__(
            **{"heartbeat_ms": 1000, "liveness": 3, "busy_ms": 100_000, "queue_ms": 20_000, "service_idle_ms": 5000, **options}
        )
        self.began = self.now
        self.told: list[tuple[float, bytes, str]] = []

    def take(self, out: list[list[bytes]], twins: list[list[bytes]]) -> list[list[bytes]]:
        for peer, *frames in out:
            event = parse_at_client(frames) if peer.startswith(b"C") else parse_at_worker(frames)
            what = event.code if isinstance(event, Failure) else type(event).__name__
            self.told.append((round(self.now - self.began, 6), peer, what))
        return super().take(out, twins)

    def when(self, peer: bytes, *kinds: type) -> list[float]:
        return [at for at, whom, what in self.told if whom == peer and (not kinds or what in {kind.__name__ for kind in kinds})]

    def beats(self, peer: bytes, at: list[float], until: float) -> None:
        """Let a worker beat at moments, then time go on until one."""
        for moment in [*at, until]:
            self.wait(self.began + moment - self.now)
            if moment != until:
                self.send(peer, worker_heartbeat(self.machine.directory.workers[peer].dialect))

    def gone_at(self, counter: str, until: float) -> float:
        """Return when a worker was given up, found by going on a hundredth of a second at a time."""
        while not self.counters[counter]:
            assert self.now < self.began + until, "it was not given up"
            self.wait(0.01)
        return round(self.now - self.began, 2)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_idle_worker_gets_a_heartbeat_at_each_interval(dialect: Dialect) -> None:
    """MDP-35."""
    clock = Clock()
    clock.ready(dialect, b"W1")
    clock.beats(b"W1", [0.5 + n for n in range(10)], 10.25)
    told = clock.when(b"W1", Heartbeat, Ping)
    assert [round(later - one, 6) for one, later in pairwise(told)] == [1.0] * (len(told) - 1)
    assert len(told) in (9, 10)
    assert 0.0 < told[0] <= 1.0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_idle_worker_is_given_up_when_it_was_silent_for_all_of_its_time(dialect: Dialect) -> None:
    """MDP-36."""
    clock = Clock()
    clock.ready(dialect, b"W1")
    clock.beats(b"W1", [0.75], 0.76)
    assert clock.gone_at("workers_expired", 10) == pytest.approx(3.75, abs=0.011)


def test_a_worker_that_beats_as_late_as_a_heartbeat_takes_beats_while_it_works() -> None:
    """MDP-37 to MDP-39: a heartbeat an interval after the request cannot have crossed it.

    So the worker's silence counts from then on.
    """
    for beat, counter, gone in ((1.0, "workers_expired", 4.0), (0.9995, "workers_stuck", 100.0)):
        clock = Clock()
        clock.ready("0.1", b"W1")
        clock.ask("0.3", b"C1", options={"wait": True})
        clock.beats(b"W1", [beat], beat + 0.001)
        assert clock.gone_at(counter, 200) == pytest.approx(gone, abs=0.02)


def test_a_broker_that_stood_still_hears_its_workers_before_it_gives_them_up() -> None:
    """Fault P2: messages that arrived meanwhile are still to be read.

    A broker that was late by less than an interval did not stand still.
    """
    for late, kept in ((1.0005, True), (0.9995, False)):
        clock = Clock()
        clock.ready("0.3", b"W1")
        clock.wait(2.5)
        due = clock.machine.deadline()
        clock.now = due + late
        while clock.now < clock.began + 3.0:  # the moment itself may lie before the end of its time
            clock.both("tick")
            due = clock.machine.deadline()
            clock.now = due + late
        clock.both("tick")
        assert (b"W1" in clock.machine.directory.workers) == kept
        if kept:
            assert clock.gone_at("workers_expired", 20) == pytest.approx(clock.now - clock.began, abs=0.02)
            assert clock.now == pytest.approx(due + late + 3.0, abs=0.02)


def test_a_deadline_is_kept_to_the_moment() -> None:
    """Fault B8: whether it waits or runs."""
    clock = Clock()
    clock.ready("0.3", b"W1")
    for client in (b"C1", b"C2"):
        clock.ask("0.3", client, options={"deadline_ms": 1234})
    clock.wait(2)
    assert [entry for entry in clock.told if entry[1] in {b"C1", b"C2"}] == [
        (1.234, b"C1", "DEADLINE_EXCEEDED"),
        (1.234, b"C2", "DEADLINE_EXCEEDED"),
    ]


def test_what_waits_for_a_service_without_workers_is_refused_by_the_sweep_after_its_time() -> None:
    clock = Clock()
    clock.ask("0.3", b"C1", options={"wait": True})
    clock.wait(30)
    assert clock.told == [(20.0, b"C1", "NO_SERVICE")]


def test_what_comes_first_is_held_for_workers_that_are_on_their_way() -> None:
    clock = Clock(start_hold_ms=2500)
    for machine in (clock.machine, clock.twin):
        machine.begin(clock.now)
    clock.ask("0.3", b"C1")
    assert clock.machine.deadline() <= clock.now + 2.5
    clock.wait(2.49)
    clock.ask("0.3", b"C2")
    assert clock.told == []
    clock.wait(0.02)
    assert [(at, peer, what) for at, peer, what in clock.told] == [(2.5, b"C1", "NO_SERVICE"), (2.5, b"C2", "NO_SERVICE")]
    clock.ask("0.3", b"C3")
    assert clock.told[-1] == (2.51, b"C3", "NO_SERVICE")


def test_an_idle_service_is_forgotten_by_the_sweep_after_its_time() -> None:
    """MMI-07."""
    clock = Clock()
    clock.ready("0.3", b"W1")
    clock.send(b"W1", worker_disconnect("0.3"))
    clock.wait(4.999)
    assert clock.machine.stats()["services"] == 1
    clock.wait(0.002)
    assert (clock.machine.stats()["services"], clock.counters["services_forgotten"]) == (0, 1)


def test_a_lost_request_goes_to_the_first_worker_that_is_heard_from_again() -> None:
    """Fault B6: and, when nobody is, nowhere before the broker knows who lives."""
    clock = Clock()
    clock.ready("0.3", b"W1")
    clock.ask("0.3", b"C1")
    clock.ready("0.3", b"W2")
    clock.ready("0.3", b"W3")
    clock.told.clear()
    clock.wait(1.5)
    clock.lose(b"W1")
    assert clock.when(b"W2", Disconnect) == []
    clock.wait(clock.machine.options.settle_s * 1.01)
    clock.told.clear()
    clock.send(b"W3", worker_heartbeat("0.3"))
    assert [(peer, what) for _, peer, what in clock.told if what == "Work"] == [(b"W3", "Work")]


def test_what_waited_when_the_last_worker_went_has_its_time_from_then_on() -> None:
    clock = Clock()
    clock.ready("0.3", b"W1")
    for client in (b"C1", b"C2"):
        clock.ask("0.3", client)
    clock.wait(1.0)
    clock.lose(b"W1")
    clock.told.clear()
    clock.wait(30)
    assert sorted(clock.told) == [(21.0, b"C1", "NO_SERVICE"), (21.0, b"C2", "NO_SERVICE")]


@pytest.mark.parametrize(
    ("options", "earlier"), [({}, False), ({"deadline_ms": 5000}, True), ({"wait": True}, False), ({"once": True}, False)]
)
def test_a_request_that_has_to_be_looked_after_says_that_the_clock_may_be_late(options: dict[str, object], earlier: bool) -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.machine.request_table.timer_changed = False
    scene.ask("0.3", b"C1", options=options)
    assert scene.machine.request_table.timer_changed == earlier


def test_what_is_read_behind_a_message_that_is_none_is_taken() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1", credit=3)
    messages = [client_request("0.3", b"echo", [b"x"], id=number(n)) for n in (1, 2, 3)]
    out = scene.machine.receive(batch(b"C1", messages[0], [b"?"], [b"", b""], messages[1], [b""], messages[2]), 1000.0)
    assert [peer for peer, *_ in decoded(out)] == [b"W1"] * 3
