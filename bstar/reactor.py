"""Reactor of one server: passes events to the machine, carries its effects out, and decides about votes."""

from __future__ import annotations

import logging
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never

from bstar.errors import NotActive
from bstar.machine import member_values
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.client_claims import ClientClaims
from bstar.machine.effects import Announce, Ask, BecameActive, BecamePassive, ClaimDropped, Halt, Persist, Release
from bstar.machine.fsm import Event, State, Verdict
from bstar.machine.wire import WitnessAnswerKind
from bstar.net.callbacks import Callbacks
from bstar.net.readiness import PASSIVE_REASONS, fault_error
from core.rpc.service import Service
from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bstar.machine.driver import Machine
    from bstar.machine.effects import ShellEffect
    from bstar.machine.wire import StateMessage, WitnessAnswer
    from bstar.net.ballot_writer import BallotWriter
    from bstar.net.lease_client import LeaseClient
    from bstar.net.readiness import Troubles
    from bstar.net.state_channel import StateChannel
    from bstar.net.voter import Voter
    from core.runtime.supervision import Timer
    from core.security.credentials import Secured
    from core.sockets.context import Context

log = logging.getLogger("bstar.pair")

# Latest changes of state in the status.
CHANGES_KEPT: Final = 16
# For a connection to the peer and its handshake: up to five round trips, each no longer than its silence may be.
LINK_HEARTBEATS: Final = 5 * member_values.EXPIRY_HEARTBEATS
# Announcements the peer may still acknowledge (BST-39): two per lease, and one for each subscription.
ANNOUNCEMENTS_KEPT: Final = 64


