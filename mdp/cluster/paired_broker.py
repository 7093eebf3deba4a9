"""A broker of a Binary Star pair: it serves while its `bstar.Pair` is active, and refuses otherwise.

    async with bstar.Pair(bstar.PRIMARY, local="tcp://*:5003", remote="tcp://10.0.0.2:5004") as pair, mdp.PairedBroker(pair) as broker:
        broker.bind("tcp://*:5555")
        await pair.serve_forever()

The frontend stays bound all the time, so a takeover does not depend on a free port. Its messages go to

    passive   `mdp.cluster.standby`: redirects peers to the active broker, counts requests as votes, holds them during a claim
    active    the broker's machine, a new one for each term: workers and clients register and send again

A broker that stops being active closes all its connections. Its workers and clients go to the other one at once and send unanswered
requests again. No reply leaves after the end of a term, because each call of socket or timer first asks the pair. This costs a paired
broker one check per batch of messages, and other brokers nothing.

A term may go on after a moment in which nothing may leave, such as a lease that was renewed late. What arrives then is kept until it may be
processed: without the reply of a worker its request would be in flight for ever.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from core.pattern.reqrep import Router
from core.zmtp.scan import Batch
from mdp.broker.broker import Broker
from mdp.cluster.standby import StandbyFrontend, is_postponable
from mdp.wire.failover import PairResponder

if TYPE_CHECKING:
    from collections.abc import Callable

    import core
    from bstar.pair import Pair
    from core.zmtp.frames import Message
    from mdp.broker.limits import BrokerArguments
    from mdp.broker.requests.request_ends import Output

# Loop iterations after which the last replies of a term have left the process: the one that wrote them, and the next.
ITERATIONS_TO_FLUSH: Final = 3
# Interval of checks whether a broker that may not answer now, but whose term is not over, may answer again.
WITHHELD_S: Final = 0.05
# Of the messages and new peers kept meanwhile, which are those of a lease's time, and of requests kept during a hand-over. Further
# messages are dropped, and their clients send them again; further peers are disconnected.
WITHHELD_MAX_BYTES: Final = 64 * 1024**2
_CALL_BYTES: Final = 500  # of what is kept besides the octets


class PairedBroker(Broker):
    """A broker of a pair.

    Args:
        pair: entered before the broker, and left after it.
        options: of `mdp.Broker`.

    Attributes:
        pair_counters: of peers and requests at the end of terms, refused and held requests, withheld answers, by name.
    """

    def __init__(self, pair: Pair, **options: Unpack[BrokerArguments]) -> None:
        super().__init__(**options)
        self.pair = pair
        self.pair_counters: Counter[str] = Counter()
        self._responder: PairResponder | None = None  # while we serve
        self._frontend = StandbyFrontend(pair, self.pair_counters, reply=self._reply, disconnect=self._disconnect)
        self._postponed: list[Message] = []  # requests that arrived during a hand-over
        self._postponed_bytes = 0
        self._put_off: set[bytes] = set()  # clients with requests for which there was no space there
        self._kept: deque[tuple[Callable[..., Any], tuple[Any, ...], int]] = deque()  # calls that may not be made now, with their bytes
        self._kept_bytes = 0
        self._turned_away: set[bytes] = set()  # peers whose arrival could not be kept, until they have left
        pair.on_serving(self._begin_term)
        pair.on_passive(self._end_term)
        pair.on_handover(self._drain_requests, self._resume)

    async def drain(self, drain_s: float) -> bool:
        """Hand over if the other broker can take over, and finish the requests; see `Broker.drain`."""
        finished = await self.pair.drain(drain_s)
        if not self.pair.serves():
            return finished
        # No hand-over is possible: drain like a single broker, which refuses what comes meanwhile.
        idle = await super().drain(0)
        self._resume()
        return idle and finished

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the pair and of its broker, by name."""
        return self.pair.metrics() | {f"mdp_pair_{name}_total": count for name, count in self.pair_counters.items()} | self.stats

    async def __aexit__(self, *error: Any) -> None:
        self._frontend.close()
        await super().__aexit__(*error)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self.pair.serves():
            self._begin_term()
        return self

    # Terms.

    def _listen(self, guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None) -> None:
        self._socket.set_batch_receiver(self._frontend.receive, on_peer=self._frontend.peer_changed)

    def _begin_term(self) -> None:
        if self._loop is None or not self._is_open or self._socket.closed:
            return
        heartbeat_s = self.pair.machine.settings.heartbeat_s
        self._responder = self.machine.pair = PairResponder(self.pair.ballot(), self.pair.vouches, heartbeat_s)
        self.machine.begin(self._loop.time())
        super()._listen(self._guarded)
        if isinstance(pattern := self._socket.pattern, Router):
            for peer in [*pattern.routes]:  # those that came before the term: their limits count in it
                self._on_peer(peer, True)
        self._rearm()
        self._receive_again(self._frontend.release_held())

    def _end_term(self) -> None:
        """End a term, if there was one: remove and disconnect all peers, so that they go to the other broker."""
        if self._responder is None or not self._is_open or self._socket.closed:
            return
        self.pair_counters["requests_let_go"] += self.machine.counters.accepted - self.machine.counters.closed + len(self._postponed)
        self._responder = None
        self._take_postponed()
        self.pair_counters["withheld"] += len(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        self.machine = self._new_machine()
        self._drained.look()  # no request is left
        self._release()
        self._listen()
        pattern = self._socket.pattern
        if isinstance(pattern, Router):
            for peer in [*pattern.routes]:
                self.pair_counters["peers_let_go"] += 1
                self._disconnect(peer)

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `call` while this broker may answer (BST-29)."""

        def guarded(*given: Any) -> Any:
            with self._records:
                if self._kept or not self.pair.serves():
                    self._keep(call, given)
                else:
                    call(*given)
                    self._report_claimed()

        return guarded

    def _keep(self, call: Callable[..., Any], given: tuple[Any, ...]) -> None:
        """Keep a call until it may be made: messages and arrivals where there is space, departures and replies always.

        So there are as many departures as peers that the machine knows and arrivals that were kept.
        """
        size, first, arrives = _CALL_BYTES, given[0], False
        if isinstance(first, Batch):
            size += len(first.octets) + sum(len(frame) for message in first.made for frame in message)
        elif isinstance(first, dict):
            size += sum(len(message) for messages in first.values() for message in messages)
        elif given[1]:
            arrives = True
        elif first in self._turned_away:
            self._turned_away.discard(first)
            return
        if self._kept_bytes + size > WITHHELD_MAX_BYTES and (arrives or isinstance(first, Batch)):
            self.pair_counters["withheld"] += 1
            if arrives:
                self._turned_away.add(first)
                self._disconnect(first)
            return
        self.pair_counters["held_back"] += 1
        if not self._kept:  # once: messages that go on coming must not put it off
            self._clock.after(WITHHELD_S)
        self._kept.append((call, given, size))
        self._kept_bytes += size

    def _make_kept_calls(self) -> None:
        """Make the calls that were kept, in their order."""
        while self._kept and self.pair.serves():
            call, given, size = self._kept.popleft()
            self._kept_bytes -= size
            call(*given)
        if not self._kept:
            self._turned_away.clear()
        self._report_claimed()

    def _report_claimed(self) -> None:
        """Ask peer and witness about ballots that clients have claimed; one that is confirmed ends our term (BST-45)."""
        responder = self._responder
        if responder is None or not responder.claimed:
            return
        claimed, responder.claimed = responder.claimed, []
        for peer, ballot in claimed:
            self.pair_counters["ballots_named"] += 1
            self._audit.ballot_named(peer, self._user_of(peer), str(ballot), str(responder.ballot), asyncio.get_running_loop().time())
        for ballot in {ballot: None for _, ballot in claimed}:
            self.pair.verdict(ballot)

    def _flush(self, out: Output) -> None:
        """Send what came of a call that was not kept, such as new rules, when it may leave."""
        if out and self._responder is not None and not self.pair.serves():
            self._keep(self._flush, (out,))
            out = {}
        super()._flush(out)

    def _release(self) -> None:
        if self._responder is None:
            self.pair_counters["withheld"] += sum(map(len, self._held.values()))
            self._held.clear()
        elif not self.pair.serves():
            self._release_clock.after(WITHHELD_S)
            return
        super()._release()

    def _on_time(self) -> None:
        if self._responder is None:
            return
        self._rearm()  # first: what was kept may make something due
        self._make_kept_calls()
        if self.pair.serves():
            super()._on_time()
        else:
            self._clock.after(WITHHELD_S)  # the term may go on, and nothing else sets the timer

    def _end_at_once(self, error: MemoryError | core.ContextTerminated) -> None:
        if self._is_open:
            errors = [error]

            def end_pair() -> None:
                if errors:
                    raise errors.pop()

            self.pair.timer(WITHHELD_S, end_pair)  # so that the other broker takes over
        super()._end_at_once(error)

    # Handing over.

    async def _drain_requests(self, drain_s: float) -> bool:
        """Postpone new requests and wait for the accepted ones (BST-36)."""
        if self._responder is None or self._loop is None or not self._is_open:
            return True
        self._socket.set_batch_receiver(self._guarded(self._postpone_requests), on_peer=self._guarded(self._on_peer))
        await self._drained.wait(drain_s)
        self._release()
        for _ in range(ITERATIONS_TO_FLUSH):
            await asyncio.sleep(0)
        return self.machine.idle

    def _postpone_requests(self, batch: Batch) -> None:
        """Postpone requests that their clients can send to the other broker; process the other messages."""
        others = []
        for message in batch:
            size = _CALL_BYTES + sum(map(len, message))
            if not is_postponable(message):
                others.append(message)
            elif self._postponed_bytes + size > WITHHELD_MAX_BYTES:
                self.pair_counters["withheld"] += 1
                self._put_off.add(message[0])
            else:
                self._postponed.append(message)
                self._postponed_bytes += size
        if others:
            self._on_batch(Batch.of(batch.head, others))

    def _receive_again(self, messages: list[Message]) -> None:
        """Process messages that were kept, `[routing id, frame, …]`."""
        for peer, run in groupby(messages, key=itemgetter(0)):
            self._guarded(self._on_batch)(Batch.of([peer], list(run)))

    def _resume(self) -> None:
        if self._responder is None or not self._is_open or self._socket.closed:
            return
        super()._listen(self._guarded)
        kept, put_off = self._take_postponed()
        for peer in put_off:
            self._disconnect(peer)  # it connects again and sends what it has no reply to
        self._receive_again([message for message in kept if message[0] not in put_off])

    def _take_postponed(self) -> tuple[list[Message], set[bytes]]:
        """Remove and return the requests kept during a hand-over, and the clients of which not all could be kept."""
        taken, self._postponed, self._put_off = (self._postponed, self._put_off), [], set()
        self._postponed_bytes = 0
        return taken

    # Called by the frontend.

    def _reply(self, message: Message) -> None:
        if not self._socket.closed:
            self._socket.send_multipart(message)

    def _disconnect(self, peer: bytes) -> None:
        if not self._socket.closed:
            self._socket.cut(peer, "this broker is not the active one of its pair")
