"""One server of a Binary Star pair: it keeps the state, and calls your code at every change.

The machine decides (`bstar/machine/member.py`), `bstar.reactor` carries its decisions out; this module has the public methods. A program
with a socket of its own (a broker) needs no `voter`: it calls `pair.vote()` for a request while it does not serve, and `pair.serving`
before each answer; it begins at `on_serving`, ends at `on_passive`, and finishes requests in flight at `on_handover`
(`mdp.cluster.paired_broker`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import core
from bstar import status as report
from bstar.errors import NotActive
from bstar.machine import member_values
from bstar.machine.ballot import MEMBER_JUMP_MAX, NO_BALLOT, Ballot, Ceiling, Record, RecordRole
from bstar.machine.driver import Machine
from bstar.machine.fsm import State, Verdict
from bstar.net.ballot_writer import BallotWriter
from bstar.net.boot_clock import boot_clock
from bstar.net.control import Control
from bstar.net.lease_client import LeaseClient
from bstar.net.readiness import Troubles
from bstar.net.state_channel import StateChannel
from bstar.net.voter import ITERATIONS_BEFORE_VERDICT, Voter
from bstar.pair_key import trust_of
from bstar.reactor import Reactor
from core.machine.value_copies import check_counts
from core.runtime import runtime

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping

    from bstar.net.voter import Request
    from core.security.credentials import Secured

__all__ = ["Pair"]

# Silent heartbeats after which a connection to the peer or the witness is made again.
PROBE_HEARTBEATS: Final = 3


class Pair(Reactor):
    """One of the two servers.

    Args:
        role: `bstar.PRIMARY` or `bstar.BACKUP`.
        local: endpoint to publish the state of this server on.
        remote: endpoint on which the peer publishes its state.
        witness: endpoint of the witness; without one the pair is fenced: see `docs/bstar.md`.
        heartbeat_ms: interval of state messages; the same on both servers. A vote counts after two silent ones.
        compatible: send digits only and follow the machine of the guide exactly, for stock members.
        store: ballot file; without one the server has a new node id at each start.
        pair_key: 32 bytes that the peer and the witness have too: messages not signed with it are ignored (BST-46). By default one is
            derived from our CURVE key where the others have the same.
        control: endpoint for `bstar status` and `bstar switchover`; every client that reaches it may order a switchover.
        lone_backup: a backup that never received a message of a primary may serve (BST-13).
        held_max: requests that may wait for a claim, for about two heartbeats.
        running_max: requests in handlers; each has a task.
        context: for the sockets; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`, for bound and connected endpoints.
        socket_options: further options of all sockets, e.g. CURVE keys.
        clock: monotonic seconds.

    Attributes:
        counters: events by name.
        service: returns the field `service` of the status; None for none.
        trouble: why this server cannot serve, "" for nothing.

    Raises:
        ValueError: role or heartbeat out of range, or an option that compatible mode does not have.
        StoreDamaged, StoreLocked, OSError: on entering the block, the ballot file.
        core.ZMQError: on entering the block, an endpoint.
    """

    def __init__(
        self,
        role: State,
        *,
        local: str,
        remote: str,
        witness: str | None = None,
        heartbeat_ms: int = 1000,
        compatible: bool = False,
        store: str | os.PathLike[str] | None = None,
        pair_key: bytes | None = None,
        control: str | None = None,
        lone_backup: bool = False,
        held_max: int = 1000,
        running_max: int = 10_000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        if role not in (State.PRIMARY, State.BACKUP):
            raise ValueError(f"role {role!r} is neither PRIMARY nor BACKUP")
        member_values.check_heartbeat(heartbeat_ms)
        check_counts(held_max=held_max, running_max=running_max)
        if compatible and (witness or store or pair_key):
            raise ValueError("compatible mode has no ballots: leave witness, store and pair_key out")
        counters: Counter[str] = Counter()
        fresh = Record(RecordRole.SERVER, runtime.current().random_bits(64) | 1, 1, 0)
        writer = BallotWriter(store, fresh, counters=counters, clock=clock)
        given: dict[str, Any] = {"context": context, "security": security, "socket_options": socket_options}
        super().__init__(role, heartbeat_ms, writer, compatible=compatible, counters=counters, clock=clock, **given)
        self.service: Callable[[], dict[str, Any]] | None = None
        self._local, self._remote, self._witness_endpoint, self._control_endpoint = local, remote, witness, control
        self._lone_backup = lone_backup
        self._trusts = [trust_of(pair_key, security, endpoint) for endpoint in (remote, witness or remote)]
        self._held_max, self._running_max = held_max, running_max
        self._control: Control | None = None
        self._handing_over = False
        self._draining = False

    # --- life -----------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        record = await self._writer.open()
        heartbeat_s = self._heartbeat_ms / 1000
        self._began_at = self._clock()
        settings = member_values.Settings(
            self.role,
            not self._compatible,
            record.node,
            record.incarnation,
            heartbeat_s,
            member_values.EXPIRY_HEARTBEATS * heartbeat_s if self._witness_endpoint else 0.0,
            self._lone_backup,
        )
        # A connection of which the other end, or a firewall between, knows nothing any longer is closed and made again. Without PINGs
        # a backup would find out only when it needs the witness, and a SUB never.
        probes = {"heartbeat_ivl": self._heartbeat_ms, "heartbeat_timeout": PROBE_HEARTBEATS * self._heartbeat_ms}
        probed = {**probes, **self._options}
        self._channel = StateChannel(
            self._context,
            self._local,
            self._remote,
            ballots=not self._compatible,
            trust=self._trusts[0],
            on_message=self._on_state_message,
            on_watcher=self._announce,
            on_link=self._on_link,
            counters=self.counters,
            socket_options=probed,
        )
        if self._witness_endpoint:
            self._lease_client = LeaseClient(
                self._context,
                self._witness_endpoint,
                lease_ms=round(settings.lease_s * 1000),
                on_answer=self._on_witness_answer,
                trust=self._trusts[1],
                nonce=runtime.current().random_bits(64),
                counters=self.counters,
                socket_options=probed,
            )
        if self._control_endpoint:
            self._control = Control(self._context, self._control_endpoint, self, self._options)
        now = self._clock()
        self._troubles = Troubles(self._writer, Ceiling(record.counter, MEMBER_JUMP_MAX, now), self.counters, self._clock)
        self._machine = Machine(settings, record.counter, now)
        self._carry_out(self._machine.started())

    async def _stop(self) -> None:
        machine, self._machine = self._machine, None
        async with AsyncExitStack() as stack:  # in which a cancellation or fault of one part leaves out no other
            stack.callback(self._writer.close)
            ending = [part for part in (self._channel, self._lease_client) if part is not None]
            for part in ending:
                stack.push_async_callback(part.wait_closed)
            for other in (self._voter, self._callbacks, self._control):  # from the last on: no operator is answered meanwhile
                if other is not None:
                    stack.push_async_callback(other.close)
            for part in ending:
                stack.callback(part.close)  # first: nothing is published or asked any longer
            if machine is not None and self._lease_client is not None and machine.ballot != NO_BALLOT:
                stack.enter_context(suppress(core.ContextTerminated))  # by the program: no lease can be released
                self._lease_client.release(machine.ballot)

    # --- registration ---------------------------------------------------------------------------------------------------------

    def voter(self, endpoint: str, *, handler: Callable[[Request], Any], **options: int | str | bytes) -> str:
        """Bind the socket whose requests are votes; exactly one per pair (BST-04). Return the endpoint with its port.

        Args:
            endpoint: to bind a ROUTER to.
            handler: takes a `Request`, returns reply frames; see `bstar.voter.Voter`.
            options: of the socket.

        Raises:
            ValueError: the pair has one already.
        """
        if self._voter is not None:
            raise ValueError("a pair has exactly one voter")
        socket = self._context.socket(core.ROUTER, **{"tell_limits": 1, **self._options, **options})
        try:
            socket.bind(endpoint)
        except core.ZMQError:
            socket.close()
            raise
        self._voter = Voter(socket, handler, self, held_max=self._held_max, running_max=self._running_max, counters=self.counters)
        return socket.last_endpoint

    def on_active(self, callback: Callable[[], Any]) -> None:
        """Register `callback()`, called before the first request is served, and awaited if it is a coroutine function."""
        self._callbacks.on_active.append(callback)

    def on_passive(self, callback: Callable[[], Any]) -> None:
        """Register `callback()`, called when this server stops serving."""
        self._callbacks.on_passive.append(callback)

    def on_serving(self, callback: Callable[[], None]) -> None:
        """Register `callback()`, called when all on-active callbacks are done and `serving` has become true."""
        self._callbacks.on_serving.append(callback)

    def on_handover(self, finish: Callable[[float], Awaitable[bool]], resume: Callable[[], None]) -> None:
        """Register what finishes requests in flight before the active role is handed over (BST-36).

        Args:
            finish: awaited with a timeout in seconds; accepts nothing new and returns whether all was finished.
            resume: called when the role could not be handed over and this server stays active.
        """
        self._callbacks.on_handover.append((finish, resume))

    def on_event(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Register `callback(event)`, called at each change: a dict with `event`, `at` (seconds), `role`, `ballot`, `reason`.

        An error that it raises is logged and counted; the others, of callbacks that have a part in the change, stop the server.
        """
        self._callbacks.on_event.append(callback)

    def timer(self, interval_s: float, callback: Callable[[], Any]) -> None:
        """Register `callback()`, called every `interval_s` seconds while the pair runs."""
        self._callbacks.every(interval_s, callback)

    # --- state ------------------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Endpoint on which the state is published."""
        if self._channel is None:
            raise RuntimeError("the pair runs within its block")
        return self._channel.endpoint

    @property
    def control_endpoint(self) -> str:
        """Endpoint of the control socket, "" without one."""
        return self._control.endpoint if self._control is not None else ""

    @property
    def serving(self) -> bool:
        """Whether an answer may leave at this moment; check it for each one."""
        return self.serves()

    async def vote(self, seen: Ballot = NO_BALLOT) -> Verdict:
        """Decide about a request at a socket of the program's own while `serving` is false.

        The state channel is read first, so that unread messages are not mistaken for silence (BST-18).

        Returns:
            ACCEPT, REJECT, or HOLD: then on-active will follow, or the client asks again.
        """
        for _ in range(ITERATIONS_BEFORE_VERDICT):
            await asyncio.sleep(0)
        return self.verdict(seen)

    def status(self) -> dict[str, Any]:
        """Return the status for operators: state, ballot, lease, age of the peer, guard."""
        return report.status(self._snapshot()) | ({} if self.service is None else {"service": self.service()})

    def metrics(self) -> dict[str, float]:
        """Return metrics by name: state, ballot, ages and leases in seconds, all counters."""
        return report.metrics(self._snapshot())

    def _snapshot(self) -> report.PairSnapshot:
        return report.PairSnapshot(
            machine=self.machine,
            now=self._clock(),
            serving=self.serves(),
            guard=self.guard,
            heard_at=self._heard_at,
            witness_at=self._lease_client.heard_at if self._lease_client is not None else None,
            peer_heartbeat_ms=self._troubles.odd_heartbeat_ms,
            held=self._voter.held if self._voter else 0,
            running=self._voter.running if self._voter else 0,
            counters=self.counters,
            changes=[*self._changes],
            trouble=self.trouble,
        )

    @property
    def trouble(self) -> str:
        """Reason why this server cannot serve, "" for none."""
        return self._troubles.text(self.machine, self._lease_client)

    @property
    def guard(self) -> str:
        """Protection against two masters (BST-37): `witness`, `fenced` (clients drop replies of the lower ballot) or `none`."""
        if self._lease_client is not None:
            return "witness"
        return "none" if self._compatible or self._peer_is_stock else "fenced"

    async def switchover(self, drain_s: float = 10.0) -> None:
        """Hand the active role to the peer: finish running requests, step down, ask the peer to take over (BST-36).

        Raises:
            NotActive: this server is not active, or its peer cannot take over.
        """
        ready = self.state is State.ACTIVE and self.machine.member.peer_state is State.PASSIVE and not self._compatible
        if not ready or self._clock() >= self.machine.member.peer_until:
            reason = "not the active server" if self.state is not State.ACTIVE else "the peer cannot take over"
            raise NotActive(reason, active=self._active_name())
        if self._handing_over or self._draining:
            raise NotActive("it is stopping" if self._draining else "another switchover is in progress")
        self._handing_over, done = True, False
        try:
            await self._finish(drain_s)
            done, effects = self.machine.switchover(self._clock())
            self._carry_out(effects)
        finally:
            self._handing_over = False
            if not self._draining:
                if self._voter is not None:
                    self._voter.draining = False
                if not done:  # also after a fault: this server is still active, and must accept requests again
                    self._callbacks.resume()
        if not done:
            raise NotActive("the peer went away meanwhile")

    async def drain(self, drain_s: float) -> bool:
        """Prepare to stop: finish running requests, hand over if the peer can take over, wait for on-passive callbacks.

        Each for `drain_s` at most; returns whether all requests were finished.
        """
        self._draining = True
        finished = await self._finish(drain_s)
        _, effects = self.machine.switchover(self._clock())
        self._carry_out(effects)
        await self._callbacks.left(drain_s)
        return finished

    async def _finish(self, drain_s: float) -> bool:
        voters = [] if self._voter is None else [self._voter.drain(drain_s)]
        return all(await asyncio.gather(*voters, self._callbacks.finish(drain_s)))
