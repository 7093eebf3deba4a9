"""The client's machine against a naive reference.

Whatever callers, broker and time do, in any order, on one connection after the other.

The reference keeps lists and reads every message frame by frame. After each step it predicts what was sent, the counters, which requests
have news and how they ended, and after each tick when the next is due. How often a request is sent again at last is `test_resending.py`'s.
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from random import Random

import pytest

from core.machine.requests import QUEUED, SENT, SETTLED
from core.zmtp.limits import PeerLimits
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterCounters, RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.errors import Busy, ClientClosed, DeadlineExceeded, Overrun, RequestError, Timeout, TooLarge, Unreachable, WorkerLost
from mdp.wire.commands import (
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_HEARTBEAT_03,
    CLIENT_PARTIAL_03,
    CLIENT_REQUEST_03,
    client_heartbeat,
    client_request,
)
from mdp.wire.options import encode_options
from mdp.wire.size_limits import USUAL
from tests.scenes.mdp_messages import client_cancel
from tests.scenes.mdp_requester import sent

EPOCH = 0x2BCD1234
STEPS = 800
ROOMY = 4096 + 15 + 255 + 1024  # octets of a broker's limits from which on a small request need not be judged
PEERS = (
    None,
    None,
    None,
    PeerLimits(1024, ROOMY, ROOMY),
    PeerLimits(1024, ROOMY - 1, ROOMY),
    PeerLimits(3, 9000, 9000),
    PeerLimits(6, 400, 300),
)
CALLS = (
    Call("echo", timeout_s=1.0, attempts=1000),
    Call("echo", timeout_s=1.0, attempts=1000, key="k"),
    Call("other", timeout_s=0.5, attempts=1000, wait=True),
    Call("echo", timeout_s=1.0, attempts=1000, deadline_s=2.25),
    Call("echo", timeout_s=1.0, attempts=1, once=True),
    Call("echo", timeout_s=3.0, attempts=1000, streaming=True),
    Call("echo", timeout_s=0.25, attempts=1000, deadline_s=0.125),
)


class Asked:
    """One request, as the reference sees it."""

    def __init__(self, pending: PendingRequest, now: float) -> None:
        self.pending, self.call, self.body = pending, pending.call, [*pending.body]
        self.number = b""
        self.sent = 0
        self.attempt = 1
        self.began = now
        self.give_up_at = inf if self.call.deadline_s is None else now + self.call.deadline_s
        self.due = now + min(self.call.timeout_s, self.call.deadline_s or inf)
        self.parts: list[bytes] | None = None

    def restart(self, now: float) -> None:
        self.due = min(now + self.call.timeout_s, self.give_up_at)

    def message(self, now: float) -> list[bytes]:
        left = {} if self.call.deadline_s is None else {"deadline_ms": max(1, int((self.give_up_at - now) * 1000))}
        return client_request("0.3", self.call.service, self.body, id=self.number, options=encode_options({**self.call.fields, **left}))


class Walk:
    """A machine and its reference, side by side."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        choose = self.random.choice
        self.limits = RequesterLimits(
            window=choose((1, 2, 5, 50)),
            waiting_max=choose((3, 50)),
            parts_max=4,
            parts_bytes_max=choose((40, 1000)),
            heartbeat_s=choose((0.125, 0.25, 2.0)),
            liveness=2,
        )
        self.machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), self.limits)
        self.numbers = numbers_from(EPOCH)
        self.now = 100.0
        self.counted = asdict(RequesterCounters())
        self.flying: list[Asked] = []
        self.waiting: list[Asked] = []
        self.ended: list[Asked] = []
        self.wanted: list[list[bytes]] = []  # to be sent
        self.refused: list[PendingRequest] = []
        self.window = 0
        self.peer = USUAL
        self.dead = self.answers = False
        self.quiet_since = 0.0
        self.unanswered = 0

    def count(self, name: str, by: int = 1) -> None:
        self.counted[name] += by

    # ---- what the reference does

    def ends(self, asked: Asked, error: type[RequestError] | None, counter: str) -> None:
        """Take a request out of everything, and see how it ended."""
        for where in (self.flying, self.waiting):
            if asked in where:
                where.remove(asked)
        self.ended.append(asked)
        self.count(counter)
        self.later.append((asked, error))

    def takes(self, message: list[bytes]) -> bool:
        sizes = [*map(len, message)]
        return len(sizes) <= self.peer.parts and sum(sizes) <= self.peer.message_bytes and max(sizes) <= self.peer.frame_bytes

    def goes(self, asked: Asked) -> bool:
        """Send a request, for the first time or again; False if it is beyond what the broker takes."""
        first = not asked.sent
        if first:
            asked.number = next(self.numbers).to_bytes(8, "big")
        message = asked.message(self.now)
        if not self.takes(message):
            self.ends(asked, TooLarge, "too_large")
            return False
        self.wanted.append(message)
        self.count("sent" if first else "repeated")
        asked.sent += 1
        if asked not in self.flying:
            self.flying.append(asked)
        return True

    def release(self) -> None:
        while self.waiting and len(self.flying) < self.window:
            asked = self.waiting.pop(0)
            if not self.goes(asked):
                self.refused.append(asked.pending)

    def withdraw(self, asked: Asked) -> None:
        if asked in self.flying:
            self.wanted.append(client_cancel(asked.number))

    # ---- what happens

    later: list[tuple[Asked, type[RequestError] | None]]

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.0, 0.015625, 0.125, 0.5))
        self.later = []
        steps = [self.ask] * 6 + [self.ask_many, self.cancel, self.take_part] + [self.broker_says] * 6 + [self.tick] * 4
        steps += [self.join_or_lose] if self.random.random() < (0.15 if self.window and self.peer == USUAL else 0.7) else []
        tick = self.random.choice(steps)
        tick()
        self.check(exact=tick != self.tick)
        for asked, error in self.later:
            assert asked.pending.stage == SETTLED
            assert asked.pending.settled_at == self.now
            if error is None:
                assert asked.pending.error is None
            else:
                assert isinstance(asked.pending.error, error)
                assert error is RequestError or type(asked.pending.error) is error
            if asked.pending.error is not None and error is not Unreachable:
                assert (asked.pending.error.attempts, asked.pending.error.after_s) == (asked.sent, self.now - asked.began)

    def pending(self) -> PendingRequest:
        size = self.random.choice((0, 1, 255, 256, 300, 4096, 4097))
        call = self.random.choice(CALLS)
        body = [bytes(size)] if self.random.random() < 0.7 else [b"a", bytes(size)]
        if self.peer != USUAL and self.random.random() < 0.4:  # as large as the broker takes, or an octet more
            around = sum(map(len, Asked(PendingRequest(call, []), self.now).message(self.now))) + 8 + len(body) - 1
            most = self.random.choice((self.peer.message_bytes - around, self.peer.frame_bytes))
            body[-1] = bytes(max(0, most + self.random.choice((-1, 0, 1))))
        return PendingRequest(call, body)

    def ask(self) -> None:
        self.submit(self.pending())

    def submit(self, pending: PendingRequest) -> None:
        asked = Asked(pending, self.now)
        if len(self.flying) < self.window and not self.waiting:
            if self.goes(asked):
                self.machine.submit(pending, self.now)
            else:
                with pytest.raises(TooLarge):
                    self.machine.submit(pending, self.now)
        elif len(self.waiting) >= self.limits.waiting_max:
            self.count("refused")
            with pytest.raises(Busy):
                self.machine.submit(pending, self.now)
        else:
            self.waiting.append(asked)
            self.machine.submit(pending, self.now)
            assert pending.stage == QUEUED

    def ask_many(self) -> None:
        batch = [self.pending() for _ in range(self.random.randrange(1, 8))]
        if self.random.random() < 0.6:
            batch = [PendingRequest(CALLS[0], [b"x"]) for _ in batch]
        taken = self.machine.submit_many(batch, self.now)
        room = 0 if self.waiting else self.window - len(self.flying)
        assert taken <= room
        for pending in batch[:taken]:
            assert pending.call.deadline_s is None
            assert len(pending.body) == 1 or (len(pending.body) == 2 and len(pending.body[0]) < 256)
            assert sum(map(len, pending.body)) <= 4096
            assert pending.stage == SENT
            assert self.goes(Asked(pending, self.now))
            assert (pending.started_at, pending.due, pending.give_up_at) == (self.now, self.now + pending.call.timeout_s, inf)
        for pending in batch[taken:]:
            self.submit(pending)

    def cancel(self) -> None:
        known = [*self.flying, *self.waiting, *self.ended[-2:]]
        if not known:
            return
        asked = self.random.choice(known)
        if asked not in self.ended:
            self.withdraw(asked)
            for where in (self.flying, self.waiting):
                if asked in where:
                    where.remove(asked)
            self.ended.append(asked)
            self.count("cancelled")
            self.release()
        self.machine.cancel(asked.pending, self.now)
        assert asked.pending.stage == SETTLED

    def take_part(self) -> None:
        streaming = [asked for asked in self.flying if asked.call.streaming and asked.parts]
        if streaming:
            asked = self.random.choice(streaming)
            assert asked.parts is not None
            assert self.machine.take_part(asked.pending) == [asked.parts.pop(0)]
            assert asked.pending.parts_bytes == sum(map(len, asked.parts))

    def one_message(self) -> list[bytes]:
        known = [asked for asked in [*self.flying, *self.flying, *self.ended[-3:]] if asked.number]
        if not known or self.random.random() < 0.15:
            return self.random.choice(
                ([CLIENT_HEARTBEAT_03], client_heartbeat(), [b"?"], [b"", b"MDPC01", b"echo", b"x"], [CLIENT_FINAL_03 + b"short", b"x"])
            )
        number = self.random.choice(known).number
        body = [self.random.randbytes(self.random.choice((0, 1, 20, 255, 256, 3000))) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        return self.random.choice(
            (
                [CLIENT_FINAL_03 + number, *body],
                [CLIENT_FINAL_03 + number, *body],
                [CLIENT_FINAL_03 + number, b""],
                [CLIENT_FINAL_03 + number],
                [CLIENT_PARTIAL_03 + number, self.random.randbytes(self.random.choice((0, 9, 15)))],
                [CLIENT_ERROR_03 + number, self.random.choice((b"HANDLER_ERROR", b"CANCELLED", b"NO_SERVICE")), b"text"],
            )
        )

    def broker_says(self) -> None:
        batch = [self.one_message() for _ in range(self.random.choice((1, 1, 1, 2, 5)))]
        news = self.machine.receive([[*frames] for frames in batch], self.now)
        self.unanswered, self.quiet_since = 0, self.now
        wanted = [asked.pending for frames in batch if (asked := self.hear(frames)) is not None]
        assert list(map(id, news)) == list(map(id, wanted))
        self.release()

    def hear(self, frames: list[bytes]) -> Asked | None:
        """Take one message; return the request that it settles or adds a part to."""
        head, *body = frames
        if frames == [CLIENT_HEARTBEAT_03]:
            self.answers = True
            return None
        command, number = head[:7], head[7:]
        asked = next((one for one in self.flying if one.number == number), None)
        if len(number) != 8 or not body:
            self.count("malformed")
            if asked is not None:
                self.flying.sort(key=lambda one: one is asked)  # it goes last, should they go again
            return None
        if asked is None:
            self.count("confirmed" if body[0] == b"CANCELLED" and command == CLIENT_ERROR_03 else "late")
        elif command == CLIENT_ERROR_03:
            if asked.sent > 1:
                self.withdraw(asked)
            self.ends(asked, RequestError, "failed")
            assert asked.pending.error is not None
            assert (asked.pending.error.code, asked.pending.error.text) == (body[0].decode(), "text")
        elif command == CLIENT_FINAL_03:
            if asked.parts is not None and not asked.call.streaming:
                body = asked.parts + ([] if body == [b""] else body)
            assert asked.pending.reply == body
            self.ends(asked, None, "replied")
        else:
            asked.parts = [*(asked.parts or []), *body]
            if len(asked.parts) > self.limits.parts_max or sum(map(len, asked.parts)) > self.limits.parts_bytes_max:
                self.withdraw(asked)
                self.ends(asked, Overrun, "failed")
            else:
                asked.restart(self.now)
        return asked

    def join_or_lose(self) -> None:
        if not self.window:
            limits = self.random.choice(PEERS)
            self.peer, self.window = limits or USUAL, self.limits.window
            self.dead = self.answers = False
            self.quiet_since, self.unanswered = self.now, 0
            self.machine.joined(self.now, limits)
            self.release()
            return
        self.window, self.dead = 0, False
        self.wanted = []
        failed = [asked for asked in self.flying if asked.call.once or (asked.call.streaming and asked.parts is not None)]
        back = [asked for asked in self.flying if asked not in failed]
        for asked in failed:
            self.ends(asked, WorkerLost, "failed")
        for asked in back:
            asked.parts = None
        self.flying, self.waiting = [], [*back, *self.waiting]
        assert list(map(id, self.machine.lost(self.now))) == [id(asked.pending) for asked in failed]

    def tick(self) -> None:
        overdue = sorted((asked for asked in [*self.flying, *self.waiting] if asked.due <= self.now), key=lambda asked: asked.due)
        settled = self.machine.tick(self.now)
        gone = []
        for asked in overdue:
            if asked.attempt < asked.call.attempts and self.now < asked.give_up_at and asked.parts is None:
                asked.attempt += 1
                asked.restart(self.now)
                if asked in self.flying:
                    self.goes(asked)
                continue
            why: type[RequestError] = Timeout if asked.sent or self.window else Unreachable
            self.withdraw(asked)
            self.ends(asked, DeadlineExceeded if self.now >= asked.give_up_at else why, "failed")
            gone.append(asked.pending)
        if self.window and self.flying and self.now >= self.quiet_since + self.limits.heartbeat_s:
            if self.answers and self.unanswered >= self.limits.liveness:
                self.dead = True
            else:
                self.unanswered += 1
                self.quiet_since = self.now
                self.wanted.append([CLIENT_HEARTBEAT_03])
        self.release()
        assert {*map(id, settled)} == {*map(id, [*gone, *self.refused])}
        assert len(settled) == len(gone) + len(self.refused)
        due = min([asked.due for asked in [*self.flying, *self.waiting]], default=inf)
        if self.window and self.flying:
            due = min(due, self.quiet_since + self.limits.heartbeat_s)
        assert self.machine.deadline() <= due if self.refused else self.machine.deadline() == due
        self.refused = []

    def check(self, exact: bool) -> None:
        machine = self.machine
        if not exact or self.random.random() < 0.7:
            wanted, self.wanted = self.wanted, []
            small = [isinstance(message, bytes) for message in machine.outgoing]
            told = sent(machine)
            # What is small is copied into one piece with what goes before it.
            assert small == [frames[0][:7] != CLIENT_REQUEST_03 or sum(map(len, frames[3:])) <= 4096 for frames in told]
            if not exact:  # what is due at one moment goes out in whatever order
                wanted.sort()
                told.sort()
            assert told == wanted
        assert asdict(machine.counters) == self.counted
        assert machine.in_flight == len(self.flying)
        assert (machine.dead, machine.answers_heartbeats, machine.connected) == (self.dead, self.answers, self.window > 0)
        assert len(machine.timeouts) == len(self.flying) + len(self.waiting)
        if self.refused:
            assert machine.deadline() == -inf
        assert machine.deadline() <= min([inf, *(asked.due for asked in [*self.flying, *self.waiting])])
        for asked in [*self.flying, *self.waiting]:
            assert asked.pending.stage == (SENT if asked in self.flying else QUEUED)
            assert (asked.pending.due, asked.pending.sent) == (asked.due, asked.sent)

    def end(self) -> None:
        self.later = []
        left = [*self.flying, *self.waiting]
        assert {*map(id, self.machine.close(self.now))} == {id(asked.pending) for asked in left}
        assert all(type(asked.pending.error) is ClientClosed for asked in left)
        self.count("failed", len(left))
        assert asdict(self.machine.counters) == self.counted
        assert self.machine.in_flight == 0


def test_small_bodies_are_taken_together_and_a_larger_one_ends_that() -> None:
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits())
    machine.joined(0.0)
    machine.submit(PendingRequest(CALLS[0], [b"x"]), 0.0)
    assert (
        machine.submit_many(
            [PendingRequest(CALLS[0], [bytes(4096)]), PendingRequest(CALLS[0], [b""]), PendingRequest(CALLS[0], [bytes(4097)])], 0.0
        )
        == 2
    )


