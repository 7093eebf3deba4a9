"""Broker, worker and client on three hosts, whose monotonic clocks began elsewhere, run apart and jump (fault T2).

The three machines with a line between them that takes no time, so that every difference comes from the clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.zmtp.frames import Encoded
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.client.calls import Call, PendingRequest
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.mdp_dispatcher import batch, decoded
from tests.scenes.mdp_messages import read
from tests.scenes.mdp_requester import requester, sent

if TYPE_CHECKING:
    from mdp.broker.requests.request_ends import Output
    from mdp.request import Request

CLIENT, WORKER = b"C1", b"W1"
STEP_S = 0.05  # of true time
BEAT_S = 1.0
DAY_S = 86_400.0


class Clock:
    """Shows `begins + rate * true time`."""

    def __init__(self, begins: float = 0.0, rate: float = 1.0) -> None:
        self.ahead = begins
        self.rate = rate

    def at(self, true: float) -> float:
        return self.ahead + self.rate * true


class Hosts:
    """The three machines, each with its clock."""

    def __init__(self, broker: Clock, worker: Clock, client: Clock) -> None:
        self.true = 0.0
        self.clocks = {"broker": broker, "worker": worker, "client": client}
        self.broker = Dispatcher(BrokerOptions(heartbeat_ms=1000 * BEAT_S), now=self.now("broker"))
        search = BrokerSearch(["tcp://broker"], "0.3", SearchTimes(), lambda: 1.0)
        self.worker = WorkerSession("echo", search, SessionOptions(credit=8, heartbeat_s=BEAT_S))
        search.start(self.now("worker"))
        self.worker.joined(self.now("worker"))
        self.client = requester(heartbeat_s=BEAT_S)
        self.client.joined(self.now("client"))
        self.in_flight: list[Request] = []
        self.settled: list[PendingRequest] = []
        self.move()

    def now(self, host: str) -> float:
        return self.clocks[host].at(self.true)

    def ask(self, body: bytes, deadline_s: float | None = None) -> PendingRequest:
        pending = PendingRequest(Call("echo", timeout_s=1000.0, attempts=1, deadline_s=deadline_s, wait=True), [body])
        self.client.submit(pending, self.now("client"))
        self.move()
        return pending

    def answer(self) -> None:
        """Let the worker answer what it has."""
        for request in self.in_flight:
            self.worker.answer(request, request.body)
        self.in_flight.clear()
        self.move()

    def to_broker(self, peer: bytes, messages: list[list[bytes]]) -> None:
        self.deliver(self.broker.receive(batch(peer, *messages), self.now("broker")))

    def deliver(self, out: Output) -> None:
        for peer, *frames in decoded(out):
            if peer == WORKER:
                self.in_flight += self.worker.receive(read([frames]), self.now("worker"))
                for request in self.worker.take_unwanted():
                    self.in_flight.remove(request)
                    self.worker.refuse(request, "CANCELLED", "")
            else:
                self.settled += self.client.receive([frames], self.now("client"))

    def move(self) -> None:
        """Deliver messages until there are none."""
        while True:
            from_worker = [
                frames
                for message in self.worker.take_outgoing(self.now("worker"))
                for frames in [Encoded(message).frames() if isinstance(message, bytes) else message]
            ]
            from_client = sent(self.client)
            if not from_worker and not from_client:
                return
            self.to_broker(WORKER, from_worker)
            self.to_broker(CLIENT, from_client)

    def wait(self, true_s: float, *, serving: bool = False) -> None:
        end = self.true + true_s
        while self.true < end:
            self.true += STEP_S
            if self.broker.deadline() <= self.now("broker"):
                self.deliver(self.broker.tick(self.now("broker")))
            if self.worker.deadline() <= self.now("worker"):
                self.worker.tick(self.now("worker"))
            if self.client.deadline() <= self.now("client"):
                self.settled += self.client.tick(self.now("client"))
            self.move()
            if serving:
                self.answer()

    @property
    def counted(self) -> dict[str, int]:
        return self.broker.counters.as_dict()


APART = [
    (Clock(0.0), Clock(30 * DAY_S), Clock(-30 * DAY_S)),
    (Clock(1e6), Clock(-1e6, rate=1.2), Clock(0.0, rate=0.8)),
    (Clock(1e6, rate=1.2), Clock(0.0, rate=0.9), Clock(-5.0)),
]


@pytest.mark.parametrize("clocks", APART, ids=["months apart", "slow client, fast worker", "fast broker, slow worker"])
def test_clocks_with_other_origins_or_rates_make_no_peer_look_dead(clocks: tuple[Clock, Clock, Clock]) -> None:
    """Ten minutes with a request every three seconds, and heartbeats between them.

    No time of one host is held against that of another.
    """
    hosts = Hosts(*clocks)
    asked = []
    for serial in range(200):
        asked.append(hosts.ask(b"%d" % serial, deadline_s=30.0))
        hosts.wait(3.0, serving=True)
    assert [pending.reply for pending in asked] == [[b"%d" % serial] for serial in range(200)]
    assert hosts.counted["workers_registered"] == 1
    assert hosts.counted["workers_expired"] == hosts.counted["redelivered"] == hosts.counted["error_deadline_exceeded"] == 0
    assert hosts.counted["heartbeats_received"] > 200
    assert hosts.worker.counters.silences == 0
    assert not hosts.client.dead


@pytest.mark.parametrize("clocks", APART, ids=["months apart", "slow client, fast worker", "fast broker, slow worker"])
def test_a_deadline_is_kept_by_the_clock_of_its_keeper(clocks: tuple[Clock, Clock, Clock]) -> None:
    """The remaining time is sent: a request of ten seconds has ten, up to the difference of clock rates."""
    hosts = Hosts(*clocks)
    pending = hosts.ask(b"x", deadline_s=10.0)
    (request,) = hosts.in_flight
    left_s = request.left_s(hosts.now("worker"))
    assert left_s is not None
    assert left_s == pytest.approx(10.0, abs=0.01)
    hosts.wait(10.0 / 1.2 - 2 * STEP_S)
    assert not hosts.settled
    hosts.wait(10.0 / 0.8)
    assert hosts.settled == [pending]
    assert not hosts.in_flight


@pytest.mark.parametrize("jump_s", [60.0, 30 * DAY_S])
def test_a_broker_whose_clock_jumps_removes_no_worker_and_ends_expired_requests(jump_s: float) -> None:
    """As after a suspension.

    Its workers are heard first, a request whose time is over is not begun, any other goes on.
    """
    hosts = Hosts(Clock(), Clock(), Clock())
    late, patient = hosts.ask(b"late", deadline_s=30.0), hosts.ask(b"patient")
    hosts.wait(5.0)
    hosts.clocks["broker"].ahead += jump_s
    hosts.wait(STEP_S)
    assert hosts.settled == [late]
    assert hosts.counted["error_deadline_exceeded"] == 1
    hosts.wait(30.0)
    hosts.answer()
    assert patient.reply == [b"patient"]
    assert hosts.counted["workers_registered"] == 1
    assert hosts.counted["workers_expired"] == hosts.counted["redelivered"] == 0
