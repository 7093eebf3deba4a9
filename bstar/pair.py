"""One server of a Binary Star pair, as a reactor: it keeps the state, and calls your code when there is something to do.

    async with bstar.Pair(bstar.PRIMARY, local="tcp://*:5003", remote="tcp://10.0.0.2:5004") as pair:
        pair.voter("tcp://*:5001", handler=lambda request: request.body)
        pair.on_active(load_state)
        await pair.serve_forever()

The machine decides (`bstar/machine/member.py`); this file moves bytes and time. A program with a socket of its own (a broker) does without
`voter`: it asks `pair.vote()` for a request while it does not serve, and `pair.serving` before each answer; it begins at `on_serving`,
ends at `on_passive`, and finishes what it has in hand at `on_handover` (`mdp.cluster.paired_broker` is such a program).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, assert_never

import core
from bstar import status as report
from bstar.errors import NotActive
from bstar.machine import member
from bstar.machine.ballot import MEMBER_JUMP_MAX, NO_BALLOT, Ballot, Ceiling, Owner, Record
from bstar.machine.client_claims import Doubts
from bstar.machine.driver import Machine
from bstar.machine.faults import fault_error
from bstar.machine.fsm import State, Verdict
from bstar.machine.trouble import Troubles
from bstar.machine.wire import WitnessAnswerKind
from bstar.net.ballot_writer import BallotKeeper
from bstar.net.boot_clock import boot_clock
from bstar.net.callbacks import Callbacks
from bstar.net.control import Control
from bstar.net.lease_client import LeaseLink
from bstar.net.state_channel import StateChannel
from bstar.net.voter import TURNS_BEFORE_A_VERDICT, Voter
from bstar.pair_key import trust_of_server
from core.runtime import supervision

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from types import TracebackType

    from bstar.machine.wire import StateMessage, WitnessAnswer
    from bstar.net.voter import Request
    from core.security.credentials import Secured

__all__ = ["Pair"]

log = logging.getLogger(__name__)

# The status tells of the latest changes of state: a week of a healthy pair, a few seconds of one whose link flaps.
CHANGES_KEPT: Final = 16
# Messages of ours the peer may still say it has heard (BST-39): those of a lease are two, and one more for each time it asks to be told.
SAID_KEPT: Final = 64


class Pair:
    """One of the two servers.

    Args:
        role: `bstar.PRIMARY` or `bstar.BACKUP`.
        local: endpoint to publish our state on.
        remote: endpoint the peer publishes its state on.
        witness: endpoint of the witness; without one the pair is fenced: see `docs/bstar.md`.
        heartbeat_ms: between two state messages; the same on both servers. Two silent ones are what a vote needs.
        compatible: speak digits only and follow the guide's machine to the letter: for two stock-like members.
        store: ballot file; without one the server draws a new node id at each start.
        pair_key: 32 octets that the peer and the witness have too: what is not signed with them counts for nothing (BST-46). Without it
            one is derived from our CURVE key where the others have the same.
        control: endpoint for `bstar status` and `bstar switchover`; anybody who reaches it may order a switchover.
        lone_backup: a backup that never heard a primary may serve (BST-13).
        held_max: requests that may wait for a claim, about two heartbeats' worth.
        running_max: requests that may be with the handlers; each has a task.
        context: to make sockets in; the pair has its own when left out.
        security: of its own context: `core.Curve` or `core.Plain`, for what is bound and what is connected.
        socket_options: further options of all sockets, e.g. CURVE keys.
        clock: monotonic seconds.

    Attributes:
        counters: what was accepted, refused, withheld, dropped, by name.
        service: what the program has to say about itself, for `service` in the status; None if nothing.
        trouble: why this server does not come to serve, empty for nothing.

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
        if not member.HEARTBEAT_MS_MIN <= heartbeat_ms <= member.HEARTBEAT_MS_MAX:
            raise ValueError(f"heartbeat of {heartbeat_ms} ms is not from {member.HEARTBEAT_MS_MIN} to {member.HEARTBEAT_MS_MAX}")
        if compatible and (witness or store or pair_key):
            raise ValueError("compatible mode has no ballots: leave witness, store and pair_key out")
        self.role = State(role)
        self.counters: Counter[str] = Counter()
        self.service: Callable[[], dict[str, Any]] | None = None
        self._local, self._remote, self._witness_endpoint, self._control_endpoint = local, remote, witness, control
        self._heartbeat_ms = heartbeat_ms
        self._compatible = compatible
        self._lone_backup = lone_backup
        fresh = Record(Owner.SERVER, secrets.randbits(64) | 1, 1, 0)
        self._keeper = BallotKeeper(store, fresh, counters=self.counters, clock=clock)
        self._trusts = [trust_of_server(pair_key, security, endpoint) for endpoint in (remote, witness or remote)]
        self._held_max, self._running_max = held_max, running_max
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._clock = clock
        self._callbacks = Callbacks(self._fail)
        self._channel: StateChannel | None = None
        self._link: LeaseLink | None = None
        self._control: Control | None = None
        self._voter: Voter | None = None
        self._sequence = 0
        self._machine: Machine | None = None
        self._beat = supervision.current().timer("bstar pair clock", self._tick)
        self._due: float | None = None
        self._stack = AsyncExitStack()
        self._peer_is_stock = self._handing_over = False
        self._said: dict[int, float] = {}  # when we said, by sequence, that we serve under the present ballot
        self._heard_at: float | None = None  # when the peer was heard last
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_KEPT)
        self._doubts = Doubts(heartbeat_ms / 1000)

    # --- life -----------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        try:
            if self._own_context:
                await self._stack.enter_async_context(self._context)
            self._start(await self._keeper.open())
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stop()

    def _start(self, record: Record) -> None:
        heartbeat_s = self._heartbeat_ms / 1000
        settings = member.Settings(
            self.role,
            not self._compatible,
            record.node,
            record.incarnation,
            heartbeat_s,
            member.EXPIRY_HEARTBEATS * heartbeat_s if self._witness_endpoint else 0.0,
            self._lone_backup,
        )
        self._channel = StateChannel(
            self._context,
            self._local,
            self._remote,
            ballots=not self._compatible,
            trust=self._trusts[0],
            on_message=self._heard,
            on_watcher=self._announce,
            counters=self.counters,
            socket_options=self._options,
        )
        if self._witness_endpoint:
            self._link = LeaseLink(
                self._context,
                self._witness_endpoint,
                lease_ms=round(settings.lease_s * 1000),
                on_answer=self._answered,
                trust=self._trusts[1],
                nonce=secrets.randbits(64),
                counters=self.counters,
                socket_options=self._options,
            )
        if self._control_endpoint:
            self._control = Control(self._context, self._control_endpoint, self, self._options)
        now = self._clock()
        self._troubles = Troubles(self._keeper, Ceiling(record.counter, MEMBER_JUMP_MAX, now), self.counters, self._clock)
        self._machine = Machine(settings, record.counter, now)
        self._do(self._machine.started())

    async def _stop(self) -> None:
        """Say nothing any more, give the lease back, end everything that was started."""
        self._beat.cancel()
        machine, self._machine = self._machine, None
        if machine is not None and self._link is not None and machine.ballot != NO_BALLOT:
            self._link.release(machine.ballot)
        closing: list[Coroutine[Any, Any, None]] = [self._callbacks.close()]
        if self._voter is not None:
            closing.append(self._voter.close())
        if self._control is not None:
            closing.append(self._control.close())
        for ended in (self._channel, self._link):
            if ended is not None:
                ended.close()
                closing.append(ended.wait_closed())
        await asyncio.gather(*closing)
        await self._stack.aclose()
        self._keeper.close()
        if self._ended.done() and not self._ended.cancelled():
            self._ended.exception()  # it was raised by serve_forever, or nobody asked

    async def serve_forever(self) -> None:
        """Run until the task is cancelled or the pair cannot go on.

        Raises:
            PairFault: a fatal event (BST-06); whatever a callback raised.
        """
        await asyncio.shield(self._ended)

    # --- what a program registers ---------------------------------------------------------------------------------------------

    def voter(self, endpoint: str, *, handler: Callable[[Request], Any], **options: Any) -> str:
        """Bind the socket whose requests are votes; exactly one per pair (BST-04). Returns the endpoint with its port.

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
        """Have `callback()` called, and awaited if it is a coroutine function, before the first request is served."""
        self._callbacks.on_active.append(callback)

    def on_passive(self, callback: Callable[[], Any]) -> None:
        """Have `callback()` called when this server stops serving."""
        self._callbacks.on_passive.append(callback)

    def on_serving(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called, in the loop's turn, when all of on-active is done and `serving` has become true."""
        self._callbacks.on_serving.append(callback)

    def on_handover(self, finish: Callable[[float], Awaitable[bool]], resume: Callable[[], None]) -> None:
        """Have the work in hand finished before the active role is handed over (BST-36).

        Args:
            finish: awaited with the seconds there are; takes nothing new and returns whether all was finished.
            resume: called when the role could not be handed over and this server goes on.
        """
        self._callbacks.on_handover.append((finish, resume))

    def on_event(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Have `callback(event)` called at each change: a map with `event`, `at` (seconds of the pair's clock), `role`, `ballot`."""
        self._callbacks.on_event.append(callback)

    def timer(self, interval_s: float, callback: Callable[[], Any]) -> None:
        """Have `callback()` called every `interval_s` seconds while the pair runs."""
        self._callbacks.every(interval_s, callback)

    # --- what a program asks --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """PRIMARY, BACKUP, ACTIVE or PASSIVE."""
        return self.machine.member.state

    @property
    def machine(self) -> Machine:
        """The machine; only within the block."""
        if self._machine is None:
            raise RuntimeError("the pair runs within its block")
        return self._machine

    @property
    def endpoint(self) -> str:
        """Where the state is published."""
        if self._channel is None:
            raise RuntimeError("the pair runs within its block")
        return self._channel.endpoint

    @property
    def control_endpoint(self) -> str:
        """Where the control socket is bound, empty when there is none."""
        return self._control.endpoint if self._control is not None else ""

    @property
    def serving(self) -> bool:
        """Whether an answer may leave at this very moment; to be asked for each one."""
        return self.serves()

    async def vote(self, seen: Ballot = NO_BALLOT) -> Verdict:
        """Take a request that came in by a socket of the program's own, when `serving` is false.

        The state channel is read first, so that messages which wait there are not taken for silence (BST-18).

        Returns:
            ACCEPT it, REJECT it, or HOLD it: then on-active will follow, or the client asks again.
        """
        for _ in range(TURNS_BEFORE_A_VERDICT):
            await asyncio.sleep(0)
        return self.verdict(seen)

    def status(self) -> dict[str, Any]:
        """Return what an operator wants to know, in words and numbers: state, ballot, lease, age of the peer, what guards the pair."""
        return report.status(self._looked_at()) | ({} if self.service is None else {"service": self.service()})

    def metrics(self) -> dict[str, float]:
        """Return numbers only, by name, for whoever collects them: state, ballot, ages and leases in seconds, all counters."""
        return report.metrics(self._looked_at())

    def _looked_at(self) -> report.Look:
        return report.Look(
            machine=self.machine,
            now=self._clock(),
            serving=self.serves(),
            guard=self.guard,
            heard_at=self._heard_at,
            witness_at=self._link.heard_at if self._link is not None else None,
            peer_heartbeat_ms=self._troubles.odd_heartbeat_ms,
            held=self._voter.held if self._voter else 0,
            running=self._voter.running if self._voter else 0,
            counters=self.counters,
            changes=[*self._changes],
            trouble=self.trouble,
        )

    @property
    def trouble(self) -> str:
        """Why this server does not come to serve; empty for nothing."""
        return self._troubles.text(self.machine, self._link)

    @property
    def guard(self) -> str:
        """What stands between the pair and two masters (BST-37): `witness`, `fenced` (clients drop the lower one) or `none`."""
        if self._link is not None:
            return "witness"
        return "none" if self._compatible or self._peer_is_stock else "fenced"

    async def switchover(self, drain_s: float = 10.0) -> None:
        """Hand the active role to the peer: finish what runs, step down, ask the peer to take over (BST-36).

        Raises:
            NotActive: this server is not active, or its peer is not there to take over.
        """
        ready = self.state is State.ACTIVE and self.machine.member.peer_state is State.PASSIVE and not self._compatible
        if not ready or self._clock() >= self.machine.member.peer_until:
            reason = "not the active server" if self.state is not State.ACTIVE else "the peer cannot take over"
            raise NotActive(reason, active=self._active_name())
        if self._handing_over:
            raise NotActive("another switchover is under way")
        self._handing_over, done = True, False
        try:
            await self._finish(drain_s)
            done, effects = self.machine.switchover(self._clock())
            self._do(effects)
        finally:
            self._handing_over = False
            if self._voter is not None:
                self._voter.draining = False
            if not done:  # also after a fault: we are active as before, and must not go on refusing
                self._callbacks.resume()
        if not done:
            raise NotActive("the peer went away meanwhile")

    async def drain(self, drain_s: float) -> bool:
        """Prepare to stop: hand over if the peer can take over, finish what runs; return whether everything was finished."""
        finished = await self._finish(drain_s)
        if self.state is State.ACTIVE and not self._compatible:
            _, effects = self.machine.switchover(self._clock())
            self._do(effects)
        return finished

    async def _finish(self, drain_s: float) -> bool:
        voters = [] if self._voter is None else [self._voter.drain(drain_s)]
        return all(await asyncio.gather(*voters, self._callbacks.finish(drain_s)))

    # --- Judge: what the voter asks -------------------------------------------------------------------------------------------

    def serves(self) -> bool:
        """See `Judge`."""
        machine = self._machine
        return machine is not None and not self._ended.done() and not self._callbacks.entering and machine.may_answer(self._clock())

    def verdict(self, seen: Ballot) -> Verdict:
        """See `Judge`."""
        machine, now = self._machine, self._clock()
        if self._ended.done() or machine is None:
            return Verdict.REJECT
        if self.state is not State.ACTIVE and not self._keeper.may_try(now):
            return Verdict.REJECT  # what it would claim with could not be written
        if self.vouches(seen):
            seen = NO_BALLOT
        verdict, effects = machine.request(seen, now)
        self._do(effects)
        if verdict is Verdict.REJECT and self.state is State.ACTIVE:
            self._named(seen, now)
        return Verdict.HOLD if verdict is Verdict.ACCEPT and self._callbacks.entering else verdict

    def vouches(self, seen: Ballot) -> bool:
        """See `Judge`."""
        return self.serves() and seen > self.ballot() and self._doubts.vouched(seen, self._clock())

    def _named(self, seen: Ballot, now: float) -> None:
        """Take a ballot above ours that a client has named: ask peer and witness, once a heartbeat at most (BST-45)."""
        asks = self._doubts.named(seen, now)
        self._troubles.named(seen, self.ballot(), asks=asks)
        if asks:
            self._doubts.asked(self._sequence + 1)
            self._do(self.machine.question(now))

    def ballot(self) -> Ballot:
        """See `Judge`."""
        return self._machine.ballot if self._machine is not None else NO_BALLOT

    def refusal(self) -> NotActive:
        """See `Judge`."""
        machine = self._machine
        if machine is None or self._ended.done():
            return NotActive("stopping", retry_s=self._heartbeat_ms / 1000)
        retry_s = member.retry_after(machine.settings, machine.member, self._clock())
        return NotActive(active=self._active_name(), retry_s=retry_s)

    def known(self) -> Ballot:
        """See `Judge`."""
        machine = self._machine
        if machine is None or not machine.member.counter:
            return NO_BALLOT
        return Ballot(machine.member.counter, machine.settings.node)

    def active_role(self) -> State | None:
        """See `Judge`."""
        machine = self._machine
        if machine is None:
            return None
        other = State.BACKUP if self.role is State.PRIMARY else State.PRIMARY
        peer_active = machine.member.peer_state is State.ACTIVE and self._clock() < machine.member.peer_until
        return self.role if machine.member.state is State.ACTIVE else other if peer_active else None

    def _active_name(self) -> str:
        role = self.active_role()
        return role.name.lower() if role else ""

    # --- effects --------------------------------------------------------------------------------------------------------------

    def _do(self, effects: Iterable[member.ShellEffect]) -> None:
        for effect in effects:
            match effect:
                case member.Announce():
                    self._announce()
                case member.Persist(counter):
                    self._callbacks.spawn(partial(self._persist, counter))
                case member.Ask(ballot, holding):
                    if self._link is not None:
                        self._link.ask(ballot, holding=holding, now=self._clock())
                case member.Release(ballot):
                    if self._link is not None:
                        self._link.release(ballot)
                case member.BecameActive(ballot):
                    self._said.clear()
                    self._doubts.forget()
                    self._troubles.mended()
                    self._note("active", ballot)
                    self._callbacks.enter_active(self._entered_active)
                case member.BecamePassive():
                    self._note("passive")
                    self._callbacks.enter_passive()
                    self._refuse_held()
                case member.ClaimDropped():
                    self._troubles.claim_ended(self.machine, self._link, writing=self._keeper.writing > 0)
                    self._refuse_held()
                case member.Halt(fault):
                    self._fail(fault_error(fault))
                case _:
                    assert_never(effect)
        self._schedule()

    def _note(self, what: str, ballot: Ballot = NO_BALLOT) -> None:
        """Say what happened, to the log and to whoever wants to know, and remember it for the status."""
        event = {"event": what, "at": self._clock(), "role": self.role.name.lower(), "ballot": str(ballot)}
        log.info(what, extra={"role": event["role"], **({"ballot": event["ballot"]} if ballot.counter else {})})
        self.counters[f"became_{what}"] += 1
        self._changes.append(event)
        self._callbacks.tell(event)

    def _announce(self) -> None:
        if self._machine is None or self._ended.done():
            return
        machine, now = self._machine, self._clock()
        self._sequence += 1
        message = member.describe(machine.settings, machine.member, self._sequence, now)
        digit = member.digit(machine.settings, machine.member, now)
        if machine.settings.lease_s and message.state is State.ACTIVE:
            self._said[self._sequence] = now
            if len(self._said) > SAID_KEPT:
                del self._said[next(iter(self._said))]
        assert self._channel is not None
        self._channel.say(digit, message, peer_is_stock=self._peer_is_stock)

    async def _persist(self, counter: int) -> None:
        written = await self._keeper.save(counter)
        if self._machine is not None:
            self._do((self._machine.persisted if written else self._machine.unwritten)(counter, self._clock()))

    def _entered_active(self) -> None:
        if self.serves():
            self._callbacks.serve()
            if self._voter is not None:
                self._voter.release_held()

    def _refuse_held(self) -> None:
        if self._voter is not None:
            self._voter.refuse_held()

    def _fail(self, error: BaseException) -> None:
        """Stop for good: nothing is accepted or said any more, and `serve_forever` raises."""
        if not self._ended.done():
            log.error("stopped", extra={"role": self.role.name.lower(), "reason": str(error)})
            self._ended.set_exception(error)
            self._refuse_held()
            if self._link is not None and self.ballot() != NO_BALLOT:
                self._link.release(self.ballot())

    # --- events ---------------------------------------------------------------------------------------------------------------

    def _heard(self, message: StateMessage) -> None:
        if self._machine is None or self._ended.done() or not self._troubles.believes(message.ballot.counter, "the peer"):
            return
        self._troubles.heard(message.heartbeat_ms, self._heartbeat_ms)
        before, now = self._machine.stale, self._clock()
        ours = message.heard_incarnation == self._machine.settings.incarnation
        if ours:
            self._doubts.peer_heard(message.heard_sequence, serves=message.state is State.ACTIVE)
        effects = self._machine.receive(message, now, self._said.get(message.heard_sequence) if ours else None)
        if self._machine.stale == before:
            self._heard_at = now
        # A member that spoke in digits is one until it says otherwise, also while it is silent.
        self._peer_is_stock = self._machine.member.peer.node == 0
        self._do(effects)

    def _answered(self, answer: WitnessAnswer, ballot: Ballot, asked_at: float) -> None:
        if self._machine is None or self._ended.done():
            return
        now = self._clock()
        if answer.kind is WitnessAnswerKind.GRANTED and answer.holder == ballot:
            self._doubts.renewed(asked_at)
            self._do(self._machine.granted(ballot, asked_at, answer.wait_ms / 1000, now))
        elif self._troubles.believes(answer.highest.counter, "the witness"):
            self._do(self._machine.refused(ballot, answer.highest, answer.wait_ms / 1000, now))

    def _schedule(self) -> None:
        """Be called again when the machine wants to be.

        Timers run by the loop's clock, which may stand still in sleep; the machine looks at its own whenever it is called.
        """
        due = self._machine.deadline() if self._machine is not None and not self._ended.done() else None
        if due == self._due and self._beat.when is not None:
            return  # nearly every request
        self._due = due
        if due is None:
            self._beat.cancel()
        else:
            self._beat.after(max(0.0, due - self._clock()))

    def _tick(self) -> None:
        if self._machine is not None and not self._ended.done():
            self._do(self._machine.tick(self._clock()))
            if self._keeper.due():
                self._callbacks.spawn(self._keeper.try_again)
