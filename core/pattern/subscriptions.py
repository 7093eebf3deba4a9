"""Subscriptions: the publisher's table, the reports of an XPUB, the subscriber's counts (RFC 29; ZMTP-65..70, PSB).

The two sides count differently, which keeps them consistent (ZMTP-65, ZMTP-66): a subscriber counts its calls per
topic and sends CANCEL only when the count reaches zero; a publisher keeps a plain set per peer, so a repeated SUBSCRIBE
(every reconnection repeats them, ZMTP-67) changes nothing and one CANCEL ends it.

    PublisherSubscriptions    for PUB and XPUB: pipes and their topics, matching, reports to the application of an XPUB
    SubscriberTopics          for SUB and XSUB: counts, what to send, the filter on receipt

`P` stands for a peer; it is only hashed and compared. Pure.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from core.constants import ProtocolErrorCode
from core.errors import RemoteProtocolError
from core.pattern.topic_trie import TopicMap

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    Peer = Hashable

P = TypeVar("P", bound="Peer")

# Cost limit of all topics of one peer, in bytes; a peer beyond it is disconnected (PSB-15). Default of max_subscription_bytes.
SUBSCRIPTION_OCTETS_MAX: Final = 16 * 1024 * 1024
# Cost of a topic besides its bytes: entries in both directions, holders, object headers (measured: 170 to 430).
# So 16 MiB are some 60,000 short topics.
TOPIC_OVERHEAD_OCTETS: Final = 256
# One topic, in bytes. Real topics have tens of bytes; the limit bounds the copying of a single insertion.
TOPIC_OCTETS_MAX: Final = 64 * 1024

_SUBSCRIBE = b"\x01"
_CANCEL = b"\x00"
# Up to so many holders of a topic are a tuple (48 bytes for one), rebuilt at each change and returned as it is.
_TUPLE_HOLDERS_MAX = 16
# Topics of one peer that may match one message, each a prefix of the next. A peer with more gets a table of its own, where the first
# match is enough: the cost of a message does not grow with the nesting of a peer's topics.
_NESTED_MAX = 16
# Up to so many topics a SUB filters with one `bytes.startswith` over all of them.
_FEW_TOPICS = 16


@mypyc_attr(native_class=False)
class SubscriptionLimit(RemoteProtocolError):
    """A peer has too many subscriptions."""

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(reason, code=ProtocolErrorCode.ZMTP_UNSPECIFIED)
        self.limit = limit  # in bytes


def parse_subscription(frame: bytes) -> tuple[bool, bytes] | None:
    """Parse a subscription in message form: `01 topic` is (True, topic), `00 topic` (False, topic), else None (ZMTP-62)."""
    first = frame[:1]
    if first == _SUBSCRIBE:
        return True, frame[1:]
    if first == _CANCEL:
        return False, frame[1:]
    return None


class _Crowd(Generic[P]):
    """Holders of a popular topic: added and removed in constant time, listed at most once per change."""

    __slots__ = ("_members", "_listed")

    def __init__(self, members: tuple[P, ...]) -> None:
        self._members = dict.fromkeys(members)
        self._listed: tuple[P, ...] | None = members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[P]:
        return iter(self._members)

    def add(self, pipe: P) -> None:
        self._members[pipe] = None
        self._listed = None

    def discard(self, pipe: P) -> None:
        del self._members[pipe]
        self._listed = None

    def listed(self) -> tuple[P, ...]:
        if self._listed is None:
            self._listed = tuple(self._members)
        return self._listed


class _Subscriptions(Generic[P]):
    """Relation of pipes and topics, searchable from both ends. Every topic in `_by_topic` has a holder.

    Topics of a pipe that nests too many are in a table of its own in `_apart`, until it has no topic left.
    """

    __slots__ = ("_apart", "_by_pipe", "_by_topic", "_cost")

    def __init__(self) -> None:
        self._by_topic: TopicMap[tuple[P, ...] | _Crowd[P]] = TopicMap()
        self._by_pipe: dict[P, dict[bytes, None]] = {}
        self._cost: dict[P, int] = {}
        self._apart: dict[P, TopicMap[bool]] = {}

    def topics(self, pipe: P) -> dict[bytes, None]:
        return self._by_pipe.get(pipe, {})

    def cost(self, pipe: P) -> int:
        return self._cost.get(pipe, 0)

    def add(self, pipe: P, topic: bytes) -> bool:
        """Add a new topic of a pipe; returns whether the pipe is its first holder."""
        self._by_pipe.setdefault(pipe, {})[topic] = None
        self._cost[pipe] = self._cost.get(pipe, 0) + len(topic) + TOPIC_OVERHEAD_OCTETS
        holders = self._by_topic.get(topic)
        apart = self._apart.get(pipe)
        if apart is not None:
            apart.put(topic, True)
            return holders is None and not self._is_held_apart(topic, pipe)
        if holders is None:
            self._by_topic.put(topic, (pipe,))
            return not self._is_held_apart(topic, pipe)
        if isinstance(holders, _Crowd):
            holders.add(pipe)
        elif len(holders) < _TUPLE_HOLDERS_MAX:
            self._by_topic.put(topic, (*holders, pipe))
        else:
            crowd = _Crowd(holders)
            crowd.add(pipe)
            self._by_topic.put(topic, crowd)
        return False

    def discard(self, pipe: P, topic: bytes) -> bool:
        """Remove a topic of a pipe; returns whether the pipe was its last holder."""
        topics = self._by_pipe[pipe]
        del topics[topic]
        self._cost[pipe] -= len(topic) + TOPIC_OVERHEAD_OCTETS
        if not topics:
            del self._by_pipe[pipe], self._cost[pipe]
        apart = self._apart.get(pipe)
        if apart is None:
            return self._take_out(pipe, topic) and not self._is_held_apart(topic, pipe)
        apart.drop(topic)
        if not topics:
            del self._apart[pipe]
        return self._by_topic.get(topic) is None and not self._is_held_apart(topic, pipe)

    def _is_held_apart(self, topic: bytes, pipe: P) -> bool:
        """Return whether another pipe has the topic in a table of its own."""
        return any(topic in self._by_pipe[other] for other in self._apart if other != pipe)

    def _take_out(self, pipe: P, topic: bytes) -> bool:
        """Remove a holder of a topic; returns whether it was the last."""
        holders = self._by_topic.get(topic)
        if isinstance(holders, _Crowd):
            holders.discard(pipe)
            # Half of the limit, so that one peer that comes and goes does not rebuild the holders each time.
            if len(holders) <= _TUPLE_HOLDERS_MAX // 2:
                self._by_topic.put(topic, tuple(holders))
            return False
        rest = tuple(holder for holder in holders or () if holder != pipe)
        if rest:
            self._by_topic.put(topic, rest)
            return False
        self._by_topic.drop(topic)
        return True

    def match(self, octets: bytes) -> tuple[P, ...]:
        """Return each pipe with a topic that `octets` starts with, once."""
        found = self._by_topic.prefixes(octets)
        if self._apart or len(found) > _NESTED_MAX:
            return self._match_many(octets, found)
        if not found:
            return ()
        if len(found) == 1:
            holders = found[0]
            return holders.listed() if isinstance(holders, _Crowd) else holders
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def _match_many(self, octets: bytes, found: list[tuple[P, ...] | _Crowd[P]]) -> tuple[P, ...]:
        """As `match`, when pipes have tables of their own or need one from now on."""
        matching = Counter(chain.from_iterable(found))
        apart = [pipe for pipe, table in self._apart.items() if table.covers(octets)]
        for pipe in [pipe for pipe, count in matching.items() if count > _NESTED_MAX]:
            table = self._apart[pipe] = TopicMap()
            for topic in self._by_pipe[pipe]:
                self._take_out(pipe, topic)
                table.put(topic, True)
        return (*matching, *apart)


class PublisherSubscriptions(Generic[P]):
    """Subscriptions of the peers of a PUB or XPUB, and the reports for the application of an XPUB.

    A report is a message for the application: `01 topic` or `00 topic` in one frame (PSB-04). A PUB drops reports.
    """

    def __init__(self, *, subscription_octets_max: int = SUBSCRIPTION_OCTETS_MAX, topic_octets_max: int = TOPIC_OCTETS_MAX) -> None:
        # cost limit of all topics of a peer; a topic costs `TOPIC_OVERHEAD_OCTETS` more than its bytes
        self.subscription_octets_max = subscription_octets_max
        self.topic_octets_max = topic_octets_max  # bytes of one topic
        self.report_all_subscribes = False  # XPUB_VERBOSE and XPUB_VERBOSER: report every holder of a topic, not only the first (PSB-05)
        self.report_all_cancels = False  # XPUB_VERBOSER: report every cancel, not only that of the last holder
        self.manual = False  # XPUB_MANUAL: requests of peers are reported and kept, and applied only by `grant` and `revoke` (PSB-11)
        self.inverted = False  # INVERT_MATCHING: `match` returns the pipes without a matching topic (PSB-13)
        self._pipes: dict[P, None] = {}  # attached, oldest first
        self._applied: _Subscriptions[P] = _Subscriptions()
        self._asked: _Subscriptions[P] = _Subscriptions()  # used in manual mode only

    def attach(self, pipe: P) -> bool:
        """Add a peer; returns whether it is new. A known peer keeps its topics."""
        new = pipe not in self._pipes
        self._pipes[pipe] = None
        return new

    def detach(self, pipe: P) -> list[bytes]:
        """Remove a peer and its topics; returns the reports (PSB-06).

        That is one `00 topic` for each topic without another holder; for each of its topics when all cancels are reported, and
        for each topic it asked for in manual mode.
        """
        self._pipes.pop(pipe, None)
        gone = [(topic, self._asked.discard(pipe, topic)) for topic in list(self._asked.topics(pipe))]
        applied = [(topic, self._applied.discard(pipe, topic)) for topic in list(self._applied.topics(pipe))]
        if self.manual:
            return [_CANCEL + topic for topic, _ in gone]
        return [_CANCEL + topic for topic, last in applied if last or self.report_all_cancels]

    def receive(self, pipe: P, subscribe: bool, topic: bytes) -> bytes | None:
        """Apply one subscription or cancellation of a peer; returns the report, if there is one.

        A cancellation of a topic that the peer does not have is reported too and changes nothing (PSB-07). Input of a peer that was
        detached has no effect. Raises SubscriptionLimit: the peer has too many; the caller disconnects and detaches it.
        """
        if pipe not in self._pipes:
            return None
        wanted = self._asked if self.manual else self._applied
        held = topic in wanted.topics(pipe)
        if subscribe:
            if not held:
                self._check_limits(wanted, pipe, topic)
            first = not held and wanted.add(pipe, topic)
            return _SUBSCRIBE + topic if first or self.report_all_subscribes or self.manual else None
        last = not held or wanted.discard(pipe, topic)
        return _CANCEL + topic if last or self.report_all_cancels or self.manual else None

    def grant(self, pipe: P, topic: bytes) -> None:
        """Apply a subscription for a peer by decision of the application (PSB-11); ignores a peer that has gone."""
        if pipe in self._pipes and topic not in self._applied.topics(pipe):
            self._applied.add(pipe, topic)

    def revoke(self, pipe: P, topic: bytes) -> None:
        """End a subscription of a peer by decision of the application (PSB-11)."""
        if topic in self._applied.topics(pipe):
            self._applied.discard(pipe, topic)

    def match(self, first_frame: bytes) -> tuple[P, ...]:
        """Return the pipes a message with this first frame goes to, each once (ZMTP-68)."""
        matching = self._applied.match(first_frame)
        if not self.inverted:
            return matching
        excluded = frozenset(matching)
        return tuple(pipe for pipe in self._pipes if pipe not in excluded)

    def topics(self, pipe: P) -> list[bytes]:
        return list(self._applied.topics(pipe))

    def _check_limits(self, wanted: _Subscriptions[P], pipe: P, topic: bytes) -> None:
        if len(topic) > self.topic_octets_max:
            raise SubscriptionLimit(f"topic of {len(topic)} bytes", self.topic_octets_max)
        cost = wanted.cost(pipe) + len(topic) + TOPIC_OVERHEAD_OCTETS
        if cost > self.subscription_octets_max:
            raise SubscriptionLimit(f"subscriptions that cost {cost} bytes", self.subscription_octets_max)


class SubscriberTopics:
    """Counted topics of a SUB or XSUB (ZMTP-66). The application chooses them, so there is no limit."""

    __slots__ = ("_counts", "_few", "_many")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._few: tuple[bytes, ...] | None = ()  # all topics, shortest first, while they are few
        self._many: TopicMap[bool] = TopicMap()

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[bytes]:
        """Yield each distinct topic once, oldest first, as sent on every new connection (ZMTP-67)."""
        return iter(tuple(self._counts))

    def subscribe(self, topic: bytes) -> None:
        """Count a subscription, which is sent to every publisher even if repeated."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        if not count:
            self._many.put(topic, True)
            self._list()

    def unsubscribe(self, topic: bytes) -> bool:
        """Count one subscription less; returns whether to send a cancellation: the count reached zero, and not from zero (PSB-09)."""
        count = self._counts.get(topic)
        if count is None:
            return False
        if count > 1:
            self._counts[topic] = count - 1
            return False
        del self._counts[topic]
        self._many.drop(topic)
        self._list()
        return True

    def matches(self, first_frame: bytes) -> bool:
        if self._few is not None:
            return first_frame.startswith(self._few)
        return self._many.covers(first_frame)

    def _list(self) -> None:
        self._few = tuple(sorted(self._counts, key=len)) if len(self._counts) <= _FEW_TOPICS else None
