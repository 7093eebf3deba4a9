"""The journal on disk: records, segments, checkpoints, recovery.

`from titanic.journal import Journal` works; names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.journal.group_commit import Journal, JournalOptions

__all__ = ["Journal", "JournalOptions"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"titanic.journal.group_commit": __all__})
