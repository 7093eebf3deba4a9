"""One machine, or a pair of them, with disks that work at once and connections simulated by the test."""

from __future__ import annotations

from typing import Any

from bstar.machine import member_values
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.driver import Machine
from bstar.machine.effects import Persist, ShellEffect
from bstar.machine.fsm import State, Verdict
from bstar.machine.member_values import Settings
from bstar.machine.wire import StateMessage

PRIMARY, BACKUP, ACTIVE, PASSIVE = State
A, B = 10, 20  # node ids
LEASE_S = 2.0


class Star:
    """A machine whose disk works at once, and whose state messages the test delivers."""

    def __init__(self, role: State, now: float = 0.0, *, counter: int = 0, incarnation: int = 1, **settings: Any) -> None:
        node = settings.pop("node", A if role is PRIMARY else B)
        self.machine = Machine(Settings(role, node=node, incarnation=incarnation, **settings), counter, now)
        self.log: list[ShellEffect] = []
        self.sequence = 0
        self.do(self.machine.started(), now)

    def do(self, effects: tuple[ShellEffect, ...], now: float) -> None:
        for effect in effects:
            self.log.append(effect)
            if isinstance(effect, Persist):
                self.do(self.machine.persisted(effect.counter, now), now)

    def took(self, kind: type) -> list[Any]:
        """Return what was to be done of one kind, and forget everything."""
        found = [effect for effect in self.log if isinstance(effect, kind)]
        self.log.clear()
        return found

    def says(self, now: float) -> StateMessage:
        self.sequence += 1
        if not self.machine.settings.ballots:
            return StateMessage(self.state)
        return member_values.describe(self.machine.settings, self.machine.member, self.sequence, now)

    def hears(self, message: StateMessage, now: float) -> None:
        self.do(self.machine.receive(message, now), now)

    def asked(self, now: float, seen: Ballot = NO_BALLOT) -> Verdict:
        verdict, effects = self.machine.request(seen, now)
        self.do(effects, now)
        return verdict

    def tick(self, now: float) -> None:
        self.do(self.machine.tick(now), now)

    def live(self, since: float, until: float) -> None:
        """Tick whenever the machine wants to."""
        while (at := max(self.machine.deadline(), since)) <= until:
            self.tick(at)
            since = at + 1e-9

    def granted(self, now: float, *, asked_at: float | None = None) -> None:
        ballot = Ballot(self.machine.member.ballot, self.machine.settings.node)
        self.do(self.machine.granted(ballot, now if asked_at is None else asked_at, LEASE_S, now), now)

    @property
    def state(self) -> State:
        return self.machine.member.state


def beat(stars: tuple[Star, ...], now: float) -> None:
    """One heartbeat of a pair with a working connection."""
    for star in stars:
        star.tick(now)
    for speaker, listener in (stars, stars[::-1]):
        listener.hears(speaker.says(now), now)


def pair(**settings: Any) -> tuple[Star, Star]:
    """Return a pair at work: the primary active, the backup passive, at one second."""
    stars = Star(PRIMARY, **settings), Star(BACKUP, **settings)
    stars[0].hears(stars[1].says(0.5), 0.5)
    stars[1].hears(stars[0].says(0.6), 0.6)
    assert [s.state for s in stars] == [ACTIVE, PASSIVE]
    for star in stars:
        star.tick(1.0)
        star.log.clear()
    return stars
