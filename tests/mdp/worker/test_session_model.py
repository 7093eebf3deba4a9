"""The worker's session against a naive reference.

Whatever broker, handlers and time do, in any order, on one connection after the other.

The reference reads every message frame by frame and keeps lists. After each step it predicts what the session has sent, its counters, which
requests are new, unwanted or recalled, and when it has to be asked next. Messages come decoded or as octets; both have to be the same.
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from core.zmtp.frames import Encoded
from core.zmtp.limits import PeerLimits
from mdp.session.broker_search import BrokerSearch, SearchState, SearchTimes
from mdp.wire.commands import (
    V01,
    V02,
    V03,
    WORKER_FINAL_03,
    client_heartbeat,
    worker_cancel,
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ping,
    worker_ready,
    worker_recall,
    worker_return,
)
from mdp.wire.events import Cancel, Disconnect, Heartbeat, Invalid, Ping, Recall, Work, parse_at_worker
from mdp.wire.options import BadOptions, decode_request_options, encode_options
from mdp.wire.size_limits import USUAL
from mdp.worker.handler import ReplyTooLarge
from mdp.worker.session import UNNUMBERED_IN_FLIGHT_MAX, WorkerSession
from mdp.worker.session_options import SessionCounters, SessionOptions
from tests.scenes.mdp_messages import read, worker_request

if TYPE_CHECKING:
    from mdp.request import Request
    from mdp.wire.commands import Dialect

STEPS = 1500
LIMITS = (
    None,
    None,
    USUAL,
    PeerLimits(1024, 4608, 4608),  # just so large that a reply of few frames need not be judged
    PeerLimits(7, 4607, 4608),
    PeerLimits(6, 600, 300),
    PeerLimits(6, 9000, 9000),
    PeerLimits(8, 600, 400),
)
WISHES: tuple[dict[str, object], ...] = (
    {"key": b"k"},
    {"deadline_ms": 700},
    {"once": True, "key": b"k"},
    {"deadline_ms": -1},
    {"trace": {"a": "x" * 300}},
)
GIVEN = (b"", b"", b"", *(encode_options(wish) for wish in WISHES))


class Reference:
    """Simple model of a session. Sent messages are lists of frames."""

    def __init__(self, dialect: Dialect, options: SessionOptions) -> None:
        self.dialect, self.options = dialect, options
        self.counted = asdict(SessionCounters())
        self.serving = self.draining = self.suppress_heartbeats = self.stuck = self.told_stuck = self.answered_all = self.was_pinged = False
        self.hand: list[tuple[bytes, list[bytes]]] = []  # address or token, body
        self.sent: list[list[bytes]] = []
        self.unwanted: list[tuple[bytes, list[bytes]]] = []
        self.recalled: list[tuple[bytes, list[bytes]]] = []
        self.limits: PeerLimits | None = None
        self.heard_at = self.send_at = 0.0

    @property
    def numbered(self) -> bool:
        return self.dialect == V03

    def count(self, name: str, by: int = 1) -> None:
        self.counted[name] += by

    def joined(self, now: float, limits: PeerLimits | None) -> None:
        self.limits = USUAL if limits is None and self.numbered else limits
        self.serving, self.told_stuck, self.was_pinged = True, False, False
        self.heard_at, self.send_at = now, now + self.options.heartbeat_s
        self.sent.append(worker_ready(self.dialect, b"echo", options=self.options.ready() if self.numbered else b""))
        self.count("connections")

    def ended(self) -> None:
        self.serving = False
        self.recalled = []
        self.unwanted += self.hand
        self.count("abandoned", len(self.hand))
        self.hand = []

    def receive(self, frames: list[bytes], now: float) -> list[list[bytes]]:
        """Take one message; return the bodies of new requests."""
        event = parse_at_worker(frames)
        if not self.serving:
            return []
        if isinstance(event, Invalid) or getattr(event, "dialect", V03) != self.dialect:
            self.count("malformed")
            return []
        if isinstance(event, Disconnect):
            self.count("sent_away")
            self.sent = []
            self.ended()
            return []
        in_flight = dict(self.hand)
        limit = self.options.credit if self.numbered else UNNUMBERED_IN_FLIGHT_MAX
        if isinstance(event, Work) and self.numbered and event.id in in_flight and len(in_flight) < limit:
            self.count("malformed")
            return []
        self.heard_at = now
        match event:
            case Work() if len(self.hand) >= limit:
                self.count("overcredited")
                if self.numbered and event.id not in in_flight:
                    self.sent.append(worker_error(event.id, "BUSY", f"this worker takes {limit} requests at once"))
            case Work():
                self.count("received")
                try:
                    decode_request_options(event.options)
                except BadOptions as error:
                    self.count("failed")
                    self.sent.append(worker_error(event.id, "BAD_REQUEST", str(error)))
                    return []
                self.hand.append((event.id, [*event.body]))
                return [] if self.draining else [[*event.body]]
            case Cancel():
                self.count("cancelled" if event.id in in_flight else "cancel_unknown")
                self.unwanted += [one for one in self.hand if one[0] == event.id]
            case Recall():
                self.was_pinged = True
                self.recalled += [one for one in self.hand if one[0] == event.id]
            case Ping():
                self.was_pinged = True
                if not self.suppress_heartbeats:
                    self.beat()
            case Heartbeat():
                pass
            case other:
                raise AssertionError(other)
        return []

    def takes(self, message: list[bytes]) -> bool:
        limits = self.limits
        sizes = [len(frame) for frame in message]
        return limits is None or (
            len(sizes) <= limits.parts
            and sum(sizes) <= limits.message_bytes
            and (limits.frame_bytes < 0 or max(sizes) <= limits.frame_bytes)
        )

    def take_sent(self, now: float) -> list[list[bytes]]:
        sent, self.sent = self.sent, []
        if self.serving and sent:
            self.send_at = now + self.options.heartbeat_s
            if self.answered_all:
                self.heard_at = now
        self.answered_all = False
        return sent

    @property
    def patient(self) -> bool:
        """Whether the broker may be silent: one of the older dialects is while a request is worked on."""
        return bool(not self.numbered and self.hand)

    def tick(self, now: float) -> None:
        if not self.serving:
            return
        if self.patient:
            self.heard_at = now
        elif now >= self.heard_at + self.options.heartbeat_s * self.options.liveness:
            self.count("silences")
            self.ended()
            return
        beats = now >= self.send_at
        if beats:
            later = self.send_at + self.options.heartbeat_s
            self.send_at = later if later > now else now + self.options.heartbeat_s
        if (beats or (self.told_stuck and not self.stuck)) and not self.suppress_heartbeats:
            self.beat()

    def beat(self) -> None:
        self.count("heartbeats")
        self.told_stuck = self.stuck and self.was_pinged
        self.sent.append(worker_heartbeat(self.dialect, stuck=self.told_stuck, draining=self.draining and self.was_pinged))

    def deadline(self) -> float:
        return self.send_at if self.patient else min(self.send_at, self.heard_at + self.options.heartbeat_s * self.options.liveness)


class Walk:
    """A session and its reference, side by side."""

    def __init__(self, seed: int, dialect: Dialect) -> None:
        self.random = Random(seed)
        self.dialect = dialect
        options = SessionOptions(credit=self.random.choice((1, 3, 12)), heartbeat_s=1.0, liveness=2)
        self.machine = WorkerSession("echo", BrokerSearch(["tcp://broker:5555"], dialect, SearchTimes(), lambda: 0.5), options)
        self.reference = Reference(dialect, options)
        self.now = 0.0
        self.number = 0
        self.requests: list[Request] = []  # those given out, newest last; of earlier connections too
        self.machine.search.start(self.now)

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.0, 0.125, 0.5))
        if not self.reference.serving:
            self.join()
            return
        steps = [self.broker_says] * 8 + [self.answer] * 8 + [self.send_part, self.refuse, self.return_one, self.switch]
        self.random.choice([*steps, *[self.tick] * 3, *[self.take] * 3, *([self.end] if self.random.random() < 0.2 else [])])()

    def join(self) -> None:
        machine, search = self.machine, self.machine.search
        if search.state is SearchState.IDLE and self.reference.draining:
            search.start(self.now)  # by itself it registers no more
        if search.state is not SearchState.JOINING:
            assert machine.deadline() == search.deadline()
            self.broker_says()  # all of it is dropped
            assert machine.in_flight == 0
            self.now = max(self.now, search.deadline())
            self.tick()
        limits = self.random.choice(LIMITS)
        machine.joined(self.now, limits)
        self.reference.joined(self.now, limits)
        machine.joined(self.now, None)  # it has
        if self.random.random() < 0.8:
            self.take()

    def work(self) -> list[bytes]:
        self.number += 1
        body = [self.random.randbytes(self.random.choice((0, 1, 20, 255, 256, 900, 3000))) for _ in range(self.random.choice((1, 1, 2, 3)))]
        if self.dialect != V03:
            body[-1] += b"%09d" % self.number  # an address may come twice
            address = self.random.choice((bytes(8), bytes(8), b"c" * 255, b"c" * 256, self.number.to_bytes(4, "big")))
            return worker_request(self.dialect, address, body)
        number = self.number.to_bytes(8, "big")
        if self.reference.hand and self.random.random() < 0.05:
            number = self.random.choice(self.reference.hand)[0]
        return worker_request(V03, number, body, options=self.random.choice(GIVEN))

    def one_message(self) -> list[bytes]:
        mine = [address for address, _ in self.reference.hand] if self.dialect == V03 else []
        token = self.random.choice([*mine, *mine, bytes(8)])
        choices = [worker_heartbeat(self.dialect), worker_cancel(token), worker_recall(token), worker_ping()]
        choices += [
            worker_request(self.dialect, bytes(8), [b"x"])[:-1],
            [b"", b"MDPW01", b"\x02", b"a", b"no", b"x"],
            [b"", b"MDPW01", b"\x02", bytes(256), b"x"],
        ]
        choices += [
            [WORKER_FINAL_03 + bytes(8), b"x", b"y"],
            client_heartbeat(),
            [b"?"],
            worker_heartbeat(V02 if self.dialect == V01 else V01),
        ]
        choices += [worker_disconnect(self.dialect)] if self.random.random() < 0.15 else []
        return self.random.choice(choices)

    def broker_says(self) -> None:
        machine, reference = self.machine, self.reference
        plain = self.random.choice((0.3, 0.8, 1.0))
        if self.dialect != V03 and reference.hand and self.random.random() < 0.9:
            plain = 0.0  # one at a time, mostly
        batch = [self.work() if self.random.random() < plain else self.one_message() for _ in range(self.random.choice((1, 1, 1, 2, 4)))]
        if len({frames[0] for frames in batch}) < len(batch) and self.dialect == V03:
            batch = batch[:1]  # the same token twice in one batch is counted by one name or another
        if reference.hand and self.dialect == V03 and len(batch) > 1 and any(frames[0][-8:] in dict(reference.hand) for frames in batch):
            batch = batch[:1]
        wanted = [body for frames in [[*frames] for frames in batch] for body in reference.receive(frames, self.now)]
        new = machine.receive(read([[*frames] for frames in batch]), self.now)
        if reference.serving:
            assert [[*request.body] for request in new] == wanted
            self.requests += new

    def held(self) -> tuple[Request, list[bytes]] | None:
        """Choose a request that was given out, and a body for its answer; sizes are about what the broker takes."""
        if not self.requests:
            return None
        held = [request for request in self.requests[-20:] if self.machine.holds(request)]
        request = self.random.choice(held if held and self.random.random() < 0.8 else self.requests[-6:])
        count = self.random.choice((1, 1, 1, 2, 3, 4, 9))
        body = [self.random.randbytes(self.random.choice((0, 1, 10, 255, 256, 4096))) for _ in range(count)]
        if self.random.random() < 0.03:
            body = [b""] * self.random.choice((1023, 1024))
        limits = self.reference.limits
        if limits is not None and limits != USUAL and self.random.random() < 0.6:
            envelope = sum(map(len, worker_final(self.dialect, self.address_of(request), [b""])))
            body = [b"a"] * (count - 1)
            most = self.random.choice((limits.message_bytes - envelope - len(body), limits.frame_bytes, 4096 - len(body)))
            body.append(bytes(max(0, most + self.random.choice((-1, 0, 1)))))
        return request, body

    @staticmethod
    def address_of(request: Request) -> bytes:
        return request._address

    def index(self, request: Request) -> int:
        """Return its place in the reference, -1 for none."""
        held = [
            place for place, (address, body) in enumerate(self.reference.hand) if (address, body) == (request._address, [*request.body])
        ]
        return held[0] if self.machine.holds(request) else -1

    def answer(self) -> None:
        if (chosen := self.held()) is None:
            return
        request, body = chosen
        reference, place = self.reference, self.index(chosen[0])
        message = worker_final(self.dialect, request._address, body)
        if place < 0:
            reference.count("unwanted")
        elif not reference.takes(message):
            with pytest.raises(ReplyTooLarge):
                self.machine.answer(request, body)
            assert self.machine.holds(request)
            return
        else:
            if self.dialect != V03:
                reference.answered_all = len(reference.hand) == 1
            del reference.hand[place]
            reference.count("answered")
            reference.sent.append(message)
            if reference.draining and self.dialect != V03 and not reference.hand:
                reference.sent.append(worker_disconnect(self.dialect))
                reference.ended()
        self.machine.answer(request, body)

    def send_part(self) -> None:
        if (chosen := self.held()) is None or not self.machine.can_send_parts:
            return
        request, body = chosen
        message = worker_partial(self.dialect, request._address, body)
        if not self.machine.holds(request):
            self.reference.count("unwanted")
        elif not self.reference.takes(message):
            with pytest.raises(ReplyTooLarge):
                self.machine.send_part(request, body)
            return
        else:
            self.reference.sent.append(message)
        self.machine.send_part(request, body)

    def refuse(self) -> None:
        assert self.machine.can_refuse == (self.dialect == V03)
        if (chosen := self.held()) is None or self.dialect != V03:
            return
        place = self.index(chosen[0])
        if place < 0:
            self.reference.count("unwanted")
        else:
            address, _ = self.reference.hand.pop(place)
            self.reference.count("failed")
            self.reference.sent.append(worker_error(address, "HANDLER_ERROR", "no"))
        self.machine.refuse(chosen[0], "HANDLER_ERROR", "no")

    def return_one(self) -> None:
        if (chosen := self.held()) is None or self.dialect != V03:
            return
        if (place := self.index(chosen[0])) >= 0:
            address, _ = self.reference.hand.pop(place)
            self.reference.count("returned")
            self.reference.sent.append(worker_return(address))
        self.machine.return_one(chosen[0])

    def switch(self) -> None:
        name = self.random.choice(("suppress_heartbeats", "stuck", "stuck", "draining"))
        value = self.random.random() < (0.1 if name == "draining" else 0.4)
        setattr(self.machine, name, value)
        setattr(self.reference, name, value)

    def tick(self) -> None:
        self.machine.tick(self.now)
        self.reference.tick(self.now)

    def take(self) -> None:
        sent = []
        for message in self.machine.take_outgoing(self.now):
            frames: list[bytes] = []
            for item in [Encoded(message)] if isinstance(message, bytes) else message:
                frames += item.frames() if isinstance(item, Encoded) else [item]
            assert isinstance(message, bytes) == self.is_one_piece(frames)
            sent.append(frames)
        assert sent == self.reference.take_sent(self.now)
        unwanted, self.reference.unwanted = self.reference.unwanted, []
        assert shown(self.machine.take_unwanted()) == unwanted
        recalled, self.reference.recalled = self.reference.recalled, []
        assert shown(self.machine.take_recalled()) == recalled

    def is_one_piece(self, frames: list[bytes]) -> bool:
        """Return whether an answer is so small that it is copied into one piece with what goes before it."""
        if self.dialect == V01:
            return frames[2] == b"\x03" and len(frames) == 6 and len(frames[5]) < 256 and len(frames[3]) < 256
        return self.dialect == V03 and frames[0][:7] == WORKER_FINAL_03 and sum(map(len, frames[1:])) <= 4096

    def end(self) -> None:
        reference, machine = self.reference, self.machine
        match self.random.randrange(3):
            case 0:
                machine.lost(self.now)
                reference.ended()
            case 1:
                reference.count("failed")
                reference.sent.append(worker_disconnect(self.dialect))
                reference.ended()
                machine.give_back(self.now)
            case _:
                machine.close()
                reference.sent.append(worker_disconnect(self.dialect))
                reference.ended()
                assert machine.draining
                assert machine.search.state is SearchState.IDLE
                machine.draining = reference.draining
                machine.search.start(self.now)
        machine.lost(self.now)  # and has no more to lose
        machine.search.take_actions()
        self.take()

    def check(self) -> None:
        assert asdict(self.machine.counters) == self.reference.counted
        assert self.machine.in_flight == len(self.reference.hand)
        if self.reference.serving:
            assert self.machine.deadline() == pytest.approx(self.reference.deadline(), abs=1e-9)
        else:
            assert self.machine.deadline() == self.machine.search.deadline() <= inf


def shown(requests: list[Request]) -> list[tuple[bytes, list[bytes]]]:
    return [(request._address, [*request.body]) for request in requests]


def test_ready_that_is_sent_late_is_no_answer() -> None:
    """MDP-21: a full window of silence is counted from an answer, and only from the last one."""
    machine = Walk(0, V01).machine
    machine.joined(0.0)
    machine.take_outgoing(0.75)
    machine.tick(0.75)
    machine.take_outgoing(1.875)
    machine.tick(1.99)
    assert machine.deadline() == 2.0


@pytest.mark.parametrize("dialect", [V01, V02])
def test_a_broker_that_was_silent_during_long_work_is_not_left_before_the_answer_has_gone(dialect: Any) -> None:
    """MDP-21."""
    machine = Walk(0, dialect).machine
    machine.joined(0.0)
    machine.take_outgoing(0.0)
    (request,) = machine.receive(read([worker_request(dialect, b"client", [b"x"])]), 0.0)
    machine.tick(10.0)
    machine.answer(request, [b"y"])
    machine.tick(10.125)
    assert machine.counters.silences == 0


@pytest.mark.parametrize("dialect", [V01, V02, V03])
@pytest.mark.parametrize("seed", range(8))
def test_a_session_is_what_the_reference_says(seed: int, dialect: Any) -> None:
    """MDP-15 to MDP-25, BEY-02, BEY-03: octet by octet, counter by counter, moment by moment."""
    walk = Walk(seed, dialect)
    for _ in range(STEPS):
        walk.step()
        walk.check()
    assert walk.reference.counted["answered"] > 5


def test_two_requests_read_at_once_of_a_broker_that_gives_one_at_a_time_are_both_taken() -> None:
    machine = Walk(0, V01).machine
    machine.joined(0.0)
    messages = [worker_request(V01, address, [b"x", b""]) for address in (b"one", b"two")]
    assert [request._address for request in machine.receive(read(messages), 0.0)] == [b"one", b"two"]
    assert machine.counters.received == 2
