"""Random walks of many peers over the broker's machine, held against a model of what was promised."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from core.zmtp.frames import encode_message, encode_prefix
from mdp.broker.limits import REQUEST_OVERHEAD_BYTES
from mdp.wire.commands import client_request, worker_disconnect, worker_error, worker_final, worker_heartbeat, worker_partial, worker_ready
from mdp.wire.events import Cancel, Disconnect, Failure, Final, Heartbeat, Partial, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.hunts import examples
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

SERVICES = [b"echo", b"other"]


class Town:
    """Clients and workers of all dialects round one broker, and what each of them knows.

    Checked at every step: a worker never holds more than its credit; nobody is sent anything after its DISCONNECT; an answer reaches the
    client that asked, once, and is the answer to what it asked (the body says so); the broker's accounts hold.
    """

    def __init__(self, seed: int, keys: float = 0.2) -> None:
        self.keys = keys
        self.source = random.Random(seed)
        self.scene = Scene(heartbeat_ms=1000, queue_ms=20_000, busy_ms=15_000, deliveries_max=3)
        self.names = 0
        self.workers: dict[bytes, tuple[Dialect, int, list[Work]]] = {}
        self.gone: set[bytes] = set()
        self.clients: dict[bytes, Dialect] = {}
        self.open: dict[tuple[bytes, bytes], bytes] = {}  # client and id, or body where the dialect has no id -> body
        self.answered = 0

    def name(self, letter: str) -> bytes:
        self.names += 1
        return f"{letter}{self.names}".encode()

    # What comes out.

    def deliver(self, out: list[list[bytes]]) -> None:
        for peer, *frames in out:
            assert peer not in self.gone, "sent to somebody who is gone or was sent away"
            if peer in self.workers:
                self.deliver_worker(peer, frames)
            else:
                self.deliver_client(peer, frames)

    def deliver_worker(self, peer: bytes, frames: list[bytes]) -> None:
        _, credit, held = self.workers[peer]
        match parse_at_worker(frames):
            case Work() as work:
                held.append(work)
                assert len(held) <= credit
            case Cancel(token):
                assert any(work.id == token for work in held)
            case Disconnect():
                del self.workers[peer]
                self.gone.add(peer)
            case event:
                assert isinstance(event, Heartbeat)

    def deliver_client(self, peer: bytes, frames: list[bytes]) -> None:
        match parse_at_client(frames):
            case Final() as event:
                body = bytes(event.body[-1])
                assert self.open.pop((peer, event.id or body)) == body
                self.answered += 1
            case Partial() as event:
                body = bytes(event.body[-1])
                assert self.open[peer, event.id or body] == body
            case Failure(request_id):
                del self.open[peer, request_id]
                self.answered += 1
            case event:
                raise AssertionError(event)

    # What the peers do.

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        self.deliver(self.scene.send(peer, frames))

    def join(self) -> None:
        peer, dialect = self.name("W"), self.source.choice(DIALECTS)
        credit = self.source.randrange(1, 5) if dialect == "0.3" else 1
        self.workers[peer] = (dialect, credit, [])
        options = encode_options({"credit": credit}) if dialect == "0.3" else b""
        self.send(peer, worker_ready(dialect, self.source.choice(SERVICES), options=options))

    def ask(self) -> None:
        if not self.clients or self.source.random() < 0.1:
            self.clients[self.name("C")] = "0.3" if self.source.random() < self.keys else self.source.choice(DIALECTS)
        peer = self.source.choice(list(self.clients))
        dialect, body = self.clients[peer], self.name("body")
        frames = [b"", body] if self.source.random() < 0.3 else [body]
        options: dict[str, object] = {}
        if dialect == "0.3" and self.source.random() < 0.4 + self.keys:
            options = {"wait": self.source.random() < 0.5, "once": self.source.random() < 0.3}
            if self.source.random() < 0.3:
                options["deadline_ms"] = self.source.randrange(0, 5000)
            if self.source.random() < self.keys:
                body = options["key"] = b"key%d" % max(0, self.names // 60 - self.source.randrange(2))
                frames = [body]
        request_id = number(self.names) if dialect == "0.3" else b""
        self.open[peer, request_id or body] = body
        octets = encode_options(options)
        self.send(peer, client_request(dialect, self.source.choice(SERVICES), frames, id=request_id, options=octets))

    def answer(self) -> None:
        busy = [peer for peer, (_, _, held) in self.workers.items() if held]
        if not busy:
            return
        peer = self.source.choice(busy)
        dialect, _, held = self.workers[peer]
        work = self.source.choice(held)
        dice = self.source.random()
        if dialect != "0.1" and dice < 0.2:
            self.send(peer, worker_partial(dialect, work.id, work.body))
            return
        held.remove(work)
        if dialect == "0.3" and dice < 0.3:
            self.forget_silent(work)
            self.send(peer, worker_error(work.id, "HANDLER_ERROR", ""))
        else:
            self.send(peer, worker_final(dialect, work.id, work.body))

    def forget_silent(self, work: Work) -> None:
        """An ERROR for a client that knows none ends its request without a word."""
        body = bytes(work.body[-1])
        for peer in [peer for peer, mark in self.open if mark == body]:
            del self.open[peer, body]

    def cancel(self) -> None:
        mine = [(peer, mark) for peer, mark in self.open if self.clients[peer] == "0.3"]
        if mine:
            peer, request_id = self.source.choice(mine)
            self.send(peer, client_cancel(request_id))

    def leave(self) -> None:
        if not self.workers:
            return
        peer = self.source.choice(list(self.workers))
        dialect, _, held = self.workers.pop(peer)
        self.gone.add(peer)
        match self.source.randrange(4):
            case 0:
                self.send(peer, worker_disconnect(dialect))
            case 1:
                self.deliver(self.scene.lose(peer))
            case 2:
                self.send(peer, [b"", b"MDPW01", b"\x09"])
            case _ if held:
                self.gone.discard(peer)
                self.workers[peer] = (dialect, 5, [])
                self.send(peer, worker_final(dialect, number(2**60), [b"forged"]))
                assert peer in self.gone
            case _:
                self.send(peer, worker_disconnect(dialect))

    def go(self) -> None:
        if self.clients:
            peer = self.source.choice(list(self.clients))
            del self.clients[peer]
            self.gone.add(peer)
            self.open = {entry: body for entry, body in self.open.items() if entry[0] != peer}
            self.deliver(self.scene.lose(peer))

    def beat(self) -> None:
        for peer, (dialect, _, held) in list(self.workers.items()):
            if not held or dialect == "0.3":
                self.send(peer, worker_heartbeat(dialect))

    def rest(self) -> None:
        self.beat()
        self.deliver(self.scene.wait(self.source.random() * 1.5))
        known = self.scene.machine.directory.workers
        for peer in [peer for peer in self.workers if peer not in known]:
            del self.workers[peer]  # held a request for too long
            self.gone.add(peer)

    def step(self) -> None:
        steps = [(30, self.ask), (35, self.answer), (6, self.join), (4, self.leave), (4, self.cancel), (2, self.go), (8, self.rest)]
        self.source.choices([do for _, do in steps], [weight for weight, _ in steps])[0]()
        self.scene.check()


@pytest.mark.parametrize("keys", [0.1, 0.9])
@pytest.mark.parametrize("seed", range(examples(25, divisor=5)))
def test_nothing_is_lost_and_nothing_is_answered_twice(seed: int, keys: float) -> None:
    """MDP-26, 30, 31, 37, 41, 42; IDM-03; faults B2, B5, B6, B7, B8.

    After 600 steps every worker answers, and nothing may be left.
    """
    town = Town(seed, keys)
    for _ in range(600):
        town.step()
    for turn in range(400):
        if turn % 50 == 0:
            town.rest()  # what was lost with others waits for a sign of life
        for service in SERVICES:
            if not any(worker.service.name == service for worker in town.scene.machine.directory.workers.values()):
                town.workers[peer := town.name("W")] = ("0.1", 1, [])
                town.send(peer, worker_ready("0.1", service))
        town.answer()
        town.scene.check()
    town.rest()
    town.deliver(town.scene.wait(30))
    assert town.scene.machine.idle
    left = [entry for entry in town.open if town.clients[entry[0]] == "0.3"]
    assert left == [], "a client of MDP/0.3 was left without an answer"
    assert town.answered > 50
    counters = town.scene.counters
    assert keys < 0.5 or (counters["key_joined"] and counters["key_replayed"])
    dropped = sum(counters[name] for name in counters if name.startswith("silent_"))
    assert len(town.open) <= dropped


def test_the_same_walk_twice_is_the_same() -> None:
    """The machine decides by what it is given and nothing else."""
    first, second = Town(5), Town(5)
    for _ in range(300):
        first.step()
        second.step()
    assert first.scene.sent == second.scene.sent
    assert first.scene.counters == second.scene.counters


def test_the_machine_names_its_next_tick() -> None:
    scene = Scene(heartbeat_ms=1000)
    assert scene.machine.deadline() == scene.now + 1
    scene.ready("0.1", b"W1")
    assert scene.machine.request_table.timer_changed
    assert scene.now < scene.machine.deadline() <= scene.now + 1
    assert scene.machine.tick(scene.now) == {}


def test_gauges_say_what_there_is_at_this_moment() -> None:
    scene = Scene()
    gauges = ("services", "workers", "queued", "queued_bytes", "running", "memory_bytes")

    def shown() -> tuple[int, ...]:
        stats = scene.machine.stats()
        return tuple(stats[name] for name in gauges)

    assert shown() == (0, 0, 0, 0, 0, 0)
    for client in (b"C1", b"C2", b"C3"):
        scene.ask("0.3", client, bytes(1000), options={"wait": True})
    one = len(encode_message([bytes(1000)])) + len(encode_prefix([encode_options({"wait": True})]))
    assert shown() == (1, 0, 3, 3 * one, 0, 3 * (one + REQUEST_OVERHEAD_BYTES))
    scene.ready("0.3", b"W1", credit=2)
    assert shown() == (1, 1, 1, one, 2, 3 * (one + REQUEST_OVERHEAD_BYTES))
    first, second = (event for event in scene.at_worker(b"W1") if isinstance(event, Work))
    scene.answer(b"W1", first, b"done")
    scene.answer(b"W1", second, b"done")
    assert shown() == (1, 1, 0, 0, 1, one + REQUEST_OVERHEAD_BYTES)
    scene.answer(b"W1", scene.work(b"W1"), b"done")
    assert shown() == (1, 1, 0, 0, 0, 0)
