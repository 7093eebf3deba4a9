"""``python -m benchmarks``: run the works side by side with pyzmq and print the table.

``--quick`` is a smoke run (short, once, small crowds): its figures mean nothing. ``--only echo`` runs the works whose
name begins with ``echo``. ``--brief`` takes half of the time: see `judged_free`. ``--write`` puts the table into README.md beside this
file, its medians into ``history/``, and rows and picture for users into ``docs/performance.md`` and ``docs/performance.svg``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine, picture, table
from benchmarks.work import Conditions, Result, Sides, Work, run_work
from benchmarks.works import alternatives, echo, growth, mdp, pipeline, scale, shards

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALL", "QUICK_SCALE", "judged_free", "main", "passes"]

HERE = Path(__file__).resolve().parent
LATEST = HERE / "results" / "latest.json"
README = HERE / "README.md"
HISTORY = HERE / "history"
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "performance.svg"
FOR_USERS = (
    "echo 16 B, 1000 in flight",
    "echo 1 KiB, 1000 in flight",
    "one way 16 B",
    "inproc 16 B",
    "MDP one at a time, 1 worker",
    "MDP 1000 in flight, strict, 1 worker",
    "MDP 1000 in flight, both with credit, 1 worker",
    "MDP 1000 in flight, credit against none (two protocols), 1 worker",
    "request-reply, 1000 in flight, a task for each",
    "accepted and on the disk, 256 B, 1000 in flight",
)
"""Titles of the rows that are on the page for users."""
ALL: tuple[Work, ...] = (*echo.WORKS, *pipeline.WORKS, *mdp.WORKS, *shards.WORKS, *alternatives.WORKS, *scale.WORKS, *growth.WORKS)
QUICK_SCALE = 0.01
"""Crowds and bursts of a smoke run: a hundredth."""


def say(line: str) -> None:
    """Progress goes to stderr, results to stdout."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def passes(*, quick: bool, free: bool, seconds: float) -> list[tuple[Sides, Conditions]]:
    """The pinned pass (the one that is judged) and the free-running one."""
    scale = QUICK_SCALE if quick else 1.0
    warmup_s = 0.05 if quick else 0.3
    seconds = 0.1 if quick else seconds
    found: list[tuple[Sides, Conditions]] = [("pinned", Conditions(machine.gate_cpu(), seconds, warmup_s, scale))]
    if free:
        found.append(("free", Conditions(None, seconds, warmup_s, scale)))
    return found


def judged_free(work: Work) -> bool:
    """Return whether a row of the work is judged with its processes running freely."""
    return any(row.sides == "free" for row in work.rows)


def save(results: Sequence[Result], facts: dict[str, str]) -> None:
    """Write every run of every variant."""
    LATEST.parent.mkdir(exist_ok=True)
    runs = {result.work.name: result.runs for result in results}
    LATEST.write_text(json.dumps({"machine": facts, "works": runs}, indent=1) + "\n", encoding="utf-8")


def write(results: Sequence[Result], facts: dict[str, str]) -> None:
    """Write the tables into their pages, the medians into the history, and the picture of the open loop."""
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    table.put_into(README, "\n".join([*lines, "", table.markdown(results)]))
    table.put_into(PAGE, table.for_users(results, facts, FOR_USERS))
    HISTORY.mkdir(exist_ok=True)
    record = {"machine": facts, "medians": table.medians(results)}
    (HISTORY / f"{facts['date']}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    loops = [result for result in results if result.work.name == "open-loop"]
    for result in loops:
        PICTURE.write_text(picture.open_loop(result, facts), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, save; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Side by side with pyzmq.")
    parser.add_argument("--quick", action="store_true", help="smoke run: short, once, small crowds")
    parser.add_argument("--only", action="append", metavar="NAME", help="works whose names begin with this; repeatable")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each variant (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds measured per run (default 1)")
    parser.add_argument("--pinned-only", action="store_true", help="leave the free-running pass out")
    parser.add_argument("--brief", action="store_true", help="leave it out of works whose rows are all judged on one CPU")
    parser.add_argument("--list", action="store_true", help="print the names of the works and stop")
    parser.add_argument("--write", action="store_true", help="write the table, the history and the picture")
    chosen = parser.parse_args(arguments)
    works = [work for work in ALL if not chosen.only or any(work.name.startswith(name) for name in chosen.only)]
    if chosen.list or not works:
        sys.stdout.write("\n".join(work.name for work in ALL) + "\n")
        return 0 if chosen.list else 2
    facts = machine.describe()
    facts["load before"] = machine.load()
    runs = 1 if chosen.quick else chosen.runs
    plan = passes(quick=chosen.quick, free=not chosen.pinned_only, seconds=chosen.seconds)
    results = [run_work(work, runs, plan[:1] if chosen.brief and not judged_free(work) else plan, say) for work in works]
    facts["load after"] = machine.load()
    facts["runs"] = f"{runs} interleaved, medians; {plan[0][1].seconds:g} s each after {plan[0][1].warmup_s:g} s of warm-up"
    save(results, facts)
    lines = [f"{name}: {value}" for name, value in facts.items()]
    sys.stdout.write("\n".join([*lines, "", table.text(results)]) + "\n")
    if chosen.write:
        write(results, facts)
    return 1 if table.missed(results) and not chosen.quick else 0


if __name__ == "__main__":
    sys.exit(main())
