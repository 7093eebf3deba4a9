"""Steps of one server of a pair: the tables of `fsm.py` with timers, ballots and outdated messages. Pure.

Source: rules BST-01 to BST-38 of `specs/bstar.md`.

The machine is a value: each function takes a `Member` and an event and returns the next `Member` with the effects for the shell. So the
model checker can search millions of states with the functions that servers run. `driver.py` keeps the value in an object.

Times are absolute monotonic seconds with an arbitrary origin.

A claim, from left to right; any event in between may drop it:

    IDLE --CLAIM--> PERSISTING --persisted--> ACQUIRING --granted--> won (ACTIVE)
                        '-------------- without a witness ------------^
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from bstar.machine.ballot import CLIENT_JUMP_MAX, COUNTER_MAX, NO_BALLOT, Ballot, lease_expiry, next_counter
from bstar.machine.effects import Announce, Ask, BecameActive, BecamePassive, ClaimDropped, Halt, Persist, Release, ShellEffect
from bstar.machine.fsm import BALLOT, GUIDE, Effect, Event, Fault, State, Verdict, step
from bstar.machine.member_values import (
    ASKS_PER_HEARTBEAT,
    NO_PEER,
    REASK_PER_HEARTBEAT,
    Claim,
    Member,
    Outcome,
    Peer,
    Settings,
    asks_witness,
)
from bstar.machine.wire import Flag, StateMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

# --- the events of the shell --------------------------------------------------------------------------------------------------


def start(settings: Settings, counter: int, now: float) -> Outcome:
    """Start a server with the counter of the record on disk.

    The peer counts as alive at the start, so that no server is active before it has listened for two heartbeats (BST-02). A lease of an
    earlier process of this server is released.
    """
    member = Member(
        settings.role,
        counter=counter,
        beat_at=now + settings.heartbeat_s,
        awake_until=now + settings.expiry_s,
        peer_until=now + settings.expiry_s,
    )
    if settings.lease_s and counter:
        return Outcome(member, (Release(Ballot(counter, settings.node)), Announce()))
    return Outcome(member, (Announce(),))


def receive(settings: Settings, member: Member, message: StateMessage, now: float, acked_at: float | None = None) -> Outcome:
    """Process a state message of the peer, the newest of those that were waiting (BST-18).

    An outdated message is dropped and does not count as a sign of life: it is from before a crash, or of an old connection. A digit is
    dropped while the peer sends ballot messages, since it publishes both.

    A passive peer that has received our announcement does not claim for one lease, so its message counts as a lease (BST-39): `acked_at` is
    when we sent the announcement it acknowledges, active under the present ballot.
    """
    member, effects = _wake(settings, member, now)
    if settings.ballots and message.node:
        if message.node == settings.node:
            # Our own message, or a copy of our ballot file: an active server continues, the other one stops.
            alone = member.state is State.ACTIVE and message.state is not State.ACTIVE
            return Outcome(member, effects if alone else (*effects, Halt(Fault.SAME_NODE)), stale=alone)
        last = member.peer
        if message.node == last.node and (message.incarnation, message.sequence) <= (last.incarnation, last.sequence):
            return Outcome(member, effects, stale=True)
        member = member._replace(
            peer=Peer(message.node, message.incarnation, message.sequence),
            counter=max(member.counter, message.ballot.counter),
        )
    elif member.peer.node and now < member.peer_until:
        return Outcome(member, effects)
    else:
        member = member._replace(peer=NO_PEER)
    if acked_at is not None and settings.lease_s and member.state is State.ACTIVE and message.state is State.PASSIVE:
        member = member._replace(lease_until=max(member.lease_until, lease_expiry(acked_at, settings.lease_s)))
    # BST-02: first the peer is alive, then the event.
    check_at = now + settings.expiry_s - settings.heartbeat_s / 2
    member = member._replace(peer_until=now + settings.expiry_s, peer_state=message.state, check_at=check_at)
    outcome = _apply(settings, member, _event_of(settings, member, message), now, effects)
    if settings.lease_s and message.state is State.ACTIVE and outcome.member.state is State.PASSIVE and member.state is State.PASSIVE:
        return outcome._replace(effects=(*outcome.effects, Announce()))  # a prompt acknowledgement extends the lease of the peer most
    return outcome


def request(settings: Settings, member: Member, seen: Ballot, now: float) -> Outcome:
    """Decide about a client request: it is accepted, rejected, or held until the claim it began is decided.

    The ballot a client has `seen` is no proof. One higher than ours deposes us only if the peer or the witness has confirmed its counter
    (BST-45); otherwise the request is rejected, and `question` finds out. If the request begins a claim, the new ballot is above what the
    client has seen, so that it accepts the reply.
    """
    member, effects = _wake(settings, member, now)
    floor = 0
    if settings.ballots and member.state is not State.ACTIVE:
        floor = seen.counter if seen.counter <= member.counter + CLIENT_JUMP_MAX else 0
    elif settings.ballots and Ballot(member.ballot, settings.node) < seen:
        if not member.ballot < seen.counter <= member.counter:
            return Outcome(member, effects, Verdict.REJECT)
        outcome = _apply(settings, member, Event.OUTBID, now, effects)
        member, effects = outcome.member, outcome.effects
    outcome = _apply(settings, member, _request_event(settings, member, now), now, effects, floor)
    claims = outcome.member.claim is not Claim.IDLE
    if outcome.verdict is Verdict.REJECT and claims:
        return outcome._replace(verdict=Verdict.HOLD)  # wait for the outcome of the running claim
    if outcome.verdict is Verdict.HOLD and not claims:
        return outcome._replace(verdict=Verdict.REJECT)  # no counter is left to claim with
    return outcome


def question(settings: Settings, member: Member, now: float) -> Outcome:
    """Ask the peer and the witness about a higher ballot that a client has named (BST-45).

    The peer answers with its next state message, at once if it is active; the witness by renewing the lease or refusing.
    """
    member, effects = _wake(settings, member, now)
    if member.state is not State.ACTIVE:
        return Outcome(member, effects)
    asks = (Ask(Ballot(member.ballot, settings.node), holding=True),) if settings.lease_s else ()
    return Outcome(member, (*effects, Announce(), *asks))


def persisted(settings: Settings, member: Member, counter: int, now: float) -> Outcome:
    """Continue a claim whose ballot is on disk; ignore one that was dropped meanwhile."""
    member, effects = _wake(settings, member, now)
    if member.claim is not Claim.PERSISTING or counter != member.ballot:
        return Outcome(member, effects)
    if settings.lease_s:
        member = member._replace(claim=Claim.ACQUIRING, ask_at=now + settings.heartbeat_s / ASKS_PER_HEARTBEAT)
        return Outcome(member, (*effects, Ask(Ballot(member.ballot, settings.node), holding=False)))
    return _apply(settings, member, Event.WON, now, effects)


def unwritten(settings: Settings, member: Member, counter: int, now: float) -> Outcome:
    """Drop a claim whose ballot could not be written; ignore one that was dropped meanwhile."""
    member, effects = _wake(settings, member, now)
    if member.claim is not Claim.PERSISTING or counter != member.ballot:
        return Outcome(member, effects)
    member, dropped = _drop(settings, member)
    return Outcome(member, (*effects, *dropped))


def granted(settings: Settings, member: Member, ballot: Ballot, asked_at: float, lease_s: float, now: float) -> Outcome:
    """Process a granted or renewed lease; the question was sent at `asked_at`.

    A lease for an outdated ballot is released. The clock is checked first: a renewal that arrives after the lease ended finds a server that
    has stepped down, and does not make it active again (BST-29).
    """
    member, effects = _wake(settings, member, now)
    until = lease_expiry(asked_at, min(lease_s, settings.lease_s))
    ours = ballot == Ballot(member.ballot, settings.node) and (member.state is State.ACTIVE or member.claim is Claim.ACQUIRING)
    if not ours:
        return Outcome(member, (*effects, Release(ballot)))
    if now >= until:
        return Outcome(member, effects)  # the answer took longer than the lease
    member = member._replace(lease_until=max(until, member.lease_until))
    return _apply(settings, member, Event.WON, now, effects)


def refused(settings: Settings, member: Member, ballot: Ballot, highest: Ballot, wait_s: float, now: float) -> Outcome:
    """Process a refusal: draw a higher ballot if needed, else ask again later; an active server stops."""
    member, effects = _wake(settings, member, now)
    member = member._replace(counter=max(member.counter, highest.counter))
    if ballot != Ballot(member.ballot, settings.node):
        return Outcome(member, effects)
    if member.state is State.ACTIVE:
        return _apply(settings, member, Event.OUTBID if highest > ballot else Event.LAPSED, now, effects)
    if member.claim is not Claim.ACQUIRING:
        return Outcome(member, effects)
    if highest > ballot:
        member, drawn = _draw(settings, member, now)
        return Outcome(member, (*effects, *drawn))
    beat_s = settings.heartbeat_s
    pause_s = min(max(wait_s, beat_s / REASK_PER_HEARTBEAT), beat_s / ASKS_PER_HEARTBEAT)
    return Outcome(member._replace(ask_at=now + pause_s), effects)


def switchover(settings: Settings, member: Member, now: float) -> Outcome:
    """Hand the active role to the peer, by order of the operator.

    The peer must be alive and passive; otherwise nothing changes and the verdict is REJECT, so that one server stays active.
    """
    member, effects = _wake(settings, member, now)
    ready = member.state is State.ACTIVE and now < member.peer_until and member.peer_state is State.PASSIVE
    if not ready or not settings.ballots:
        return Outcome(member, effects, Verdict.REJECT)
    outcome = _apply(settings, member, Event.SWITCHOVER, now, effects)
    return outcome._replace(verdict=Verdict.ACCEPT)


def tick(settings: Settings, member: Member, now: float) -> Outcome:
    """Do what is due: a state message each heartbeat (BST-05), a question to the witness, the timers."""
    member, effects = _wake(settings, member, now)
    member = member._replace(awake_until=now + settings.expiry_s, check_at=inf if now >= member.check_at else member.check_at)
    if now >= member.beat_at:
        # On its own schedule; after a suspension one is due, not one for each that was missed.
        late = now >= member.beat_at + settings.heartbeat_s
        member = member._replace(beat_at=(now if late else member.beat_at) + settings.heartbeat_s)
        effects = (*effects, Announce())
    if asks_witness(settings, member) and now >= member.ask_at:
        member = member._replace(ask_at=now + settings.heartbeat_s / ASKS_PER_HEARTBEAT)
        effects = (*effects, Ask(Ballot(member.ballot, settings.node), holding=member.state is State.ACTIVE))
    return Outcome(member, effects)


def _wake(settings: Settings, member: Member, now: float) -> tuple[Member, tuple[ShellEffect, ...]]:
    """Check the clock before the event is processed.

    A process that was suspended for as long as its peer needs to take over must not answer: it steps down (P2). It must not consider its
    peer dead either because of messages it could not read: both get a new period (BST-18). After a shorter stall in the second half of
    the peer's time, which may have held the peer too, a vote has to wait for one more heartbeat, once in each silence.
    """
    effects: tuple[ShellEffect, ...] = ()
    stalled = now >= member.awake_until
    if stalled:
        grace = now + settings.expiry_s
        member = member._replace(awake_until=grace, peer_until=grace, peer_state=None, check_at=inf)
    elif now >= member.check_at + settings.heartbeat_s / 2:
        member = member._replace(vote_at=now + settings.heartbeat_s, check_at=inf)
    if not settings.ballots:
        return member, effects
    lapsed = bool(settings.lease_s) and now >= member.lease_until
    if member.state is State.ACTIVE and (stalled or lapsed):
        outcome = _apply(settings, member, Event.STALLED if stalled else Event.LAPSED, now, ())
        return outcome.member, outcome.effects
    if member.claim is not Claim.IDLE and now >= member.claim_until:
        return _drop(settings, member)
    return member, effects


def _event_of(settings: Settings, member: Member, message: StateMessage) -> Event:
    if not settings.ballots or not message.node:
        return Event(message.state)
    if message.role is settings.role and not member.state is message.state is State.ACTIVE:
        return Event(settings.role)  # BST-08; between two active servers the ballots decide first
    if message.state is State.ACTIVE:
        ours = Ballot(member.ballot, settings.node)
        return Event.PEER_ACTIVE if message.ballot > ours else Event.PEER_LOWER
    return Event.PEER_YIELDS if Flag.YIELDS in message.flags else Event(message.state)


def _request_event(settings: Settings, member: Member, now: float) -> Event:
    if now >= max(member.peer_until, member.vote_at):
        return Event.VOTE
    if settings.ballots and member.peer_state is State.PASSIVE and now >= member.yield_until:
        # Both servers could do this at once. A witness decides between them; without one only the primary may, and only if its peer
        # does not take over by itself, as a passive peer does when it receives PRIMARY.
        if settings.lease_s or member.state is not settings.role is State.PRIMARY:
            return Event.REQUEST_IDLE
    return Event.REQUEST


def _apply(settings: Settings, member: Member, event: Event, now: float, effects: Sequence[ShellEffect], floor: int = 0) -> Outcome:
    """Apply one cell of the table and translate its effects; a ballot that is drawn is above the floor."""
    cell = step(settings.role, member.state, event, BALLOT if settings.ballots else GUIDE)
    if settings.lone_backup and member.state is State.BACKUP and event is Event.VOTE:
        # BST-13, overridden by the operator: the backup acts as a primary without a peer.
        cell = step(State.PRIMARY, State.PRIMARY, event, BALLOT if settings.ballots else GUIDE)
        cell = cell if cell.state is State.ACTIVE else cell._replace(state=State.BACKUP)
    done = list(effects)
    if cell.fault:
        return Outcome(member, (*done, Halt(cell.fault)), cell.verdict)
    before = member.state
    member = member._replace(state=cell.state)
    for effect in cell.effects:
        if effect is Effect.CLAIM:
            member, drawn = _claim(settings, member, now, floor)
            done.extend(drawn)
        else:
            member = _carry_out(settings, member, effect, event, now, done)
    if member.state is not before or (event is Event.PEER_LOWER and before is State.ACTIVE):
        done.append(Announce())  # tells the server with the lower ballot at once
    return Outcome(member, tuple(done), cell.verdict)


def _carry_out(settings: Settings, member: Member, effect: Effect, event: Event, now: float, done: list[ShellEffect]) -> Member:
    if effect is Effect.ON_ACTIVE:
        member = member._replace(claim=Claim.IDLE, claim_until=0.0, yield_until=0.0)
        done.append(BecameActive(Ballot(member.ballot, settings.node) if settings.ballots else NO_BALLOT))
    elif effect is Effect.ON_PASSIVE:
        done.append(BecamePassive(event))
    elif effect is Effect.DROP:
        member, dropped = _drop(settings, member)
        done.extend(dropped)
    elif effect is Effect.RELEASE:
        if settings.lease_s:
            done.append(Release(Ballot(member.ballot, settings.node)))
        member = member._replace(ballot=0, lease_until=0.0)
    elif effect is Effect.YIELD:
        member = member._replace(yield_until=now + settings.expiry_s)
    return member


def _claim(settings: Settings, member: Member, now: float, floor: int) -> tuple[Member, tuple[ShellEffect, ...]]:
    if member.claim is Claim.IDLE:
        return _draw(settings, member, now, floor)
    return member._replace(claim_until=now + settings.expiry_s), ()


def _draw(settings: Settings, member: Member, now: float, floor: int = 0) -> tuple[Member, tuple[ShellEffect, ...]]:
    """Draw a ballot above all known ones and have it written; without a counter left there is no claim."""
    counter = next_counter(member.counter, floor)
    if counter > COUNTER_MAX:
        member, dropped = _drop(settings, member)
        return member, dropped or (ClaimDropped(),)
    member = member._replace(counter=counter, ballot=counter, claim=Claim.PERSISTING, claim_until=now + settings.expiry_s, lease_until=0.0)
    return member, (Persist(counter),)


def _drop(settings: Settings, member: Member) -> tuple[Member, tuple[ShellEffect, ...]]:
    """Drop the claim, if there is one, and release a lease that may have been granted meanwhile."""
    if member.claim is Claim.IDLE:
        return member, ()
    effects: tuple[ShellEffect, ...] = (ClaimDropped(),)
    if member.claim is Claim.ACQUIRING:
        effects = (ClaimDropped(), Release(Ballot(member.ballot, settings.node)))
    return member._replace(claim=Claim.IDLE, claim_until=0.0, ballot=0, ask_at=0.0), effects
