"""The checkpoint of a query whose driver was killed after its sink had committed, and before Spark had noted it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["forget_last_commit"]


def forget_last_commit(checkpoint: Path) -> int:
    """Remove the note that the last micro-batch was done, which a killed driver has not written; return its number."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{last}").unlink()
    (commits / f".{last}.crc").unlink()
    return last
