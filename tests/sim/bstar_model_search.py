"""The search through the states of `bstar_model`, and what it looks for.

safety      with a witness two servers never serve at once; without one never under the same ballot, and where the faults allow no
            better than one master (`single`) not at all; no ballot is served twice; the two are never both dead.
overlap     without a witness: two masters are one again a heartbeat after everything healed.
liveness    from every state one server comes to serve, and its replies are believed, when no more faults happen. The way there
            is not only looked for: one fixed schedule, in which everything heals and clients ask, has to lead there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bstar.machine.ballot import Ballot
from tests.sim.bstar_model import RuleBroken
from tests.sim.bstar_model_actions import HEALS, NAMES, ROUND
from tests.sim.bstar_model_parts import HALTED

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from tests.sim.bstar_model import Model

__all__ = ["Finding", "Report", "Search"]

# Two heartbeats of listening, two of a lease that is in the way, two of a claim, and as many again.
SETTLE_ROUNDS = 12


@dataclass
class Finding:
    """A state that must not be, and the shortest way there."""

    what: str
    path: list[str]


@dataclass
class Report:
    """Figures of one search."""

    states: int = 0
    transitions: int = 0
    complete: bool = True
    findings: dict[str, Finding] = field(default_factory=dict)


class Search:
    """Breadth first, so that a finding comes by the shortest way.

    Args:
        model: what is searched.
        single: two servers that serve at once are wrong even without a witness.
        settle: look at liveness and overlap too.
        ignore: findings to walk past.
    """

    def __init__(self, model: Model, *, single: bool = False, settle: bool = True, ignore: Iterable[str] = ()) -> None:
        self.model, self.settle, self.ignore = model, settle, frozenset(ignore)
        self.single = single or model.witness or not model.ballots_on
        self.known: dict[int, bool] = {}
        self.came_from: dict[int, tuple[int, int]] = {model.first: (-1, -1)}

    def run(self, *, limit: int | None = None, stop_at: int = 1) -> Report:
        """Visit every state, or the first `limit`; end after `stop_at` kinds of findings."""
        report, queue, state = Report(), deque([self.model.first]), self.model.first
        came_from, apply, enabled = self.came_from, self.model.apply, self.model.enabled
        try:
            while queue and (limit is None or len(came_from) < limit):
                state = queue.popleft()
                what = self.wrong(state) or self.unhealthy(state)
                if what:
                    report.findings.setdefault(what, Finding(what, self.path(state)))
                    if len(report.findings) >= stop_at:
                        break
                    continue  # what comes after something wrong is of no interest
                for action in enabled(state):
                    report.transitions += 1
                    after = apply(state, action)
                    if after not in came_from:
                        came_from[after] = (state, action)
                        queue.append(after)
        except RuleBroken as broken:
            report.findings[str(broken)] = Finding(str(broken), self.path(state))
        report.complete = not queue
        report.states = len(came_from)
        return report

    def walk(self, chance: random.Random, steps: int) -> Finding | None:
        """Take one schedule at random, and look at every state on it."""
        state, path = self.model.first, list[str]()
        for _ in range(steps):
            actions = self.model.enabled(state)
            action = actions[int(chance.random() * len(actions))]
            state = self.model.apply(state, action)
            path.append(NAMES[action])
            what = self.wrong(state)
            if what:
                return Finding(what, path)
        what = self.unhealthy(state)
        return Finding(what, path) if what else None

    def follow(self, path: Iterable[str]) -> str:
        """Do what a path says, as far as it can be done, and return what is wrong at its end."""
        state = self.model.first
        actions = {name: action for action, name in NAMES.items()}
        for name in path:
            if actions[name] in self.model.enabled(state):
                state = self.model.apply(state, actions[name])
        return self.wrong(state)

    def path(self, state: int) -> list[str]:
        """Return the actions that lead to a state."""
        steps: list[str] = []
        while self.came_from[state][1] >= 0:
            state, action = self.came_from[state]
            steps.append(NAMES[action])
        return steps[::-1]

    def wrong(self, state: int) -> str:
        """Return what is wrong with a state by itself, or nothing."""
        model = self.model
        a, b = state & 0xFFFFF, state >> 20 & 0xFFFFF
        first, second = model.serving[a], model.serving[b]
        what = ""
        if first is not None and second is not None:
            if self.single:
                what = "two serve"
            elif Ballot(first.counter, model.nodes[0]) == Ballot(second.counter, model.nodes[1]):
                what = "two serve under one ballot"
        elif model.servers[a].status == HALTED and model.servers[b].status == HALTED:
            what = "both dead"
        return "" if what in self.ignore else what

    def unhealthy(self, state: int) -> str:
        """Return what goes wrong when all faults are repaired, or nothing."""
        if not self.settle:
            return ""
        if not self.single and self.two_serve(state) and self.two_serve(self.round(self.healed(state))):
            return "overlap"
        return "" if self.settles(state) else "dead end"

    def two_serve(self, state: int) -> bool:
        """Return whether both servers may answer."""
        serving = self.model.serving
        return serving[state & 0xFFFFF] is not None and serving[state >> 20 & 0xFFFFF] is not None

    def settles(self, state: int) -> bool:
        """Return whether one server comes to serve when no more faults happen: all heals, time passes, clients ask."""
        state = self.healed(state)
        chain: list[int] = []
        outcome = False
        for _ in range(SETTLE_ROUNDS):
            if state in self.known:
                outcome = self.known[state]
                break
            chain.append(state)
            if self.one_serves(state):
                outcome = True
                break
            state = self.round(state)
        self.known.update(dict.fromkeys(chain, outcome))
        return outcome

    def one_serves(self, state: int) -> bool:
        """Return whether exactly one server may answer, and clients believe it."""
        model = self.model
        a, b, *_, world = model.unpack(state)
        serving = [Ballot(s.counter, n) for s, n in zip((model.serving[a], model.serving[b]), model.nodes, strict=True) if s]
        return len(serving) == 1 and (not model.clients or serving[0] >= model.worlds[world].seen)

    def healed(self, state: int) -> int:
        """Return the state with all faults repaired, and no time passed."""
        while True:
            heal = next((action for action in self.model.enabled(state) if action in HEALS), None)
            if heal is None:
                return state
            state = self.model.apply(state, heal)

    def round(self, state: int) -> int:
        """One heartbeat in which everything works: time, ticks, answers, messages, then a client asks both servers."""
        for wanted in ROUND:
            if wanted in self.model.enabled(state):
                state = self.model.apply(state, wanted)
        return state
