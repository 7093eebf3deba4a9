"""`MAJORDOMO_PURE=1` at run time: our modules are loaded from their source, although compiled ones are beside it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["PACKAGES", "VARIABLE", "SourceOnly", "is_wanted"]

VARIABLE: Final = "MAJORDOMO_PURE"
PACKAGES: Final = frozenset({"bstar", "core", "freelance", "majordomo_toolkit", "mdp", "peering", "pirate", "titanic"})


class SourceOnly:
    """Finds the modules below our packages, as source files only."""

    def __init__(self) -> None:
        self._finders: dict[str, FileFinder] = {}  # by directory

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; None for what is not ours."""
        package, _, module = name.partition(".")
        if package not in PACKAGES or not module:
            return None
        for directory in path or ():
            finder = self._finders.get(directory)
            if finder is None:
                finder = self._finders[directory] = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))
            spec = finder.find_spec(name)
            if spec is not None:
                return spec
        return None

    def invalidate_caches(self) -> None:
        """See `importlib.invalidate_caches`."""
        for finder in self._finders.values():
            finder.invalidate_caches()


def is_wanted() -> bool:
    """Return whether the environment asks for the interpreted source (`MAJORDOMO_PURE=1`)."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


if is_wanted() and not any(isinstance(finder, SourceOnly) for finder in sys.meta_path):
    sys.meta_path.insert(0, SourceOnly())
