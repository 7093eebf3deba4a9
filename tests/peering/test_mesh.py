"""Three brokers joined without sockets, while connections break one way or both and brokers are killed.

What the network may do: within a connection messages keep their order and none is lost; a connection ends with all that is in flight on
it, in both directions, and both ends hear of that; connections are independent of each other, so a broker may hear of a peer's capacity
and not reach it. Cuts, kills and deliveries come in any order (faults N4, N6).
"""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import READY
from peering.task import Side
from peering.task_router import Complaint, Effect, Publish, RouterLimits, TaskRouter, ToBorrower, ToClient, ToPeer, ToWorker

NAMES = [b"A", b"B", b"C"]
PAIRS = [(one, other) for one in NAMES for other in NAMES if one != other]
LIMITS = RouterLimits(tries_max=1000, ttl_ms=1e9)


class Connection:
    """From the cloudbe of one broker to the cloudfe of another."""

    def __init__(self) -> None:
        self.up = False
        self.tasks: deque[list[bytes]] = deque()
        self.replies: deque[list[bytes]] = deque()


class Mesh:
    """Brokers, two REQ workers each, clients that ask one task and wait for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.waiting: set[tuple[bytes, bytes]] = set()  # broker and task
        self.done: dict[bytes, int] = {}
        self.brokers: dict[bytes, TaskRouter] = {}
        self.held: dict[bytes, dict[bytes, list[bytes]]] = {}
        self.cloud = {pair: Connection() for pair in PAIRS}
        self.states: dict[tuple[bytes, bytes], deque[list[bytes]]] = {pair: deque() for pair in PAIRS}
        for name in NAMES:
            self.start(name)
        for pair in PAIRS:
            self.join(*pair)

    def start(self, name: bytes) -> None:
        one = self.brokers[name] = TaskRouter(name, LIMITS, first_number=self.number, now=self.now)
        self.held[name] = {}
        for peer in NAMES:
            if peer != name:
                one.add_peer(peer)
        for worker in (b"1", b"2"):
            self.do(name, one.worker([worker, b"", READY], self.now))

    def do(self, name: bytes, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToWorker(frames):
                    assert frames[0] not in self.held[name]
                    self.held[name][frames[0]] = frames[1:]
                case ToPeer(frames):
                    assert self.cloud[name, frames[0]].up
                    self.cloud[name, frames[0]].tasks.append([name, *frames[1:]])
                case ToClient(frames):
                    assert frames[0] == b"client of " + frames[-1]
                    self.waiting.remove((name, frames[-1]))  # KeyError: a wrong or second reply
                case ToBorrower(frames):
                    connection = self.cloud[frames[0], name]
                    if connection.up:
                        connection.replies.append([name, *frames[1:]])
                case Publish(frames):
                    for pair, said in self.states.items():
                        if pair[0] == name:
                            said.append(frames)
                case Complaint():
                    raise AssertionError(effect)

    def cut(self, one: bytes, other: bytes) -> None:
        connection = self.cloud[one, other]
        if connection.up:
            connection.up = False
            connection.tasks.clear()
            connection.replies.clear()
            self.do(one, self.brokers[one].peer_lost(other, self.now))
            self.do(other, self.brokers[other].sender_gone(Side.CLOUD, one, self.now))

    def join(self, one: bytes, other: bytes) -> None:
        if not self.cloud[one, other].up:
            self.cloud[one, other].up = True
            self.do(one, self.brokers[one].peer_joined(other, self.now))

    def kill(self, name: bytes) -> None:
        """Kill a broker: its peers are disconnected, and it restarts empty."""
        self.waiting = {(at, task) for at, task in self.waiting if at != name}
        for pair in PAIRS:
            if name in pair:
                self.cut(*pair)
                self.states[pair].clear()
        self.start(name)

    def step(self, verb: str, pair: tuple[bytes, bytes]) -> None:
        one, other = pair
        match verb:
            case "task":
                if self.brokers[one].wants(Side.LOCAL, self.now):
                    self.number += 1
                    task = b"%d" % self.number
                    self.waiting.add((one, task))
                    self.do(one, self.brokers[one].task(Side.LOCAL, [b"client of " + task, b"", task], self.now))
            case "work":
                if self.held[one]:
                    worker, frames = self.held[one].popitem()
                    self.done[frames[-1]] = self.done.get(frames[-1], 0) + 1
                    self.do(one, self.brokers[one].worker([worker, *frames], self.now))
            case "deliver task":
                if self.cloud[pair].tasks and self.brokers[other].wants(Side.CLOUD, self.now):
                    self.do(other, self.brokers[other].task(Side.CLOUD, self.cloud[pair].tasks.popleft(), self.now))
            case "deliver reply":
                if self.cloud[pair].replies:
                    self.do(one, self.brokers[one].peer_reply(self.cloud[pair].replies.popleft(), self.now))
            case "deliver state":
                if self.states[pair]:
                    self.do(other, self.brokers[other].peer_state(one, self.states[pair].popleft(), self.now))
            case "lose states":
                self.states[pair].clear()
            case "cut":
                self.cut(one, other)
            case "join":
                self.join(one, other)
            case "kill":
                self.kill(one)
            case "time":
                self.now += 0.6
                for name, broker in self.brokers.items():
                    self.do(name, broker.tick(self.now))

    def heal(self) -> None:
        """Reconnect all, and work until nothing is left."""
        for pair in PAIRS:
            self.join(*pair)
        for _ in range(100):
            if not self.waiting:
                return
            self.step("time", PAIRS[0])
            for pair in PAIRS:
                for verb in ("deliver state", "deliver task", "deliver reply", "work", "work"):
                    self.step(verb, pair)


QUIET = ["task"] * 4 + ["work", "deliver task", "deliver reply", "deliver state"] * 2 + ["time"]
LOUD = [*QUIET, "cut", "join", "lose states", "kill"]


def plans(verbs: list[str]) -> st.SearchStrategy[list[tuple[str, tuple[bytes, bytes]]]]:
    return st.lists(st.tuples(st.sampled_from(verbs), st.sampled_from(PAIRS)), max_size=120)


@given(plans(LOUD))
def test_nothing_is_lost_and_no_reply_is_wrong_whatever_is_disconnected_or_killed(plan: list[tuple[str, tuple[bytes, bytes]]]) -> None:
    mesh = Mesh()
    for verb, pair in plan:
        mesh.step(verb, pair)
    mesh.heal()
    assert not mesh.waiting
    assert all(broker.lent == broker.waiting == 0 for broker in mesh.brokers.values())


@given(plans(QUIET))
def test_without_a_loss_each_task_is_done_once(plan: list[tuple[str, tuple[bytes, bytes]]]) -> None:
    mesh = Mesh()
    for verb, pair in plan:
        mesh.step(verb, pair)
    mesh.heal()
    assert not mesh.waiting
    assert set(mesh.done.values()) <= {1}
