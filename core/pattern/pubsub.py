"""PUB, SUB, XPUB, XSUB (RFC 29; PSB-01..16, ZMTP-61..71)."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from core.pattern.base import Counters, Pattern
from core.pattern.distributor import distribute, has_capacity
from core.pattern.pipe import Detached, Pipe
from core.pattern.subscriptions import (
    TOPIC_OVERHEAD_OCTETS,
    PublisherSubscriptions,
    SubscriberTopics,
    SubscriptionLimit,
    parse_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.options import Options
    from core.zmtp.frames import Given, Message


class _Resume(Detached):
    """Engine of the queue of subscriptions: when it is empty, more are queued and reading from all peers resumes."""

    __slots__ = ("_emptied",)

    def __init__(self, emptied: Callable[[], None]) -> None:
        self._emptied = emptied

    def resume(self) -> None:
        self._emptied()


class XPub(Pattern):
    """A publisher whose application receives the subscriptions (PSB-03..07, 11..13)."""

    type_name: ClassVar[bytes] = b"XPUB"
    as_queued: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def __init__(self, options: Options, counters: Counters) -> None:
        super().__init__(options, counters)
        self.subscriptions: PublisherSubscriptions[Pipe] = PublisherSubscriptions(subscription_octets_max=options.max_subscription_bytes)
        # One queue keeps the order of arrival: fair queueing could report the end of a subscription before its beginning.
        self._arrivals = Pipe()
        self._arrivals.engine = _Resume(self._emptied)
        self._askers: deque[Pipe] = deque()  # their peers
        # Reports beyond RCVHWM by topic, with their peers. A begin that ends before it is received is never seen, so they are hardly more
        # than the topics, and an application that does not receive them still publishes to all.
        self._put_off: dict[bytes, list[tuple[bytes, Pipe]]] = {}
        self._put_off_octets = 0
        self._asker: Pipe | None = None  # the peer of the last received subscription (PSB-11)
        self.follow_options()

    def follow_options(self) -> None:
        options, table = self.options, self.subscriptions
        table.report_all_cancels = bool(options.xpub_verboser)
        table.report_all_subscribes = bool(options.xpub_verbose or options.xpub_verboser)
        table.manual = bool(options.xpub_manual)
        table.inverted = bool(options.invert_matching)
        table.subscription_octets_max = options.max_subscription_bytes
        if self._put_off and not self._alternates():
            self._queue_put_off(len(self._put_off))

    def ready(self, pipe: Pipe) -> bool:
        """Begin to serve a subscriber; a new one gets the welcome message (PSB-12)."""
        if self.subscriptions.attach(pipe) and self.options.xpub_welcome_msg:
            distribute([pipe], [self.options.xpub_welcome_msg], self.counters)
        return True

    def suspend(self, pipe: Pipe) -> None:
        """Keep the topics and queue of a peer that we connect to; with IMMEDIATE drop both (OPT-01)."""
        if self.options.immediate:
            self._leave(pipe)
            self.counters.undelivered += pipe.discard_outbox()

    def detach(self, pipe: Pipe) -> None:
        """Remove a subscriber and report the topics without another holder (PSB-06)."""
        super().detach(pipe)
        self._leave(pipe)

    def _leave(self, pipe: Pipe) -> None:
        self._report(pipe, self.subscriptions.detach(pipe))

    def _report(self, pipe: Pipe, reports: list[bytes]) -> None:
        self._show(pipe, [[report] for report in reports])

    def _show(self, pipe: Pipe, messages: list[Message]) -> None:
        """Queue what the application receives; beyond RCVHWM put reports off, or stop reading from the peer."""
        arrivals = self._arrivals
        alternates = self._alternates()
        if self._put_off or (alternates and len(arrivals.inbox) >= pipe.rcvhwm):
            messages = [message for message in messages if not self._is_put_off(pipe, message)]
            if self._put_off_octets > self.options.max_subscription_bytes:
                pipe.engine.throttle()
        if messages:
            self.inbound.push(arrivals, messages)
            self._askers.extend([pipe] * len(messages))
            if len(arrivals.inbox) >= pipe.rcvhwm:
                arrivals.throttled = True
                if not alternates or any(parse_subscription(message[0]) is None for message in messages):
                    pipe.engine.throttle()

    def _alternates(self) -> bool:
        """Return whether the reports of a topic are its begin and its end in turn."""
        table = self.subscriptions
        return not (table.manual or table.report_all_subscribes or table.report_all_cancels)

    def _is_put_off(self, pipe: Pipe, message: Message) -> bool:
        """Keep a report for later, or forget the begin that it ends; return False for other messages."""
        report = bytes(message[0])
        if len(message) > 1 or parse_subscription(report) is None:
            return False
        topic = report[1:]
        kept = self._put_off.setdefault(topic, [])
        cost = len(topic) + TOPIC_OVERHEAD_OCTETS
        if not kept or (kept[-1][0] != report and report[0]):
            kept.append((report, pipe))
            self._put_off_octets += cost
        elif kept[-1][0] != report:
            kept.pop()
            self._put_off_octets -= cost
            if not kept:
                del self._put_off[topic]
        return True

    def _emptied(self) -> None:
        """Queue reports that were put off, and resume reading from the peers when there are none."""
        self._arrivals.throttled = False
        if self._put_off:
            self._queue_put_off(self.options.rcvhwm or len(self._put_off))
            return
        for pipe in self.pipes:
            if pipe.throttled:
                pipe.engine.resume()

    def _queue_put_off(self, most: int) -> None:
        for topic in list(islice(self._put_off, most)):
            reports = self._put_off.pop(topic)
            self._put_off_octets -= len(reports) * (len(topic) + TOPIC_OVERHEAD_OCTETS)
            self.inbound.push(self._arrivals, [[report] for report, _ in reports])
            self._askers.extend([pipe for _, pipe in reports])
        self._arrivals.throttled = True
        self.on_state_change()

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Apply subscriptions and queue what the application receives (ZMTP-62, 70, 71)."""
        shown: list[Message] = []
        for message in messages:
            for frame in message:
                parsed = parse_subscription(frame)
                if parsed is None:
                    continue
                try:
                    report = self.subscriptions.receive(pipe, *parsed)
                except SubscriptionLimit as error:
                    self._show(pipe, self._visible(shown))
                    self._leave(pipe)  # also topics of earlier connections: the next connection begins anew
                    pipe.engine.abort_with(error.reason)
                    return []
                if report is not None:
                    shown.append([report])
            if parse_subscription(message[0]) is None:
                shown.append(message)
        self._show(pipe, self._visible(shown))
        return []

    def _visible(self, messages: list[Message]) -> list[Message]:
        return messages

    def recv(self) -> Message | None:
        """Take the next report or upstream message; remembers its peer for manual mode (PSB-11)."""
        message = super().recv()
        if message is not None:
            self._asker = self._askers.popleft()
        return message

    def recv_many(self) -> list[Message]:
        messages = super().recv_many()
        for _ in messages:
            self._asker = self._askers.popleft()
        return messages

    def next_pipe(self) -> Pipe | None:
        return self._askers[0] if self._askers else None

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        super().put_back(self._arrivals, message)
        if pipe is not None:
            self._askers.appendleft(pipe)

    def apply(self, topic: bytes, subscribe: bool) -> None:
        """Subscribe or unsubscribe the peer of the last received message (XPUB_MANUAL, PSB-11)."""
        if self._asker is not None:
            decide = self.subscriptions.grant if subscribe else self.subscriptions.revoke
            decide(self._asker, topic)

    def has_capacity_for(self, first: Any) -> bool:
        """With XPUB_NODROP, return whether all matching peers have capacity (PSB-03)."""
        return not self.options.xpub_nodrop or all(map(has_capacity, self.subscriptions.match(bytes(first))))

    def send(self, frames: Given) -> bool:
        """Publish; never waits, except with XPUB_NODROP when a matching peer is full (PSB-01, PSB-03)."""
        pipes = self.subscriptions.match(bytes(frames[0]))
        if not pipes:
            return True
        if self.options.xpub_nodrop:
            full = [pipe for pipe in pipes if not has_capacity(pipe)]
            for pipe in full:
                pipe.waiting_for_capacity = True
            if full:
                return False
        distribute(pipes, frames, self.counters)
        return True

    def writable(self) -> bool:
        return True


