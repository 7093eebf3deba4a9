"""pirate.lru_queue: every cell, then every interleaving (LRU, PPP-06 to PPP-14)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import HEARTBEAT, READY
from core.machine.worker_table import WorkerEvent, WorkerState
from pirate.lru_queue import CELLS, GUIDE_CELLS, Complaint, Effect, QueueLimits, ToClient, ToWorker, WorkerQueue

W, V = b"w", b"v"
REQUEST = [b"c", b"", b"x"]
IMPOSSIBLE = {
    (WorkerState.UNKNOWN, WorkerEvent.REPLY),
    (WorkerState.UNKNOWN, WorkerEvent.SILENCE),
    (WorkerState.IDLE, WorkerEvent.REPLY),
    (WorkerState.SILENT, WorkerEvent.SILENCE),
    *((state, WorkerEvent.RETURN) for state in WorkerState),  # of peering
}


class Scene:
    """A queue, and a worker brought into a state."""

    def __init__(self, state: WorkerState, *, guide: bool = False, simple: bool = False) -> None:
        self.queue = WorkerQueue(QueueLimits(simple=simple, guide_compatible=guide, ttl_s=100.0), 0.0)
        self.head = [b""] if simple else []
        self.now = 0.0
        if state is not WorkerState.UNKNOWN:
            self.say([READY])
        if state in (WorkerState.BUSY, WorkerState.SILENT):
            assert self.queue.request(REQUEST, self.now) == [ToWorker([W, *self.head, *REQUEST])]
        if state is WorkerState.SILENT:
            self.pass_silently()

    def say(self, frames: list[bytes]) -> list[Effect]:
        return self.queue.receive([W, *self.head, *frames], self.now)

    def pass_silently(self, until: float = 3.0) -> None:
        while self.now < until:
            self.now = min(until, self.queue.deadline() or until)
            self.queue.tick(self.now)

    def happen(self, event: WorkerEvent) -> list[Effect]:
        frames = {
            WorkerEvent.READY: [READY],
            WorkerEvent.HEARTBEAT: [HEARTBEAT],
            WorkerEvent.REPLY: [b"c", b"", b"y"],
            WorkerEvent.STRAY: [b"d", b"", b"y"],
            WorkerEvent.NOISE: [b"noise"],
        }
        if event in frames:
            return self.say(frames[event])
        if event is WorkerEvent.GONE:
            return self.queue.worker_gone(W, self.now)
        self.pass_silently()
        return []

    def state(self) -> WorkerState:
        return next(
            (state for state in (WorkerState.IDLE, WorkerState.BUSY, WorkerState.SILENT) if self.queue.count(state)), WorkerState.UNKNOWN
        )


def test_the_table_is_whole() -> None:
    every = set(product(WorkerState, WorkerEvent)) - IMPOSSIBLE
    assert set(CELLS) == every
    assert set(GUIDE_CELLS) == every


@pytest.mark.parametrize("guide", [False, True])
@pytest.mark.parametrize(("state", "event"), list(CELLS))
def test_every_cell(state: WorkerState, event: WorkerEvent, guide: bool) -> None:
    scene = Scene(state, guide=guide)
    assert scene.state() is state
    cell = (GUIDE_CELLS if guide else CELLS)[state, event]
    before = scene.queue.counters[cell.counter]
    effects = scene.happen(event)
    assert scene.state() is cell.to
    counts = not (state is WorkerState.UNKNOWN and event is WorkerEvent.GONE)  # of somebody nobody knew
    assert scene.queue.counters[cell.counter] - before == counts
    if event is WorkerEvent.NOISE:
        assert effects == [Complaint(W, "a single frame that is not a control message")]
    else:
        assert effects == ([ToClient([b"c", b"", b"y"])] if event is WorkerEvent.REPLY else [])
    # Who is idle gets the next request, who is not gets none.
    got = scene.queue.request([b"d", b"", b"z"], scene.now)
    assert got == ([ToWorker([W, b"d", b"", b"z"])] if cell.to is WorkerState.IDLE else [])


def test_a_worker_that_was_silent_is_heard_again_and_may_fall_silent_again() -> None:
    scene = Scene(WorkerState.SILENT)
    scene.happen(WorkerEvent.HEARTBEAT)
    scene.pass_silently(6.0)
    assert scene.state() is WorkerState.SILENT
    assert scene.happen(WorkerEvent.REPLY) == [ToClient([b"c", b"", b"y"])]
    scene.pass_silently(9.0)
    assert scene.state() is WorkerState.UNKNOWN


def test_lru_01_the_one_idle_longest_is_next() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    for name in (b"1", b"2", b"3"):
        queue.receive([name, READY], 0.0)
    order = []
    for number in range(6):
        (effect,) = queue.request([b"c%d" % number, b"", b"x"], 0.0)
        assert isinstance(effect, ToWorker)
        order.append(effect.frames[0])
        queue.receive([effect.frames[0], b"c%d" % number, b"", b"y"], 0.0)
    assert order == [b"1", b"2", b"3"] * 2


def test_lru_02_without_ttl_a_request_is_wanted_only_while_a_worker_is_idle() -> None:
    queue = WorkerQueue(QueueLimits(ttl_s=None), 0.0)
    assert not queue.wants_request
    queue.receive([W, READY], 0.0)
    assert queue.wants_request
    queue.request(REQUEST, 0.0)
    assert not queue.wants_request
    queue.receive([W, *REQUEST], 0.0)
    assert queue.wants_request


def test_a_request_that_was_read_while_the_last_idle_worker_left_waits() -> None:
    queue = WorkerQueue(QueueLimits(ttl_s=None), 0.0)
    assert queue.request(REQUEST, 0.0) == []
    assert not queue.wants_request
    assert queue.receive([W, READY], 0.0) == [ToWorker([W, *REQUEST])]


def test_ppp_14_a_request_waits_its_time_and_is_dropped_then() -> None:
    queue = WorkerQueue(QueueLimits(ttl_s=2.0, simple=True), 0.0)
    queue.request(REQUEST, 0.0)
    queue.request([b"d", b"", b"y"], 1.0)
    assert queue.deadline() == 2.0
    queue.tick(2.0)
    assert queue.counters["request_expired"] == 1
    assert queue.receive([W, b"", READY], 2.5) == [ToWorker([W, b"", b"d", b"", b"y"])]
    assert queue.deadline() is None


def test_ppp_14_what_a_client_asked_goes_with_its_connection() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.request(REQUEST, 0.0)
    queue.request([b"d", b"", b"y"], 0.0)
    queue.request([b"c", b"a", b"", b"z"], 0.0)
    queue.client_gone(b"c")
    queue.client_gone(b"nobody")
    assert queue.counters["request_orphaned"] == 2
    assert queue.receive([W, READY], 0.0) == [ToWorker([W, b"d", b"", b"y"])]
    assert queue.waiting == 0


def test_waiting_requests_are_bounded_in_number_and_bytes() -> None:
    queue = WorkerQueue(QueueLimits(waiting_max=2), 0.0)
    queue.request(REQUEST, 0.0)
    assert queue.wants_request
    queue.request(REQUEST, 0.0)
    assert not queue.wants_request
    queue = WorkerQueue(QueueLimits(waiting_bytes_max=10), 0.0)
    queue.request([b"c", b"", bytes(9)], 0.0)
    assert not queue.wants_request
    queue.receive([W, READY], 0.0)
    assert queue.wants_request


def test_workers_are_bounded_too() -> None:
    queue = WorkerQueue(QueueLimits(workers_max=1), 0.0)
    queue.receive([W, READY], 0.0)
    queue.receive([V, READY], 0.0)
    assert queue.count(WorkerState.IDLE) == 1
    assert queue.counters["workers_overflow"] == 1
    queue.receive([W, READY], 0.0)
    assert queue.counters["ready"] == 2


def test_draining_wants_no_more_and_reports_unfinished_requests() -> None:
    scene = Scene(WorkerState.BUSY)
    scene.queue.draining = True
    assert not scene.queue.wants_request
    assert scene.queue.unfinished == 1
    scene.happen(WorkerEvent.REPLY)
    assert scene.queue.unfinished == 0
    assert not scene.queue.wants_request


def test_a_request_that_cannot_be_delivered_goes_to_the_next_worker_first_of_all() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    (sent,) = queue.request(REQUEST, 0.0)
    queue.request([b"d", b"", b"y"], 0.0)
    assert isinstance(sent, ToWorker)
    assert queue.not_sent(sent.frames, 0.1) == []
    assert queue.count(WorkerState.BUSY) == 0
    assert queue.receive([V, READY], 0.2) == [ToWorker([V, *REQUEST])]
    assert queue.not_sent([V, HEARTBEAT], 0.3) == [] or queue.count(WorkerState.BUSY) == 0
    assert queue.not_sent([b"nobody", HEARTBEAT], 0.3) == []
    assert queue.counters["heartbeat_undelivered"] == 1


def test_a_new_connection_under_a_known_id_is_another_worker() -> None:
    scene = Scene(WorkerState.BUSY)
    scene.queue.worker_gone(W, 0.0)
    assert scene.state() is WorkerState.UNKNOWN
    assert scene.happen(WorkerEvent.REPLY) == []
    assert scene.queue.counters["reply_stray"] == 1


@pytest.mark.parametrize("frames", [[b"c"], [b"c", b"x"], [b"c", b""], [], [b"c", b"a", b"b"]])
def test_lru_05_clients_too_may_say_anything(frames: list[bytes]) -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    (complaint,) = queue.request(frames, 0.0)
    assert isinstance(complaint, Complaint)
    assert complaint.peer == (frames[0] if frames else b"")
    assert queue.counters["client_malformed"] == 1
    assert queue.count(WorkerState.IDLE) == 1


def test_hb_03_heartbeats_have_a_schedule_of_their_own() -> None:
    """A thousand messages a second add none; after a pause there is one, not one for each missed interval."""
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    sent = 0
    for step in range(1, 10_001):
        queue.receive([W, HEARTBEAT], step / 1000)
        sent += queue.tick(step / 1000).count(ToWorker([W, HEARTBEAT]))
    assert sent == 10
    assert queue.tick(60.0) == [ToWorker([W, HEARTBEAT])]
    assert queue.tick(60.1) == []


def test_ppp_07_only_idle_workers_get_heartbeats() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    queue.receive([V, READY], 0.0)
    queue.request(REQUEST, 0.5)
    assert queue.tick(1.0) == [ToWorker([V, HEARTBEAT])]


def test_ppp_11_a_silent_worker_is_found_behind_a_live_one() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    queue.receive([V, READY], 0.0)
    queue.receive([W, HEARTBEAT], 2.0)  # the head of the list is alive, its place does not change
    for now in (1.0, 2.0, 2.9, 3.0):
        queue.tick(now)
    assert queue.request(REQUEST, 3.0) == [ToWorker([W, *REQUEST])]
    assert queue.request(REQUEST, 3.0) == []


def test_a_verdict_that_comes_late_is_postponed() -> None:
    """The loop was not reading meanwhile."""
    queue = WorkerQueue(QueueLimits(heartbeat_s=0.01), 0.0)
    queue.receive([W, READY], 0.0)
    queue.tick(0.5)
    assert queue.count(WorkerState.IDLE) == 1
    assert queue.counters["verdict_postponed"] == 1
    queue.tick(0.505)
    queue.tick(0.51)
    assert queue.count(WorkerState.IDLE) == 0


def test_a_verdict_shortly_after_a_tick_that_came_late_is_postponed_too() -> None:
    """Nearly all of the silence was the loop's own pause, which ended just before the verdict was due."""
    queue = WorkerQueue(QueueLimits(heartbeat_s=1.0), 0.0)
    queue.receive([W, READY], 0.0)
    for now in (2.9, 3.0, 3.8):
        queue.tick(now)
    assert (queue.count(WorkerState.IDLE), queue.counters["verdict_postponed"]) == (1, 1)
    queue.tick(3.9)
    assert queue.count(WorkerState.IDLE) == 0


