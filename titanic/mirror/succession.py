"""Lineage of two directories, one of which serves: which of them may lead (specs/titanic.md §11). Pure.

Binary Star decides which half is active. That says nothing about the data: the active half may have been away while the other one
acknowledged alone. So a half that becomes active checks its lineage first:

    lineage                                           on becoming active
    SOLE    has everything; the other half may not    serve at once, alone if allowed (`go_on`)
            lead
    WHOLE   has everything, unless the other half     with a lease that still runs: as SOLE. Otherwise ask the other half, and serve
            acknowledged alone                        when it has agreed and is in step
    BEHIND, SPOILT, NOTHING                           ask the other half, which leads if it can (both NOTHING: a new store begins)

A **lease** closes the gap between "the mirror was in step" and "the store acknowledges alone". The mirror may take over by itself only
within a window after the last answer that is known to have arrived; the store acknowledges alone only after that window:

    store    pulse n-1 ..... ok n-1 arrives ...... pulse n ..                `FailureDetector`: alone after: last ok + window
    mirror         ok n-1 leaves ........................ n arrives          `LeaseEstimate`: take over until: ok n-1 left + window

The ok left before it arrived, so the mirror's window ends before the store's, whatever is lost or delayed. The two clocks are never
compared; only their rates matter (`RATE_MARGIN`).
"""

from __future__ import annotations

import enum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from titanic.journal.ownership import Mark, Step
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, BadCall, is_epoch, unpack_argument

if TYPE_CHECKING:
    from typing import Self

# `titanic promote` raises the epoch by this: more than changes of role can have added on the other machine meanwhile.
FORCED: Final = 1000
RATE_MARGIN: Final = 0.02  # maximum difference in rate of two clocks, as for the leases of a witness (BST-31)


class LineageKind(enum.IntEnum):
    """Completeness of the data in a directory; see the module."""

    NOTHING = 0
    SPOILT = 1  # files were being exchanged, or its disk failed
    BEHIND = 2
    WHOLE = 3
    SOLE = 4


class Lineage(NamedTuple):
    """Lineage of the data in a directory."""

    epoch: int = 0  # of its mark; raised whenever the other half takes the lead
    kind: LineageKind = LineageKind.NOTHING
    store: bytes = b""  # id of the store, b"" where there is none

    @property
    def leads(self) -> bool:
        """Whether it has everything, as far as it knows."""
        return self.kind >= LineageKind.WHOLE

    def encode(self) -> bytes:
        return bytes(msgpack.packb([self.epoch, int(self.kind), self.store]))

    @classmethod
    def decode(cls, data: bytes) -> Lineage:
        match unpack_argument(data):
            case [int(epoch), int(kind), bytes(store)] if is_epoch(epoch) and kind in _KINDS and len(store) in (0, 16):
                return cls(epoch, LineageKind(kind), store)
        raise BadCall("not a lineage")


_KINDS: Final = frozenset(int(kind) for kind in LineageKind)


class Role(enum.Enum):
    """First action of a half that has become active."""

    SERVE = "serve"
    ASK = "ask the other half"


class Answer(enum.StrEnum):
    """Answer of the passive half to the lineage of the active one."""

    FOLLOW = "follow"  # the asking half may lead; the other one becomes its mirror
    LEAD = "lead"  # the asked half has more and wants to lead
    NEITHER = "neither"  # an operator must decide


def lineage_of(mark: Mark | None, store: bytes) -> Lineage:
    """Return the lineage of a directory from its mark (or None) and the store id in its manifest (or b"")."""
    if mark is None or mark.role == "store":
        if not store:
            return Lineage()
        epoch, alone = (mark.epoch, mark.alone) if mark is not None else (0, False)
        return Lineage(epoch, LineageKind.SOLE if alone else LineageKind.WHOLE, store)
    kinds = {
        Step.EMPTY: LineageKind.NOTHING,
        Step.CHANGING: LineageKind.SPOILT,
        Step.BEHIND: LineageKind.BEHIND,
        Step.IN_STEP: LineageKind.WHOLE,
    }
    kind = kinds[mark.step]
    if kind is LineageKind.NOTHING:
        return Lineage()
    return Lineage(mark.epoch, LineageKind.SPOILT if mark.doubt else kind, mark.store)


def role_of(lineage: Lineage, *, go_on: bool, leased: bool) -> Role:
    """Return the first action on becoming active.

    `go_on`: it may acknowledge alone. `leased`: it was the mirror until now, and its lease still runs.
    """
    alone = lineage.kind is LineageKind.SOLE or (lineage.kind is LineageKind.WHOLE and leased)
    return Role.SERVE if go_on and alone else Role.ASK


def judge(mine: Lineage, theirs: Lineage) -> Answer:
    """Decide, as the passive half, whether the active one (`theirs`) may lead; only FOLLOW lets it overwrite our data."""
    if mine.kind is LineageKind.NOTHING:
        return Answer.FOLLOW if theirs.leads or theirs.kind is LineageKind.NOTHING else Answer.NEITHER
    if theirs.kind is not LineageKind.NOTHING and (theirs.store != mine.store or theirs.epoch > mine.epoch + EPOCH_JUMP_MAX):
        return Answer.NEITHER
    if theirs.leads and (theirs.epoch > mine.epoch or (theirs.epoch == mine.epoch and mine.kind is not LineageKind.SOLE)):
        return Answer.FOLLOW
    # Theirs is less complete, or it cannot be decided: an epoch above ours is unknown to us.
    return Answer.LEAD if mine.leads and mine[:2] > theirs[:2] else Answer.NEITHER


def led_mark(mark: Mark | None, lineage: Lineage, *, alone: bool) -> Mark:
    """Return the mark to write before a directory is opened as the store; a former mirror begins a new epoch.

    `alone`: it serves without the other half. SOLE stays SOLE until the other half is in step, serving alone or not.
    """
    goes_on = lineage.kind is not LineageKind.NOTHING and (mark is None or mark.role == "store")
    epoch = lineage.epoch if goes_on else lineage.epoch + 1
    return Mark("store", epoch, alone=alone or lineage.kind is LineageKind.SOLE, store=lineage.store, paired=True)


class LeaseEstimate(NamedTuple):
    """Time until which a mirror may take over by itself."""

    said_at: float | None = None  # when the last pulse was answered, None before the first
    until: float = -inf  # the end of the window; before the second pulse there is none

    def pulse(self, window_s: float, now: float) -> Self:
        """Process a pulse that is answered now: the answer to the previous one has arrived."""
        until = self.until if self.said_at is None else max(self.until, self.said_at + window_s)
        return self._replace(said_at=now, until=until)

    def holds(self, now: float) -> bool:
        return now < self.until


class FailureDetector(NamedTuple):
    """Time from which a store may acknowledge without its mirror."""

    window_s: float  # as sent to the mirror
    # Time of the last answer of the mirror; -inf for a store that is alone already, None for one whose mirror must be in step first.
    heard_at: float | None = None

    def heard(self, now: float) -> Self:
        return self._replace(heard_at=now)

    def is_over(self, now: float) -> bool:
        """Return whether the lease of the mirror has certainly ended."""
        return self.heard_at is not None and now >= self.heard_at + self.window_s * (1 + RATE_MARGIN)
