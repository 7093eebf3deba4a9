"""pirate.worker_session: every cell, then every interleaving (PPP-01 to PPP-05, PPP-09)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import HEARTBEAT, READY
from core.machine.liveness import EXCUSES_MAX
from pirate.worker_session import (
    CONNECT_S,
    CancelHandler,
    Close,
    Effect,
    Open,
    Send,
    SessionLimits,
    SessionState,
    StartHandler,
    WorkerSession,
)

REQUEST = [b"c", b"", b"x", b"y"]
EVENTS = ("joined", "away", "lost", "heartbeat", "request", "ready", "noise", "finished", "failed", "silence")


def session(**limits: float) -> WorkerSession:
    made = WorkerSession(SessionLimits(**{"jitter": 0.0, **limits}), lambda: 1.0)  # type: ignore[arg-type]  # flags are numbers here
    assert made.start(0.0) == [Open(0)]
    return made


def happen(worker: WorkerSession, event: str, now: float) -> list[Effect]:
    match event:
        case "joined":
            return worker.joined(now)
        case "away":
            worker.unreachable(now)
            return []
        case "lost":
            return worker.lost(now)
        case "heartbeat":
            return worker.receive([HEARTBEAT], now)
        case "request":
            return worker.receive(REQUEST, now)
        case "ready":
            return worker.receive([READY], now)
        case "noise":
            return worker.receive([b"noise"], now)
        case "finished":
            return worker.finished([b"OK"], now)
        case "failed":
            return worker.failed(now)
        case _:
            return worker.tick(now)


def brought_to(state: SessionState) -> WorkerSession:
    worker = session()
    path = {
        SessionState.OPENING: [],
        SessionState.IDLE: ["joined"],
        SessionState.BUSY: ["joined", "request"],
        SessionState.WAITING: ["joined", "request", "lost"],  # with the handler still at it
    }
    for event in path[state]:
        happen(worker, event, 0.0)
    assert worker.state is state
    return worker


def pass_silently(worker: WorkerSession) -> list[Effect]:
    """Let three seconds pass; return the effects of a change of state."""
    state = worker.state
    while (due := worker.deadline()) is not None and due <= 3.0:
        effects = worker.tick(due)
        if worker.state is not state:
            return effects
    return []


REPLY = Send([b"c", b"", b"OK"])
CELLS: dict[tuple[SessionState, str], tuple[SessionState, list[Effect]]] = {
    (SessionState.OPENING, "joined"): (SessionState.IDLE, [Send([READY])]),
    (SessionState.IDLE, "lost"): (SessionState.WAITING, [Close(1.0)]),
    (SessionState.IDLE, "request"): (SessionState.BUSY, [StartHandler([b"x", b"y"])]),
    (SessionState.IDLE, "silence"): (SessionState.WAITING, [Close(1.0)]),
    (SessionState.BUSY, "lost"): (SessionState.WAITING, [Close(1.0), CancelHandler()]),
    (SessionState.BUSY, "finished"): (SessionState.IDLE, [REPLY]),
    (SessionState.BUSY, "failed"): (SessionState.OPENING, [Close(0.0), Open(0)]),
}
# What is counted in each cell: once, and nothing else is.
COUNTED: dict[tuple[SessionState, str], str] = {
    (SessionState.OPENING, "joined"): "ready",
    (SessionState.IDLE, "lost"): "queue_lost",
    (SessionState.IDLE, "heartbeat"): "heartbeat",
    (SessionState.IDLE, "request"): "request",
    (SessionState.IDLE, "ready"): "queue_malformed",
    (SessionState.IDLE, "noise"): "queue_malformed",
    (SessionState.BUSY, "lost"): "queue_lost",
    (SessionState.BUSY, "heartbeat"): "heartbeat",
    (SessionState.BUSY, "request"): "request_while_busy",
    (SessionState.BUSY, "ready"): "queue_malformed",
    (SessionState.BUSY, "noise"): "queue_malformed",
    (SessionState.BUSY, "finished"): "reply",
    (SessionState.BUSY, "failed"): "failed",
    (SessionState.WAITING, "finished"): "reply_too_late",
}
# Who handles nothing has nothing to finish.
IMPOSSIBLE = set(product((SessionState.OPENING, SessionState.IDLE), ("finished", "failed")))


@pytest.mark.parametrize(("state", "event"), sorted(set(product(SessionState, EVENTS)) - IMPOSSIBLE, key=str))
def test_every_cell(state: SessionState, event: str) -> None:
    worker = brought_to(state)
    before = worker.counters.copy()
    effects = pass_silently(worker) if event == "silence" else happen(worker, event, 0.0)
    after, expected = CELLS.get((state, event), (state, []))
    assert worker.state is after
    assert effects == expected
    if event != "silence":
        counter = COUNTED.get((state, event))
        assert worker.counters - before == ({counter: 1} if counter else {})


def test_ppp_01_ready_is_the_first_message_of_every_session() -> None:
    worker = session()
    assert worker.tick(1.0) == []  # no heartbeat before it
    assert worker.joined(1.5) == [Send([READY])]
    assert worker.lost(1.6) == [Close(1.0)]
    assert worker.tick(2.6) == [Open(1)]
    assert worker.joined(2.7) == [Send([READY])]


@pytest.mark.parametrize(("heartbeat_s", "away_s", "far_s"), [(1.0, 3.0, CONNECT_S), (0.1, 0.3, CONNECT_S), (5.0, 15.0, 15.0)])
def test_before_a_connection_there_is_no_silence_unless_an_attempt_has_failed(heartbeat_s: float, away_s: float, far_s: float) -> None:
    for fails, ends_at in ((True, away_s), (False, far_s)):
        worker = session(heartbeat_s=heartbeat_s)
        if fails:
            worker.unreachable(0.0)
        ended_at = 0.0
        while worker.state is SessionState.OPENING:
            due = worker.deadline()
            assert due is not None
            ended_at = due
            worker.tick(due)
        assert ended_at == pytest.approx(ends_at)


def test_a_simple_worker_goes_to_another_queue_when_one_is_away_and_stays_where_there_is_none() -> None:
    for several in (True, False):
        worker = session(simple=True, several=several)
        worker.unreachable(0.5)
        assert worker.deadline() == (1.0 if several else None)  # and no heartbeat
        assert [worker.tick(now) for now in (1.0, 2.0, 3.0)] == [[], [], [Close(1.0)] if several else []]
    worker = session(simple=True, several=True)
    worker.unreachable(0.5)
    assert worker.joined(2.0) == [Send([READY])]
    assert (worker.deadline(), worker.tick(100.0)) == (None, [])


def test_an_attempt_that_fails_late_ends_the_session_at_once() -> None:
    worker = session()
    assert [worker.tick(float(second)) for second in range(1, 5)] == [[]] * 4
    worker.unreachable(4.5)
    assert worker.deadline() == 4.5
    assert worker.tick(4.5) == [Close(1.0)]
    assert worker.tick(5.5) == [Open(1)]
    assert [worker.tick(5.5 + second) for second in range(1, 5)] == [[]] * 4, "the next one is another queue"


def test_ppp_03_a_heartbeat_every_second() -> None:
    worker = session()
    worker.joined(0.0)
    said = []
    for tenth in range(1, 101):
        worker.receive([HEARTBEAT], tenth / 10)
        said += worker.tick(tenth / 10)
    assert said == [Send([HEARTBEAT])] * 10


def test_ppp_04_ppp_05_waits_double_to_32_seconds_and_return_to_one() -> None:
    worker = session()
    waits: list[float] = []
    now = 0.0
    while len(waits) < 8:
        due = worker.deadline()
        assert due is not None
        now = due
        waits += [effect.wait_s for effect in worker.tick(now) if isinstance(effect, Close)]
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    due = worker.deadline()
    assert due == now + 32
    assert worker.tick(due) == [Open(8)]
    worker.joined(due)
    worker.receive([HEARTBEAT], due)
    assert worker.lost(due) == [Close(1.0)]


def test_bey_05_chance_adds_to_a_wait() -> None:
    worker = session(jitter=0.5)
    worker.joined(0.0)
    assert worker.lost(0.0) == [Close(1.5)]


def test_ppp_09_no_heartbeats_and_no_verdict_while_working() -> None:
    worker = session()
    worker.joined(0.0)
    worker.receive(REQUEST, 0.5)
    assert [worker.tick(float(second)) for second in range(1, 60)] == [[]] * 59
    assert worker.finished([b"OK"], 60.0) == [REPLY]
    assert worker.tick(60.1) == [Send([HEARTBEAT])]  # and no Close: the queue had no reason to speak to us
    assert worker.state is SessionState.IDLE


def test_ppp_09_the_silence_of_the_queue_counts_from_the_end_of_the_work() -> None:
    worker = session()
    worker.joined(0.0)
    worker.receive(REQUEST, 0.5)
    for now in (1.0, 2.0, 3.0):
        assert worker.tick(now) == []
    assert worker.finished([b"OK"], 3.6) == [REPLY]
    assert [worker.tick(now) for now in (4.0, 5.0, 6.0)] == [[Send([HEARTBEAT])]] * 3
    assert worker.deadline() == 6.6
    assert worker.tick(6.6) == [Close(1.0)]


def test_ppp_09_can_be_switched() -> None:
    worker = session(heartbeat_busy=True)
    worker.joined(0.0)
    worker.receive(REQUEST, 0.5)
    assert worker.tick(1.0) == [Send([HEARTBEAT])]


def test_a_request_while_busy_is_dropped() -> None:
    worker = brought_to(SessionState.BUSY)
    assert worker.receive([b"d", b"", b"z"], 0.1) == []
    assert worker.counters["request_while_busy"] == 1
    assert worker.finished([b"OK"], 0.2) == [REPLY]


def test_no_session_before_the_old_handler_has_ended() -> None:
    worker = brought_to(SessionState.WAITING)
    assert worker.deadline() is None
    assert worker.tick(10.0) == []
    assert worker.failed(10.0) == [Open(1)]


def test_a_reply_of_an_old_session_is_not_sent_in_a_new_one() -> None:
    worker = brought_to(SessionState.WAITING)
    assert worker.finished([b"late"], 0.5) == []
    assert worker.counters["reply_too_late"] == 1
    assert worker.tick(1.0) == [Open(1)]


def test_an_empty_reply_is_one_empty_frame() -> None:
    worker = brought_to(SessionState.BUSY)
    assert worker.finished([], 0.1) == [Send([b"c", b"", b""])]


def test_simple_has_no_time() -> None:
    worker = session(simple=True)
    assert worker.deadline() is None
    assert worker.joined(0.0) == [Send([READY])]
    for number, useless in enumerate((HEARTBEAT, READY), 1):
        assert worker.receive([useless], 0.0) == [Send([READY])]
        assert worker.counters["queue_malformed"] == number
    assert worker.receive(REQUEST, 0.0) == [StartHandler([b"x", b"y"])]
    assert worker.tick(100.0) == []
    assert worker.deadline() is None


def test_a_simple_worker_leaves_a_server_whose_answers_are_no_requests_until_one_is() -> None:
    worker = session(simple=True)
    now = 0.0
    assert worker.joined(now) == [Send([READY])]
    for _ in range(2):
        assert [worker.receive([READY], now) for _ in range(3)] == [[Send([READY])]] * 3
        assert worker.receive([READY], now) == [Close(1.0)]
        assert worker.tick(now + 1.0) == [Open(worker._queue_number)]
        assert worker.joined(now + 1.0) == [Send([READY])]
        assert worker.receive([READY], now + 1.0) == [Close(2.0)]  # nothing else has come since
        now += 3.0
        assert worker.tick(now) == [Open(worker._queue_number)]
        worker.joined(now)
        assert worker.receive(REQUEST, now) == [StartHandler([b"x", b"y"])]
        assert worker.finished([b"OK"], now) == [Send([b"c", b"", b"OK"])]


def test_a_verdict_that_comes_late_is_postponed() -> None:
    worker = session(heartbeat_s=0.01)
    worker.joined(0.0)
    assert worker.tick(0.5) == [Send([HEARTBEAT])]
    assert worker.counters["verdict_postponed"] == 1
    assert worker.tick(0.511) == [Close(1.0)]


def test_a_verdict_shortly_after_a_tick_that_came_late_is_postponed_too() -> None:
    """Nearly all of the silence was the loop's own pause, which ended just before the verdict was due."""
    worker = session(heartbeat_s=1.0)
    worker.joined(0.0)
    assert [worker.tick(now) for now in (2.9, 3.0, 3.8)] == [[Send([HEARTBEAT])], [], []]
    assert worker.counters["verdict_postponed"] == 1
    assert worker.tick(3.9) == [Close(1.0)]