@pytest.mark.parametrize("late_s", [0.6, 1.0, 7.0])
def test_a_queue_whose_every_tick_is_late_gives_a_dead_worker_no_more_requests(late_s: float) -> None:
    """A silence is excused a few times; a worker that was heard since is excused again."""
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    queue.receive([b"dead", READY], 0.0)
    now = 0.0
    for turn in range(1, 100):
        now = turn * (1.0 + late_s)
        queue.tick(now)
        queue.receive([W, HEARTBEAT], now)
    assert (queue.count(WorkerState.IDLE), queue.counters["worker_expired"]) == (1, 1)
    assert queue.request(REQUEST, now) == [ToWorker([W, *REQUEST])]


def test_a_request_too_large_for_its_worker_is_dropped_and_the_worker_gets_the_next() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.receive([W, READY], 0.0)
    (sent,) = queue.request(REQUEST, 0.0)
    queue.request([b"d", b"", b"y"], 0.0)
    assert isinstance(sent, ToWorker)
    assert queue.too_large(sent.frames, 0.1) == [ToWorker([W, b"d", b"", b"y"])]
    assert (queue.counters["request_too_large"], queue.counters["request"], queue.unfinished) == (1, 2, 1)
    queue.receive([W, b"d", b"", b"z"], 0.2)
    assert queue.too_large([W, HEARTBEAT], 0.3) == queue.too_large([b"nobody", HEARTBEAT], 0.3) == []
    assert (queue.counters["request_too_large"], queue.counters["request_abandoned"]) == (1, 1)


