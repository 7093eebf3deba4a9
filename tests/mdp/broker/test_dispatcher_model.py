"""The dispatcher against a naive reference: anything peers may do, in any order, with time passing between.

The reference keeps every request in a list and knows what must become of it. It does not predict which of several workers gets a request
(the rules of that have tests of their own), but it holds each delivery against what may be delivered: a waiting request, to a worker of
its service with credit left, each client's in order, what came back from a lost worker to one that was heard from since. What clients get
it predicts exactly.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mdp.wire.commands import client_request, worker_error, worker_final, worker_heartbeat, worker_partial, worker_ready, worker_return
from mdp.wire.events import Cancel, Disconnect, Failure, Final, Heartbeat, Partial, Ping, Recall, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.hunts import examples
from tests.scenes.mdp_dispatcher import Scene, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Callable

EXPIRY_S = 7.5
DELIVERIES_MAX = 3
SERVICES = (b"echo", b"echo", b"double")  # most peers meet at one of them
CLIENTS = (b"C1", b"C2", b"C3")

Told = tuple[bytes, bytes, str, bytes]  # client, id, what, body or code


class Asked:
    """One request, as the reference sees it."""

    def __init__(self, client: bytes, serial: int, service: bytes, once: bool, deadline: float | None) -> None:
        self.client, self.id, self.body = client, number(serial), b"%d" % serial
        self.service, self.once, self.deadline = service, once, deadline
        self.worker: bytes | None = None
        self.token = b""
        self.losses = 0
        self.lost_at = 0.0
        self.returned = False
        self.streamed = False
        self.open = True


class Hand:
    """One worker, as the reference sees it."""

    def __init__(self, service: bytes, credit: int, now: float) -> None:
        self.service, self.credit, self.seen, self.came = service, credit, now, now
        self.recalled: set[bytes] = set()
        self.held: dict[bytes, Asked] = {}  # by token; abandoned ones too, until it has answered


class Model(RuleBasedStateMachine):
    new_scene: type[Scene] = Scene

    def __init__(self) -> None:
        super().__init__()
        self.scene = self.new_scene(deliveries_max=DELIVERIES_MAX, queue_ms=3_600_000.0)
        self.asked: list[Asked] = []
        self.workers: dict[bytes, Hand] = {}
        self.serial = 0
        self.expected: Counter[Told] = Counter()
        self.cancels: Counter[tuple[bytes, bytes]] = Counter()  # worker, token
        self.sent_away: set[bytes] = set()

    # What is expected, what is seen.

    def expect(self, asked: Asked, what: str, body: bytes) -> None:
        self.expected[(asked.client, asked.id, what, body)] += 1

    def end(self, asked: Asked, code: str = "") -> None:
        """A request ends without a reply; with no code nothing is sent."""
        asked.open = False
        if code:
            self.expect(asked, "ERROR", code.encode())
        if asked.worker is not None:
            self.cancels[(asked.worker, asked.token)] += 1

    def lose(self, peer: bytes) -> None:
        for asked in self.workers.pop(peer).held.values():
            if not asked.open:
                continue
            asked.worker = None
            asked.losses += 1
            asked.lost_at = self.scene.now
            if asked.once or asked.streamed:
                self.end(asked, "WORKER_LOST")
            elif asked.losses >= DELIVERIES_MAX:
                self.end(asked, "DEAD_LETTER")

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        self.see(self.scene.send(peer, frames))

    def see(self, out: list[list[bytes]]) -> None:
        """Hold what the broker sent against the reference."""
        told: Counter[Told] = Counter()
        cancelled: Counter[tuple[bytes, bytes]] = Counter()
        away: set[bytes] = set()
        self.scene.sent.clear()
        for peer, *frames in out:
            if peer in CLIENTS:
                match parse_at_client(frames):
                    case Final(body=body, id=id):
                        told[(peer, id, "FINAL", body[0])] += 1
                    case Partial(body=body, id=id):
                        told[(peer, id, "PARTIAL", body[0])] += 1
                    case Failure(id=id, code=code):
                        told[(peer, id, "ERROR", code.encode())] += 1
                    case other:
                        raise AssertionError(other)
                continue
            match parse_at_worker(frames):
                case Work(id=token, body=body):
                    self.delivered(peer, token, body[0])
                case Cancel(id=token):
                    cancelled[(peer, token)] += 1
                case Disconnect():
                    away.add(peer)
                case Recall(id=token):
                    assert token in self.workers[peer].held
                    self.workers[peer].recalled.add(token)
                case Heartbeat() | Ping():
                    pass
                case other:
                    raise AssertionError(other)
        assert told == self.expected
        assert cancelled == self.cancels
        assert away == self.sent_away
        self.expected.clear()
        self.cancels.clear()
        self.sent_away.clear()

    def delivered(self, peer: bytes, token: bytes, body: bytes) -> None:
        (asked,) = (one for one in self.asked if one.body == body)
        hand = self.workers[peer]
        assert asked.open
        assert asked.worker is None, "one worker at a time"
        assert asked.service == hand.service
        assert len(hand.held) < hand.credit
        assert not any(token in other.held for other in self.workers.values()), "a token is used once"
        waiting = self.waiting(asked.service)
        assert asked in waiting
        if asked.losses and not asked.returned:
            since = asked.lost_at
            waited = self.scene.now > since + EXPIRY_S - 0.01
            assert waited or hand.seen > since - EXPIRY_S / 2 - 0.01 or hand.came >= since, "it may have been lost as well"
        elif not asked.returned:
            first = [one for one in waiting if not one.losses and not one.returned and one.client == asked.client]
            assert first[0] is asked, "each client first in, first out"
        asked.worker, asked.token = peer, token
        hand.held[token] = asked

    def waiting(self, service: bytes) -> list[Asked]:
        return [one for one in self.asked if one.open and one.worker is None and one.service == service]

    def running(self) -> list[tuple[bytes, bytes, Asked]]:
        return [(peer, token, asked) for peer, hand in self.workers.items() for token, asked in hand.held.items()]

    # What peers do.

    @initialize()
    def begin(self) -> None:
        self.register(b"W0", SERVICES[0], 2)

    def register(self, peer: bytes, service: bytes, credit: int, concurrency: int = 0) -> None:
        self.workers[peer] = Hand(service, credit, self.scene.now)
        told = {"credit": credit, "concurrency": concurrency or None}
        self.send(peer, worker_ready("0.3", service, options=encode_options(told)))

    @precondition(lambda self: len(self.workers) < 4)
    @rule(service=st.sampled_from(SERVICES), credit=st.integers(1, 3), concurrency=st.integers(0, 2))
    def worker_arrives(self, service: bytes, credit: int, concurrency: int) -> None:
        self.serial += 1
        self.register(b"W%d" % self.serial, service, credit, concurrency)

    @rule(
        client=st.sampled_from(CLIENTS),
        service=st.sampled_from(SERVICES),
        count=st.integers(1, 4),
        once=st.booleans(),
        wait=st.booleans(),
        deadline=st.none() | st.integers(1, 8),
    )
    def client_asks(self, client: bytes, service: bytes, count: int, once: bool, wait: bool, deadline: int | None) -> None:
        for _ in range(count):
            self.ask(client, service, once, wait, deadline)

    def ask(self, client: bytes, service: bytes, once: bool, wait: bool, deadline: int | None) -> None:
        self.serial += 1
        # Odd milliseconds, so that no two things come due at one moment.
        deadline_ms = None if deadline is None else deadline * 1000 + 371 + self.serial
        options = {"once": once, "wait": wait, "deadline_ms": deadline_ms}
        ends = None if deadline_ms is None else self.scene.now + deadline_ms / 1000
        asked = Asked(client, self.serial, service, once, ends)
        self.asked.append(asked)
        if not wait and not any(hand.service == service for hand in self.workers.values()):
            self.end(asked, "NO_SERVICE")
        given = encode_options({name: value for name, value in options.items() if value})
        self.send(client, client_request("0.3", service, [asked.body], id=asked.id, options=given))

    def answer(self, data: st.DataObject, frames: Callable[[bytes], list[bytes]], what: str, body: bytes, ends: bool = True) -> None:
        peer, token, asked = data.draw(st.sampled_from(self.running()))
        if asked.open:
            self.expect(asked, what, body)
            asked.streamed = asked.streamed or not ends
        if ends:
            del self.workers[peer].held[token]
            asked.open = False
        self.workers[peer].seen = self.scene.now
        self.send(peer, frames(token))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def worker_answers(self, data: st.DataObject) -> None:
        self.serial += 1
        body = b"answer %d" % self.serial
        self.answer(data, lambda token: worker_final("0.3", token, [body]), "FINAL", body)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def worker_sends_a_part(self, data: st.DataObject) -> None:
        self.serial += 1
        body = b"part %d" % self.serial
        self.answer(data, lambda token: worker_partial("0.3", token, [body]), "PARTIAL", body, ends=False)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def worker_fails(self, data: st.DataObject) -> None:
        self.answer(data, lambda token: worker_error(token, "HANDLER_ERROR", "no"), "ERROR", b"HANDLER_ERROR")

    @precondition(lambda self: any(hand.recalled & hand.held.keys() for hand in self.workers.values()))
    @rule(data=st.data())
    def worker_returns_what_was_recalled(self, data: st.DataObject) -> None:
        recalled = [(peer, token) for peer, hand in self.workers.items() for token in sorted(hand.recalled & hand.held.keys())]
        peer, token = data.draw(st.sampled_from(recalled))
        asked = self.workers[peer].held.pop(token)
        self.workers[peer].seen = self.scene.now
        asked.worker, asked.returned = None, True
        self.send(peer, worker_return(token))

    @precondition(lambda self: len(self.workers) > 1 and self.running())
    @rule(data=st.data())
    def a_worker_answers_for_another(self, data: st.DataObject) -> None:
        """B2."""
        owner, token, _ = data.draw(st.sampled_from(self.running()))
        liar = data.draw(st.sampled_from(sorted(self.workers.keys() - {owner})))
        self.sent_away.add(liar)
        self.lose(liar)
        self.send(liar, worker_final("0.3", token, [b"forged"]))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def worker_is_lost(self, data: st.DataObject) -> None:
        """B6, B7."""
        peer = data.draw(st.sampled_from(sorted(self.workers)))
        self.lose(peer)
        self.see(self.scene.lose(peer))

    @precondition(lambda self: len(self.workers) > 2)
    @rule(data=st.data())
    def workers_are_lost_together(self, data: st.DataObject) -> None:
        for peer in data.draw(st.lists(st.sampled_from(sorted(self.workers)), min_size=2, unique=True)):
            self.lose(peer)
            self.see(self.scene.lose(peer))

    @rule(client=st.sampled_from(CLIENTS))
    def client_is_lost(self, client: bytes) -> None:
        """B5."""
        for asked in self.asked:
            if asked.open and asked.client == client:
                self.end(asked)
        self.see(self.scene.lose(client))

    @precondition(lambda self: any(asked.open for asked in self.asked))
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from([asked for asked in self.asked if asked.open]))
        self.end(asked, "CANCELLED")
        self.send(asked.client, client_cancel(asked.id))

    @rule(client=st.sampled_from(CLIENTS))
    def client_cancels_what_is_not_open(self, client: bytes) -> None:
        self.send(client, client_cancel(number(2**63)))

    @precondition(lambda self: any(asked.open for asked in self.asked))
    @rule(data=st.data())
    def client_repeats_itself(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from([asked for asked in self.asked if asked.open]))
        self.send(asked.client, client_request("0.3", asked.service, [b"again"], id=asked.id))

    # Time.

    @rule(seconds=st.sampled_from([0.3, 2.0, 8.2]), data=st.data())
    def time_passes(self, seconds: float, data: st.DataObject) -> None:
        """B8: one worker may be silent meanwhile, the others beat."""
        silent = data.draw(st.none() | st.sampled_from(sorted(self.workers) or [b""]))
        until = self.scene.now + seconds
        while self.scene.now < until:
            for peer in [peer for peer in self.workers if peer != silent]:
                self.workers[peer].seen = self.scene.now
                self.send(peer, worker_heartbeat("0.3"))
            due = [asked.deadline for asked in self.asked if asked.open and asked.deadline is not None]
            due += [hand.seen + EXPIRY_S for hand in self.workers.values()]
            step = min([until, self.scene.now + 1.0, *due])
            # The machine counts in floats from another side: be past the moment and not at it.
            now = step + 1e-6
            for asked in self.asked:
                if asked.open and asked.deadline is not None and asked.deadline <= now:
                    self.end(asked, "DEADLINE_EXCEEDED")
            for peer in [peer for peer, hand in self.workers.items() if hand.seen + EXPIRY_S <= now]:
                self.lose(peer)
            self.see(self.scene.wait(now - self.scene.now))

    @invariant()
    def nothing_waits_where_somebody_has_credit(self) -> None:
        for hand in self.workers.values():
            assert len(hand.held) == hand.credit or all(asked.losses for asked in self.waiting(hand.service))

    @invariant()
    def the_accounts_are_right(self) -> None:
        self.scene.check()
        opened = sum(asked.open for asked in self.asked)
        assert self.scene.machine.counters.accepted - self.scene.machine.counters.closed == opened


Model.TestCase.settings = settings(max_examples=examples(200, divisor=4), stateful_step_count=50)
test_dispatcher_and_reference = pytest.mark.timeout(300)(Model.TestCase)
