"""A forked child of the test process: it does one thing, and never returns to the tests.

A child that an unexpected error leads out of its test would go on as a second test process, on the pipes of the first.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_child"]


def in_child(work: Callable[[], str]) -> str:
    """Return what a forked child says, or the error that ended it."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks with threads: that is what this is about
        child = os.fork()
    if not child:
        try:
            said = work()
        except BaseException as error:
            said = repr(error)
        try:
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said
