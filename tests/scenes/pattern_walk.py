"""A random walk over the connections of a pattern, with a model of what each peer must have got."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.pattern.base import Counters
from core.pattern.pipe import Pipe
from core.zmtp.frames import Encoded
from tests.scenes.patterns import Line, joined, parted
from tests.scenes.raw_octets import message as on_the_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.pattern.base import Pattern


SIZES = (0, 1, 252, 253, 254, 255, 256, 3000)


@dataclass(eq=False)
class Peer:
    """The model of one peer."""

    pipe: Pipe
    line: Line | None = None
    held: list[list[bytes]] = field(default_factory=list)  # written, and not yet gone
    name: bytes = b""  # ROUTER: its routing id
    muted: bool = False
    inbox: list[tuple[list[bytes], list[bytes]]] = field(default_factory=list)  # REP: (envelope, body)
    asked: dict[bytes, None] = field(default_factory=dict)  # PUB: its topics; in manual mode those that were not granted yet
    granted: dict[bytes, None] = field(default_factory=dict)
    known: bool = False  # PUB: has been ready


class Walk:
    """Connections that come and go, and what each must have got."""

    pattern: Pattern
    receive_mark = 0

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.immediate = self.rng.random() < 0.3
        self.mark = self.rng.choice((0, 1, 3))
        self.counters = Counters()
        self.peers: list[Peer] = []
        self.number = 0
        self.lost = 0
        self.full = 0
        self.steps: list[str] = []

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (self.connect, self.accept, self.up, self.up, self.down, self.leave, self.turn, self.over)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            verb = self.rng.choice(self.verbs())
            self.steps.append(verb.__name__)
            verb()
            self.check()

    def check(self) -> None:
        assert (self.counters.undelivered, self.counters.peer_full) == (self.lost, self.full)
        assert set(self.pattern.pipes) == {peer.pipe for peer in self.peers}
        for peer in self.peers:
            self.look(peer)

    def look(self, peer: Peer) -> None:
        """Check that the sent and waiting messages are those of the model."""
        came = peer.line.came() if peer.line else []
        assert came + Line.waiting(peer.pipe) == peer.held
        del peer.held[: len(came)]

    def has_capacity(self, peer: Peer) -> bool:
        return (peer.line is not None and peer.line.takes) or not self.mark or len(peer.held) < self.mark

    def available(self, peer: Peer) -> bool:
        return peer.line is not None or (peer.pipe.connecting and not self.immediate)

    def frames(self, *, plain: bool = False) -> tuple[list[bytes], list[bytes]]:
        """Return frames as an application gives them, and as they are."""
        self.number += 1
        frames = [b"%d." % self.number, *(bytes(self.rng.choice(SIZES)) for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3))))]
        if not plain and self.rng.random() < 0.3:
            kept = self.rng.randrange(len(frames))
            return [*frames[:kept], Encoded(on_the_wire(*frames[kept:]))], frames
        return frames, frames

    # -- connections

    def any(self, *, there: bool) -> Peer | None:
        found = [peer for peer in self.peers if (peer.line is not None) is there]
        return self.rng.choice(found) if found else None

    def new(self, *, connecting: bool) -> Peer:
        peer = Peer(Pipe(connecting=connecting))
        peer.pipe.set_marks(self.mark, self.receive_mark, 0, 0)
        return peer

    def connect(self) -> None:
        if len(self.peers) < 5:
            peer = self.new(connecting=True)
            self.before_connect(peer)
            assert self.pattern.attach(peer.pipe)
            self.peers.append(peer)

    def accept(self) -> None:
        if len(self.peers) < 5:
            self.join(self.new(connecting=False))

    def up(self) -> None:
        peer = self.any(there=False)
        if peer is not None:
            self.join(peer)

    def join(self, peer: Peer) -> None:
        takes, holds = self.rng.random() < 0.7, self.rng.random() < 0.4
        welcome = self.before_ready(peer)
        line = joined(self.pattern, peer.pipe, takes=takes, holds=holds)
        assert peer.pipe.connected is welcome
        if welcome:
            peer.line = line
            if peer not in self.peers:
                self.peers.append(peer)
            self.after_ready(peer)

    def down(self) -> None:
        peer = self.any(there=True)
        if peer is not None:
            self.down_now(peer)

    def down_now(self, peer: Peer) -> None:
        self.look(peer)
        peer.line = None
        peer.muted = False
        if not peer.pipe.connecting:
            self.peers.remove(peer)
        self.left(peer)
        dropped = parted(self.pattern, peer.pipe)
        self.counters.undelivered += dropped

    def leave(self) -> None:
        peer = self.any(there=False)
        if peer is not None:
            self.peers.remove(peer)
            self.left(peer)
            self.pattern.detach(peer.pipe)
            self.pattern.detach(peer.pipe)
            dropped = peer.pipe.discard_outbox()
            self.counters.undelivered += dropped

    def turn(self) -> None:
        peer = self.any(there=True)
        if peer is not None and peer.line is not None:
            peer.line.takes = not peer.line.takes
            peer.line.flush()

    def over(self) -> None:
        for peer in self.peers:
            if peer.line is not None:
                peer.line.takes = peer.line.takes or self.rng.random() < 0.2
                peer.line.flush()

    def before_connect(self, peer: Peer) -> None: ...

    def before_ready(self, peer: Peer) -> bool:
        return True

    def after_ready(self, peer: Peer) -> None: ...

    def left(self, peer: Peer) -> None:
        """Without the peer, or with IMMEDIATE, what was queued goes."""
        if peer not in self.peers or self.drops(peer):
            self.lost += len(peer.held)
            peer.held.clear()

    def drops(self, peer: Peer) -> bool:
        return False