def test_no_request_is_sent_before_one_that_waits_for_its_last_attempt() -> None:
    """BEY-04."""
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits())
    machine.joined(0.0)
    call = Call("echo", timeout_s=60.0, attempts=1)
    for _ in range(2):
        machine.submit(PendingRequest(call, [b"x"]), 0.0)
    machine.lost(1.0)
    machine.joined(2.0)
    assert (machine.in_flight, machine.submit_many([PendingRequest(call, [b"y"])], 2.0)) == (1, 0)


def test_a_dead_connection_is_not_dead_after_its_end() -> None:
    """HB-04: and the next one has all of its time, and has to show first that it answers heartbeats."""
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits(heartbeat_s=1.0, liveness=2))
    machine.joined(0.0)
    machine.submit(PendingRequest(Call("echo", timeout_s=900.0, attempts=9), [b"x"]), 0.0)
    machine.receive([[CLIENT_HEARTBEAT_03]], 0.0)
    for now in (1.0, 2.0, 3.0):
        assert not machine.dead
        machine.tick(now)
    assert machine.dead
    machine.lost(3.0)
    assert not machine.dead
    machine.joined(4.0)
    for now in (5.0, 6.0, 7.0, 8.0, 9.0):
        machine.tick(now)
        assert not machine.dead
    machine.receive([[CLIENT_HEARTBEAT_03]], 9.5)
    machine.dead = True
    machine.joined(9.5)
    assert (machine.dead, machine.answers_heartbeats) == (False, False)
    machine.receive([[CLIENT_HEARTBEAT_03]], 9.5)
    for now in (10.5, 11.5):
        machine.tick(now)
        assert not machine.dead
    machine.tick(12.5)
    assert machine.dead


