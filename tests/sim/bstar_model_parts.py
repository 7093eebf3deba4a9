"""Parts of a state of `bstar_model`: values without behaviour, numbered in the order they are met."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State
from bstar.machine.member_values import Claim
from tests.sim.bstar_model_actions import SEVERED

__all__ = ["CRASHED", "HALTED", "PAUSED", "UP", "Answer", "Mail", "Parts", "Question", "Server", "Witness", "World"]

UP, PAUSED, CRASHED, HALTED = range(4)


class Answer(NamedTuple):
    """An answer of the witness on its way."""

    granted: bool
    counter: int  # of the ballot asked for
    highest: Ballot
    age: int  # ticks since the question


class Question(NamedTuple):
    """A question to the witness on its way."""

    counter: int
    holding: bool
    age: int


class Server(NamedTuple):
    """One server: its process, its disk, and its `Member` with times as ticks left."""

    status: int
    disk: int = 0  # counter in the ballot file
    won: int = 0  # highest counter it was ever active under; nothing in the program knows it
    state: State = State.PRIMARY
    counter: int = 0
    ballot: int = 0
    claim: Claim = Claim.IDLE
    claim_left: int = 0
    lease_left: int = 0
    awake_left: int = 0
    peer_state: State | None = None
    peer_left: int = 0
    yield_left: int = 0
    heard_ballot: int = 0  # counter of the peer's newest message, if it was active in it, and how old that message is
    heard_age: int = 0
    due: bool = False  # has not ticked since time passed
    answer: Answer | None = None
    question: Question | None = None


class Witness(NamedTuple):
    """The witness; `left` and `closed_left` are ticks."""

    up: bool = True
    holder: Ballot = NO_BALLOT
    left: int = 0
    highest: Ballot = NO_BALLOT
    closed_left: int = 0


class Mail(NamedTuple):
    """The newest state message in one direction."""

    state: State
    counter: int
    yields: bool
    age: int = 0  # ticks since it was sent
    ack_ballot: int = 0  # what its sender had heard of the receiver, as `Server.heard_ballot`
    ack_age: int = 0


class World(NamedTuple):
    """Present faults, faults still allowed, and the highest ballot a client has seen."""

    cut: int = 0  # bits: 1 A to B, 2 B to A, 4 A and witness, 8 B and witness
    alone: int = 0  # bits: 1 A is isolated, 2 B is
    faults: int = 0
    seen: Ballot = NO_BALLOT

    def severed(self) -> int:
        """Return the lines that carry nothing, bits as in `cut`."""
        return self.cut | SEVERED[self.alone]


T = TypeVar("T")


class Parts(Generic[T]):
    """Values that were met, numbered in the order of meeting."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.numbers: dict[T, int] = {}

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: T) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        return number
