"""Values of one server of a pair: settings, state, and what is derived from them. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State, Verdict
from bstar.machine.wire import Flag, StateMessage

if TYPE_CHECKING:
    from bstar.machine.effects import ShellEffect

__all__ = [
    "ASKS_PER_HEARTBEAT",
    "EXPIRY_HEARTBEATS",
    "HEARTBEAT_MS_MAX",
    "HEARTBEAT_MS_MIN",
    "NO_PEER",
    "REASK_PER_HEARTBEAT",
    "Claim",
    "Member",
    "Outcome",
    "Peer",
    "Settings",
    "asks_witness",
    "deadline",
    "describe",
    "digit",
    "may_answer",
    "retry_after",
]

# BST-15: fail-over "preferably under 10 seconds" and never above 60 takes two heartbeats.
HEARTBEAT_MS_MIN: Final = 10
HEARTBEAT_MS_MAX: Final = 30_000
EXPIRY_HEARTBEATS: Final = 2  # BST-02: the guide's figure, and what a vote needs
ASKS_PER_HEARTBEAT: Final = 4  # a lease of two heartbeats survives seven lost questions in a row
REASK_PER_HEARTBEAT: Final = 20  # maximum rate


class Settings(NamedTuple):
    """Settings, constant while the process runs.

    Attributes:
        role: PRIMARY or BACKUP.
        ballots: False is the compatible mode: the guide's machine, digits only.
        node: id of this server, never 0.
        incarnation: of this start.
        heartbeat_s: between two state messages.
        lease_s: length of the lease asked of the witness, 0 when there is none.
        lone_backup: overrides BST-13: a backup accepts votes although it never received a message of an active primary.
    """

    role: State
    ballots: bool = True
    node: int = 1
    incarnation: int = 1
    heartbeat_s: float = 1.0
    lease_s: float = 0.0
    lone_backup: bool = False

    @property
    def expiry_s(self) -> float:
        """Silence after which the peer counts as dead."""
        return EXPIRY_HEARTBEATS * self.heartbeat_s


class Claim(IntEnum):
    """Progress of a claim."""

    IDLE = 0
    PERSISTING = 1
    ACQUIRING = 2


class Peer(NamedTuple):
    """Identification of the newest state message of the peer."""

    node: int = 0
    incarnation: int = 0
    sequence: int = 0


NO_PEER: Final = Peer()


class Member(NamedTuple):
    """State of a server.

    Attributes:
        state: see `fsm.py`.
        counter: highest known ballot counter.
        ballot: counter of the claimed or held ballot, 0 for none.
        claim: progress of the claim.
        claim_until: when it is dropped unless there is another vote.
        lease_until: end of the lease.
        ask_at: time of the next question to the witness.
        beat_at: time of the next state message.
        awake_until: without a tick until then the process was suspended.
        peer_state: newest state of the peer, None if unknown.
        peer_until: until when the peer counts as alive.
        peer: its newest message, to recognise outdated ones.
        yield_until: until when the peer has time to take over.
    """

    state: State
    counter: int = 0
    ballot: int = 0
    claim: Claim = Claim.IDLE
    claim_until: float = 0.0
    lease_until: float = 0.0
    ask_at: float = 0.0
    beat_at: float = 0.0
    awake_until: float = 0.0
    peer_state: State | None = None
    peer_until: float = 0.0
    peer: Peer = NO_PEER
    yield_until: float = 0.0


class Outcome(NamedTuple):
    """Result of a step.

    Attributes:
        member: the next value.
        effects: for the shell, in this order.
        verdict: decision about the request, None if there was none.
        stale: the state message was outdated and changed nothing.
    """

    member: Member
    effects: tuple[ShellEffect, ...] = ()
    verdict: Verdict | None = None
    stale: bool = False


def asks_witness(settings: Settings, member: Member) -> bool:
    """Return whether the witness is being asked, for the lease or its renewal."""
    return bool(settings.lease_s) and (member.state is State.ACTIVE or member.claim is Claim.ACQUIRING)


def may_answer(settings: Settings, member: Member, now: float) -> bool:
    """Return whether an answer may leave at this moment; check it for each answer."""
    if member.state is not State.ACTIVE:
        return False
    if not settings.ballots:
        return True
    return now < member.awake_until and (not settings.lease_s or now < member.lease_until)


def deadline(settings: Settings, member: Member) -> float:
    """Return when to call `tick` next."""
    at = member.beat_at
    if asks_witness(settings, member):
        at = min(at, member.ask_at)
    if member.claim is not Claim.IDLE:
        at = min(at, member.claim_until)
    if settings.lease_s and member.state is State.ACTIVE:
        at = min(at, member.lease_until)
    return at


def retry_after(settings: Settings, member: Member, now: float) -> float:
    """Return the seconds after which another attempt of a rejected client may succeed.

    While the peer is active that is when a request would count as a vote. Otherwise a change is imminent, at an unknown time.
    """
    left = max(member.peer_until, member.yield_until) - now
    if member.peer_state is not State.ACTIVE or now >= member.peer_until:
        votes = settings.lone_backup or member.state is not State.BACKUP
        soon = settings.heartbeat_s / ASKS_PER_HEARTBEAT
        left = min(left, soon) if votes else soon
    return max(left, settings.heartbeat_s / REASK_PER_HEARTBEAT)


def describe(settings: Settings, member: Member, sequence: int, now: float) -> StateMessage:
    """Return the state message of the ballot mode."""
    flags = Flag.WITNESS if settings.lease_s else Flag(0)
    if member.state is State.PASSIVE and now < member.yield_until:
        flags |= Flag.YIELDS
    if may_answer(settings, member, now):
        flags |= Flag.SERVES
    if member.claim is not Claim.IDLE:
        flags |= Flag.CLAIMS
    counter = member.ballot if member.state is State.ACTIVE else member.counter
    return StateMessage(
        member.state,
        settings.role,
        flags,
        settings.node,
        settings.incarnation,
        sequence,
        Ballot(counter, settings.node) if counter else NO_BALLOT,
        member.peer.incarnation,
        member.peer.sequence,
        round(settings.heartbeat_s * 1000),
    )


def digit(settings: Settings, member: Member, now: float) -> State:
    """Return the state that is sent to a stock peer.

    In ballot mode a server can be passive without an active peer, which is fatal in the machine of the guide. Then send the role, as after
    a restart, so that a passive stock peer takes over.
    """
    if settings.ballots and member.state is State.PASSIVE and not (member.peer_state is State.ACTIVE and now < member.peer_until):
        return settings.role
    return member.state