def test_a_broker_known_to_answer_heartbeats_has_all_of_its_time_on_each_connection() -> None:
    """HB-04: the caller may know it from the probe."""
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits(heartbeat_s=1.0, liveness=2))
    machine.joined(0.0)
    machine.submit(PendingRequest(Call("echo", timeout_s=900.0, attempts=9), [b"x"]), 0.0)
    for began in (0.0, 10.0, 20.0):
        machine.joined(began)
        machine.answers_heartbeats = True
        for beat in (1.0, 2.0):
            machine.tick(began + beat)
            assert not machine.dead
        machine.tick(began + 3.0)
        assert machine.dead
        machine.lost(began + 3.0)


def test_a_reply_is_a_sign_of_life_like_any_other() -> None:
    """HB-04: after it the broker has its liveness, no more."""
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits(heartbeat_s=1.0, liveness=2))
    machine.joined(0.0)
    machine.answers_heartbeats = True
    first, second = (PendingRequest(Call("echo", timeout_s=900.0, attempts=9), [b"x"]) for _ in range(2))
    machine.submit(first, 0.0)
    machine.submit(second, 0.0)
    machine.tick(1.0)
    reply = [first.expected, b"y"]
    machine.receive([reply], 1.5)
    for now in (2.5, 3.5):
        machine.tick(now)
        assert not machine.dead
    machine.tick(4.5)
    assert machine.dead


def test_without_a_connection_no_requests_are_sent_together() -> None:
    machine: Requester[PendingRequest] = Requester(numbers_from(EPOCH), RequesterLimits())
    machine.joined(0.0)
    first = PendingRequest(CALLS[0], [b"x"])
    machine.submit(first, 0.0)
    machine.receive([[first.expected, b"y"]], 0.0)
    machine.lost(0.0)
    assert machine.submit_many([PendingRequest(CALLS[0], [b"x"]) for _ in range(3)], 0.0) == 0


@pytest.mark.parametrize("seed", range(16))
def test_a_client_s_machine_does_what_the_reference_says(seed: int) -> None:
    """BEY-02, BEY-04, MDP-07: message by message, counter by counter, moment by moment."""
    walk = Walk(seed)
    assert walk.machine.deadline() == inf
    for _ in range(STEPS):
        walk.step()
    walk.end()
    assert walk.counted["sent"] > 5
