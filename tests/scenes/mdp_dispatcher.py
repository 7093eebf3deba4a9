"""A broker's machine with scripted peers: frames in, frames out, a clock that the test sets.

There are two machines: one gets what is sent as bytes of one read, as from a socket, the other message by message, as frames. Whatever
happens to them, both must send the same to every peer.
"""

from __future__ import annotations

from copy import deepcopy
from operator import itemgetter
from typing import TYPE_CHECKING

from core.zmtp.frames import decode_frames, encode_message
from core.zmtp.scan import Batch
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.broker.requests.invariants import check_invariants
from mdp.wire.commands import client_request, worker_final, worker_heartbeat, worker_ready
from mdp.wire.events import Disconnect, Failure, Final, Heartbeat, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.broker.requests.request_ends import Output
    from mdp.wire.commands import Dialect
    from mdp.wire.events import ClientEvent, WorkerEvent

__all__ = ["DIALECTS", "ECHO", "Scene", "batch", "decoded", "number", "one_by_one"]

DIALECTS: list[Dialect] = ["0.1", "0.2", "0.3"]
ECHO = b"echo"


def number(value: int) -> bytes:
    """Return an id of MDP/0.3."""
    return value.to_bytes(8, "big")


def batch(peer: bytes, *messages: Sequence[bytes]) -> Batch:
    """Return messages of a peer as they come from a socket in one read."""
    starts, ends, octets = [], [], b""
    for frames in messages:
        starts.append(len(octets))
        octets += encode_message(frames)
        ends.append(len(octets))
    return Batch([peer], octets, starts, ends)


def decoded(out: Output) -> list[list[bytes]]:
    """Return what a machine sends as `[peer, frame, …]`."""
    return [[peer, *decode_frames(piece)] for peer, pieces in out.items() for piece in pieces]


def one_by_one(machine: Dispatcher, peer: bytes, messages: Sequence[Sequence[bytes]], now: float) -> list[list[bytes]]:
    """Let a machine receive messages of a peer in a read each, as frames."""
    out = []
    for frames in messages:
        out += decoded(machine.receive(Batch.of([peer], [[peer, *frames]]), now))
    return out


RECORDS = ("services", "workers", "clients", "queued", "running", "results", "letters")
LOOKED_AT_PER_STEP = 16


