"""Two directories of which one serves: what each is worth beside the other, and whose turn it is (specs/titanic.md §11). Pure.

Binary Star says who is active. That is no word about the data: the active one may be the one that was away while the other went on
alone. So whoever becomes active looks at what it holds first.

    holds, and how that is known             becomes active and
    SOLE   everything, and the other knows   serves at once, alone if it may (`go_on`)
           it may not
    WHOLE  everything, unless the other      with a promise that still runs: as SOLE. Without: asks the other, and serves when
           went on without us                that one has agreed and is in step
    BEHIND, SPOILT, NOTHING                  asks the other, which leads if it can (NOTHING and NOTHING: a new store begins)

A **promise** closes the gap between "the mirror was in step" and "the store goes on alone". The mirror promises to take over by itself
only within a window behind the last answer that is known to have arrived; the store goes on alone only behind that window:

    store    pulse n-1 ..... ok n-1 arrives ...... pulse n ..                       `Patience`: alone from here: last ok + window
    mirror         ok n-1 leaves ........................ n arrives: ok n-1 did too   `Promise`: takes over until: ok n-1 left + window

The ok left before it arrived, so the mirror's window ends before the store's, whatever gets lost and however long it takes. Two clocks are
used and never compared; only their rates matter (`RATE_MARGIN`).
"""

from __future__ import annotations

import enum
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, unpack
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, BadCall, Mark, Step, is_epoch

if TYPE_CHECKING:
    from typing import Self

__all__ = ["FORCED", "Answer", "Kind", "Patience", "Promise", "Standing", "Turn", "judge", "led_mark", "standing_of", "turn_of"]

# What an operator's word adds to the epoch: more than promotions can have added on the other machine meanwhile.
FORCED: Final = 1000
RATE_MARGIN: Final = 0.02  # two clocks do not differ by more in rate; the same figure as of a lease (BST-31)


class Kind(enum.IntEnum):
    """What a directory holds of what was acknowledged; see the table above."""

    NOTHING = 0
    SPOILT = 1  # files were being exchanged, or its disk failed
    BEHIND = 2
    WHOLE = 3
    SOLE = 4


class Standing(NamedTuple):
    """What a directory is worth.

    Attributes:
        epoch: of its mark; raised whenever the other one takes the lead.
        kind: see `Kind`.
        store: id of the store, b"" where there is none.
    """

    epoch: int = 0
    kind: Kind = Kind.NOTHING
    store: bytes = b""

    @property
    def leads(self) -> bool:
        """Whether it holds everything, as far as it knows."""
        return self.kind >= Kind.WHOLE

    def encode(self) -> bytes:
        """Return the argument of a consult."""
        return bytes(msgpack.packb([self.epoch, int(self.kind), self.store]))

    @classmethod
    def decode(cls, data: bytes) -> Standing:
        """Read it; raises BadCall."""
        match _unpacked(data):
            case [int(epoch), int(kind), bytes(store)] if is_epoch(epoch) and kind in _KINDS and len(store) in (0, 16):
                return cls(epoch, Kind(kind), store)
        raise BadCall("not a standing")


_KINDS: Final = frozenset(int(kind) for kind in Kind)


def _unpacked(data: bytes) -> Any:
    try:
        return unpack(data, containers_max=1)
    except BadMsgpack as error:
        raise BadCall("not msgpack") from error


class Turn(enum.Enum):
    """What whoever has become active does."""

    SERVE = "serve"
    ASK = "ask the other"


class Answer(enum.StrEnum):
    """What the passive one says to the active one's standing."""

    FOLLOW = "follow"  # lead: I will be your mirror
    LEAD = "lead"  # I hold more than you: let me be the active one
    NEITHER = "neither"  # an operator has to say which of us is right


