"""The broker's shell: one ROUTER socket, one timer, and the machine that decides.

It moves batches of messages from the socket into `mdp.broker.dispatcher` and what comes out back into the socket, inside the loop's turn:
no task, no queue and no await per message. It knows nothing of MDP.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from mypy_extensions import mypyc_attr

import core
from core.machine.deadlines import TIMER_S_MIN
from core.pattern.reqrep import Router
from core.runtime import runtime, supervision
from core.zmtp.limits import PeerLimits
from mdp.access.audit_log import AuditLog
from mdp.broker.authorization import GuardedDispatcher
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.broker.recorder import Recorder
from mdp.broker.refusal_log import RefusalLog
from mdp.broker.slow_peers import Backlog
from mdp.broker.workers.peer_limits import Hops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from core.options import OptionValue
    from core.security.credentials import Secured
    from core.zmtp.scan import Batch
    from mdp.access.rules import Rules
    from mdp.broker.authorization import Refusal
    from mdp.broker.dispatcher import Output
    from mdp.eventlog.format import Block

    Guard: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

__all__ = ["Broker"]

# How long the last words, DISCONNECT and ERROR, may take to leave when the broker closes.
LINGER_MS = 1000
# Of the octets that peers together may leave unread: what is read of held-back workers beyond the high-water mark. 8 MiB by default,
# as of one peer.
AHEAD_PART = 32
# Two moments nearer than this are one to the broker, and one object: each worker keeps some, and a number left behind by a burst of
# requests keeps the whole MiB of memory round it in use.
CLOCK_S = 0.001
# After so many requests an idle broker gives memory back to the system. The C library keeps it otherwise: a burst of 100,000 requests was
# measured to leave 10 MiB behind. It takes some milliseconds, which is why it waits until nobody does.
BURST_REQUESTS = 10_000
# How often those are looked at who are behind with reading, while workers are held back for them.
LOOK_S = 0.005
# After a tick that failed, the next one waits for so long: a fault that lasts is logged ten times a second, and the loop stays free.
FAULT_S = 0.1
# Replies to a client that waits for so many others are collected until there are so many of them, or for so long: each write costs the
# broker and the client as much as several requests do. A client whose queue is that long waits many times longer for its turn.
HELD_BEHIND_MIN = 128
HELD_MAX = 64
# Not so large ones: what is collected is small beside what a client may leave unread.
HELD_BYTES_MAX = 8 * 1024
HELD_S = 0.001


@mypyc_attr(allow_interpreted_subclasses=True)
class Broker:
    """A Majordomo broker for MDP/0.1, 0.2 and 0.3.

        async with mdp.Broker(heartbeat_ms=2500, liveness=3) as broker:
            broker.bind("tcp://*:5555")
            await broker.serve_forever()

    Args:
        context: where its socket is made; its own, closed with the broker, when left out.
        security: of its own context: `core.Curve` or `core.Plain`, which say who may connect.
        socket_options: of the ROUTER, by name: `maxmsgsize`, `curve_secretkey`, `heartbeat_ivl`, …
        rules: who may call, serve and manage what; everybody everything when left out.
        limits: any field of `BrokerOptions`, by name: `heartbeat_ms`, `queue_max`, `manage`, …

    Attributes:
        machine: the dispatcher, with `machine.counters`, `machine.directory`, `machine.stats()`.
    """

    def __init__(
        self,
        *,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, OptionValue | str] | None = None,
        rules: Rules | None = None,
        **limits: Any,
    ) -> None:
        self._rules = rules
        self._audit = AuditLog()
        self._refusals = RefusalLog()
        self._limits = BrokerOptions(**limits)
        self.machine = self._new_machine()
        self._context = core.context_for(context, security)
        self._owns_context = context is None
        # No limit on the number of messages: a burst of 100,000 small replies is honest. Octets count.
        # Beyond the limit the peer is cut: replies lost without a word help nobody.
        ahead = self._limits.unread_total_max_bytes // AHEAD_PART
        own = {"sndhwm": 0, "sndhwm_bytes": self._limits.unread_max_bytes, "linger": LINGER_MS, "tell_limits": 1, "max_ahead_bytes": ahead}
        options = {**own, **(socket_options or {})}
        self._backlog = _backlog(self._limits)
        self._held_back: set[bytes] = set()  # workers that are not read from
        self._supervisor = supervision.current()
        self._look_clock = self._supervisor.timer("mdp broker backlog clock", self._look_backlog)
        self._socket = self._context.socket(core.ROUTER, **options)
        self._endpoints: list[str] = []
        self._clock = self._supervisor.timer("mdp broker clock", self._on_time)
        self._rests_until = 0.0  # before when the clock does not tick, whatever is due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._read_clock = runtime.current().monotonic
        self._moment = 0.0  # the last reading of the clock
        self._calm = 0  # requests accepted when memory was last given back
        self._full = 0  # messages dropped for full peers when last looked at
        self._held: dict[bytes, list[bytes]] = {}  # replies that wait for more, by client
        self._release_clock = self._supervisor.timer("mdp broker release clock", self._release)
        self._memory_clock = self._supervisor.timer("mdp broker memory clock", _give_memory_back)
        self._cut: set[bytes] = set()  # peers whose connection is being cut
        self._recorder: Recorder | None = None

    # What a program calls.

    def bind(self, endpoint: str) -> str:
        """Listen on an endpoint, one of several; return it with the port the system chose.

        Raises:
            core.InvalidEndpoint, core.AddressInUse: and other children of `core.ZMQError`.
        """
        self._socket.bind(endpoint)
        self._endpoints.append(self._socket.last_endpoint)
        return self._socket.last_endpoint

    @property
    def endpoints(self) -> list[str]:
        """Where the broker listens."""
        return [*self._endpoints]

    @property
    def counters(self) -> dict[str, int]:
        """Everything that was counted, by the machine and, with `socket_` before the name, by the socket."""
        of_socket = {f"socket_{name}": count for name, count in self._socket.counters.as_dict().items()}
        return {**self.machine.counters.as_dict(), **of_socket}

    @property
    def stats(self) -> dict[str, int]:
        """Counters and gauges, as `mmi.stats` answers them."""
        return self.machine.stats()

    @property
    def wakes_at(self) -> float | None:
        """When the clock of its machine ticks, in seconds of the loop; None if it is not set."""
        return self._clock.when

    @property
    def rests_until(self) -> float:
        """Before when that clock does not tick, whatever is due: it was set just now, or a tick has failed."""
        return inf if self._clock.failing else self._rests_until

    async def serve_forever(self) -> None:
        """Return when `stop` is called; the broker serves as soon as its block is entered, whether this is awaited or not."""
        if self._stopped is not None:
            await asyncio.shield(self._stopped)

    def watch(self, on_block: Callable[[Block], None] | None = None) -> Recorder:
        """Have notes taken of latencies and errors from now on.

        Args:
            on_block: takes blocks for an event log (`mdp.eventlog_files.EventLogWriter.append`), None for no log.
        """
        self.machine.book.record = self._recorder = Recorder(on_block)
        return self._recorder

    async def drain(self, drain_s: float) -> bool:
        """Refuse new connections and requests, and wait up to `drain_s` seconds until all accepted ones are answered.

        Returns:
            Whether they all were.
        """
        if self._loop is None:
            return True
        for endpoint in self._endpoints:
            self._socket.unbind(endpoint)
        self._endpoints.clear()
        self._flush(self.machine.drain(self._now(self._loop)))
        if not self.machine.idle:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=drain_s)
            self._drained = None
        return self.machine.idle

    def stop(self) -> None:
        """Tell every worker and every client that waits, and end `serve_forever`; nothing is served from now on."""
        if self._loop is None or self._stopped is None or self._stopped.done():
            return
        self._stopped.set_result(None)  # from now on no clock is set
        try:
            self._release()
            self._flush(self.machine.stop(self._now(self._loop)))
        finally:
            self._socket.set_batch_receiver(None)
            self._clock.cancel()
            self._look_clock.cancel()  # the last words may have set it
        self._look_drained()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self.machine.begin(self._loop.time())
        self._listen()
        self._rearm()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._socket.close()
        await self._socket.wait_closed()
        if self._owns_context:
            await self._context.aclose()

    # What rules need.

    def set_rules(self, rules: Rules) -> None:
        """Put other rules into force, at once and for everybody who is connected.

        Raises:
            core.LocalProtocolError: the broker was made without rules.
        """
        if not isinstance(self.machine, GuardedDispatcher):
            raise core.LocalProtocolError("this broker was made without rules")
        self._rules = rules
        self._flush(self.machine.set_rules(rules, asyncio.get_running_loop().time()))

    def _user_of(self, peer: bytes) -> str | None:
        user = self._socket.peer_property(peer, "User-Id")
        return None if user is None else user.decode("utf-8", "backslashreplace")

    def _refused(self, refusal: Refusal) -> None:
        self._audit.refused(refusal, asyncio.get_running_loop().time())

    # What a pair of brokers does otherwise (`mdp.cluster.paired_broker`).

    def _new_machine(self) -> Dispatcher:
        number = runtime.current().random_bits(63)
        if self._rules is None:
            return Dispatcher(self._limits, first_number=number)
        return GuardedDispatcher(self._limits, self._rules, user_of=self._user_of, audit=self._refused, first_number=number)

    @property
    def _is_open(self) -> bool:
        """Whether its block was entered, and `stop` not called since."""
        return self._stopped is not None and not self._stopped.done()

    def _listen(self, guard: Guard = lambda call: call) -> None:
        """Take messages from now on; everything the socket calls goes through `guard`."""
        self.machine.book.record = self._recorder
        self.machine.book.hops = Hops(PeerLimits.of(self._socket.options), self._socket.peer_limits)
        self._socket.set_batch_receiver(guard(self._on_batch), on_peer=guard(self._on_peer))

    # What the loop calls.

    def _on_batch(self, batch: Batch) -> None:
        if self._loop is None:
            return
        self._flush(self.machine.receive(batch, self._now(self._loop)))
        if self._drained is not None:
            self._look_drained()

    def _hold(self, client: bytes, messages: list[bytes], *, longer: bool) -> list[bytes]:
        """Put replies behind those that are held for a client; return what is to be sent now, nothing if they can wait `longer`."""
        held = self._held.get(client)
        if held is not None:
            held += messages
            messages = held
        if longer and len(messages) < HELD_MAX:
            self._held[client] = messages
            if self._release_clock.when is None:
                self._release_clock.after(HELD_S)
            return []
        if held is not None:
            del self._held[client]
        return messages

    def _release(self) -> None:
        """Send the replies that are held."""
        self._release_clock.cancel()
        held, self._held = self._held, {}
        for client, messages in held.items():
            self._socket.send_octets(client, messages)
        if self._socket.counters.peer_full != self._full:
            self._note_full({*held})

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        if self._loop is None:
            return
        now = self._now(self._loop)
        if peer in self._cut:
            self._cut.discard(peer)
            self._memory_clock.after(0)  # when what waited for the peer has gone with its connection
        self._held_back.discard(peer)
        self._held.pop(peer, None)
        self._flush(self.machine.peer_joined(peer, now) if joined else self.machine.peer_lost(peer, now))
        self._look_drained()

    def _on_time(self) -> None:
        if self._loop is None:
            return
        pause_s = FAULT_S
        try:
            self._flush(self.machine.tick(self._now(self._loop)))
            pause_s = 0.0
        finally:
            self._rearm(pause_s)  # whatever happened: without this clock no worker is ever beaten to or expired again
        self._look_drained()
        self._refusals.look(self.machine.counters.as_dict(), self.machine.book.reasons)
        accepted = self.machine.counters.accepted
        if self.machine.idle and accepted - self._calm >= BURST_REQUESTS:
            self._calm = accepted
            _give_memory_back()

    def _rearm(self, pause_s: float = 0.0) -> None:
        """Set the timer to what the machine asks for, but not before a pause is over."""
        if not self._is_open or self._loop is None:
            return  # nothing is due any more
        self.machine.book.rearm = False
        # To the moment itself: with a delay, a process that is suspended before the timer is set would be late by that again.
        self._rests_until = self._loop.time() + max(TIMER_S_MIN, pause_s)
        self._clock.at(max(self._rests_until, self.machine.deadline()))

    def _now(self, loop: asyncio.AbstractEventLoop) -> float:
        recorder = self._recorder
        if recorder is not None:
            # Its latencies are exact to the microsecond; uvloop's clock, the same one, to the millisecond.
            recorder.now = self._moment = self._read_clock()
            return self._moment
        now = loop.time()
        if now - self._moment >= CLOCK_S:
            self._moment = now
        return self._moment

    def _look_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and self.machine.idle:
            self._drained.set_result(None)

    def _flush(self, out: Output) -> None:
        """Send what the machine says, with the clock set for what is due now: whatever calls the machine ends here."""
        loop = self._loop
        if self.machine.book.rearm:
            self._rearm()
        if not out or loop is None:
            return
        clients, sent = self.machine.book.clients, 0
        for peer, messages in out.items():
            size = sum(map(len, messages))
            sent += size
            mine = clients.get(peer)
            if mine is not None and (len(mine) >= HELD_BEHIND_MIN or self._held):
                messages = self._hold(peer, messages, longer=len(mine) >= HELD_BEHIND_MIN and size < HELD_BYTES_MAX)
            if messages:
                self._socket.send_octets(peer, messages)
        self._backlog.left -= sent
        if self._backlog.left < 0:
            self._look_backlog()
        if self._socket.counters.peer_full != self._full:
            self._note_full({*out})

    def _note_full(self, peers: set[bytes]) -> None:
        """Cut those whose queue is full: what was dropped for them would be missed for ever."""
        self._full = self._socket.counters.peer_full
        pattern = self._socket.pattern
        if isinstance(pattern, Router):
            self._cut_slow(peer for peer in peers if (pipe := pattern.routes.get(peer)) is not None and len(pipe.outbox) >= pipe.limit)

    def _look_backlog(self) -> None:
        """Look at what waits for all peers: cut those for whom it is too much, hold workers back for those who are waited for."""
        loop, pattern = self._loop, self._socket.pattern
        if loop is None or not isinstance(pattern, Router):
            return
        workers = self.machine.directory.workers  # what waits for them are requests, which have a limit of their own
        waiting = {
            peer: octets
            for peer, pipe in pattern.routes.items()
            if peer not in self._cut and peer not in workers and (octets := pipe.waiting_bytes())
        }
        self._look_clock.cancel()
        slow = self._backlog.look(waiting, loop.time())
        awaited = self._backlog.awaited
        if awaited:  # before anything else can fail: workers are held back until they are looked at again
            self._look_clock.after(LOOK_S)
        self._cut_slow(slow)
        if not awaited and not self._held_back:
            return
        for worker in workers.values():
            pipe = pattern.routes.get(worker.peer)
            if pipe is None or pipe.throttled != (worker.peer in self._held_back):
                continue
            if awaited and any(request.client in awaited for request in worker.held.values()):
                if not pipe.throttled:
                    self._held_back.add(worker.peer)
                    pipe.engine.throttle()
            elif pipe.throttled:
                self._held_back.discard(worker.peer)
                pipe.engine.resume()

    def _cut_slow(self, peers: Iterable[bytes]) -> None:
        for peer in peers:
            if peer not in self._cut:
                self._cut.add(peer)
                self.machine.counters.count("cut_slow")
                self._socket.cut(peer, "it does not read what it is sent")


def _backlog(limits: BrokerOptions) -> Backlog:
    # A worker that is not read from is not heard: it must not be taken for dead meanwhile.
    hold_ms = min(limits.unread_hold_ms, limits.heartbeat_ms * limits.liveness / 2)
    total_bytes = limits.unread_total_max_bytes - limits.unread_total_max_bytes // AHEAD_PART  # the rest is read of workers held back
    return Backlog(limits.unread_max_bytes, total_bytes, hold_ms / 1000)


def _give_memory_back() -> None:
    """Return free memory of the C library to the system, where it is glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
