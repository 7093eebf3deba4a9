"""Simulated processes end with their test."""

from __future__ import annotations

import gc
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Destroy what killed processes have left, or hide it from collections.

    Its complaints would be those of a later test.
    """
    yield
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):  # what a destructor leaves is garbage, too
                gc.collect()
        gc.freeze()
    finally:
        sys.unraisablehook = hook