def standing_of(mark: Mark | None, store: bytes) -> Standing:
    """Return what a directory is worth.

    Args:
        mark: of the directory, None if it has none.
        store: id in its manifest, b"" if it has none.
    """
    if mark is None or mark.role == "store":
        if not store:
            return Standing()
        epoch, alone = (mark.epoch, mark.alone) if mark is not None else (0, False)
        return Standing(epoch, Kind.SOLE if alone else Kind.WHOLE, store)
    kinds = {Step.EMPTY: Kind.NOTHING, Step.CHANGING: Kind.SPOILT, Step.BEHIND: Kind.BEHIND, Step.IN_STEP: Kind.WHOLE}
    kind = kinds[mark.step]
    if kind is Kind.NOTHING:
        return Standing()
    return Standing(mark.epoch, Kind.SPOILT if mark.doubt else kind, mark.store)


def turn_of(standing: Standing, *, go_on: bool, promised: bool) -> Turn:
    """Return what to do on becoming active.

    Args:
        standing: of the own directory.
        go_on: it may acknowledge what only it holds.
        promised: it was the mirror until now, and its promise still runs.
    """
    alone = standing.kind is Kind.SOLE or (standing.kind is Kind.WHOLE and promised)
    return Turn.SERVE if go_on and alone else Turn.ASK


def judge(mine: Standing, theirs: Standing) -> Answer:
    """Answer, as the passive one, whoever wants to lead; what is mine is overwritten by theirs only after FOLLOW.

    Args:
        mine: of the passive one, which is asked.
        theirs: of the active one, which asks.
    """
    if mine.kind is Kind.NOTHING:
        return Answer.FOLLOW if theirs.leads or theirs.kind is Kind.NOTHING else Answer.NEITHER
    if theirs.kind is not Kind.NOTHING and (theirs.store != mine.store or theirs.epoch > mine.epoch + EPOCH_JUMP_MAX):
        return Answer.NEITHER
    if theirs.leads and (theirs.epoch > mine.epoch or (theirs.epoch == mine.epoch and mine.kind is not Kind.SOLE)):
        return Answer.FOLLOW
    # What is left: theirs is worth less, or nobody can tell. An epoch above ours is one we know nothing of.
    return Answer.LEAD if mine.leads and _is_above(mine, theirs) else Answer.NEITHER


def _is_above(mine: Standing, theirs: Standing) -> bool:
    return mine.epoch > theirs.epoch or (mine.epoch == theirs.epoch and mine.kind > theirs.kind)


def led_mark(mark: Mark | None, standing: Standing, *, alone: bool) -> Mark:
    """Return the mark to write before the directory is opened as the store: who was not the store begins a new epoch.

    Args:
        mark: before, None if there was none.
        standing: of the directory.
        alone: it serves without the other. Who is SOLE stays it until the other is in step, whether it serves alone or not.
    """
    goes_on = standing.kind is not Kind.NOTHING and (mark is None or mark.role == "store")
    epoch = standing.epoch if goes_on else standing.epoch + 1
    return Mark("store", epoch, alone=alone or standing.kind is Kind.SOLE, store=standing.store, paired=True)


class Promise(NamedTuple):
    """Until when a mirror may take over by itself.

    Attributes:
        said_at: when the last pulse was answered, None before the first.
        until: the end of the window; before the second pulse there is none.
    """

    said_at: float | None = None
    until: float = -inf

    def pulse(self, window_s: float, now: float) -> Self:
        """Take a pulse, which is answered now: so the answer to the one before has arrived."""
        until = self.until if self.said_at is None else max(self.until, self.said_at + window_s)
        return self._replace(said_at=now, until=until)

    def holds(self, now: float) -> bool:
        """Tell whether the mirror may still take over."""
        return now < self.until


class Patience(NamedTuple):
    """From when on a store may go on without its mirror.

    Attributes:
        window_s: what the mirror is told.
        heard_at: when the mirror was heard last, -inf for a store that is alone, None for one that must not be: its mirror has to be in
            step once.
    """

    window_s: float
    heard_at: float | None = None

    def heard(self, now: float) -> Self:
        """Take an answer of the mirror."""
        return self._replace(heard_at=now)

    def is_over(self, now: float) -> bool:
        """Tell whether the mirror's promise has run out, whatever that one believes."""
        return self.heard_at is not None and now >= self.heard_at + self.window_s * (1 + RATE_MARGIN)
