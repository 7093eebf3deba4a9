"""Walks over PUSH, DEALER and PAIR: the peer of each message, waiting sends, and lost connections.

The model knows of each peer whether it may be sent to and what it holds; the rules are SOCK-02, SOCK-03, SOCK-09, SOCK-10, DLR-01, PPL-01,
PPL-02, PAIR-01, PAIR-02 and OPT-01.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from core.options import Options
from core.pattern.base import Counters
from core.pattern.pair import Pair
from core.pattern.pipe import Pipe
from core.pattern.pipeline import Balanced, Push
from core.pattern.reqrep import Dealer
from tests.scenes.patterns import Line, joined, parted

LARGE = 3000


@dataclass(eq=False)
class Peer:
    """The model of one peer."""

    pipe: Pipe
    line: Line | None = None
    held: list[bytes] = field(default_factory=list)  # written, and not yet gone
    gone: list[bytes] = field(default_factory=list)


class Walk:
    """A pattern, its peers, and what each must have got."""

    def __init__(self, seed: int, kind: type[Balanced]) -> None:
        self.rng = random.Random(seed)
        self.immediate = self.rng.random() < 0.4
        self.mark = self.rng.choice((0, 1, 2, 3, 5))
        self.pattern = kind(Options(immediate=int(self.immediate)), Counters())
        self.peers: list[Peer] = []
        self.number = 0
        self.lost = 0
        self.extra = 0
        self.sends: list[tuple[Peer, set[Peer]]] = []  # the receiver of a message, and the peers with capacity then
        self.steps: list[str] = []

    # -- the model

    def may_have(self, peer: Peer) -> bool:
        """Whether a peer may be sent to: connected, or about to be again unless IMMEDIATE."""
        if isinstance(self.pattern, Pair) and peer is not self.peers[0]:
            return False
        return peer.line is not None or not self.immediate

    def has_capacity(self, peer: Peer) -> bool:
        return self.may_have(peer) and ((peer.line is not None and peer.line.takes) or not self.mark or len(peer.held) < self.mark)

    def with_room(self) -> set[Peer]:
        return {peer for peer in self.peers if self.has_capacity(peer)}

    def left(self, peer: Peer) -> None:
        """Read from the peer, whose messages may have gone."""
        if peer.line is None:
            return
        for frames in peer.line.came():
            assert frames[0] == peer.held.pop(0)
            peer.gone.append(frames[0])

    def got(self) -> Peer:
        """Find the one receiver of the last message and check its queue."""
        winners = []
        for peer in self.peers:
            waiting = [frames[0] for frames in Line.waiting(peer.pipe)]
            came = [frames[0] for frames in peer.line.came()] if peer.line else []
            new = came + waiting
            if new != peer.held:
                assert new[:-1] == peer.held
                winners.append(peer)
            peer.gone += came
            peer.held = waiting
        (winner,) = winners
        return winner

    # -- steps

    def connect(self) -> None:
        pipe = Pipe(connecting=True)
        pipe.set_marks(self.mark, 0, 0, 0)
        taken = self.pattern.attach(pipe)
        if isinstance(self.pattern, Pair) and self.peers:
            assert not taken
            self.extra += 1
            self.again(pipe)
            return
        assert taken
        self.peers.append(Peer(pipe))

    def again(self, pipe: Pipe) -> None:
        """PAIR: the second connect() is refused its peer as long as the first has one, and without a loss."""
        line = joined(self.pattern, pipe)
        self.extra += 1
        assert (line.writes, pipe.connected) == ([], False)

    def accept(self) -> None:
        pipe = Pipe()
        pipe.set_marks(self.mark, 0, 0, 0)
        line = joined(self.pattern, pipe, takes=self.rng.random() < 0.5, holds=self.rng.random() < 0.3)
        if isinstance(self.pattern, Pair) and self.peers:
            self.extra += 1
            assert not pipe.connected
            return
        assert pipe.connected
        self.peers.append(Peer(pipe, line))

    def up(self) -> None:
        away = [peer for peer in self.peers if peer.line is None]
        if away:
            peer = self.rng.choice(away)
            peer.line = joined(self.pattern, peer.pipe, takes=self.rng.random() < 0.6, holds=self.rng.random() < 0.3)
            assert peer.pipe.connected
            self.left(peer)

    def down(self) -> None:
        there = [peer for peer in self.peers if peer.line is not None]
        if there:
            peer = self.rng.choice(there)
            self.left(peer)
            peer.line = None
            dropped = parted(self.pattern, peer.pipe)
            self.pattern.counters.undelivered += dropped
            if not peer.pipe.connecting or self.immediate:
                self.lost += len(peer.held)
                peer.held.clear()
                assert peer.pipe.outbox == []
            if not peer.pipe.connecting:
                self.peers.remove(peer)

    def leave(self) -> None:
        """A disconnect()."""
        if self.peers and self.rng.random() < 0.3:
            peer = self.peers.pop(self.rng.randrange(len(self.peers)))
            self.pattern.detach(peer.pipe)
            self.pattern.detach(peer.pipe)
            self.pattern.on_writable(peer.pipe)  # it may still be emptied, within LINGER

    def turn(self) -> None:
        """Fill a transport, or empty it again."""
        there = [peer for peer in self.peers if peer.line is not None]
        if there:
            peer = self.rng.choice(there)
            assert peer.line is not None
            peer.line.takes = not peer.line.takes
            peer.line.flush()
            self.left(peer)

    def over(self) -> None:
        """End the loop iteration."""
        for peer in self.peers:
            if peer.line is not None:
                peer.line.flush()
                self.left(peer)

    def marks(self) -> None:
        """An option was changed (SOCK-07)."""
        self.mark = self.rng.choice((0, 1, 2, 5))
        for peer in self.peers:
            peer.pipe.set_marks(self.mark, 0, 0, 0)
            self.pattern.on_writable(peer.pipe)

    def message(self) -> list[bytes]:
        self.number += 1
        size = LARGE if self.rng.random() < 0.1 else 10
        frames = [b"%d " % self.number + bytes(size)]
        return frames if self.rng.random() < 0.5 else [*frames, b"", bytes(size)]

    def send(self) -> None:
        possible = self.with_room()
        assert self.pattern.send(self.message()) is bool(possible)
        if possible:
            winner = self.got()
            assert winner in possible
            self.sends.append((winner, possible))
            self.in_turn()

    def batch(self) -> None:
        """Send several: as many as there is capacity for, in order."""
        messages = [self.message() for _ in range(self.rng.randrange(5))]
        before = {peer: list(peer.held) for peer in self.peers}
        possible = self.with_room()
        rooms = [
            len(messages) if (peer.line is not None and peer.line.takes) or not self.mark else max(0, self.mark - len(peer.held))
            for peer in self.peers
            if self.may_have(peer)
        ]
        count = self.pattern.send_many(messages)
        assert count == min(len(messages), sum(rooms))
        place = {frames[0]: at for at, frames in enumerate(messages)}
        new: dict[int, Peer] = {}
        for peer in self.peers:
            held = [frames[0] for frames in (peer.line.sent() if peer.line else Line.waiting(peer.pipe))]
            assert held[: len(before[peer])] == before[peer]
            mine = [place[name] for name in held[len(before[peer]) :]]
            assert mine == sorted(mine)
            new |= dict.fromkeys(mine, peer)
            waiting = len(Line.waiting(peer.pipe))
            peer.gone += held[: len(held) - waiting]
            peer.held = held[len(held) - waiting :]
        assert sorted(new) == list(range(count))
        if min(filter(None, rooms), default=0) < len(messages):
            self.sends.clear()  # a peer has become full meanwhile
        for at in sorted(new):
            self.sends.append((new[at], possible))
            self.in_turn()

    def in_turn(self) -> None:
        """SOCK-09: between two messages to one peer, every other peer with capacity gets one."""
        winner, steady = self.sends[-1]
        between: Counter[int] = Counter()
        for other, possible in reversed(self.sends[:-1]):
            steady = steady & possible
            if other is winner:
                break
            between[id(other)] += 1
        else:
            steady = set()
        if winner in steady:
            assert all(between[id(peer)] == 1 for peer in steady if peer is not winner)

    def check(self) -> None:
        pattern = self.pattern
        if self.rng.random() < 0.5:  # asking is to change nothing
            assert pattern.writable() is bool(self.with_room())
        assert (pattern.counters.undelivered, pattern.counters.extra_peer) == (self.lost, self.extra)
        assert set(pattern.pipes) == {peer.pipe for peer in self.peers}
        possible = [peer for peer in self.peers if self.may_have(peer)]
        if len(possible) == 1 and self.has_capacity(possible[0]):
            assert pattern.route(b"any") is possible[0].pipe
        if not possible or len(self.with_room()) > 1:
            assert pattern.route(b"any") is None

    def run(self, steps: int) -> None:
        """Take steps, and then empty everything: each message arrived once, in order, or was counted."""
        verbs = (self.connect, self.accept, self.up, self.down, self.leave, self.turn, self.over, self.marks, self.batch)
        for _ in range(steps):
            verb = self.send if self.rng.random() < 0.5 else self.rng.choice(verbs)
            self.steps.append(verb.__name__)
            verb()
            self.check()
        for peer in self.peers:
            if peer.line is not None:
                peer.line.takes = True
        self.over()
        assert all(not peer.held for peer in self.peers if peer.line is not None)


@pytest.mark.parametrize("kind", [Push, Dealer, Pair])
@pytest.mark.parametrize("seed", range(25))
def test_each_message_goes_to_the_peer_whose_turn_it_is(seed: int, kind: type[Balanced]) -> None:
    walk = Walk(seed, kind)
    try:
        walk.run(150)
    except AssertionError:
        print(f"seed {seed}: {' '.join(walk.steps)}")  # noqa: T201
        raise
