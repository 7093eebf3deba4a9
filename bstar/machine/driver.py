"""Object that keeps the value of a member, with the methods of a state machine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar.machine import member, member_values
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State, Verdict

if TYPE_CHECKING:
    from bstar.machine.effects import ShellEffect
    from bstar.machine.member_values import Outcome, Settings
    from bstar.machine.wire import StateMessage


class Machine:
    """A `Member` with its settings."""

    __slots__ = ("_started", "member", "settings", "stale")

    def __init__(self, settings: Settings, counter: int, now: float) -> None:
        self.settings = settings
        self.stale = 0  # number of outdated state messages that were dropped
        outcome = member.start(settings, counter, now)
        self.member = outcome.member
        self._started = outcome.effects

    def started(self) -> tuple[ShellEffect, ...]:
        """Return the effects of the start, once."""
        effects, self._started = self._started, ()
        return effects

    def receive(self, message: StateMessage, now: float, acked_at: float | None = None) -> tuple[ShellEffect, ...]:
        outcome = member.receive(self.settings, self.member, message, now, acked_at)
        self.stale += outcome.stale
        return self._keep(outcome)

    def request(self, seen: Ballot, now: float) -> tuple[Verdict, tuple[ShellEffect, ...]]:
        outcome = member.request(self.settings, self.member, seen, now)
        return outcome.verdict or Verdict.REJECT, self._keep(outcome)

    def persisted(self, counter: int, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.persisted(self.settings, self.member, counter, now))

    def unwritten(self, counter: int, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.unwritten(self.settings, self.member, counter, now))

    def question(self, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.question(self.settings, self.member, now))

    def granted(self, ballot: Ballot, asked_at: float, lease_s: float, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.granted(self.settings, self.member, ballot, asked_at, lease_s, now))

    def refused(self, ballot: Ballot, highest: Ballot, wait_s: float, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.refused(self.settings, self.member, ballot, highest, wait_s, now))

    def switchover(self, now: float) -> tuple[bool, tuple[ShellEffect, ...]]:
        """Hand the active role over; return whether that was possible."""
        outcome = member.switchover(self.settings, self.member, now)
        return outcome.verdict is Verdict.ACCEPT, self._keep(outcome)

    def tick(self, now: float) -> tuple[ShellEffect, ...]:
        return self._keep(member.tick(self.settings, self.member, now))

    def deadline(self) -> float:
        return member_values.deadline(self.settings, self.member)

    def may_answer(self, now: float) -> bool:
        return member_values.may_answer(self.settings, self.member, now)

    @property
    def ballot(self) -> Ballot:
        """Ballot under which the server is active, else `NO_BALLOT`; also in compatible mode."""
        held = self.member.ballot if self.member.state is State.ACTIVE else 0
        return Ballot(held, self.settings.node) if held else NO_BALLOT

    def _keep(self, outcome: Outcome) -> tuple[ShellEffect, ...]:
        self.member = outcome.member
        return outcome.effects