def test_what_is_sent_and_given_back_is_counted() -> None:
    queue = WorkerQueue(QueueLimits(ttl_s=2.0), 0.0)
    for name in (W, V, b"u"):
        queue.receive([name, READY], 0.0)
    (sent,) = queue.request(REQUEST, 0.0)
    assert isinstance(sent, ToWorker)
    assert queue.tick(1.0) == [ToWorker([V, HEARTBEAT]), ToWorker([b"u", HEARTBEAT])]
    assert queue.counters["heartbeat_sent"] == 2
    assert queue.not_sent(sent.frames, 1.0) == [ToWorker([V, *REQUEST])]
    assert (queue.counters["request_undelivered"], queue.counters["request"], queue.counters["heartbeat_undelivered"]) == (1, 2, 0)
    assert queue.not_sent([b"u", HEARTBEAT], 1.0) == []
    assert (queue.counters["request_undelivered"], queue.counters["heartbeat_undelivered"]) == (1, 1)
    assert queue.count(WorkerState.IDLE) == 1


def test_ppp_14_a_request_given_back_waits_before_the_others_and_its_whole_time_again() -> None:
    queue = WorkerQueue(QueueLimits(ttl_s=2.0, simple=True), 0.0)
    queue.receive([W, b"", READY], 0.0)
    (sent,) = queue.request([b"c", b"", bytes(5)], 0.0)
    queue.request([b"d", b"", b"y"], 0.5)
    queue.request([b"e", b"", b"y"], 0.5)
    assert isinstance(sent, ToWorker)
    assert (queue.waiting, queue.unfinished) == (2, 3)
    assert queue.not_sent(sent.frames, 1.0) == []
    assert (queue.waiting, queue.unfinished, queue.deadline()) == (3, 3, 2.5)
    queue.tick(2.5)
    assert (queue.waiting, queue.deadline()) == (1, 3.0)
    assert queue.receive([V, b"", READY], 2.9) == [ToWorker([V, b"", b"c", b"", bytes(5)])]
    assert queue.deadline() is None