@pytest.mark.parametrize("late_s", [0.6, 1.0, 7.0])
def test_a_worker_whose_every_tick_is_late_gives_up_a_dead_queue(late_s: float) -> None:
    """A silence is excused a few times; a queue that was heard since is excused again."""
    worker = session()
    worker.joined(0.0)
    now = 0.0
    for _ in range(10):
        now += late_s
        worker.tick(now)
        worker.receive([HEARTBEAT], now)
    heard_at = now
    while worker.state is SessionState.IDLE:
        due_at = worker.deadline()
        assert due_at is not None
        now = due_at + late_s
        worker.tick(now)
        assert now <= heard_at + 3 + (EXCUSES_MAX + 1) * (1 + late_s)
    assert (worker.state, worker.counters["queue_silent"]) == (SessionState.WAITING, 1)


def test_what_passes_in_silence_is_counted() -> None:
    worker = brought_to(SessionState.IDLE)
    pass_silently(worker)
    assert worker.counters == {"ready": 1, "heartbeat_sent": 2, "queue_silent": 1}


def test_a_new_worker_handles_nothing_and_has_no_session_before_its_start() -> None:
    worker = WorkerSession(SessionLimits(), lambda: 0.0)
    assert (worker.state, worker.handling, worker.deadline()) == (SessionState.WAITING, False, None)
    assert worker.tick(100.0) == []
    assert worker.state is SessionState.WAITING


