"""Walks over ROUTER, REQ and REP.

Ids, routes, envelopes, order, and a counter for every drop (RTR, REQ and REP rules).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import BadState, HostUnreachable, MessageTooLarge
from core.options import Options
from core.pattern.base import Counters
from core.pattern.pipe import Pipe
from core.pattern.reqrep import Rep, Req, Router
from tests.scenes.pattern_walk import Peer, Walk
from tests.scenes.patterns import Line, joined

if TYPE_CHECKING:
    from collections.abc import Callable


NAMES = (b"", b"one", b"two", b"three")


class RouterWalk(Walk):
    """A ROUTER, and peers that share few names."""

    pattern: Router

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.mandatory, self.handover = self.rng.random() < 0.4, self.rng.random() < 0.5
        options = Options(immediate=int(self.immediate), router_mandatory=int(self.mandatory), router_handover=int(self.handover))
        self.next_id = self.rng.choice((5, 2**32 - 3))
        self.pattern = Router(options, self.counters, self.next_id)
        self.routes: dict[bytes, Peer] = {}
        self.given = 0
        self.refused = 0
        self.unroutable = 0
        self.empty = 0
        self.displaced = 0

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (*super().verbs(), *(self.send,) * 8, *(self.batch,) * 4, self.chatter)

    def check(self) -> None:
        super().check()
        counters = self.counters
        assert (counters.duplicate_id, counters.unroutable, counters.empty) == (self.refused, self.unroutable, self.empty)
        assert counters.displaced == self.displaced
        for name in (*self.routes, *NAMES, b"named0"):
            peer = self.routes.get(name)
            assert self.pattern.peer(name) is self.pattern.route(name) is (peer and peer.pipe)
        if self.rng.random() < 0.5:
            writable = not self.mandatory or any(map(self.has_capacity, self.routes.values()))
            assert self.pattern.writable() is writable
            assert writable or all(peer.pipe.waiting_for_capacity for peer in self.routes.values())  # they are reported later

    def before_connect(self, peer: Peer) -> None:
        if self.rng.random() < 0.3:
            peer.pipe.local_name = peer.name = b"named%d" % self.given
            self.given += 1
            self.routes[peer.name] = peer

    def before_ready(self, peer: Peer) -> bool:
        """Work out the id of a peer, and whether it may have it."""
        peer.pipe.identity = self.rng.choice(NAMES)
        peer.pipe.metadata = {b"user-id": self.rng.choice((b"ann", b"ann", b"bob"))}
        wanted = peer.name or peer.pipe.identity
        while not wanted:
            self.next_id = (self.next_id + 1) % 2**32
            wanted = b"\0" + self.next_id.to_bytes(4, "big")
        holder = self.routes.get(wanted, peer)
        if holder is not peer:
            if not self.handover or holder.pipe.metadata != peer.pipe.metadata:
                self.refused += 1
                return False
            holder.muted = holder.line is not None
        peer.name = wanted
        self.routes[wanted] = peer
        return True

    def after_ready(self, peer: Peer) -> None:
        assert peer.pipe.routing_id == peer.name

    def drops(self, peer: Peer) -> bool:
        return self.immediate and not peer.pipe.local_name

    def left(self, peer: Peer) -> None:
        super().left(peer)
        if (peer not in self.peers or self.drops(peer)) and self.routes.get(peer.name) is peer:
            del self.routes[peer.name]
        if self.drops(peer):
            peer.name = b""

    def chatter(self) -> None:
        """Peers that lost their id send on: what they say is counted and dropped."""
        for peer in self.peers:
            if peer.line is not None:
                assert (peer.line.muted is not None) is peer.muted
                if peer.line.muted is not None:
                    peer.line.muted(3)
                    self.displaced += 3

    def message(self) -> tuple[bytes, list[bytes], list[bytes]]:
        name = self.rng.choice((*self.routes, *self.routes, *NAMES, b"\0" * 5))
        return (name, [], []) if self.rng.random() < 0.1 else (name, *self.frames())

    def sent(self, name: bytes, frames: list[bytes]) -> str:
        """Follow one message: "gone", "waits" or "unknown"."""
        peer = self.routes.get(name)
        if peer is None:
            self.unroutable += not self.mandatory
            return "unknown" if self.mandatory else "gone"
        if not frames:
            self.empty += 1
        elif self.has_capacity(peer):
            peer.held.append(frames)
        elif self.mandatory:
            return "waits"
        else:
            self.full += 1
        return "gone"

    def send(self) -> None:
        name, given, frames = self.message()
        outcome = self.sent(name, frames)
        if outcome == "unknown":
            with pytest.raises(HostUnreachable) as caught:
                self.pattern.send([name, *given])
            assert caught.value.routing_id == name
        else:
            assert self.pattern.send([name, *given]) is (outcome == "gone")
            assert outcome == "gone" or self.routes[name].pipe.waiting_for_capacity

    def batch(self) -> None:
        """As one after the other, up to the first that has to wait or has no peer."""
        messages = [self.message() for _ in range(self.rng.choice((1, 2, 5)))]
        if self.rng.random() < 0.5:
            messages = [(messages[0][0], given, frames) for _, given, frames in messages]
        given = [[name, *frames] for name, frames, _ in messages]
        count = 0
        for name, _, frames in messages:
            outcome = self.sent(name, frames)
            if outcome == "unknown":
                with pytest.raises(HostUnreachable):
                    self.pattern.send_many(given)
                return
            if outcome == "waits":
                break
            count += 1
        assert self.pattern.send_many(given) == count


class ReqWalk(Walk):
    """A REQ, and peers that answer rightly, wrongly, late and twice."""

    pattern: Req

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.relaxed, self.correlate = self.rng.random() < 0.4, self.rng.random() < 0.4
        options = Options(immediate=int(self.immediate), req_relaxed=int(self.relaxed), req_correlate=int(self.correlate))
        self.request_id = self.rng.choice((7, 2**32 - 3))
        self.pattern = Req(options, self.counters, self.request_id)
        self.waiting = False
        self.asked: Peer | None = None
        self.late: Pipe | None = None  # had our request, and was left
        self.reply: list[bytes] | None = None
        self.unexpected = 0
        self.malformed = 0
        self.stale = 0
        self.turned = 0
        self.pattern.on_state_change = self.note
        self.expected_turns = 0

    def note(self) -> None:
        self.turned += 1

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (*super().verbs(), *(self.send,) * 5, *(self.answer,) * 6, *(self.recv,) * 3)

    def check(self) -> None:
        super().check()
        counters = self.counters
        assert (counters.unexpected, counters.malformed, counters.stale) == (self.unexpected, self.malformed, self.stale)
        assert self.turned == self.expected_turns
        if self.rng.random() < 0.5:
            possible = any(self.available(peer) and self.has_capacity(peer) for peer in self.peers)
            assert self.pattern.writable() is ((not self.waiting or self.relaxed) and possible)

    def drops(self, peer: Peer) -> bool:
        return self.immediate

    def left(self, peer: Peer) -> None:
        super().left(peer)
        if peer not in self.peers and peer is self.asked:
            self.asked = None
            self.late = peer.pipe

    def leave(self) -> None:
        """Later messages of a disconnected peer are not replies."""
        super().leave()
        if self.late is not None:
            late, self.late = self.late, None
            envelope = [self.request_id.to_bytes(4, "little"), b""] if self.correlate else [b""]
            self.unexpected += 1
            assert self.pattern.deliver(late, [[*envelope, b"late"]]) == []

    def send(self) -> None:
        given, frames = self.frames()
        if self.waiting and not self.relaxed:
            with pytest.raises(BadState):
                self.pattern.send(given)
            return
        possible = [peer for peer in self.peers if self.available(peer) and self.has_capacity(peer)]
        in_batch = self.rng.random() < 0.3
        count = 2 if in_batch and self.relaxed is False and possible else 1
        if in_batch and not self.relaxed and possible:
            with pytest.raises(BadState):  # the first goes, and the second needs its reply
                self.pattern.send_many([given] * count)
        elif in_batch:
            assert self.pattern.send_many([given]) == bool(possible)
        else:
            assert self.pattern.send(given) is bool(possible)
        if not possible:
            self.waiting = False  # as libzmq's, it has forgotten the request before
            return
        self.request_id = (self.request_id + 1) % 2**32
        id_frames = [self.request_id.to_bytes(4, "little")] if self.correlate else []
        winners = []
        for peer in possible:
            came = peer.line.came() if peer.line else []
            now = came + Line.waiting(peer.pipe)
            if now != peer.held:
                assert now == [*peer.held, [*id_frames, b"", *frames]]
                winners.append(peer)
            peer.held = now[len(came) :]
        (self.asked,) = winners
        self.waiting = True
        self.stale += self.reply is not None
        self.reply = None

    def answer(self) -> None:
        """Send from a peer."""
        peer = self.asked if self.asked in self.peers and self.rng.random() < 0.7 else self.any(there=True)
        if peer is None or peer.line is None:
            return
        batch = []
        sound = True
        bodies: list[list[bytes]] = []
        for _ in range(self.rng.choice((1, 1, 2))):
            _, body = self.frames(plain=True)
            number = self.request_id if self.rng.random() < 0.7 else self.request_id - 1
            envelope: list[bytes] = [number.to_bytes(4, "little", signed=number < 0), b""] if self.rng.random() < 0.5 else [b""]
            shape = self.rng.random()
            if shape < 0.05:
                body = []  # a delimiter and nothing behind it
            elif shape < 0.1:
                envelope = [self.rng.choice((b"abc", b"abcde")), b""]
            elif shape < 0.15:
                envelope = [b"abcd", b"abcd", b""]
            elif shape < 0.2:
                envelope = []
            batch.append([*envelope, *body])
            if not sound:
                continue
            well_formed = bool(body) and (envelope == [b""] or (len(envelope) == 2 and len(envelope[0]) == 4))
            if self.correlate and envelope == [b""]:
                well_formed = False
            if not envelope and body[1:2] == [b""] and len(body[0]) == 4 and len(body) > 2:
                well_formed, envelope, body = True, body[:2], body[2:]  # a body that looks like one
            if not well_formed:
                self.malformed += 1
                sound = False
                continue
            awaited = self.waiting and peer is self.asked and self.reply is None and not bodies
            if self.correlate and int.from_bytes(envelope[0], "little") != self.request_id:
                awaited = False
            if awaited:
                bodies.append(body)
            else:
                self.unexpected += 1
        cuts = len(peer.line.cuts)
        assert self.pattern.deliver(peer.pipe, batch) == bodies
        self.pattern.inbound.push(peer.pipe, bodies)
        self.reply = bodies[0] if bodies else self.reply
        assert len(peer.line.cuts) - cuts == (not sound)
        if not sound:
            self.down_now(peer)

    def recv(self) -> None:
        many = self.rng.random() < 0.3
        if not self.waiting:
            with pytest.raises(BadState):
                self.pattern.recv_many() if many else self.pattern.recv()
            return
        got = self.pattern.recv_many() if many else self.pattern.recv()
        assert got == (([self.reply] if self.reply else []) if many else self.reply)
        if self.reply is None:
            return
        self.expected_turns += 1
        if self.rng.random() < 0.3 and self.asked is not None:
            self.pattern.put_back(self.asked.pipe, self.reply)
        else:
            self.waiting, self.reply = False, None


class RepWalk(Walk):
    """A REP, and peers that ask through any number of others."""

    pattern: Rep

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pattern = Rep(Options(immediate=int(self.immediate)), self.counters)
        self.former: list[Peer] = []
        self.taken: tuple[Peer, list[bytes]] | None = None  # peer of the request, and its envelope
        self.malformed = 0
        self.gone = 0
        self.turned = 0
        self.pattern.on_state_change = self.note
        self.expected_turns = 0

    def note(self) -> None:
        self.turned += 1

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (*super().verbs(), *(self.ask,) * 4, *(self.recv,) * 4, *(self.send,) * 4)

    def check(self) -> None:
        super().check()
        assert (self.counters.malformed, self.counters.requester_gone) == (self.malformed, self.gone)
        assert self.turned == self.expected_turns
        assert self.pattern.writable() is (self.taken is not None)
        waits = any(pipe.inbox for pipe in self.pattern.inbound.active)
        assert self.pattern.readable() is (self.taken is None and waits)

    def ask(self) -> None:
        peer = self.any(there=True)
        if peer is None:
            return
        batch, sound = [], []
        for _ in range(self.rng.choice((1, 2))):
            _, body = self.frames(plain=True)
            envelope = [b"via"] * self.rng.choice((0, 0, 1, 3)) + [b""]
            shape = self.rng.random()
            if shape < 0.1:
                body = [b""]
            if shape > 0.9:
                batch.append(envelope)  # nothing behind the delimiter
            elif shape > 0.8:
                batch.append([b"no", b"delimiter"])
            else:
                batch.append([*envelope, *body])
                sound.append(batch[-1])
                peer.inbox.append((envelope, body))
        self.malformed += len(batch) - len(sound)
        assert self.pattern.deliver(peer.pipe, batch) == sound
        self.pattern.inbound.push(peer.pipe, sound)

    def recv(self) -> None:
        many = self.rng.random() < 0.3
        if self.taken is not None:
            with pytest.raises(BadState):
                self.pattern.recv_many() if many else self.pattern.recv()
            return
        active = self.pattern.inbound.active
        pipe = active[0] if active else None
        got = self.pattern.recv_many() if many else self.pattern.recv()
        if pipe is None:
            assert not got
            assert got is None or many
            return
        peer = self.asker(pipe)
        envelope, body = peer.inbox.pop(0)
        assert got == ([body] if many else body)
        self.expected_turns += 1
        self.taken = (peer, envelope)
        if self.rng.random() < 0.2:
            self.pattern.put_back(pipe, body)
            peer.inbox.insert(0, (envelope, body))
            self.taken = None
            assert active[0] is pipe

    def asker(self, pipe: Pipe) -> Peer:
        """Return the peer of the request, which may have gone since."""
        return next(peer for peer in (*self.peers, *self.former) if peer.pipe is pipe)

    def left(self, peer: Peer) -> None:
        super().left(peer)
        self.former.append(peer)

    def send(self) -> None:
        given, frames = self.frames()
        if self.taken is None:
            with pytest.raises(BadState):
                self.pattern.send(given)
            return
        (peer, envelope), self.taken = self.taken, None
        assert self.pattern.send(given) is True
        self.expected_turns += 1
        if peer not in self.peers or not self.available(peer):
            self.gone += 1
        elif self.has_capacity(peer):
            peer.held.append([*envelope, *frames])
        else:
            self.full += 1


def test_req_09_a_relaxed_req_forgets_with_a_new_request_that_the_last_one_was_dropped() -> None:
    req = Req(Options(req_relaxed=1), Counters(), 1)
    joined(req, Pipe())
    assert req.send([b"?"])
    error = MessageTooLarge("bytes of a message", 2, 1)
    req.dropped(error)
    assert req.send([b"?"])
    assert req.recv() is None
    req.dropped(error)
    with pytest.raises(MessageTooLarge):
        req.recv()
    with pytest.raises(BadState):
        req.recv()


@pytest.mark.parametrize("walk", [RouterWalk, ReqWalk, RepWalk])
@pytest.mark.parametrize("seed", range(25))
def test_each_message_finds_its_way(seed: int, walk: type[Walk]) -> None:
    made = walk(seed)
    try:
        made.run(250)
    except AssertionError:
        print(f"seed {seed}: {' '.join(made.steps)}")  # noqa: T201
        raise
