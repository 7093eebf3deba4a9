"""Marks of tests that a compiled module does not allow; they run on its source."""

from __future__ import annotations

from typing import Final

import pytest

import core

__all__ = ["has_no_docstring", "replaces_names", "stands_in"]

# Compiled code takes objects of its own classes where it names them, and nothing that only looks like one.
stands_in: Final = pytest.mark.skipif(core.compiled, reason="stands in for an object of a compiled class")
# Compiled code calls its own functions and methods directly, and reads its own constants as they were compiled.
replaces_names: Final = pytest.mark.skipif(core.compiled, reason="replaces a name that compiled code does not look up")
has_no_docstring: Final = pytest.mark.skipif(core.compiled, reason="reads the docstring of a class, which a compiled one does not have")
