"""The journal on disk: records, segments, checkpoints, recovery.

`from titanic.journal import Journal` works; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.journal.group_commit import Journal, JournalOptions, Token
    from titanic.journal.memory_journal import MemoryJournal

__all__ = ["Journal", "JournalOptions", "MemoryJournal", "Token"]

_HOMES = {
    "Journal": "titanic.journal.group_commit",
    "JournalOptions": "titanic.journal.group_commit",
    "MemoryJournal": "titanic.journal.memory_journal",
    "Token": "titanic.journal.group_commit",
}
__getattr__ = lazy_names(__name__, _HOMES)
