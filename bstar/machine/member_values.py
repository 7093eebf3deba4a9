"""Values of one server of a pair: settings, state, and what is derived from them. Pure."""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State, Verdict
from bstar.machine.wire import Flag, StateMessage
from core.machine.value_copies import check_positive

if TYPE_CHECKING:
    from bstar.machine.effects import ShellEffect

# BST-15: fail-over "preferably under 10 seconds" and never above 60 takes two heartbeats.
HEARTBEAT_MS_MIN: Final = 10
HEARTBEAT_MS_MAX: Final = 30_000
EXPIRY_HEARTBEATS: Final = 2  # BST-02: the guide's figure, and what a vote needs
ASKS_PER_HEARTBEAT: Final = 4  # a lease of two heartbeats survives seven lost questions in a row
REASK_PER_HEARTBEAT: Final = 20  # maximum rate


def check_heartbeat(heartbeat_ms: int) -> None:
    """Raise TypeError or ValueError for an interval that is no number, or out of range."""
    check_positive(heartbeat_ms=heartbeat_ms)
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise ValueError(f"heartbeat of {heartbeat_ms} ms is not from {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}")


class Settings(NamedTuple):
    """Settings, constant while the process runs."""

    role: State  # PRIMARY or BACKUP
    ballots: bool = True  # False is the compatible mode: the guide's machine, digits only
    node: int = 1  # id of this server, never 0
    incarnation: int = 1  # of this start
    heartbeat_s: float = 1.0  # between two state messages
    lease_s: float = 0.0  # length of the lease asked of the witness, 0 when there is none
    lone_backup: bool = False  # overrides BST-13: a backup accepts votes although it never received a message of an active primary

    @property
    def expiry_s(self) -> float:
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
    """State of a server."""

    state: State  # see `fsm.py`
    counter: int = 0  # highest known ballot counter
    ballot: int = 0  # counter of the claimed or held ballot, 0 for none
    claim: Claim = Claim.IDLE
    claim_until: float = 0.0  # when it is dropped unless there is another vote
    lease_until: float = 0.0
    ask_at: float = 0.0  # time of the next question to the witness
    beat_at: float = 0.0  # time of the next state message
    awake_until: float = 0.0  # without a tick until then the process was suspended
    peer_state: State | None = None  # newest state of the peer, None if unknown
    peer_until: float = 0.0  # until when the peer counts as alive
    peer: Peer = NO_PEER  # its newest message, to recognise outdated ones
    yield_until: float = 0.0  # until when the peer has time to take over
    check_at: float = inf  # in a silence of the peer: a tick that comes half a heartbeat later shows a stall of this process
    vote_at: float = 0.0  # from when a silence counts although this process stood still meanwhile


class Outcome(NamedTuple):
    """Result of a step."""

    member: Member
    effects: tuple[ShellEffect, ...] = ()  # for the shell, in this order
    verdict: Verdict | None = None  # decision about the request, None if there was none
    stale: bool = False  # the state message was outdated and changed nothing


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
    at = min(member.beat_at, member.check_at)
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
    left = max(member.peer_until, member.vote_at, member.yield_until) - now
    if member.peer_state is not State.ACTIVE or now >= max(member.peer_until, member.vote_at):
        votes = settings.lone_backup or member.state is not State.BACKUP
        soon = settings.heartbeat_s / ASKS_PER_HEARTBEAT
        left = min(left, soon) if votes else soon
    return max(left, settings.heartbeat_s / REASK_PER_HEARTBEAT)


def describe(settings: Settings, member: Member, sequence: int, now: float) -> StateMessage:
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