def test_bytes_of_requests_that_no_longer_wait_are_free_again() -> None:
    queue = WorkerQueue(QueueLimits(waiting_bytes_max=12, ttl_s=1.0), 0.0)
    queue.request([b"c", b"", b"12345"], 0.0)
    assert queue.wants_request
    queue.request([b"d", b"", b"12345"], 0.0)
    assert not queue.wants_request
    queue.client_gone(b"d")
    assert queue.wants_request
    queue.request([b"d", b"", b"12345"], 0.5)
    queue.tick(1.0)
    assert queue.wants_request
    queue.request([b"d", b"", b"1234"], 1.1)
    assert queue.wants_request, "eleven of twelve"
    queue.request([b"d", b"", b""], 1.1)
    assert not queue.wants_request


def test_a_request_that_was_given_no_longer_goes_with_its_client_and_nothing_of_that_is_kept() -> None:
    queue = WorkerQueue(QueueLimits(), 0.0)
    queue.request(REQUEST, 0.0)
    queue.request(REQUEST, 0.0)
    queue.receive([W, READY], 0.0)
    queue.client_gone(b"c")
    assert (queue.counters["request_orphaned"], queue.waiting) == (1, 0)
    queue.request(REQUEST, 0.0)
    queue.receive([V, READY], 0.0)
    assert queue._waiting_of == {}
    assert queue.receive([W, *REQUEST], 0.0) == [ToClient(REQUEST)]
    assert queue.counters["request_orphaned"] == 1


