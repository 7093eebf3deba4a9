"""A pytest plugin: runs the collected tests unchanged, then against each mutant in its own fork."""

from __future__ import annotations

import ast
import gc
import random
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.mutants.accepted import Accepted
from tests.mutants.forked import Allow, in_fork
from tests.mutants.operators import Mutant, mutants
from tests.mutants.swap import NotInFunctions, functions_of, mark, swap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import FunctionType

    from tests.mutants.known import Known

__all__ = ["PROFILE", "Finding", "Hunt", "Order"]

PROFILE = "mutants"
BASELINE_LIMIT_S = 1800.0
# A mutant may make a test slower, and the machine may be busy, before it counts as hanging.
PATIENCE = 6.0
LIMIT_MIN_S = 5.0
INAPPLICABLE = "inapplicable"


@dataclass(frozen=True, slots=True)
class Order:
    """Mutants to try, in files that have the same tests."""

    root: Path
    files: Sequence[str]
    sample: int | None = None
    seed: int = 1
    budget_s: float = 60.0  # of tests for one mutant, as long as they take without one
    known: Sequence[Known] = ()
    only: str = ""  # a part of the mutant's line, to look at one again
    without: frozenset[Accepted] = frozenset()  # mutants that are left out


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one mutant."""

    file: str
    line: int
    text: str
    change: str
    end: str  # killed, hung, lived, unreached
    by: str  # the test that failed, or how many passed


@dataclass(slots=True, eq=False)
class Reports:
    """Takes note of the first test that failed."""

    failed: str = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep its name."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
            sys.stderr.write(f"{report.nodeid}\n{report.longreprtext[-2000:]}\n")  # for the log: there is no summary


@dataclass(slots=True, eq=False)
class Hunt:
    """The plugin: takes the place of pytest's own loop."""

    order: Order
    folder: Path  # for what the forks print
    told: Callable[[Finding], None]
    found: list[Finding] = field(default_factory=list)
    broken: str = ""  # why there was no hunt
    _costs: dict[str, float] = field(default_factory=dict)
    _reached: dict[str, set[str]] = field(default_factory=dict)
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _functions: dict[str, list[FunctionType]] = field(default_factory=dict)
    _killers: list[str] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Have no failing example made smaller: that it fails is all that is asked."""
        from hypothesis import HealthCheck, Phase, settings  # not before pytest has its hand on imports

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(PROFILE, derandomize=True, deadline=None, phases=phases, suppress_health_check=[*HealthCheck])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Hunt instead of running the tests once."""
        self._items = {item.nodeid: item for item in session.items}
        for name in self.order.files:
            import_module(name.removesuffix(".py").replace("/", "."))  # some are imported when they are used first
        self._functions = {name: functions_of(self.order.root / name) for name in self.order.files}
        gc.collect()
        gc.freeze()  # or each fork would copy all memory at its first collection
        if self.order.known:
            for known in self.order.known:
                if not self.broken:
                    self._hunt_known(known)
        elif self._measure(session.items):
            for name in self.order.files:
                for mutant in self._chosen(name):
                    self._hunt(name, mutant)
        return True

    def _measure(self, items: list[pytest.Item]) -> bool:
        """Run all tests as they are: how long each takes, and which lines it reaches."""
        log = self.folder / "baseline.log"
        ended = in_fork(lambda _: self._measured(items), BASELINE_LIMIT_S, log)
        if ended.said is None or ended.said["failed"]:
            why = "no end" if ended.said is None else ended.said["failed"]
            self.broken = f"the tests fail without any mutant ({why}): {log}"
            return False
        self._costs = ended.said["costs"]
        self._reached = {name: set(lines) for name, lines in ended.said["reached"].items()}
        return True

    def _measured(self, items: list[pytest.Item]) -> dict[str, Any]:
        """Measure, in a fork."""
        seen: set[tuple[str, int]] = set()
        for name, existing in self._functions.items():
            mark(self.order.root / name, lambda line, name=name: seen.add((name, line)), existing)  # type: ignore[misc]
        costs: dict[str, float] = {}
        reached: dict[str, list[str]] = {}
        reports = Reports()
        for item, following in zip(items, [*items[1:], None], strict=True):
            seen.clear()
            begun = time.perf_counter()
            _run_items(reports, [(item, following)])
            costs[item.nodeid] = time.perf_counter() - begun
            reached[item.nodeid] = [f"{name}:{line}" for name, line in seen]
            if reports.failed:
                break
        return {"failed": reports.failed, "costs": costs, "reached": reached}

    def _source(self, name: str) -> str:
        return (self.order.root / name).read_text(encoding="utf-8")

    def _chosen(self, name: str) -> list[Mutant]:
        """Draw the sample of a file."""
        source = self._source(name)
        every = [
            mutant
            for mutant in mutants(ast.parse(source), source)
            if self.order.only in mutant.text and Accepted(name, mutant.text, mutant.change) not in self.order.without
        ]
        if self.order.sample is None or self.order.sample >= len(every):
            return every
        drawn = random.Random(f"{self.order.seed} {name}").sample(range(len(every)), self.order.sample)
        return [every[place] for place in sorted(drawn)]

    def _hunt(self, name: str, mutant: Mutant) -> None:
        """Find out what becomes of one mutant."""
        where = f"{name}:{mutant.line}"
        reaching = [test for test, lines in self._reached.items() if where in lines]
        # Where a thousand tests reach a line, the few that detect something in this file would come after the seconds are over.
        reaching.sort(key=lambda test: (test not in self._killers[-5:], -self._killers.count(test), self._costs[test]))
        chosen: list[str] = []
        cost_s = 0.0
        for test in reaching:
            if chosen and cost_s + self._costs[test] > self.order.budget_s:
                break
            chosen.append(test)
            cost_s += self._costs[test]

        def tell(end: str, by: str) -> None:
            self._tell(Finding(name, mutant.line, mutant.text, mutant.change, end, by))

        if not chosen:
            tell("unreached", f"none of {len(self._items)} tests")
            return

        def work(allow: Allow) -> str:
            # Each test has its own limit: in one for all of them, a loop without end in the fastest would last as long as the slowest.
            return self._against(name, self._changed(name, mutant), chosen, lambda test: allow(LIMIT_MIN_S + PATIENCE * self._costs[test]))

        ended = in_fork(work, LIMIT_MIN_S, self.folder / "mutant.log")
        if ended.said == INAPPLICABLE:
            return
        if ended.said is None:
            tell("hung" if ended.timed_out else "killed", f"after {ended.took_s:.0f} s")
        elif ended.said:
            self._killers.append(ended.said)
            tell("killed", ended.said)
        else:
            tell("lived", f"{len(chosen)} of {len(reaching)} tests that reach it")

    def _changed(self, name: str, mutant: Mutant) -> ast.Module:
        """Return the tree of a file with one change."""
        source = self._source(name)
        tree = ast.parse(source)
        next(same for same in mutants(tree, source) if same.number == mutant.number).apply()
        return tree

    def _against(self, name: str, changed: ast.Module | str, tests: Iterable[str], begins: Callable[[str], None] = lambda _: None) -> str:
        """Run tests against a changed file, in a fork; return which failed."""
        try:
            swap(self.order.root / name, changed, self._functions[name])
        except NotInFunctions as error:
            sys.stderr.write(f"{error}\n")
            return INAPPLICABLE
        except SyntaxError:  # `break` outside of a loop and the like: nobody could have written it
            return INAPPLICABLE
        reports = Reports()
        chosen = [self._items[test] for test in tests]
        _run_items(reports, zip(chosen, [*chosen[1:], None], strict=True), begins)
        return reports.failed

    def _hunt_known(self, known: Known) -> None:
        """Find out what becomes of a mistake that is written down."""
        source = self._source(known.file)
        if source.count(known.old) != 1:
            self.broken = f"{known.old!r} is in {known.file} {source.count(known.old)} times"
            return
        line = source[: source.index(known.old)].count("\n") + 1
        files = {name.split("::")[0] for name in known.tests}
        names = [name for name in self._items if name.split("::")[0] in files and name.startswith(known.tests)]
        ended = in_fork(
            lambda _: self._against(known.file, source.replace(known.old, known.new), names), BASELINE_LIMIT_S, self.folder / "mutant.log"
        )
        if ended.said == INAPPLICABLE or not names:
            self.broken = f"{known.old!r} is in no function, or has no test"
            return
        end = "killed" if ended.said or ended.said is None else "lived"
        self._tell(Finding(known.file, line, known.old, known.new, end, ended.said or f"{len(names)} tests"))

    def _tell(self, finding: Finding) -> None:
        self.found.append(finding)
        self.told(finding)


def _run_items(
    reports: Reports, pairs: Iterable[tuple[pytest.Item, pytest.Item | None]], begins: Callable[[str], None] = lambda _: None
) -> None:
    """Run tests until one fails."""
    for item, following in pairs:
        begins(item.nodeid)
        manager = item.config.pluginmanager
        if not manager.is_registered(reports):
            manager.register(reports)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if reports.failed:
            return