class Scene:
    """The machine, its clock, and what it has sent to whom."""

    def __init__(self, **options: float | bool) -> None:
        self.now = 1000.0
        limits = BrokerOptions(**options)  # type: ignore[arg-type]
        self.machine = self.new_machine(limits)
        self.twin = self.new_machine(limits)
        self.sent: dict[bytes, list[list[bytes]]] = {}
        self.outstanding: dict[bytes, list[Work]] = {}
        self._ids = 0
        self._steps_until_look = 0

    def new_machine(self, limits: BrokerOptions) -> Dispatcher:
        return Dispatcher(limits, now=self.now)

    @property
    def counters(self) -> dict[str, int]:
        return self.machine.counters.as_dict()

    def take(self, out: list[list[bytes]], twins: list[list[bytes]]) -> list[list[bytes]]:
        """Sort what the machine sends by peer and return it; its twin must have sent the same."""
        for peer, *frames in out:
            self.sent.setdefault(peer, []).append(frames)
        assert sorted(out, key=itemgetter(0)) == sorted(twins, key=itemgetter(0))
        self._steps_until_look -= 1
        if self._steps_until_look <= 0:
            self.look_at_records()
        return out

    def look_at_records(self) -> None:
        """Look at all records; the more there are, the more steps go by until the next time."""
        stats = self.machine.stats()
        assert stats == self.twin.stats()
        check_invariants(self.machine)
        check_invariants(self.twin)
        self._steps_until_look = sum(stats[name] for name in RECORDS) // LOOKED_AT_PER_STEP

    def both(self, method: str, *args: object) -> list[list[bytes]]:
        """Call a method of the machine and of its twin; return what the machine sends on it."""
        out, twins = (decoded(getattr(machine, method)(*deepcopy(args), self.now)) for machine in (self.machine, self.twin))
        return self.take(out, twins)

    def send(self, peer: bytes, *messages: Sequence[bytes]) -> list[list[bytes]]:
        """Let a peer send messages; return what the broker sends on them."""
        out = decoded(self.machine.receive(batch(peer, *messages), self.now))
        return self.take(out, one_by_one(self.twin, peer, messages, self.now))

    def wait(self, seconds: float) -> list[list[bytes]]:
        """Let time pass, ticking whenever the machine asks for it."""
        end, out = self.now + seconds, []
        while (due := self.machine.deadline()) <= end:
            self.now = max(self.now, due)
            out += self.both("tick")
        self.now = end
        return out

    def beat(self, *peers: bytes) -> None:
        """Let workers be heard from after what was lost before is settled."""
        self.wait(self.machine.options.settle_s * 1.01)
        for peer in peers:
            self.send(peer, worker_heartbeat(self.machine.directory.workers[peer].dialect))

    def lose(self, peer: bytes) -> list[list[bytes]]:
        return self.both("peer_lost", peer)

    def got(self, peer: bytes) -> list[list[bytes]]:
        """Take what was sent to a peer."""
        return self.sent.pop(peer, [])

    # Peers.

    def ready(self, dialect: Dialect, peer: bytes, service: bytes = ECHO, credit: int = 1) -> None:
        options = encode_options({"credit": credit}) if dialect == "0.3" and credit > 1 else b""
        self.send(peer, worker_ready(dialect, service, options=options))

    def ask(self, dialect: Dialect, peer: bytes, *body: bytes, service: bytes = ECHO, options: dict[str, object] | None = None) -> bytes:
        """Let a client send a request; return its id."""
        self._ids += 1
        request_id = number(self._ids) if dialect == "0.3" else b""
        octets = encode_options(options or {})
        self.send(peer, client_request(dialect, service, body or (b"x",), id=request_id, options=octets))
        return request_id

    def at_worker(self, peer: bytes) -> list[WorkerEvent]:
        """Take what a worker was sent, as events, heartbeats left out."""
        events = [parse_at_worker(frames) for frames in self.got(peer)]
        return [event for event in events if not isinstance(event, Heartbeat)]

    def work(self, peer: bytes) -> Work:
        """Take the one thing a worker was sent, which is a request."""
        (event,) = self.at_worker(peer)
        assert isinstance(event, Work), event
        return event

    def at_client(self, peer: bytes) -> list[ClientEvent]:
        """Take what a client was sent, as events."""
        return [parse_at_client(frames) for frames in self.got(peer)]

    def answer(self, peer: bytes, work: Work, *body: bytes) -> None:
        """Let a worker answer."""
        self.send(peer, worker_final(work.dialect, work.id, body or (b"y",)))

    def reply(self, peer: bytes) -> list[bytes]:
        """Take the one thing a client was sent, which is a final reply; return its body."""
        (event,) = self.at_client(peer)
        assert isinstance(event, Final), event
        return [*event.body]

    def failure(self, peer: bytes) -> str:
        """Take the one thing a client was sent, which is an ERROR; return its code."""
        (event,) = self.at_client(peer)
        assert isinstance(event, Failure), event
        return event.code

    def is_sent_away(self, peer: bytes) -> bool:
        """Take what a worker was sent; return whether it is a DISCONNECT and nothing after it."""
        events = self.at_worker(peer)
        return bool(events) and isinstance(events[-1], Disconnect)

    def check_routes(self) -> None:
        """Hold the routes of requests as bytes against those by name."""
        directory = self.machine.directory
        services = directory.routes.values()
        assert directory.routes_encoded == {name: service for service in services for name in (service.encoded, service.route)}

    def check(self) -> None:
        """Hold the accounts against what there is."""
        self.check_routes()
        machine = self.machine
        queued = running = octets = 0
        for service in machine.directory.services.values():
            waiting = list(service.queue)
            assert service.queue.count == len(waiting)
            assert service.queue.size == sum(len(request.payload) for request in waiting)
            listed = list(service.ready_workers())
            lost = [request for _, request in service.queue.lost if request.client is not None]
            assert not (len(waiting) > len(lost) and listed), "requests wait though a worker has credit"
            assert not lost or machine.request_table.checks.get(service), "nothing looks after requests whose worker was lost"
            assert len(set(map(id, listed))) == len(listed)
            for worker in service.workers.values():
                assert machine.directory.workers[worker.peer] is worker
                assert worker.service is service
                assert worker.live
                assert (
                    (worker.ready_list is not None) == any(worker is other for other in listed) == (len(worker.in_flight) < worker.allowed)
                )
                assert worker.ready_list is None or worker.list_from <= len(worker.in_flight) < worker.list_to
                held = [request for request in worker.in_flight.values() if request.client is not None]
                running += len(held)
                octets += sum(len(r.payload) + 512 + (len(r.extras.parts) if r.extras else 0) for r in held)
            queued += len(waiting)
            octets += sum(len(request.payload) + 512 for request in waiting)
            assert (service.name in machine.directory.routes) == (bool(service.workers) and service.enabled and machine.directory.accepting)
        opened = [request for mine in machine.request_table.clients.values() for request in mine.values()]
        following = [r for r in opened if r.extras and r.extras.execution and r.extras.execution.request is not r]
        assert all(any(r is f for f in r.extras.execution.followers) for r in following if r.extras and r.extras.execution)
        octets += 512 * len(following)
        assert len(opened) == queued + running + len(following) == machine.counters.accepted - machine.counters.closed
        assert machine.options.memory_max_bytes - machine.request_table.memory_left_bytes == octets
        assert set(machine.directory.workers.values()) == {
            worker for service in machine.directory.services.values() for worker in service.workers.values()
        }
