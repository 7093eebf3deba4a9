"""Mutants that live with a reason: the table of `specs/mutants.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Accepted", "read_accepted"]


class Accepted(NamedTuple):
    """A mutant, found again by what stands in its line, wherever that is."""

    file: str
    text: str
    change: str


def read_accepted(path: Path) -> frozenset[Accepted]:
    """Read the rows `file` | `line` | `change` | why."""
    rows = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("&#124;", "|") for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 4 and all(cell.startswith("`") and cell.endswith("`") for cell in cells[:3]):
            rows.add(Accepted(*(cell.strip("`") for cell in cells[:3])))
    return frozenset(rows)