class Reactor(Service):
    """Base of `Pair`, which creates the sockets; it is the pair's `VotePolicy`."""

    _troubles: Troubles

    def __init__(
        self,
        role: State,
        heartbeat_ms: int,
        writer: BallotWriter,
        *,
        compatible: bool,
        counters: Counter[str],
        clock: Callable[[], float],
        context: Context | None,
        security: Secured | None,
        socket_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(context, security, socket_options)
        self.role = State(role)
        self.counters = counters
        self._heartbeat_ms = heartbeat_ms
        self._compatible = compatible
        self._writer = writer
        self._clock = clock
        self._callbacks = Callbacks(self._fail)
        self._channel: StateChannel | None = None
        self._lease_client: LeaseClient | None = None
        self._voter: Voter | None = None
        self._machine: Machine | None = None
        self._sequence = 0
        self._timer: Timer = supervision.current().timer("bstar pair clock", self._tick)
        self._due: float | None = None
        self._peer_is_stock = False
        self._announced_at: dict[int, float] = {}  # by sequence: when we announced that we serve under the present ballot
        self._heard_at: float | None = None  # time of the last message of the peer
        self._began_at = float("-inf")
        self._linked_at: float | None = None  # when we were connected to the peer last, or should have been
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_KEPT)
        self._client_claims = ClientClaims(heartbeat_ms / 1000)

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
    def _running(self) -> Machine | None:
        """The machine; None outside the block and after a permanent stop."""
        return None if self._machine is None or self._ended.done() else self._machine

    # --- VotePolicy ------------------------------------------------------------------------------------------------------------

    def serves(self) -> bool:
        machine = self._running
        return machine is not None and not self._callbacks.entering and machine.may_answer(self._clock())

    def verdict(self, seen: Ballot) -> Verdict:
        machine, now = self._running, self._clock()
        if machine is None:
            return Verdict.REJECT
        if self.state is not State.ACTIVE and not self._writer.may_try(now):
            return Verdict.REJECT  # the ballot of a claim could not be written
        if self._listens(now):
            return Verdict.REJECT
        if self.vouches(seen):
            seen = NO_BALLOT
        verdict, effects = machine.request(seen, now)
        self._carry_out(effects)
        if verdict is Verdict.REJECT and self.state is State.ACTIVE:
            self._ask_about(seen, now)
        return Verdict.HOLD if verdict is Verdict.ACCEPT and self._callbacks.entering else verdict

    def _listens(self, now: float) -> bool:
        """Whether it waits for the first message of a peer that is being connected to: that is no silence (BST-02).

        A server with a witness need not wait.
        """
        if self._heard_at is not None or self._lease_client is not None or self.state not in (State.PRIMARY, State.BACKUP):
            return False
        heartbeat_s = self._heartbeat_ms / 1000
        until = self._began_at + LINK_HEARTBEATS * heartbeat_s
        if self._linked_at is not None:  # a message is there sooner than a connection, which took several round trips
            until = min(until, self._linked_at + max(member_values.EXPIRY_HEARTBEATS * heartbeat_s, self._linked_at - self._began_at))
        return now < until

    def _on_link(self, joined: bool) -> None:
        self._linked_at = self._clock() if joined else self._began_at

    def vouches(self, seen: Ballot) -> bool:
        return self.serves() and seen > self.ballot() and self._client_claims.vouched(seen, self._clock())

    def _ask_about(self, seen: Ballot, now: float) -> None:
        """Ask peer and witness about a higher ballot that a client has named, at most once a heartbeat (BST-45)."""
        asks = self._client_claims.named(seen, now)
        self._troubles.note_claim(seen, self.ballot(), asks=asks)
        if asks:
            self._client_claims.asked(self._sequence + 1)
            self._carry_out(self.machine.question(now))

    def ballot(self) -> Ballot:
        return self._machine.ballot if self._machine is not None else NO_BALLOT

    def refusal(self) -> NotActive:
        machine = self._running
        if machine is None:
            return NotActive("stopping", retry_s=self._heartbeat_ms / 1000)
        retry_s = member_values.retry_after(machine.settings, machine.member, self._clock())
        return NotActive(active=self._active_name(), retry_s=retry_s)

    def known(self) -> Ballot:
        machine = self._machine
        if machine is None or not machine.member.counter:
            return NO_BALLOT
        return Ballot(machine.member.counter, machine.settings.node)

    def active_role(self) -> State | None:
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

    def _carry_out(self, effects: Iterable[ShellEffect]) -> None:
        for effect in effects:
            match effect:
                case Announce():
                    self._announce()
                case Persist(counter):
                    self._callbacks.spawn(partial(self._persist, counter))
                case Ask(ballot, holding):
                    if self._lease_client is not None:
                        self._lease_client.ask(ballot, holding=holding, now=self._clock())
                case Release(ballot):
                    if self._lease_client is not None:
                        self._lease_client.release(ballot)
                case BecameActive(ballot):
                    self._announced_at.clear()
                    self._client_claims.forget()
                    self._troubles.clear()
                    self._record_change("active", ballot)
                    self._callbacks.enter_active(self._entered_active)
                case BecamePassive(event):
                    if event is Event.LAPSED:
                        self._troubles.lapsed()
                    self._record_change("passive", reason=PASSIVE_REASONS[event])
                    self._callbacks.enter_passive()
                    self._refuse_held()
                case ClaimDropped():
                    self._troubles.claim_ended(self.machine, self._lease_client, writing=self._writer.writing > 0)
                    self._refuse_held()
                case Halt(fault):
                    self._fail(fault_error(fault))
                case _:
                    assert_never(effect)
        self._schedule()

    def _record_change(self, what: str, ballot: Ballot = NO_BALLOT, reason: str = "") -> None:
        """Log a change of state, report it to callbacks, and keep it for the status."""
        event = {"event": what, "at": self._clock(), "role": self.role.name.lower(), "ballot": str(ballot), "reason": reason}
        log.info(
            what, extra={name: event[name] for name in ("role", *(("ballot",) if ballot.counter else ()), *(("reason",) if reason else ()))}
        )
        self.counters[f"became_{what}"] += 1
        self._changes.append(event)
        self._callbacks.notify(event)

    def _announce(self) -> None:
        machine, now = self._running, self._clock()
        if machine is None:
            return
        self._sequence += 1
        message = member_values.describe(machine.settings, machine.member, self._sequence, now)
        digit = member_values.digit(machine.settings, machine.member, now)
        if machine.settings.lease_s and message.state is State.ACTIVE:
            self._announced_at[self._sequence] = now
            if len(self._announced_at) > ANNOUNCEMENTS_KEPT:
                del self._announced_at[next(iter(self._announced_at))]
        assert self._channel is not None
        self._channel.publish(digit, message, peer_is_stock=self._peer_is_stock)

    async def _persist(self, counter: int) -> None:
        written = await self._writer.save(counter)
        if (machine := self._running) is not None:  # it has not stopped meanwhile
            self._carry_out((machine.persisted if written else machine.unwritten)(counter, self._clock()))

    def _entered_active(self) -> None:
        if self.serves():
            self._callbacks.serve()
            if self._voter is not None:
                self._voter.release_held()

    def _refuse_held(self) -> None:
        if self._voter is not None:
            self._voter.refuse_held()

    def _fail(self, error: BaseException) -> None:
        """Stop permanently: nothing is accepted or published, and `serve_forever` raises."""
        if not self._ended.done():
            log.error("stopped", extra={"role": self.role.name.lower(), "reason": str(error)})
            self._ended.set_exception(error)
            self._refuse_held()
            if self._lease_client is not None and self.ballot() != NO_BALLOT:
                self._lease_client.release(self.ballot())

    # --- events ---------------------------------------------------------------------------------------------------------------

    def _on_state_message(self, message: StateMessage) -> None:
        machine = self._running
        if machine is None or not self._troubles.is_plausible(message.ballot.counter, "the peer"):
            return
        self._troubles.check_heartbeat(message.heartbeat_ms, self._heartbeat_ms)
        before, now = machine.stale, self._clock()
        ours = message.heard_incarnation == machine.settings.incarnation
        if ours:
            self._client_claims.peer_heard(message.heard_sequence, serves=message.state is State.ACTIVE)
        effects = machine.receive(message, now, self._announced_at.get(message.heard_sequence) if ours else None)
        if machine.stale == before:
            self._heard_at = now
        # A peer that sent digits counts as stock until it sends a ballot message, also while it is silent.
        self._peer_is_stock = machine.member.peer.node == 0
        self._carry_out(effects)

    def _on_witness_answer(self, answer: WitnessAnswer, ballot: Ballot, asked_at: float) -> None:
        machine, now = self._running, self._clock()
        if machine is None:
            return
        if answer.kind is WitnessAnswerKind.GRANTED and answer.holder == ballot:
            self._client_claims.renewed(asked_at)
            self._troubles.check_lease(answer.wait_ms, round(machine.settings.lease_s * 1000))
            self._carry_out(machine.granted(ballot, asked_at, answer.wait_ms / 1000, now))
        elif self._troubles.is_plausible(answer.highest.counter, "the witness"):
            self._carry_out(machine.refused(ballot, answer.highest, answer.wait_ms / 1000, now))

    def _schedule(self) -> None:
        """Set the timer to the next deadline of the machine.

        Timers use the clock of the event loop, which may stop during sleep; the machine reads its own clock at each call.
        """
        machine = self._running
        due = machine.deadline() if machine is not None else None
        if due == self._due and self._timer.when is not None:
            return  # the usual case
        self._due = due
        if due is None:
            self._timer.cancel()
        else:
            self._timer.after(max(0.0, due - self._clock()))

    def _tick(self) -> None:
        machine = self._running
        if machine is not None:
            self._carry_out(machine.tick(self._clock()))
            if self._writer.due():
                self._callbacks.spawn(self._writer.try_again)
