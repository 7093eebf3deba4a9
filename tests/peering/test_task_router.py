"""Machine between frontends, workers and peers: each verb alone, and all of them in random order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import READY
from peering.errors import DuplicateName, UnknownPeer
from peering.task import Side
from peering.task_router import Complaint, Effect, RouterLimits, TaskRouter, ToBorrower, ToClient, ToPeer, ToWorker
from tests.scenes.peering_machine import Scene, published

LOCAL, CLOUD = Side


def test_a_local_worker_goes_before_a_peer() -> None:
    """PEER-02."""
    scene = Scene(b"DC2", workers=1)
    scene.heard(b"DC2", 5)
    assert scene.task(b"a") == [ToWorker([b"w0", b"a", b"", b"x"])]
    assert scene.task(b"b") == [ToPeer([b"DC2", b"b", b"", b"x"])]
    assert scene.worker(b"w0", b"a", b"", b"X") == [ToClient([b"a", b"", b"X"])]
    assert scene.reply(b"DC2", b"b", b"", b"Y") == [ToClient([b"b", b"", b"Y"])]
    assert scene.one.open == scene.one.lent == 0


def test_a_task_of_a_peer_is_never_passed_on() -> None:
    """PEER-03: not even when its worker is lost and another peer could take it."""
    scene = Scene(b"DC2", b"DC3", workers=1)
    scene.heard(b"DC3", 5)
    assert scene.cloud() == [ToWorker([b"w0", b"DC2", b"c", b"", b"x"])]
    assert not scene.one.wants(CLOUD, 0.0)
    assert scene.one.wants(LOCAL, 0.0)
    assert Scene.plain(scene.one.worker_gone(b"w0", 0.0)) == []
    assert scene.one.waiting == 1
    assert scene.worker(b"w9", READY) == [ToWorker([b"w9", b"DC2", b"c", b"", b"x"])]
    assert scene.worker(b"w9", b"DC2", b"c", b"", b"X") == [ToBorrower([b"DC2", b"c", b"", b"X"])]


def test_frontends_are_wanted_while_there_is_capacity() -> None:
    """PEER-04."""
    scene = Scene(b"DC2")
    assert not scene.one.wants(LOCAL, 0.0)
    scene.heard(b"DC2", 1)
    assert scene.one.wants(LOCAL, 0.0)
    assert not scene.one.wants(CLOUD, 0.0)
    scene.task()
    assert not scene.one.wants(LOCAL, 0.0)
    scene.worker(b"w", READY)
    assert scene.one.wants(LOCAL, 0.0)
    assert scene.one.wants(CLOUD, 0.0)
    scene.one.drain(0.0)
    assert not scene.one.wants(LOCAL, 0.0)
    assert scene.one.wants(CLOUD, 0.0)  # lent before its peer has heard of it


def test_capacity_is_published_on_change_and_every_interval() -> None:
    """PEER-07."""
    one = TaskRouter(b"DC1")
    assert published(one.tick(0.0)) == [b"0"]
    assert published(one.worker([b"w", READY], 0.5)) == [b"1"]
    assert published(one.worker([b"w", READY], 0.6)) == []
    assert published(one.tick(1.4)) == []
    assert published(one.tick(1.5)) == [b"1"]
    assert published(one.task(LOCAL, [b"c", b"", b"x"], 1.6)) == [b"0"]
    assert published(one.drain(1.7)) == []
    assert published(one.worker([b"w", b"c", b"", b"X"], 1.8)) == []
    assert published(one.tick(9.0)) == [b"0"]


def test_tasks_at_a_peer_that_disappears_go_elsewhere_in_order() -> None:
    """PEER-11."""
    scene = Scene(b"DC2", b"DC3")
    scene.heard(b"DC2", 2)
    scene.task(b"a")
    scene.task(b"b")
    scene.heard(b"DC3", 2)
    assert Scene.plain(scene.one.peer_lost(b"DC2", 0.0)) == [ToPeer([b"DC3", b"a", b"", b"x"]), ToPeer([b"DC3", b"b", b"", b"x"])]
    assert scene.one.counters["task_lost_with_peer"] == 2
    assert scene.reply(b"DC2", b"a", b"", b"late") == []
    assert scene.one.counters["reply_late"] == 1
    assert scene.reply(b"DC3", b"a", b"", b"X") == [ToClient([b"a", b"", b"X"])]


def test_a_task_is_given_up_visibly_after_as_many_losses_as_it_may_have() -> None:
    """PEER-11: bounded retries."""
    scene = Scene(tries_max=2)
    scene.worker(b"w1", READY)
    scene.task()
    scene.one.worker_gone(b"w1", 0.0)
    scene.worker(b"w2", READY)
    (complaint,) = Scene.plain(scene.one.worker_gone(b"w2", 0.0))
    assert isinstance(complaint, Complaint)
    assert "given up" in complaint.reason
    assert scene.one.counters["task_given_up"] == 1
    assert scene.one.open == 0


def test_what_cannot_be_sent_goes_elsewhere_at_once() -> None:
    """PEER-11: found at send, because of MANDATORY; it is no try."""
    scene = Scene(b"DC2", b"DC3", tries_max=1)
    scene.heard(b"DC2", 9)
    scene.heard(b"DC3", 1)
    (sent,) = scene.task()
    assert sent == ToPeer([b"DC2", b"c", b"", b"x"])
    assert Scene.plain(scene.one.not_sent(sent, 0.0)) == [ToPeer([b"DC3", b"c", b"", b"x"])]
    assert scene.one.router.capacity(b"DC2", b"", 0.0) == 0


def test_a_worker_that_cannot_be_sent_anything_is_gone() -> None:
    scene = Scene(workers=2)
    (sent,) = scene.task()
    assert isinstance(sent, ToWorker)
    assert Scene.plain(scene.one.not_sent(sent, 0.0)) == [ToWorker([b"w1", b"c", b"", b"x"])]
    assert Scene.plain(scene.one.not_sent(ToWorker([b"w7", b"\x02"]), 0.0)) == []
    assert len(scene.one.workers) == 1


def test_a_task_ends_after_its_time_to_live() -> None:
    scene = Scene(b"DC2", ttl_ms=500)
    scene.heard(b"DC2", 1)
    scene.task()
    assert scene.one.deadline(0.0) == 0.5
    scene.one.tick(0.5)
    assert (scene.one.open, scene.one.lent, scene.one.counters["task_expired"]) == (0, 0, 1)
    assert scene.reply(b"DC2", b"c", b"", b"X") == []
    assert scene.one.counters["reply_late"] == 1


def test_a_worker_keeps_its_task_as_long_as_it_takes_but_it_is_not_given_to_another_after_its_time() -> None:
    scene = Scene(workers=1, ttl_ms=500)
    scene.task(b"a")
    scene.one.tick(9.0)
    assert scene.one.open == 1
    assert Scene.plain(scene.one.worker_gone(b"w0", 9.0)) == []
    assert (scene.one.open, scene.one.counters["task_expired"]) == (0, 1)


def test_a_client_that_is_gone_gets_no_answer() -> None:
    """BEY-07; and its task is not repeated."""
    scene = Scene(b"DC2", workers=1)
    scene.heard(b"DC2", 1)
    scene.task(b"a")
    scene.task(b"a")
    scene.one.sender_gone(LOCAL, b"a", 0.0)
    assert (scene.one.open, scene.one.lent) == (0, 0)
    assert scene.worker(b"w0", b"a", b"", b"X") == []
    assert scene.one.counters["reply_orphaned"] == 1
    assert scene.reply(b"DC2", b"a", b"", b"X") == []


def test_a_late_reply_is_not_taken_for_another_ones() -> None:
    """The client asks again while a peer may still answer its first task: the envelope gets an address more."""
    scene = Scene(b"DC2")
    scene.heard(b"DC2", 3)
    assert scene.task(b"a", b"first") == [ToPeer([b"DC2", b"a", b"", b"first"])]
    scene.one.sender_gone(LOCAL, b"a", 0.0)
    mark = b"\x00" + (7).to_bytes(8, "big")
    assert scene.task(b"a", b"second") == [ToPeer([b"DC2", b"a", mark, b"", b"second"])]
    assert scene.reply(b"DC2", b"a", b"", b"FIRST") == []
    assert scene.reply(b"DC2", b"a", mark, b"", b"SECOND") == [ToClient([b"a", b"", b"SECOND"])]
    assert scene.task(b"a", b"third") == [ToPeer([b"DC2", b"a", b"", b"third"])]


def test_a_late_reply_of_a_peer_that_was_removed_and_added_again_is_not_taken_for_another_ones() -> None:
    """Its endpoint has changed, for example; a peer of another implementation answers on the next connection."""
    scene = Scene(b"DC2")
    scene.heard(b"DC2", 1)
    scene.task(b"a", b"first")
    scene.one.remove_peer(b"DC2", 0.0)
    assert scene.worker(b"w", READY) == [ToWorker([b"w", b"a", b"", b"first"])]
    assert scene.worker(b"w", b"a", b"", b"FIRST") == [ToClient([b"a", b"", b"FIRST"])]
    scene.one.worker_gone(b"w", 0.0)
    scene.one.add_peer(b"DC2")
    scene.one.peer_joined(b"DC2", 0.0)
    scene.heard(b"DC2", 1)
    mark = b"\x00" + (7).to_bytes(8, "big")
    assert scene.task(b"a", b"second") == [ToPeer([b"DC2", b"a", mark, b"", b"second"])]
    assert scene.reply(b"DC2", b"a", b"", b"FIRST") == []
    assert scene.reply(b"DC2", b"a", mark, b"", b"SECOND") == [ToClient([b"a", b"", b"SECOND"])]


def test_several_tasks_of_one_client_at_one_peer_are_distinguished() -> None:
    scene = Scene(b"DC2")
    scene.heard(b"DC2", 3)
    first, second = scene.task(b"a", b"1")[0], scene.task(b"a", b"2")[0]
    assert isinstance(first, ToPeer)
    assert isinstance(second, ToPeer)
    assert scene.reply(*second.frames[:-1], b"II") == [ToClient([b"a", b"", b"II"])]
    assert scene.reply(*first.frames[:-1], b"I") == [ToClient([b"a", b"", b"I"])]


@pytest.mark.parametrize(
    ("side", "frames", "counter"),
    [
        (LOCAL, [b"DC2", b"", b"x"], "client_named_like_peer"),  # PEER-06
        (LOCAL, [b"DC1", b"", b"x"], "named_like_us"),
        (CLOUD, [b"DC1", b"c", b"", b"x"], "named_like_us"),  # N8
        (CLOUD, [b"\x00abcd", b"c", b"", b"x"], "borrower_unnamed"),
        (LOCAL, [b"c", b"x"], "local_malformed"),
        (LOCAL, [b"c"], "local_malformed"),
        (LOCAL, [b"c", b""], "local_malformed"),
        (CLOUD, [b"DC2", b"", b"x"], "cloud_malformed"),
        (CLOUD, [b"DC2"], "cloud_malformed"),
    ],
)
def test_what_is_no_task_is_counted_and_told(side: Side, frames: list[bytes], counter: str) -> None:
    scene = Scene(b"DC2", workers=1)
    (complaint,) = scene.one.task(side, frames, 0.0)
    assert isinstance(complaint, Complaint)
    assert scene.one.counters[counter] == 1
    assert scene.one.workers.idle == 1


@pytest.mark.parametrize("frames", [[], [b"DC2"], [b"DC2", b"-1"], [b"DC2", b"x"], [b"DC3", b"1"], [b"DC1", b"1"], [b"DC2", b"1", b"1"]])
def test_malformed_and_misnamed_states_are_ignored(frames: list[bytes]) -> None:
    """PEER-13; the name of another broker there is fault N8."""
    scene = Scene(b"DC2", b"DC3")
    (complaint,) = scene.one.peer_state(b"DC2", frames, 0.0)
    assert isinstance(complaint, Complaint)
    assert scene.one.counters["state_malformed"] + scene.one.counters["state_misnamed"] == 1
    assert not scene.one.wants(LOCAL, 0.0)


def test_replies_of_peers_that_hold_no_such_task_are_dropped() -> None:
    scene = Scene(b"DC2", b"DC3")
    scene.heard(b"DC2", 1)
    scene.task()
    assert scene.reply(b"DC3", b"c", b"", b"X") == []
    assert scene.reply(b"DC9", b"c", b"", b"X") == []
    assert scene.one.counters["reply_stray"] == 2
    assert isinstance(scene.reply(b"DC2", b"noise")[0], Complaint)
    assert scene.reply(b"DC2", b"c", b"", b"X") == [ToClient([b"c", b"", b"X"])]
    assert scene.reply(b"DC2", b"c", b"", b"X") == []


def test_a_removed_peer_leaves_its_tasks_to_others() -> None:
    """BEY-15."""
    scene = Scene(b"DC2", workers=0)
    scene.heard(b"DC2", 2)
    scene.task(b"a")
    assert Scene.plain(scene.one.remove_peer(b"DC2", 0.0)) == []
    assert scene.one.waiting == 1
    assert scene.worker(b"w", READY) == [ToWorker([b"w", b"a", b"", b"x"])]
    assert scene.one.peer_lost(b"DC2", 0.0) == []
    with pytest.raises(UnknownPeer):
        scene.one.remove_peer(b"DC2", 0.0)
    with pytest.raises(DuplicateName):
        scene.one.add_peer(b"DC1")


def test_not_more_is_lent_to_a_peer_than_a_limit_whatever_it_claims() -> None:
    scene = Scene(b"DC2", lent_max=2)
    scene.heard(b"DC2", 1000)
    scene.task(b"a")
    scene.task(b"b")
    assert not scene.one.wants(LOCAL, 0.0)


def test_a_worker_that_begins_anew_leaves_its_task_to_others() -> None:
    scene = Scene(workers=1)
    scene.task()
    assert scene.worker(b"w0", READY) == [ToWorker([b"w0", b"c", b"", b"x"])]


def test_a_worker_that_beats_while_it_works_and_stops_leaves_its_task_to_others() -> None:
    """PEER-15; a task whose client has gone is dropped."""
    for gone in (False, True):
        scene = Scene(workers=1)
        scene.task()
        scene.now = 1.0
        scene.worker(b"w0", b"\x02")
        if gone:
            scene.one.sender_gone(LOCAL, b"c", 1.0)
        for second in (1.0, 2.0, 3.0, 4.0):
            scene.one.tick(second)
        assert scene.one.workers.idle == len(scene.one.workers) == 0
        assert scene.one.waiting == (0 if gone else 1)


def test_a_task_that_waits_for_another_worker_ends_with_its_time() -> None:
    scene = Scene(workers=1, ttl_ms=500)
    scene.task()
    scene.one.worker_gone(b"w0", 0.0)
    assert scene.one.waiting == 1
    scene.one.tick(0.5)
    assert (scene.one.waiting, scene.one.open, scene.one.counters["task_expired"]) == (0, 0, 1)


def test_what_a_peer_may_still_answer_is_remembered_up_to_a_limit() -> None:
    scene = Scene(b"DC2", lent_max=2)
    for number in range(4):
        scene.heard(b"DC2", 1)
        scene.task(b"%d" % number)
        scene.one.sender_gone(LOCAL, b"%d" % number, 0.0)
    for number in range(4):
        scene.reply(b"DC2", b"%d" % number, b"", b"late")
    assert (scene.one.counters["reply_late"], scene.one.counters["reply_stray"]) == (2, 2)


@pytest.mark.parametrize("name", list(RouterLimits.__dataclass_fields__))
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ValueError):
        RouterLimits(**{name: 0})


# ------------------------------------------------------------------------------------------------------------ interleavings

PEERS = [b"DC2", b"DC3"]
WORKERS = [b"w0", b"w1"]
CLIENTS = [b"a", b"b"]
STEPS = st.one_of(
    st.tuples(st.just("task"), st.sampled_from(CLIENTS)),
    st.tuples(st.just("borrow"), st.sampled_from(PEERS)),
    st.tuples(st.just("ready"), st.sampled_from(WORKERS)),
    st.tuples(st.just("gone"), st.sampled_from(WORKERS)),
    st.tuples(st.just("work"), st.sampled_from(WORKERS)),
    st.tuples(st.just("state"), st.sampled_from(PEERS)),
    st.tuples(st.just("up"), st.sampled_from(PEERS)),
    st.tuples(st.just("down"), st.sampled_from(PEERS)),
    st.tuples(st.just("peer work"), st.sampled_from(PEERS)),
    st.tuples(st.just("client gone"), st.sampled_from(CLIENTS)),
    st.tuples(st.just("time"), st.just(b"")),
)


class World:
    """Workers, peers and clients that follow the steps; peers may answer at any later time."""

    def __init__(self) -> None:
        self.one = TaskRouter(b"DC1", RouterLimits(tries_max=99))
        self.now = 0.0
        self.number = 0
        self.waiting: dict[tuple[Side, bytes], set[bytes]] = {}  # bodies somebody connected waits for
        self.in_flight: dict[bytes, list[bytes]] = {}
        self.at_peers: dict[bytes, list[list[bytes]]] = {peer: [] for peer in PEERS}
        self.up: set[bytes] = set()
        for peer in PEERS:
            self.one.add_peer(peer)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToWorker(frames):
                    if len(frames) > 2:
                        assert frames[0] not in self.in_flight, "a worker has one task at a time"
                        self.in_flight[frames[0]] = frames[1:]
                case ToPeer(frames):
                    assert frames[0] in self.up
                    assert frames[1] in CLIENTS, "a task of a peer is never passed on"
                    self.at_peers[frames[0]].append(frames[1:])
                case ToClient(frames):
                    self.waiting[Side.LOCAL, frames[0]].remove(frames[-1])  # KeyError: a wrong or second reply
                case ToBorrower(frames):
                    self.waiting[Side.CLOUD, frames[0]].remove(frames[-1])
                case Complaint():
                    raise AssertionError(effect)

    def step(self, verb: str, name: bytes) -> None:
        one, now = self.one, self.now
        self.number += 1
        body = b"%d" % self.number
        match verb:
            case "task" if one.wants(Side.LOCAL, now):
                self.waiting.setdefault((Side.LOCAL, name), set()).add(body)
                self.do(one.task(Side.LOCAL, [name, b"", body], now))
            case "borrow" if one.wants(Side.CLOUD, now):
                self.waiting.setdefault((Side.CLOUD, name), set()).add(body)
                self.do(one.task(Side.CLOUD, [name, b"theirs", b"", body], now))
            case "ready":
                if name not in self.in_flight:
                    self.do(one.worker([name, READY], now))
            case "gone":
                self.in_flight.pop(name, None)
                self.do(one.worker_gone(name, now))
            case "work" if name in self.in_flight:
                self.do(one.worker([name, *self.in_flight.pop(name)], now))
            case "state":
                self.do(one.peer_state(name, [name, b"2"], now))
            case "up":
                self.up.add(name)
                self.do(one.peer_joined(name, now))
            case "down":
                self.up.discard(name)
                self.do(one.peer_lost(name, now))
            case "peer work" if self.at_peers[name]:
                self.do(one.peer_reply([name, *self.at_peers[name].pop(self.number % len(self.at_peers[name]))], now))
            case "client gone":
                self.waiting[Side.LOCAL, name] = set()
                self.do(one.sender_gone(Side.LOCAL, name, now))
            case "time":
                self.now += 0.4
                # Workers beat, or they would expire; that is another test's.
                for worker in WORKERS:
                    if one.workers._workers.state(worker).name == "IDLE":
                        self.do(one.worker([worker, b"\x02"], self.now))
                self.do(one.tick(self.now))

    def finish(self) -> None:
        """A worker comes and works until nothing is left; peers are gone."""
        for peer in PEERS:
            self.do(self.one.peer_lost(peer, self.now))
        for name in [*self.in_flight]:
            self.do(self.one.worker([name, *self.in_flight.pop(name)], self.now))
        self.do(self.one.worker([b"last", READY], self.now))
        while self.in_flight:
            for name in [*self.in_flight]:
                self.do(self.one.worker([name, *self.in_flight.pop(name)], self.now))


@given(st.lists(STEPS, max_size=60))
def test_each_task_is_answered_once_and_right_or_has_expired(steps: list[tuple[str, bytes]]) -> None:
    """For any events in any order: no wrong or second reply, nothing lost, nothing kept (fault L1's promise for peering)."""
    world = World()
    for verb, name in steps:
        world.step(verb, name)
    world.finish()
    unanswered = sum(map(len, world.waiting.values()))
    assert unanswered == world.one.counters["task_expired"]
    assert world.one.open == world.one.lent == world.one.waiting == 0


FRAMES = st.lists(st.sampled_from([b"", b"\x01", b"\x02", b"READY", b"c", b"w", b"DC1", b"DC2", b"7", b"-1", b"\x00\xff"]), max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["local", "cloud", "worker", "state", "reply"]), FRAMES), max_size=30))
def test_no_message_can_hurt(messages: list[tuple[str, list[bytes]]]) -> None:
    """Nothing a peer, client or worker sends raises."""
    one = TaskRouter(b"DC1")
    one.add_peer(b"DC2")
    one.peer_joined(b"DC2", 0.0)
    for number, (kind, frames) in enumerate(messages):
        now = number / 10
        match kind:
            case "local":
                one.task(Side.LOCAL, [b"c", *frames], now)
            case "cloud":
                one.task(Side.CLOUD, [b"DC2", *frames], now)
            case "worker":
                one.worker([b"w", *frames], now)
            case "state":
                one.peer_state(b"DC2", frames, now)
            case _:
                one.peer_reply([b"DC2", *frames], now)
        one.tick(now)
    assert one.open <= len(messages)
