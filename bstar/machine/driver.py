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

__all__ = ["Machine"]


class Machine:
    """A `Member` with its settings.

    Attributes:
        settings: of this server.
        member: present value.
        stale: number of outdated state messages that were dropped.
    """

    __slots__ = ("_started", "member", "settings", "stale")

    def __init__(self, settings: Settings, counter: int, now: float) -> None:
        self.settings = settings
        self.stale = 0
        outcome = member.start(settings, counter, now)
        self.member = outcome.member
        self._started = outcome.effects

    def started(self) -> tuple[ShellEffect, ...]:
        """Return the effects of the start, once."""
        effects, self._started = self._started, ()
        return effects

    def receive(self, message: StateMessage, now: float, acked_at: float | None = None) -> tuple[ShellEffect, ...]:
        """Process a state message of the peer; see `member.receive`."""
        outcome = member.receive(self.settings, self.member, message, now, acked_at)
        self.stale += outcome.stale
        return self._keep(outcome)

    def request(self, seen: Ballot, now: float) -> tuple[Verdict, tuple[ShellEffect, ...]]:
        """Decide about a client request."""
        outcome = member.request(self.settings, self.member, seen, now)
        return outcome.verdict or Verdict.REJECT, self._keep(outcome)

    def persisted(self, counter: int, now: float) -> tuple[ShellEffect, ...]:
        """Note that a counter is on disk."""
        return self._keep(member.persisted(self.settings, self.member, counter, now))

    def unwritten(self, counter: int, now: float) -> tuple[ShellEffect, ...]:
        """Note that a counter could not be written."""
        return self._keep(member.unwritten(self.settings, self.member, counter, now))

    def question(self, now: float) -> tuple[ShellEffect, ...]:
        """Ask peer and witness about a higher ballot."""
        return self._keep(member.question(self.settings, self.member, now))

    def granted(self, ballot: Ballot, asked_at: float, lease_s: float, now: float) -> tuple[ShellEffect, ...]:
        """Process a grant for a question sent at `asked_at`."""
        return self._keep(member.granted(self.settings, self.member, ballot, asked_at, lease_s, now))

    def refused(self, ballot: Ballot, highest: Ballot, wait_s: float, now: float) -> tuple[ShellEffect, ...]:
        """Process a refusal of the witness."""
        return self._keep(member.refused(self.settings, self.member, ballot, highest, wait_s, now))

    def switchover(self, now: float) -> tuple[bool, tuple[ShellEffect, ...]]:
        """Hand the active role over; return whether that was possible."""
        outcome = member.switchover(self.settings, self.member, now)
        return outcome.verdict is Verdict.ACCEPT, self._keep(outcome)

    def tick(self, now: float) -> tuple[ShellEffect, ...]:
        """Do what is due at `now`."""
        return self._keep(member.tick(self.settings, self.member, now))

    def deadline(self) -> float:
        """Return when to call `tick` next."""
        return member_values.deadline(self.settings, self.member)

    def may_answer(self, now: float) -> bool:
        """Return whether an answer may leave now."""
        return member_values.may_answer(self.settings, self.member, now)

    @property
    def ballot(self) -> Ballot:
        """Ballot under which the server is active, else `NO_BALLOT`; also in compatible mode."""
        held = self.member.ballot if self.member.state is State.ACTIVE else 0
        return Ballot(held, self.settings.node) if held else NO_BALLOT

    def _keep(self, outcome: Outcome) -> tuple[ShellEffect, ...]:
        self.member = outcome.member
        return outcome.effects
