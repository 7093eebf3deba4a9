"""Shortens the list of faults of a failing run, and keeps it in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.sim.cluster.faults import Fault
from tests.sim.cluster.scenario import CALM_S, SCENARIOS, Result, run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SEEDS", "keep", "kept", "replay", "shrink"]

SEEDS: Final = Path(__file__).parents[1] / "seeds"
RUNS_MAX: Final = 80
SHORTEST_S: Final = 0.2  # a fault is made no shorter


def shrink(failed: Result, runs_max: int = RUNS_MAX) -> Result:
    """Return a failing run of the same seed with as few faults, and as short, as could be found."""
    chosen = SCENARIOS[failed.scenario]
    best, parts, runs = failed, 2, 0

    def tried(faults: Sequence[Fault]) -> bool:
        nonlocal best, runs
        runs += 1
        again = run(chosen, failed.seed, minutes=_minutes(faults), faults=faults)
        if again.failed:
            best = again
        return again.failed

    if not tried(failed.faults):
        return failed  # it needs the time after its last fault

    def shorter() -> None:
        """Let the faults begin earlier and last less long, while it fails: that is fewer steps."""
        for share in (1.0, 0.5, 0.25):
            early_s = share * (min(fault.at for fault in best.faults) - CALM_S - 0.5)
            if early_s > 1.0 and runs < runs_max and tried([fault._replace(at=round(fault.at - early_s, 4)) for fault in best.faults]):
                break
        for number in range(len(best.faults)):
            while runs < runs_max and (lasts_s := best.faults[number].lasts_s) > SHORTEST_S:
                halved = [*best.faults]
                halved[number] = halved[number]._replace(lasts_s=round(lasts_s / 2, 4))
                if not tried(halved):
                    break

    while len(best.faults) > 1 and runs < runs_max:
        size = max(1, len(best.faults) // parts)
        pieces = [best.faults[at : at + size] for at in range(0, len(best.faults), size)]
        for piece in pieces:
            if runs >= runs_max or tried([fault for fault in best.faults if fault not in piece]):
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(best.faults), parts * 2)
    if best.faults:
        shorter()
    return best


def _minutes(faults: Sequence[Fault]) -> float:
    return round((max((fault.at + fault.lasts_s for fault in faults), default=CALM_S) - CALM_S) / 60 + 0.02, 3)


def keep(failed: Result, why: str, folder: Path = SEEDS) -> Path:
    """Write a failing run into a file that a test replays."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{failed.scenario}-{failed.seed}.json"
    row: dict[str, Any] = {
        "why": why,
        "scenario": failed.scenario,
        "seed": failed.seed,
        "minutes": _minutes(failed.faults),
        "faults": [list(fault) for fault in failed.faults],
    }
    path.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return path


def kept(folder: Path = SEEDS) -> list[Path]:
    return sorted(folder.glob("*.json"))


def replay(path: Path) -> Result:
    row = json.loads(path.read_text(encoding="utf-8"))
    return run(SCENARIOS[row["scenario"]], row["seed"], minutes=row["minutes"], faults=[Fault(*fault) for fault in row["faults"]])
