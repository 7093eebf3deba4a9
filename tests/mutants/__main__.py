"""`python -m tests.mutants [FILE …]`: which mistakes in machines and hot files would the tests not see?"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutants.accepted import Accepted, read_accepted
from tests.mutants.hunt import PROFILE, Finding, Hunt, Order
from tests.mutants.known import KNOWN
from tests.mutants.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("SIM_WALKS", "400")  # random walks of the broker's machine, of 10,000: the first find most
WANTED = 95.0  # per cent of the mutants that a test sees
SEEN = frozenset({"killed", "hung"})


def main() -> int:
    """Hunt in one file here, in several in a process each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="of the table in tests/mutants/table.py; all of it without")
    parser.add_argument("--sample", type=int, help="how many mutants of each file, drawn by the seed; all without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of tests for one mutant, the fastest first (default: 60)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only lines that contain this")
    parser.add_argument("--new", action="store_true", help="leave those out that are accepted: most of them cost all the seconds")
    parser.add_argument("--known", action="store_true", help="only the mistakes that are written down, with their own tests")
    said = parser.parse_args()
    if said.known:
        return hunt_known(said.files)
    unknown = [name for name in said.files if name not in TABLE]
    if unknown:
        parser.error(f"not in tests/mutants/table.py: {', '.join(unknown)}")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in said.files or TABLE:
        groups.setdefault(TABLE[name], []).append(name)
    if len(groups) > 1:
        options = [f"--seed={said.seed}", f"--budget-s={said.budget_s}", f"--only={said.only}"]
        options += [] if said.sample is None else [f"--sample={said.sample}"]
        options += ["--new"] if said.new else []
        # A process for each: the modules of one hunt are not those of the next.
        commands = [[sys.executable, "-m", "tests.mutants", *options, *names] for names in groups.values()]
        return max(subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands)
    ((patterns, names),) = groups.items()
    accepted = read_accepted(ROOT / "specs" / "mutants.md")
    without = accepted if said.new else frozenset()
    order = Order(ROOT, names, sample=said.sample, seed=said.seed, budget_s=said.budget_s, only=said.only, without=without)
    return hunt(order, patterns, accepted)


def hunt(order: Order, patterns: Sequence[str], accepted: frozenset[Accepted]) -> int:
    """Report on files with the same tests; return 0 when enough of their mutants are seen."""

    def tell(finding: Finding) -> None:
        if finding.end not in SEEN:
            known = " (accepted)" if is_accepted(finding, accepted) else ""
            place = f"{finding.file}:{finding.line}"
            print(f"{finding.end}{known}: {place}: {finding.text} | {finding.change} | {finding.by}", flush=True)  # noqa: T201

    run = collected(order, patterns, tell)
    if run.broken:
        print(f"{', '.join(order.files)}: {run.broken}", file=sys.stderr)  # noqa: T201
        return 2
    enough = True
    for name in order.files:
        every = [finding for finding in run.found if finding.file == name]
        left = [finding for finding in every if not is_accepted(finding, accepted)]
        seen = [finding for finding in left if finding.end in SEEN]
        rate = 100.0 * len(seen) / len(left) if left else 100.0
        hung = sum(finding.end == "hung" for finding in left)
        enough &= rate >= WANTED
        print(  # noqa: T201
            f"{name}: {len(seen)} of {len(left)} killed ({rate:.1f} %; {hung} of them by the time limit), "
            f"{len(every) - len(left)} more accepted; sample {order.sample or 'all'}, seed {order.seed}",
            flush=True,
        )
    return 0 if enough else 1


def is_accepted(finding: Finding, accepted: frozenset[Accepted]) -> bool:
    """Tell whether a mutant that no test sees is one of those that are explained."""
    return finding.end not in SEEN and Accepted(finding.file, finding.text, finding.change) in accepted


def hunt_known(files: list[str]) -> int:
    """Look whether each mistake that is written down ends as it has to."""
    known = [one for one in KNOWN if not files or one.file in files]
    tests = sorted({test.split("::")[0] for one in known for test in one.tests})
    run = collected(Order(ROOT, sorted({one.file for one in known}), known=known), tests, lambda _: None)
    wrong = len(known) - len(run.found)
    for one, finding in zip(known, run.found, strict=False):
        as_wanted = (finding.end == "lived") == one.lives
        wrong += not as_wanted
        print(f"{'as it should' if as_wanted else 'WRONG'}: {finding.end}: {finding.file}:{finding.line} by {finding.by}")  # noqa: T201
    if run.broken:
        print(f"WRONG: {run.broken}")  # noqa: T201
    return 1 if wrong or run.broken else 0


def collected(order: Order, patterns: Sequence[str], tell: Callable[[Finding], None]) -> Hunt:
    """Collect tests and hunt with them."""
    files = sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        run = Hunt(order, Path(folder), tell)
        options = ["-q", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:xdist", f"--hypothesis-profile={PROFILE}"]
        options += ["-m", "not soak and not spark and not browser", f"--basetemp={folder}/tests"]
        if run.broken == "" and pytest.main([*options, *files], plugins=[run]) not in {0, 5}:
            run.broken = run.broken or "the tests could not be collected"
        if run.broken:
            for log in Path(folder).glob("*.log"):
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        return run


if __name__ == "__main__":
    sys.exit(main())