class Pub(XPub):
    """A publisher that does not report subscriptions (PSB-04)."""

    type_name: ClassVar[bytes] = b"PUB"
    receives: ClassVar[bool] = False
    one_per_endpoint: ClassVar[bool] = True

    def _report(self, pipe: Pipe, reports: list[bytes]) -> None: ...  # drop the reports

    def _visible(self, messages: list[Message]) -> list[Message]:
        """Return nothing: subscriptions are not reported, other messages are counted and dropped (ZMTP-70)."""
        self.counters.unexpected += sum(parse_subscription(message[0]) is None for message in messages)
        return []


class XSub(Pattern):
    """A subscriber whose application sends the subscriptions itself (PSB-08, PSB-09)."""

    type_name: ClassVar[bytes] = b"XSUB"

    def __init__(self, options: Options, counters: Counters) -> None:
        super().__init__(options, counters)
        self.topics = SubscriberTopics()

    def ready(self, pipe: Pipe) -> bool:
        """Send every topic to a publisher, on every connection (ZMTP-67)."""
        for topic in self.topics:
            pipe.engine.subscribe(topic, True)
        return True

    def suspend(self, pipe: Pipe) -> None:
        """Drop what was queued for the old connection; on the next, the topics are sent first."""
        self.counters.undelivered += pipe.discard_outbox()

    def subscribe(self, topic: bytes) -> None:
        """Count a subscription and send it to every publisher (ZMTP-66)."""
        self.topics.subscribe(topic)
        self._tell(topic, True)

    def unsubscribe(self, topic: bytes) -> None:
        """Count one less, and send a cancellation when none is left."""
        if self.topics.unsubscribe(topic):
            self._tell(topic, False)

    def _tell(self, topic: bytes, subscribe: bool) -> None:
        for pipe in self.pipes:
            if pipe.connected:
                pipe.engine.subscribe(topic, subscribe)

    def send(self, frames: Given) -> bool:
        """Take `01topic` / `00topic` as subscriptions, send anything else to every publisher; never waits."""
        parsed = parse_subscription(bytes(frames[0])) if len(frames) == 1 else None
        if parsed is None:
            distribute([pipe for pipe in self.pipes if self.available(pipe)], frames, self.counters)
        elif parsed[0]:
            self.subscribe(parsed[1])
        else:
            self.unsubscribe(parsed[1])
        return True

    def writable(self) -> bool:
        return True