def test_ppp_05_the_next_session_is_not_before_its_pause_and_gets_a_whole_silence() -> None:
    worker = session()
    worker.joined(0.0)
    assert worker.lost(1.0) == [Close(1.0)]
    assert (worker.deadline(), worker.tick(1.9)) == (2.0, [])
    assert worker.tick(2.0) == [Open(1)]
    assert worker.deadline() == 3.0, "its first heartbeat would be due"
    assert [worker.tick(now) for now in (3.0, 4.0)] == [[], []]
    worker.joined(4.5)
    assert [worker.tick(now) for now in (5.0, 5.5, 6.5)] == [[], [Send([HEARTBEAT])], [Send([HEARTBEAT])]]
    assert worker.tick(7.5) == [Close(2.0)], "three intervals of silence since it has joined, and no queue was heard since the first pause"


def test_a_session_that_begins_ends_the_pause_of_the_one_before() -> None:
    worker = session(simple=True)
    worker.joined(0.0)
    worker.lost(1.0)
    assert worker.tick(2.0) == [Open(1)]
    assert worker.deadline() is None
    assert worker.state is SessionState.OPENING


@pytest.mark.parametrize(("now", "postponed"), [(3.5, 0), (3.501, 1)])
def test_a_verdict_is_late_from_half_an_interval_on(now: float, postponed: int) -> None:
    worker = session()
    worker.joined(0.0)
    for second in (1.0, 2.0):
        worker.tick(second)
    worker.tick(now)  # was due at 3.0
    assert worker.counters["verdict_postponed"] == postponed
    assert worker.counters["queue_silent"] == 1 - postponed


