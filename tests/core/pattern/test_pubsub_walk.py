"""Walks over PUB, XPUB, SUB and XSUB: receivers of a message, reports, subscriptions, and a counter for every drop.

The models keep plain sets and lists; the rules are PSB-01 to PSB-16, ZMTP-62, ZMTP-65 to ZMTP-71 and OPT-01.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from core.errors import OperationNotSupported
from core.options import Options
from core.pattern import subscriptions
from core.pattern.base import Counters
from core.pattern.pipe import Pipe
from core.pattern.pubsub import Pub, Sub, XPub, XSub
from tests.scenes.pattern_walk import Peer, Walk
from tests.scenes.patterns import joined
from tests.scenes.unread_reports import UnreadReports

if TYPE_CHECKING:
    from collections.abc import Callable

TOPICS = (b"", b"a", b"ab", b"b", b"bc" * 200)
BODIES = (b"", b"a", b"abc", b"b", b"bc" * 300, b"c", b"\x02")
TOPIC_COST = 256


class PubSubWalk(Walk):
    """Base of the walks of both sides."""

    pattern: XPub | XSub
    receive_mark = 2

    def __init__(self, seed: int, kind: Callable[[Options, Counters], XPub | XSub], **options: int | bytes) -> None:
        super().__init__(seed)
        self.inverted = self.rng.random() < 0.2
        self.options = Options(immediate=int(self.immediate), invert_matching=int(self.inverted), **options)
        self.pattern = kind(self.options, self.counters)

    def run(self, steps: int) -> None:
        super().run(steps)
        while self.peers:
            self.over()
            self.peers.sort(key=lambda peer: peer.line is None)
            self.down() if self.peers[0].line else self.leave()
            self.check()

    def distributed(self, peers: list[Peer], frames: list[bytes]) -> None:
        for peer in peers:
            if self.has_capacity(peer):
                peer.held.append(frames)
            else:
                self.full += 1

    def body(self) -> list[bytes]:
        self.number += 1
        frames = [self.rng.choice(BODIES), b"%d" % self.number]
        return frames if self.rng.random() < 0.7 else [*frames, bytes(self.rng.choice((0, 300, 4000)))]


class PublisherWalk(PubSubWalk):
    """A PUB or XPUB, and subscribers that ask for anything."""

    pattern: XPub

    def __init__(self, seed: int, kind: type[XPub]) -> None:
        rng = random.Random(-seed)
        self.manual = kind is XPub and rng.random() < 0.3
        self.nodrop = rng.random() < 0.2
        self.welcome = rng.choice((b"", b"", b"hello"))
        self.most = rng.choice((10**6, 3 * TOPIC_COST))
        options = {"xpub_manual": int(self.manual), "xpub_nodrop": int(self.nodrop), "max_subscription_bytes": self.most}
        super().__init__(seed, kind, xpub_welcome_msg=self.welcome, **options)
        self.shows = kind is XPub
        self.verbose = self.verboser = False
        self.unread: UnreadReports[Peer] = UnreadReports(alternates=not self.manual, most=self.most)
        self.arrivals = self.unread.arrivals
        self.asker: Peer | None = None
        self.unexpected = 0

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (*super().verbs(), *(self.publish,) * 6, *(self.ask,) * 6, *(self.recv,) * 3, self.recv_many, self.choose)

    def choose(self) -> None:
        """Change options that act at once."""
        self.verbose, self.verboser = self.rng.random() < 0.4, self.rng.random() < 0.3
        self.options.xpub_verbose, self.options.xpub_verboser = int(self.verbose), int(self.verboser)
        self.inverted = self.rng.random() < 0.2
        self.options.invert_matching = int(self.inverted)
        self.most = self.options.max_subscription_bytes = self.rng.choice((10**6, self.most))
        self.pattern.follow_options()
        self.unread.follow(alternates=not (self.manual or self.verbose or self.verboser), most=self.most)

    def check(self) -> None:
        super().check()
        assert self.counters.unexpected == self.unexpected
        assert self.pattern.writable()
        assert self.pattern.readable() is bool(self.arrivals)

    # -- subscribers

    def after_ready(self, peer: Peer) -> None:
        if not peer.known and self.welcome:
            self.distributed([peer], [self.welcome])
        peer.known = True

    def left(self, peer: Peer) -> None:
        """A peer that goes loses its topics; one that reconnects keeps them and its queue, except with IMMEDIATE."""
        if peer not in self.peers or self.immediate:
            self.forget(peer)
            self.lost += len(peer.held)
            peer.held.clear()

    def forget(self, peer: Peer) -> None:
        topics = list(peer.asked)
        peer.asked.clear()
        peer.granted.clear()
        peer.known = False
        for topic in topics:
            if self.manual or self.verboser or not self.held(topic):
                self.show(peer, [b"\x00" + topic])
        self.unread.add()

    def held(self, topic: bytes) -> bool:
        return any(topic in peer.asked for peer in self.peers)

    def show(self, peer: Peer, message: list[bytes]) -> None:
        if self.shows:
            self.unread.batch.append((peer, message))

    def ask(self) -> None:
        """A peer sends subscriptions, and messages upstream."""
        peer = self.any(there=True)
        if peer is None or peer.line is None:
            return
        batch = []
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            frames = [self.rng.choice((b"\x01", b"\x01", b"\x00")) + self.rng.choice(TOPICS) for _ in range(self.rng.choice((1, 1, 2)))]
            if self.rng.random() < 0.3:
                frames.insert(self.rng.choice((0, 1)), self.rng.choice((b"up", b"", b"\x02a")))
            batch.append(frames)
        line, full = peer.line, peer.line.full
        cut, times_full = not all(self.asked(peer, frames) for frames in batch), self.unread.add()
        if cut:
            self.forget(peer)
        assert self.pattern.deliver(peer.pipe, batch) == []
        assert len(line.cuts) == cut
        if cut:
            assert self.pattern.deliver(peer.pipe, [[b"\x01late"]]) == []  # the rest of what was read
            self.down_now(peer)
        else:
            assert line.full - full == times_full

    def asked(self, peer: Peer, frames: list[bytes]) -> bool:
        """Follow one message of a peer; False when it has asked for too much."""
        for frame in frames:
            kind, topic = frame[:1], frame[1:]
            known, others = topic in peer.asked, self.held(topic)
            if kind == b"\x01":
                if not known and sum(len(other) + TOPIC_COST for other in (*peer.asked, topic)) > self.most:
                    return False
                peer.asked[topic] = None
                if not others or self.verbose or self.verboser or self.manual:
                    self.show(peer, [frame])
            elif kind == b"\x00":
                peer.asked.pop(topic, None)
                if not known or not self.held(topic) or self.verboser or self.manual:
                    self.show(peer, [frame])
        if frames[0][:1] not in (b"\x00", b"\x01"):
            self.show(peer, frames)
            self.unexpected += not self.shows
        return True

    # -- the application

    def recv(self) -> None:
        if not self.shows:
            with pytest.raises(OperationNotSupported):
                self.pattern.recv()
            return
        message = self.pattern.recv()
        if not self.arrivals:
            assert message is None
            return
        self.asker, expected = self.arrivals.pop(0)
        assert message == expected
        self.unread.taken()
        if self.rng.random() < 0.2:
            self.pattern.put_back(self.asker.pipe, message)
            self.arrivals.insert(0, (self.asker, message))
            return
        self.all_read()
        for _ in range(self.rng.choice((0, 1, 2)) if self.manual else 0):
            topic, subscribe = self.rng.choice(TOPICS), self.rng.random() < 0.7
            self.pattern.apply(topic, subscribe)
            if self.asker.known and subscribe:
                self.asker.granted[topic] = None
            else:
                self.asker.granted.pop(topic, None)
            assert self.pattern.subscriptions.topics(self.asker.pipe) == list(self.asker.granted)

    def recv_many(self) -> None:
        if not self.shows:
            with pytest.raises(OperationNotSupported):
                self.pattern.recv_many()
            return
        assert self.pattern.recv_many() == [message for _, message in self.arrivals]
        if self.arrivals:
            self.asker, _ = self.arrivals[-1]
            self.arrivals.clear()
            self.unread.taken()
            self.all_read()

    def all_read(self) -> None:
        """Throttled peers are read again once everything was taken."""
        if not self.arrivals:
            assert not any(peer.pipe.throttled for peer in self.peers)

    def publish(self) -> None:
        frames = self.body()
        topics = [(peer, peer.granted if self.manual else peer.asked) for peer in self.peers if peer.known]
        matching = [peer for peer, wanted in topics if any(frames[0].startswith(topic) for topic in wanted) is not self.inverted]
        full = [peer for peer in matching if not self.has_capacity(peer)]
        if self.nodrop and full:
            assert self.pattern.send(frames) is False
            assert all(peer.pipe.waiting_for_capacity for peer in full)
        else:
            assert self.pattern.send(frames) is True
            self.distributed(matching, frames)


class SubscriberWalk(PubSubWalk):
    """A SUB or XSUB, and publishers that send anything."""

    pattern: XSub

    def __init__(self, seed: int, kind: type[XSub]) -> None:
        super().__init__(seed, kind)
        self.filters = kind is Sub
        self.topics: dict[bytes, int] = {}
        self.inbox: list[list[bytes]] = []
        self.told: dict[Peer, list[tuple[bytes, bool]]] = {}
        self.unwanted = 0

    def verbs(self) -> tuple[Callable[[], object], ...]:
        return (
            *super().verbs(),
            *(self.subscribe,) * 3,
            *(self.unsubscribe,) * 3,
            *(self.deliver,) * 4,
            *(self.recv,) * 3,
            self.recv_many,
            self.send,
            self.send,
        )

    def check(self) -> None:
        super().check()
        for peer in self.peers:
            if peer.line is not None:
                assert peer.line.told == self.told[peer]
        assert self.pattern.writable() is not self.filters
        assert list(self.pattern.topics) == list(self.topics)

    def after_ready(self, peer: Peer) -> None:
        self.told[peer] = [(topic, True) for topic in self.topics]

    def left(self, peer: Peer) -> None:
        self.lost += len(peer.held)
        peer.held.clear()

    def wants(self, message: list[bytes]) -> bool:
        return not self.filters or any(message[0].startswith(topic) for topic in self.topics) is not self.inverted

    def tell(self, topic: bytes, subscribe: bool) -> None:
        for peer in self.peers:
            if peer.line is not None:
                self.told[peer].append((topic, subscribe))

    def subscribe(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.topics[topic] = self.topics.get(topic, 0) + 1
        self.tell(topic, True)
        self.pattern.subscribe(topic) if self.filters or self.rng.random() < 0.5 else self.pattern.send([b"\x01" + topic])

    def unsubscribe(self) -> None:
        topic = self.rng.choice(TOPICS)
        if topic in self.topics:
            self.topics[topic] -= 1
            if not self.topics[topic]:
                del self.topics[topic]
                self.tell(topic, False)
        self.pattern.unsubscribe(topic) if self.filters or self.rng.random() < 0.5 else self.pattern.send([b"\x00" + topic])

    def deliver(self) -> None:
        """One publisher sends; the order among several is tested elsewhere."""
        if self.peers:
            pipe = self.peers[0].pipe
            batch = [self.body() for _ in range(self.rng.randrange(4))]
            self.inbox += [message for message in batch if self.wants(message)]
            self.unwanted += sum(not self.wants(message) for message in batch)
            pipe = next(iter(self.pattern.inbound.active), pipe)
            self.pattern.inbound.push(pipe, self.pattern.deliver(pipe, batch))

    def sift(self) -> None:
        """Queued messages are filtered again when they are received."""
        while self.inbox and not self.wants(self.inbox[0]):
            self.unwanted += 1
            del self.inbox[0]

    def recv(self) -> None:
        if self.rng.random() < 0.5:
            self.sift()
            assert self.pattern.readable() is bool(self.inbox)
            assert self.counters.unsubscribed == self.unwanted
        if self.rng.random() < 0.1:
            self.inverted = not self.inverted
            self.options.invert_matching = int(self.inverted)
            self.pattern.follow_options()
        self.sift()
        assert self.pattern.recv() == (self.inbox.pop(0) if self.inbox else None)
        assert self.counters.unsubscribed == self.unwanted

    def recv_many(self) -> None:
        wanted = [message for message in self.inbox if self.wants(message)]
        self.unwanted += len(self.inbox) - len(wanted)
        assert self.pattern.recv_many() == wanted
        assert self.counters.unsubscribed == self.unwanted
        self.inbox.clear()

    def send(self) -> None:
        if self.filters:
            with pytest.raises(OperationNotSupported):
                self.pattern.send([b"x"])
            return
        frames = self.rng.choice((self.body(), [b"alone"], [b"\x01a", b"two frames"]))
        peers = [peer for peer in self.peers if peer.line is not None or (peer.pipe.connecting and not self.immediate)]
        self.distributed(peers, frames)
        assert self.pattern.send(frames) is True


@pytest.mark.parametrize(("walk", "kind"), [(PublisherWalk, Pub), (PublisherWalk, XPub), (SubscriberWalk, Sub), (SubscriberWalk, XSub)])
@pytest.mark.parametrize("seed", range(30))
def test_who_wants_a_message_gets_it(seed: int, walk: type[PubSubWalk], kind: type[XPub | XSub], monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3:  # few make a crowd, much nesting, many topics: what is kept in another way then has to say the same
        monkeypatch.setattr(subscriptions, "_TUPLE_HOLDERS_MAX", 1 + seed % 3)
        monkeypatch.setattr(subscriptions, "_NESTED_MAX", seed % 3)
        monkeypatch.setattr(subscriptions, "_FEW_TOPICS", seed % 3)
    made = walk(seed, kind)
    try:
        made.run(200)
    except AssertionError:
        print(f"seed {seed}: {' '.join(made.steps)}")  # noqa: T201
        raise


def test_psb_10_looking_whether_there_is_something_drops_only_what_is_not_asked_for() -> None:
    sub = Sub(Options(), Counters())
    one, other = Pipe(), Pipe()
    for pipe in (one, other):
        joined(sub, pipe)
    for topic in (b"a", b"b"):
        sub.subscribe(topic)
    sub.inbound.push(one, sub.deliver(one, [[b"a1"], [b"a2"]]))
    sub.inbound.push(other, sub.deliver(other, [[b"b1"], [b"b2"], [b"b3"]]))
    assert (sub.recv(), sub.recv()) == ([b"a1"], [b"b1"])
    sub.unsubscribe(b"b")
    assert sub.readable()
    assert [sub.recv(), sub.recv()] == [[b"a2"], None]
    assert (sub.counters.unsubscribed, sub.readable()) == (2, False)


def test_psb_11_before_anything_was_received_there_is_nobody_to_decide_about() -> None:
    xpub = XPub(Options(xpub_manual=1), Counters())
    pipe = Pipe()
    joined(xpub, pipe)
    xpub.deliver(pipe, [[b"\x01a"]])
    for subscribe in (True, False):
        xpub.apply(b"a", subscribe)
    assert xpub.subscriptions.topics(pipe) == []
    assert xpub.recv() == [b"\x01a"]
    xpub.apply(b"b", True)
    assert xpub.subscriptions.topics(pipe) == [b"b"]