def test_an_unknown_worker_that_leaves_is_not_counted_and_a_silent_one_is_not_waited_for() -> None:
    scene = Scene(WorkerState.SILENT)
    assert scene.queue.unfinished == 0
    assert scene.queue.worker_gone(V, scene.now) == []
    assert scene.queue.counters["worker_gone"] == 0
    assert scene.queue.worker_gone(W, scene.now) == []
    assert scene.queue.counters["request_lost"] == 1


def test_simple_workers_are_never_silent_and_get_no_heartbeats() -> None:
    queue = WorkerQueue(QueueLimits(simple=True, ttl_s=None), 0.0)
    queue.receive([W, b"", READY], 0.0)
    assert queue.deadline() is None
    assert queue.tick(100.0) == []
    assert (queue.count(WorkerState.IDLE), queue.wants_request) == (1, True)


WORDS = [[READY], [HEARTBEAT], [b"noise"], [], [b"x", b"", b"stray"]]
ACTIONS = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 3), st.integers(0, len(WORDS) - 1)),
    st.tuples(st.just("answer"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("answer again"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("ask"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("worker gone"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("client gone"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("undelivered"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 40), st.just(0)),
)


class Watched:
    """Effects of a queue: each worker has one request at a time, each client gets one reply."""

    def __init__(self, head: list[bytes]) -> None:
        self.head = head
        self.holds: dict[bytes, list[bytes]] = {}  # worker → the request it was given last
        self.done: dict[bytes, list[bytes]] = {}
        self.given_out: set[bytes] = set()
        self.answered: set[bytes] = set()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToWorker([name, *frames]) if frames != [HEARTBEAT]:
                    request = frames[len(self.head) :]
                    assert name not in self.holds
                    assert request[-1] not in self.given_out
                    self.given_out.add(request[-1])
                    self.holds[name] = request
                case ToWorker([name, *_]):
                    assert name not in self.holds or self.head
                case ToClient(frames):
                    assert frames[-1] in self.given_out
                    assert frames[-1] not in self.answered
                    self.answered.add(frames[-1])


@given(st.booleans(), st.booleans(), st.sampled_from([None, 1.0]), st.lists(ACTIONS, max_size=80))
def test_interleavings(simple: bool, guide: bool, ttl_s: float | None, actions: list[tuple[str, int, int]]) -> None:
    """No wrong, second or out-of-order reply; no worker has two requests.

    A request is at one worker or none (LRU-03, PPP-13).
    """
    queue = WorkerQueue(QueueLimits(simple=simple, guide_compatible=guide, ttl_s=ttl_s, waiting_max=5), 0.0)
    head = [b""] if simple else []
    now, serial = 0.0, 0
    to = Watched(head)
    holds, done, carry_out = to.holds, to.done, to.carry_out

    for action, who, what in actions:
        name, client = b"w%d" % who, b"c%d" % who
        match action:
            case "say":
                if WORDS[what] == [READY]:
                    holds.pop(name, None)
                carry_out(queue.receive([name, *head, *WORDS[what]], now))
            case "answer" if name in holds:
                done[name] = holds.pop(name)
                carry_out(queue.receive([name, *head, *done[name]], now))
                assert done[name][-1] in to.answered
            case "answer again" if name in done:
                carry_out(queue.receive([name, *head, *done[name]], now))
            case "ask":
                serial += 1
                if queue.wants_request:
                    carry_out(queue.request([client, b"", b"%d" % serial], now))
            case "worker gone":
                holds.pop(name, None)
                carry_out(queue.worker_gone(name, now))
            case "client gone":
                queue.client_gone(client)
            case "undelivered" if name in holds:
                request = holds.pop(name)
                to.given_out.discard(request[-1])
                carry_out(queue.not_sent([name, *head, *request], now))
            case "time":
                until = now + who / 10
                while (due := queue.deadline()) is not None and due <= until:
                    now = due
                    carry_out(queue.tick(now))
                now = until
        assert queue.count(WorkerState.BUSY) + queue.count(WorkerState.SILENT) == len(holds)
        assert not (queue.waiting and queue.count(WorkerState.IDLE))
        assert queue.waiting <= 5 + 4