def test_a_handler_that_has_ended_is_not_cancelled() -> None:
    worker = brought_to(SessionState.BUSY)
    worker.finished([b"OK"], 0.0)
    assert not worker.handling
    assert worker.lost(0.0) == [Close(1.0)]
    worker = brought_to(SessionState.BUSY)
    worker.failed(0.0)
    assert not worker.handling
    worker.joined(0.0)
    assert worker.lost(0.0) == [Close(1.0)]
    worker = brought_to(SessionState.WAITING)
    worker.finished([b"OK"], 0.0)
    assert not worker.handling


def test_bey_05_a_pause_without_chance_has_its_length() -> None:
    worker = WorkerSession(SessionLimits(jitter=0.5, wait_min_s=2.0), lambda: 0.5)
    worker.start(0.0)
    worker.joined(0.0)
    assert worker.lost(0.0) == [Close(2.5)]
    assert worker.deadline() == 2.5


@given(st.booleans(), st.booleans(), st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 12)), max_size=80))
def test_interleavings(simple: bool, heartbeat_busy: bool, steps: list[tuple[str, int]]) -> None:
    """READY first, replies to requests of the same session only, one at a time, always a next step."""
    worker = WorkerSession(SessionLimits(simple=simple, heartbeat_busy=heartbeat_busy), lambda: 0.5)
    now = 0.0
    is_open, said_ready, owed, running = False, False, False, False

    def carry_out(effects: list[Effect]) -> None:
        nonlocal is_open, said_ready, owed, running
        for effect in effects:
            match effect:
                case Open():
                    assert not is_open
                    is_open, said_ready, owed = True, False, False
                case Close():
                    assert is_open
                    is_open = said_ready = owed = False
                case Send(frames):
                    assert is_open
                    assert said_ready or frames == [READY]
                    if frames == [READY]:
                        assert not said_ready or (simple and not owed)
                        said_ready = True
                    elif frames != [HEARTBEAT]:
                        assert owed
                        owed = False
                case StartHandler():
                    assert not running
                    running = owed = True
                case CancelHandler():
                    assert running

    carry_out(worker.start(now))
    for event, tenths in steps:
        until = now + tenths / 10
        while (due := worker.deadline()) is not None and due <= until:
            now = due
            carry_out(worker.tick(now))
        now = until
        if event in ("finished", "failed"):
            if not running:
                continue
            running = False
        if event == "joined" and not is_open:
            continue
        carry_out(happen(worker, event, now))
        assert worker.handling is running
        if not simple and not (worker.state is SessionState.WAITING and running):
            assert worker.deadline() is not None