class Sub(XSub):
    """A subscriber: filters received messages again, and does not send (ZMTP-69, PSB-10)."""

    type_name: ClassVar[bytes] = b"SUB"
    as_queued: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    one_per_endpoint: ClassVar[bool] = True

    def __init__(self, options: Options, counters: Counters) -> None:
        super().__init__(options, counters)
        self._stale = False  # queued messages may no longer match

    def follow_options(self) -> None:
        """Filter queued messages again: INVERT_MATCHING may have changed (SOCK-07)."""
        self._stale = bool(self.inbound.active)

    def subscribe(self, topic: bytes) -> None:
        """See `XSub`; with INVERT_MATCHING queued messages of the topic are no longer delivered."""
        super().subscribe(topic)
        self._stale = self._stale or bool(self.options.invert_matching)

    def unsubscribe(self, topic: bytes) -> None:
        """See `XSub`; queued messages of the topic are no longer delivered."""
        super().unsubscribe(topic)
        self._stale = bool(self.inbound.active)

    def _wanted(self, messages: list[Message]) -> list[Message]:
        matches = self.topics.matches
        inverted = bool(self.options.invert_matching)
        wanted = [message for message in messages if matches(message[0]) is not inverted]
        self.counters.unsubscribed += len(messages) - len(wanted)
        return wanted

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        return self._wanted(messages)

    def recv(self) -> Message | None:
        while (message := self.inbound.pop()) is not None:
            if not self._stale or self._wanted([message]):
                return message
        self._stale = False
        return None

    def recv_many(self) -> list[Message]:
        messages = self.inbound.pop_many()
        if self._stale:
            self._stale = False
            return self._wanted(messages)
        return messages

    def next_pipe(self) -> Pipe | None:
        return super().next_pipe() if self.readable() else None

    def readable(self) -> bool:
        active = self.inbound.active
        while active and self._stale and not self._wanted([active[0].inbox[0]]):
            self.inbound.pop()
        return bool(active)

    def send(self, frames: Given) -> bool:
        return Pattern.send(self, frames)

    def writable(self) -> bool:
        return False
