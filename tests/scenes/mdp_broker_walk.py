"""A random walk over the broker's machine: everything peers, operators and time may do, in a small world.

A number names a walk: `python -m tests.scenes.mdp_broker_walk SEED` repeats it and prints every step. There are few clients, workers,
services and keys, small limits, and moments that fall together: deadlines and times in the queue are multiples of a quarter of a second,
and so are the steps of the clock. After every step all records are checked (`mdp.broker.requests.invariants`), and every client of
MDP/0.3 receives the end of each of its requests once.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from functools import cache
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any

from core.zmtp.frames import Encoded, encode_message, encode_prefix
from core.zmtp.limits import PeerLimits
from core.zmtp.scan import Batch
from mdp.access.rules import Rules
from mdp.access.service_policies import ServicePolicies
from mdp.broker.authorization import GuardedDispatcher
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.broker.recorder import Recorder
from mdp.broker.requests.invariants import check_invariants, check_stats, check_wakes
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.channels import channel_frame, connection_of, is_channel
from mdp.wire.commands import (
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
    V01,
    V02,
    V03,
    client_heartbeat,
    client_request,
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ready,
    worker_return,
)
from mdp.wire.options import encode_options
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.broker.requests.records import Worker
    from mdp.broker.requests.request_ends import Output
    from mdp.wire.commands import Dialect

__all__ = ["STEPS", "Walk", "WalkFailed", "walk"]

STEPS = 400
LAST_STEPS = 25
SERVICES = (b"echo", b"echo", b"echo", b"echo", b"other", b"third")
DIALECTS: tuple[Dialect, ...] = (V03, V03, V03, V01, V02)
CLIENTS: tuple[tuple[bytes, Dialect], ...] = ((b"C0", V03), (b"C1", V03), (b"C2", V03), (b"D1", V01), (b"D2", V02))
WORKERS = tuple(b"W%d" % i for i in range(6))
SHARED_WORKERS = (b"\0\0\0\0\1W0", b"\0\0\0\0\2W0", b"\0\0\0\0\3W0", b"\0\0\0\0\1W1", b"\0\0\0\0\2W1", b"W2")
OPERATOR = b"Op"
BODY = b"body"
LARGE = b"x" * 3000
OPTIONS: tuple[bytes, ...] = tuple(
    encode_options(options)
    for options in (
        {"key": b"k1"},
        {"key": b"k1"},
        {"key": b"k2"},
        {"key": b"k1", "wait": True},
        {"key": b"k1", "wait": True},
        {"key": b"k1", "wait": True, "deadline_ms": 500},
        {"key": b"k1", "deadline_ms": 500},
        {"key": b"k1", "deadline_ms": 1000, "trace": {"a": "b"}},
        {"key": b"k1", "once": True},
        {"key": b"k2", "wait": True, "once": True},
        {"wait": True},
        {"wait": True, "deadline_ms": 250},
        {"deadline_ms": 500},
        {"deadline_ms": 0},
        {"once": True},
        {"deadline_ms": -1},
    )
)
READY_OPTIONS = tuple(
    encode_options({"credit": credit, "concurrency": concurrency})
    for credit, concurrency in ((1, None), (2, None), (3, None), (4, None), (2, 1), (4, 1), (4, 2), (3, 3))
)
# For walks with policies: priorities of requests, rates and retries of services.
POLICY_OPTIONS = (
    *OPTIONS,
    *(
        encode_options({"priority": priority, **options})
        for priority in ("high", "low")
        for options in ({}, {}, {"wait": True}, {"key": b"k1", "wait": True}, {"deadline_ms": 500}, {"once": True}, {"deadline_ms": 2000})
    ),
)
_RATES = ({"per_s": 4.0, "burst": 1}, {"per_s": 1.0, "burst": 3}, {"per_s": 20.0, "burst": 2}, None, None)
_RETRIES = (
    {"attempts": 3, "base_s": 0.25, "jitter": 0.0},
    {"attempts": 2, "base_s": 0.0, "jitter": 0.0},
    {"attempts": 4, "base_s": 0.3},
    None,
)
POLICY_READY_OPTIONS = tuple(
    encode_options({"credit": credit, "concurrency": concurrency, "rate": rate, "retry": retry})
    for credit, concurrency in ((1, None), (3, None), (4, 2))
    for rate in _RATES
    for retry in _RETRIES
)
FREE = Rules({"allow": [{"who": ["*"], "anonymous": True, "call": ["*"], "serve": ["*"], "manage": ["*"]}]})
STRICT = Rules({"allow": [{"who": ["C0", "C1", "D1"], "call": ["echo"]}, {"who": ["W*", "Op"], "serve": ["echo", "o*"], "manage": ["*"]}]})
OWN_POLICIES = (
    None,
    *(
        ServicePolicies({"policy": [{"services": services, **keys}]})
        for services in (["*"], ["echo"])
        for keys in (
            {"rate": {"per_s": 2, "burst": 2}},
            {"rate": False, "retry": False},
            {"retry": {"attempts": 3, "base_s": 0.25}, "priority_max": "normal"},
        )
    ),
)
CODES = ("HANDLER_ERROR", "DEADLINE_EXCEEDED")
MANAGING = (b"mmi.disable", b"mmi.enable", b"mmi.enable", b"mmi.drain")


@cache
def encoded(frames: tuple[bytes, ...]) -> Encoded:
    """Encode the end of a message.

    There are some hundreds; encoding them was an eighth of all time.
    """
    return Encoded.of(frames)


class WalkFailed(AssertionError):
    """A step of a walk found something wrong; the text names the seed and the last steps."""


class Walk:
    """One walk.

    Args:
        seed: names it.
        trace: takes a line for each thing that is done; None for none.
        policies: whether requests have priorities, and services rates and retries.
        channels: whether workers share connections.
    """

    def __init__(self, seed: int, trace: list[str] | None = None, *, policies: bool = False, channels: bool = False) -> None:
        self.workers = SHARED_WORKERS if channels else WORKERS
        self.options = POLICY_OPTIONS if policies else OPTIONS
        self.ready_options = POLICY_READY_OPTIONS if policies and seed % 8 < 4 else READY_OPTIONS  # else those of the operator alone
        self.chance = random.Random(seed)
        self.dice = self.chance.random
        self.trace = trace
        self.now, self.ids = 1000.0, 0
        self.touched = False  # whether the machine was called in this step
        self.wakes_at = inf  # when the clock of a broker would tick, which is moved only where the machine asks for it
        # Ids of MDP/0.3 that are not answered yet, in dictionaries: the order of a set would be another one in each process.
        self.asked: dict[bytes, dict[bytes, None]] = {client: {} for client in (OPERATOR, *(client for client, _ in CLIENTS))}
        self.machine = self._new_machine()
        self.machine.request_table.ends_at_once = 1 + seed % 2 if seed % 7 == 2 else 9  # of what ends in one instant
        self.recorder: Recorder | None = None
        if seed % 3 == 0:
            self.recorder = self.machine.request_table.recorder = Recorder(None if seed % 2 else lambda block: None)
        self.beating = 0.1 if self.dice() < 0.2 else 0.8  # how likely a worker beats before time passes
        self.steps = self._steps()
        if seed % 5 == 0:
            self.machine.begin(self.now)
        if seed % 4 == 1:  # some peers take less than others
            low = PeerLimits(1024, 2500)
            self.machine.request_table.hops = Hops(PeerLimits(), {b"C0": low, b"D1": low, b"W1": low, b"W3": low}.get)
            for peer in (*self.asked, *map(connection_of, self.workers)):
                self.take(self.machine.peer_joined(peer, self.now), f"{peer!r} joins")

    def _new_machine(self) -> Dispatcher:
        pick = self.chance.choice
        options = BrokerOptions(
            heartbeat_ms=1000,
            busy_ms=4000,
            queue_ms=pick((500, 2000, 3000)),
            queue_max=pick((3, 8)),
            queue_max_bytes=pick((4000, 40_000)),
            client_queue_max=pick((2, 5)),
            memory_max_bytes=pick((8000, 40_000)),
            services_max=3,
            absent_max=pick((1, 3)),
            service_idle_ms=2000,
            workers_max=5,
            deliveries_max=pick((1, 2, 3)),
            parts_max_bytes=40,
            results_max=2,
            results_max_bytes=pick((700, 4000)),
            results_ms=2000,
            letters_max=2,
            letters_max_bytes=3100,
            manage=True,
        )
        number = pick((1, 2**63 - 1))
        self.guarded = self.dice() < 0.25
        if self.guarded:
            users = bytes.decode
            return GuardedDispatcher(options, FREE, user_of=users, audit=lambda _: None, first_number=number, now=self.now)
        return Dispatcher(options, first_number=number, now=self.now)

    def _steps(self) -> tuple[Callable[[], None], ...]:
        weights = (
            (26, self.ask),
            (8, self.ask_many),
            (22, self.answer),
            (5, self.answer_many),
            (16, self.rest),
            (8, self.join),
            (5, self.cancel),
            (1, self.ask_again),
            (2, self.lose_workers),
            (1, self.leave),
            (2, self.lose_client),
            (1, self.misbehave),
            (1, self.manage),
            (3 if self.options is POLICY_OPTIONS and self.ready_options is READY_OPTIONS else 1, self.rule),
        )
        return tuple(do for weight, do in weights for _ in range(weight))

    def go(self, steps: int = STEPS) -> None:
        """Go so many steps, then let everybody leave and time pass, until nothing may be open."""
        dice, todo = self.dice, self.steps
        count = len(todo)
        self.machine.request_table.timer_changed = True  # a beginning and a tick set the clock
        self.look()
        for _ in range(steps):
            self.touched = False
            todo[int(dice() * count)]()
            if self.touched:  # else the machine was not called: its records are those that were looked at
                self.look()
        self.end()

    def look(self) -> None:
        """Look at all records, and at whether the clock is set for what is due first."""
        machine = self.machine
        check_invariants(machine)
        if machine.request_table.timer_changed:
            machine.request_table.timer_changed = False
            self.wakes_at = machine.deadline()
        check_wakes(machine, self.wakes_at)

    def end(self) -> None:
        """Stop all work: every request ends, and its client gets a notice of it."""
        check_stats(self.machine)
        if (how := self.dice()) < 0.2:
            self.take(self.machine.stop(self.now), "stop")
        elif how < 0.4:
            self.take(self.machine.drain(self.now), "drain")
        self.look()
        for peer in [*self.machine.directory.workers]:
            self.lose(peer)
        for _ in range(20):
            self.now += 1.0
            while self.machine.deadline() <= self.now:
                self.tick()
            self.look()
        assert self.machine.idle, "requests are open for ever"
        left = {client: ids for client, ids in self.asked.items() if ids}
        assert not left, f"never answered: {left}"

    # What the machine is given, and what it says.

    def read(self, peer: bytes, messages: Sequence[Sequence[bytes]]) -> None:
        """Let the machine read messages of one peer at once: as bytes, as from a socket, or as frames."""
        machine, now = self.machine, self.now
        self.touched = True
        if self.recorder is not None:
            self.recorder.now = now
        if self.trace is not None:
            self.trace.append(f"{now:.2f} {peer!r} says {messages}")
        if is_channel(peer):
            peer, messages = connection_of(peer), [[channel_frame(peer[4]), *message] for message in messages]
        if self.dice() < 0.6:
            octets = [
                encode_prefix(frames[:1]) + encoded(tuple(frames[1:])) if len(frames) > 1 else encode_message(frames) for frames in messages
            ]
            ends = [*accumulate(map(len, octets))]
            batch = Batch([peer], b"".join(octets), [0, *ends[:-1]], ends)
        else:
            batch = Batch.of([peer], [[peer, *frames] for frames in messages])
        self.take(machine.receive(batch, now), "")

    def take(self, out: Output, what: str) -> None:
        """Take what the machine says, after one thing was done."""
        self.touched = True
        if self.trace is not None:
            self.trace.append(f"{self.now:.2f} {what} -> {out}" if what else f"    -> {out}")
        for peer, pieces in out.items():
            assert not is_channel(peer), "sent to a peer that is no connection"
            if peer in self.asked:
                for octets in pieces:
                    self.told(peer, octets[2:])

    def told(self, client: bytes, head: bytes) -> None:
        """Note that a client of MDP/0.3 received the end of a request, or a part of it."""
        command = head[:HEAD_BYTES]
        if command == CLIENT_FINAL_03 or command == CLIENT_ERROR_03:
            id = head[HEAD_BYTES : HEAD_BYTES + 8]
            assert id in self.asked[client], f"{client!r} is told of {id.hex()} though nothing is open"
            del self.asked[client][id]
        elif command == CLIENT_PARTIAL_03:
            assert head[HEAD_BYTES : HEAD_BYTES + 8] in self.asked[client], f"{client!r} gets a part of what is not open"

    # Clients.

    def request(self, client: bytes, dialect: Dialect) -> list[bytes]:
        dice = self.dice()
        service = SERVICES[int(self.dice() * 6)]
        body = [BODY] if dice < 0.9 else [LARGE] if dice < 0.96 else [BODY, b"", BODY]
        if dialect != V03:
            return client_request(dialect, service, body)
        self.ids += 1
        id = self.ids.to_bytes(8, "big")
        self.asked[client][id] = None
        options = self.options[int(self.dice() * len(self.options))] if self.dice() < 0.6 else b""
        return [CLIENT_REQUEST_03 + id, service, options, *body]

    def ask(self) -> None:
        client, dialect = CLIENTS[int(self.dice() * 5)]
        self.read(client, [self.request(client, dialect)])

    def ask_again(self) -> None:
        client, _ = CLIENTS[int(self.dice() * 3)]
        if mine := self.asked[client]:
            self.read(client, [[CLIENT_REQUEST_03 + next(iter(mine)), SERVICES[int(self.dice() * 6)], b"", BODY]])

    def ask_many(self) -> None:
        client, dialect = CLIENTS[int(self.dice() * 5)]
        self.read(client, [self.request(client, dialect) for _ in range(2 + int(self.dice() * 4))])

    def cancel(self) -> None:
        client, _ = CLIENTS[int(self.dice() * 3)]
        ids = [id for id in self.asked[client] if self.dice() < 0.5] or [bytes(8)]
        self.read(client, [client_cancel(id) for id in ids])

    def lose_client(self) -> None:
        client, _ = CLIENTS[int(self.dice() * 5)]
        self.asked[client].clear()
        self.lose(client)

    # Workers.

    def join(self) -> None:
        peer = self.workers[int(self.dice() * len(self.workers))]
        if peer in self.machine.directory.workers:
            self.read(peer, [worker_heartbeat(self.machine.directory.workers[peer].dialect)])
            return
        dialect = V03 if is_channel(peer) else DIALECTS[int(self.dice() * 5)]
        options = self.ready_options[int(self.dice() * len(self.ready_options))] if dialect == V03 else b""
        self.read(peer, [worker_ready(dialect, SERVICES[int(self.dice() * 5)], options=options)])

    def busy(self) -> Worker | None:
        workers = [worker for worker in self.machine.directory.workers.values() if worker.in_flight]
        return workers[int(self.dice() * len(workers))] if workers else None

    def one_answer(self, worker: Worker, number: int, dice: float) -> list[bytes]:
        dialect, token = worker.dialect, number.to_bytes(8, "big")
        if worker.knows_ping and (worker.recalled or dice > 0.97):
            return worker_return(token)
        if dialect != V01 and dice < 0.14:
            return worker_partial(dialect, token, [BODY] if dice < 0.1 else [BODY * 12])
        if dialect == V03 and dice < 0.25:
            return worker_error(token, CODES[dice < 0.18], "no")
        return worker_final(dialect, token, [BODY] if dice < 0.95 else [LARGE])

    def answer(self) -> None:
        worker = self.busy()
        if worker is not None:
            held = [*worker.in_flight.values()]
            request = held[int(self.dice() * len(held))]
            dice = self.dice()
            if dice < 0.4 and worker.is_v03 and request.extras is not None and request.extras.deadline != inf:
                dice = 0.17  # it keeps to the deadline of the request
            self.read(worker.peer, [self.one_answer(worker, request.number, dice)])

    def answer_many(self) -> None:
        worker = self.busy()
        if worker is not None:
            if numbers := [request.number for request in worker.in_flight.values() if self.dice() < 0.8]:
                self.read(worker.peer, [self.one_answer(worker, number, self.dice()) for number in numbers])

    def leave(self) -> None:
        workers = [*self.machine.directory.workers.values()]
        if workers:
            self.read((worker := workers[int(self.dice() * len(workers))]).peer, [worker_disconnect(worker.dialect)])

    def lose_workers(self) -> None:
        """One, or several in one instant."""
        several = self.dice() < 0.5
        for peer in [*self.machine.directory.workers]:
            if self.dice() < (0.7 if several else 0.15):
                self.lose(peer)

    def misbehave(self) -> None:
        workers = [*self.machine.directory.workers.values()]
        if not workers:
            self.read(b"W9", [worker_heartbeat(V03) if self.dice() < 0.5 else worker_disconnect(V03)])
            return
        worker = workers[int(self.dice() * len(workers))]
        frames: list[list[bytes]] = [
            worker_final(worker.dialect, bytes(8), [BODY]),
            worker_ready(worker.dialect, b"echo"),
            [b"", b"MDPW01", b"\x09"],
            [b"MDPC03\x01"],
            [b"MDPC03\x01" + bytes(8), b"\x00", b"", BODY],
            [b"MDPC03\x01" + bytes(7), b"echo", b"", BODY],
            [b"MDPX99"],
            [b"MDPW03\x09"],
            [b"MDPW03\x05" + bytes(8), b"not a code", b""],
            [b"", b"MDPW01", b"\x03", b"short", b"full", BODY],
            client_heartbeat(),
        ]
        self.read(worker.peer, [frames[int(self.dice() * len(frames))]])

    def lose(self, peer: bytes) -> None:
        machine, peer = self.machine, connection_of(peer)
        self.take((machine.peer_joined if self.dice() < 0.2 else machine.peer_lost)(peer, self.now), f"{peer!r} is gone")

    # Time and operators.

    def rest(self) -> None:
        dice = self.dice()
        for worker in [*self.machine.directory.workers.values()]:
            if self.dice() < self.beating:
                self.read(worker.peer, [worker_heartbeat(worker.dialect, draining=worker.knows_ping and self.dice() < 0.02)])
        self.now += 0.25 if dice < 0.6 else 0.5 if dice < 0.8 else 1.25 if dice < 0.95 else 0.01
        if self.dice() < 0.8:
            self.tick()

    def tick(self) -> None:
        if self.recorder is not None:
            self.recorder.now = self.now
        if self.machine.deadline() <= self.now:
            self.take(self.machine.tick(self.now), "tick")
            self.machine.request_table.timer_changed = True

    def ask_broker(self, name: bytes, about: bytes) -> None:
        self.ids += 1
        id = self.ids.to_bytes(8, "big")
        self.asked[OPERATOR][id] = None
        self.read(OPERATOR, [client_request(V03, name, [about], id=id)])

    def manage(self) -> None:
        letters = [*self.machine.dead_letters]
        if letters and self.dice() < 0.7:
            self.ask_broker(b"mmi.dlq.retry" if self.dice() < 0.8 else b"mmi.dlq.drop", b"%d" % letters[0].number)
        else:
            self.ask_broker(MANAGING[int(self.dice() * 4)], SERVICES[int(self.dice() * 6)])

    def rule(self) -> None:
        machine = self.machine
        if self.options is POLICY_OPTIONS:
            self.take(machine.set_policies(self.chance.choice(OWN_POLICIES), self.now), "policies")
        if isinstance(machine, GuardedDispatcher):
            self.take(machine.set_rules(STRICT if self.dice() < 0.4 else FREE, self.now), "rules")


def walk(seed: int, steps: int = STEPS, **kinds: Any) -> None:
    """Go one walk, with policies or channels.

    Raises:
        WalkFailed: it found something wrong.
    """
    try:
        Walk(seed, **kinds).go(steps)
    except Exception as error:
        trace: list[str] = []
        with suppress(type(error)):
            Walk(seed, trace, **kinds).go(steps)
        last = "\n".join(trace[-LAST_STEPS:])
        again = " ".join(("python -m tests.scenes.mdp_broker_walk", str(seed), *(kind for kind, wanted in kinds.items() if wanted)))
        raise WalkFailed(f"walk {seed}: {type(error).__name__}: {error}\n{last}\nagain: {again}") from error


def main() -> Any:
    trace: list[str] = []
    try:
        Walk(int(sys.argv[1]), trace, policies="policies" in sys.argv, channels="channels" in sys.argv).go()
    finally:
        print("\n".join(trace))  # noqa: T201


if __name__ == "__main__":
    main()
