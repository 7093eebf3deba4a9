"""Scans of segments, made once a test.

Thousands of damaged or crashed stores differ in one segment, and the others are as they were.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import pytest

from titanic.journal import inspection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanic.journal.manifest import Span
    from titanic.journal.record import Damage, Record

SCANS_MAX = 4096


@pytest.fixture(autouse=True)
def scans_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what each segment contains; of this test only, so that one with a changed scan makes its own."""
    scan = inspection.scan_span

    @lru_cache(SCANS_MAX)
    def items(data: bytes, seed: int, span: Span) -> tuple[Record | Damage, ...]:
        return tuple(scan(data, seed, span))

    def remembered(data: bytes, seed: int, span: Span) -> Iterator[Record | Damage]:
        return iter(items(data, seed, span))

    for module in ("inspection", "recovery"):
        monkeypatch.setattr(f"titanic.journal.{module}.scan_span", remembered)
    monkeypatch.setattr("titanic.store.compaction.scan_span", remembered)
