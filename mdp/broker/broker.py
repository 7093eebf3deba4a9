"""The broker's shell: one ROUTER socket, one timer, and the machine that decides.

It passes batches of messages from the socket to `mdp.broker.dispatcher` and the resulting messages to the socket, within one event-loop
iteration: no task, no queue and no await per message. It does not parse MDP.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, Unpack

from mypy_extensions import mypyc_attr

import core
from core.machine.deadlines import TIMER_S_MIN
from core.rpc.drained import Drained
from core.runtime import runtime, supervision
from core.zmtp.limits import PeerLimits
from mdp.access.audit_log import AuditLog
from mdp.broker.authorization import GuardedDispatcher
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions, BrokerSettings
from mdp.broker.memory import WholeRecords, give_back
from mdp.broker.recorder import Recorder
from mdp.broker.refusal_log import RefusalLog
from mdp.broker.slow_peers import SlowPeers, backlog_of
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.channels import ANNOUNCED, connection_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from core.option_table import OptionValue
    from core.security.credentials import Secured
    from core.zmtp.scan import Batch
    from mdp.access.rules import Rules
    from mdp.access.service_policies import ServicePolicies
    from mdp.broker.authorization import Refusal
    from mdp.broker.requests.request_ends import Output
    from mdp.eventlog.format import Block

    Guard: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

# Time for the last messages, DISCONNECT and ERROR, to be sent when the broker closes.
LINGER_MS = 1000
# Resolution of the broker's time. Nearer times share one float object: each worker keeps some, and a float left from a burst of requests
# keeps the MiB of memory around it in use.
CLOCK_S: Final = 0.001
# After this many requests an idle broker returns memory to the system; otherwise the C library keeps it (10 MiB measured after a burst of
# 100,000 requests). It takes some milliseconds, so it is done only while no request is open.
BURST_REQUESTS = 10_000
# Pause after a failed tick: a lasting fault is logged ten times a second and does not block the loop.
FAULT_S = 0.1
# Replies to a client with HELD_BEHIND_MIN open requests are collected up to HELD_MAX, for up to `hold_replies_ms`: a write costs broker and
# client as much as several requests. With that many open requests, a client waits many times longer for an answer anyway.
HELD_BEHIND_MIN: Final = 128
HELD_MAX: Final = 64
# Larger replies are not collected: what is collected must be small compared to `unread_max_bytes`.
HELD_BYTES_MAX: Final = 8 * 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class Broker:
    """A Majordomo broker for MDP/0.1, 0.2 and 0.3.

        async with mdp.Broker(heartbeat_ms=2500, liveness=3) as broker:
            broker.bind("tcp://*:5555")
            await broker.serve_forever()

    Args:
        context: for its socket; when left out, the broker makes one and closes it.
        security: of its own context: `core.Curve` or `core.Plain`, which decide which peers may connect.
        socket_options: of the ROUTER, by name: `maxmsgsize`, `curve_secretkey`, `heartbeat_ivl`, …
        rules: which users may call, serve and manage what; without rules everything is allowed.
        policies: rates, retries and priorities of services, in place of those that workers announce.
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
        policies: ServicePolicies | None = None,
        **limits: Unpack[BrokerSettings],
    ) -> None:
        self._rules, self._policies = rules, policies
        self._audit, self._refusals = AuditLog(), RefusalLog()
        self._limits = BrokerOptions(**limits)
        self._context = core.context_for(context, security)
        self._owns_context = context is None
        known = self._context.security
        lasting = known.lasting_secret if isinstance(known, core.Curve | core.Plain) else None
        self._owner_secret = runtime.current().random_bytes(32) if lasting is None else lasting
        self.machine = self._new_machine()
        # No limit on the number of messages, as a burst of 100,000 small replies is legitimate; bytes are limited.
        # Beyond that limit the peer is disconnected, instead of losing replies silently.
        self._backlog, ahead = backlog_of(self._limits)
        options: dict[str, OptionValue | str] = {
            "sndhwm": 0,
            "sndhwm_bytes": self._limits.unread_max_bytes,
            "linger": LINGER_MS,
            "tell_limits": 1,
            "max_ahead_bytes": ahead,
            "metadata": ANNOUNCED,
            **(socket_options or {}),
        }
        self._supervisor = supervision.current()
        self._records = WholeRecords(self._end_at_once)
        timed = self._records.kept_by
        self._look_clock = self._supervisor.timer("mdp broker backlog clock", timed(self._look_backlog))
        self._socket = self._context.socket(core.ROUTER, **options)
        self._socket_counters = self._socket.counters
        self._slow_peers = SlowPeers(self._socket, self._backlog, self._look_clock)
        self._endpoints: list[str] = []
        self._clock = self._supervisor.timer("mdp broker clock", timed(self._on_time))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._drained = Drained(lambda: self.machine.idle or not self._is_open)
        self._read_clock = runtime.current().monotonic
        self._moment = 0.0  # the last reading of the clock
        self._full = 0  # messages dropped for full peers when last looked at
        self._held: dict[bytes, list[bytes]] = {}  # replies collected for one write, by client
        self._hold_s = self._limits.hold_replies_ms / 1000
        self._release_clock = self._supervisor.timer("mdp broker release clock", timed(self._release))
        self._memory_clock = self._supervisor.timer("mdp broker memory clock", timed(self._give_memory_back))
        self._recorder: Recorder | None = None

    # Called by programs.

    def bind(self, endpoint: str) -> str:
        """Listen on one more endpoint; return it with the actual port.

        Raises:
            core.InvalidEndpoint, core.AddressInUse: and other children of `core.ZMQError`.
        """
        self._socket.bind(endpoint)
        self._endpoints.append(self._socket.last_endpoint)
        return self._socket.last_endpoint

    @property
    def endpoints(self) -> list[str]:
        """Endpoints on which the broker listens."""
        return [*self._endpoints]

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the machine and, with the prefix `socket_`, of the socket."""
        of_socket = {f"socket_{name}": count for name, count in self._socket.counters.as_dict().items()}
        return {**self.machine.counters.as_dict(), **of_socket}

    @property
    def stats(self) -> dict[str, int]:
        """Counters and gauges, as `mmi.stats` answers them."""
        return self.machine.stats()

    @property
    def wakes_at(self) -> float | None:
        """Time of the machine's next tick, in seconds of the loop; None if no tick is scheduled."""
        return self._clock.when

    @property
    def rests_until(self) -> float:
        """Earliest time of that tick, whatever is due: it was just scheduled, or a tick has failed."""
        return inf if self._clock.failing else self._rests_until

    async def serve_forever(self) -> None:
        """Return when `stop` is called; the broker serves from entering its block, even if this is not awaited.

        Raises:
            MemoryError: there was none in the middle of a change. The broker has ended at once, since its records may be changed by half;
                leaving its block raises this too, unless another error does.
            core.ContextTerminated: the program has ended the context.
        """
        if self._stopped is not None:
            await asyncio.shield(self._stopped)

    def watch(self, on_block: Callable[[Block], None] | None = None) -> Recorder:
        """Record latencies and errors from now on.

        Args:
            on_block: receives blocks for an event log (`mdp.eventlog_files.EventLogWriter.append`), None for no log.
        """
        self.machine.request_table.recorder = self._recorder = Recorder(on_block)
        return self._recorder

    async def drain(self, drain_s: float) -> bool:
        """Refuse new connections and requests; return whether all accepted ones were answered within `drain_s` seconds."""
        if self._loop is None or self._failed:
            return not self._failed
        for endpoint in self._endpoints:
            self._socket.unbind(endpoint)
        self._endpoints.clear()
        with self._records:
            self._flush(self.machine.drain(self._now(self._loop)))
        return await self._drained.wait(drain_s) and not self._failed

    def stop(self) -> None:
        """Send DISCONNECT to workers and errors to waiting clients, end `serve_forever`, and stop serving."""
        if self._loop is None or self._stopped is None or self._stopped.done():
            return
        self._stopped.set_result(None)  # from now on no timer is set
        with ExitStack() as stack:
            for clock in (self._clock, self._look_clock, self._release_clock, self._memory_clock):
                stack.callback(clock.cancel)  # sending the last messages may have set it
            stack.callback(self._socket.set_batch_receiver, None)
            self._release()
            self._flush(self.machine.stop(self._now(self._loop)))
        self._drained.look()

    @property
    def _failed(self) -> BaseException | None:
        return self._stopped.exception() if self._stopped is not None and self._stopped.done() else None

    def _context_ended(self) -> None:
        self._end_at_once(core.ContextTerminated())

    def _end_at_once(self, error: MemoryError | core.ContextTerminated) -> None:
        """End, and send nothing more: it could be wrong, or nothing can be sent."""
        if self._loop is None or self._stopped is None or self._stopped.done():
            return
        self._stopped.set_exception(error)
        for clock in (self._clock, self._look_clock, self._release_clock, self._memory_clock):
            clock.cancel()
        if not self._context.closed:
            self._socket.set_batch_receiver(None)
        self._loop.call_soon(self._socket.close, 0)  # not within its own call
        self._drained.look()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._context.on_end[self._context_ended] = self._loop
        self.machine.begin(self._loop.time())
        self._listen()
        self._rearm()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._context.on_end.pop(self._context_ended, None)
        self._socket.close()
        async with AsyncExitStack() as stack:
            if self._owns_context:
                stack.push_async_callback(self._context.aclose)
            await self._socket.wait_closed()
        if isinstance(failed := self._failed, MemoryError) and error is None:
            raise failed

    # Authorization.

    def set_rules(self, rules: Rules) -> None:
        """Replace the rules at once, for connected peers too.

        Raises:
            core.LocalProtocolError: the broker was made without rules.
        """
        if not isinstance(self.machine, GuardedDispatcher):
            raise core.LocalProtocolError("this broker was made without rules")
        self._rules = rules
        with self._records:
            self._flush(self.machine.set_rules(rules, asyncio.get_running_loop().time()))

    def set_policies(self, policies: ServicePolicies | None) -> None:
        """Replace the policies of services at once, for waiting requests too."""
        self._policies = policies
        with self._records:
            self._flush(self.machine.set_policies(policies, asyncio.get_running_loop().time()))

    def _user_of(self, peer: bytes) -> str | None:
        user = self._socket.peer_property(connection_of(peer), "User-Id")
        return None if user is None else user.decode("utf-8", "backslashreplace")

    def _address_of(self, peer: bytes) -> str:
        return (self._socket.peer_property(peer, "Peer-Address") or b"").decode("utf-8", "backslashreplace")

    def _refused(self, refusal: Refusal) -> None:
        self._audit.refused(refusal, asyncio.get_running_loop().time())

    # Overridden or used by a pair of brokers (`mdp.cluster.paired_broker`).

    def _new_machine(self) -> Dispatcher:
        machine = self._new_dispatcher()
        machine.directory.own_policies = self._policies
        self._calm = 0  # requests that it had accepted when memory was last given back
        return machine

    def _new_dispatcher(self) -> Dispatcher:
        number = runtime.current().random_bits(63)
        if self._rules is None:
            return Dispatcher(self._limits, first_number=number, owner_secret=self._owner_secret)
        return GuardedDispatcher(
            self._limits,
            self._rules,
            user_of=self._user_of,
            audit=self._refused,
            first_number=number,
            owner_secret=self._owner_secret,
        )

    @property
    def _is_open(self) -> bool:
        """Whether the block was entered and `stop` not called since."""
        return self._stopped is not None and not self._stopped.done()

    def _listen(self, guard: Guard = lambda call: call) -> None:
        """Receive messages from now on; `guard` wraps every callback of the socket."""
        self.machine.request_table.recorder = self._recorder
        self.machine.request_table.hops = Hops(PeerLimits.of(self._socket.options), self._socket.peer_limits)
        self.machine.in_transit = self._socket.in_transit
        self._socket.set_batch_receiver(guard(self._on_batch), on_peer=guard(self._on_peer))

    # Called by the event loop.

    def _on_batch(self, batch: Batch) -> None:
        if self._loop is None:
            return
        try:
            self._flush(self.machine.receive(batch, self._now(self._loop)))
        except MemoryError:  # as in a block of `_records`, which would cost more
            self._records.lost()
            raise
        if self._drained.awaited:
            self._drained.look()

    def _hold(self, client: bytes, messages: list[bytes], *, longer: bool) -> list[bytes]:
        """Append replies to those collected for a client; return what to send now, nothing if `longer` allows waiting."""
        held = self._held.get(client)
        if held is not None:
            held += messages
            messages = held
        if longer and len(messages) < HELD_MAX:
            self._held[client] = messages
            if self._release_clock.when is None:
                self._release_clock.after(self._hold_s)
            return []
        if held is not None:
            del self._held[client]
        return messages

    def _release(self) -> None:
        """Send the collected replies; replies that a fault stopped are kept, and the clock runs again."""
        held, clients = self._held, {*self._held}
        while held:
            client = next(iter(held))
            self._socket.send_octets(client, held[client])
            del held[client]
        if self._socket_counters.peer_full != self._full:
            self._note_full(clients)
        self._release_clock.cancel()

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        if self._loop is None:
            return
        now = self._now(self._loop)
        if self._slow_peers.forget(peer):
            self._memory_clock.after(0)  # after its unsent messages were dropped with its connection
        self._held.pop(peer, None)
        with self._records:
            self._flush(self.machine.peer_joined(peer, now) if joined else self.machine.peer_lost(peer, now))
        self._drained.look()

    def _on_time(self) -> None:
        if self._loop is None:
            return
        pause_s = FAULT_S
        try:
            self._flush(self.machine.tick(self._now(self._loop)))
            pause_s = 0.0
        finally:
            self._rearm(pause_s)  # after any error: without this timer there are no heartbeats and no expiry of workers
        self._drained.look()
        self._refusals.look(self.machine.counters.as_dict(), self.machine.request_table.reasons)
        self._refusals.strangers(self.machine.strangers.take(), self._address_of)
        accepted = self.machine.counters.accepted
        # After the sweep, which drops what is kept of clients without requests.
        if not self.machine.request_table.clients and self.machine.idle and accepted - self._calm >= BURST_REQUESTS:
            self._calm = accepted
            self._give_memory_back()

    def _give_memory_back(self) -> None:
        self.machine.let_go()
        give_back(len(self._socket.pattern.pipes))

    def _rearm(self, pause_s: float = 0.0) -> None:
        """Set the timer to the machine's deadline, but not before the end of a pause."""
        if not self._is_open or self._loop is None:
            return  # closed: nothing is due
        self.machine.request_table.timer_changed = False
        # An absolute time: with a relative delay, a process suspended just before this line would be late by the suspension.
        self._rests_until = self._loop.time() + max(TIMER_S_MIN, pause_s)  # earliest time of the next tick, whatever is due
        self._clock.at(max(self._rests_until, self.machine.deadline()))

    def _now(self, loop: asyncio.AbstractEventLoop) -> float:
        recorder = self._recorder
        if recorder is not None:
            # Latencies are recorded in microseconds; uvloop's reading of the same clock is exact to the millisecond only.
            recorder.now = self._moment = self._read_clock()
            return self._moment
        now = loop.time()
        if now - self._moment >= CLOCK_S:
            self._moment = now
        return self._moment

    def _flush(self, out: Output) -> None:
        """Send the machine's messages and update its timer; called after every call of the machine."""
        table = self.machine.request_table
        if table.timer_changed:
            self._rearm()
        if not out or self._loop is None:
            return
        clients, sent = table.clients, 0
        for peer, messages in out.items():
            size = 0
            for message in messages:  # compiled, `sum` and `map` cost a fifth of the time of a message that comes alone
                size += len(message)
            sent += size
            client_requests = clients.get(peer)
            if client_requests is not None and (len(client_requests) >= HELD_BEHIND_MIN or self._held):
                longer = self._hold_s > 0 and len(client_requests) >= HELD_BEHIND_MIN and size < HELD_BYTES_MAX
                messages = self._hold(peer, messages, longer=longer)
            if messages:
                self._socket.send_octets(peer, messages)
        self._backlog.left -= sent
        if self._backlog.left < 0:
            self._look_backlog()
        if self._socket_counters.peer_full != self._full:
            self._note_full({*out})

    def _note_full(self, peers: set[bytes]) -> None:
        """Disconnect peers whose queue is full: they would wait forever for the messages dropped for them."""
        self._full = self._socket_counters.peer_full
        self._slow_peers.disconnect_full(self.machine, peers)

    def _look_backlog(self) -> None:
        if self._loop is not None:
            self._slow_peers.look(self.machine, self._loop.time())
