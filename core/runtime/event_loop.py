"""Which event loop a program runs on: uvloop where there is one, stock asyncio elsewhere.

Loop factories only; event-loop policies are process-wide state and on their way out of Python.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["has_uvloop", "loop_factory", "run"]

T = TypeVar("T")


def has_uvloop() -> bool:
    """Return whether uvloop is installed; there is none for Windows."""
    return find_spec("uvloop") is not None


def loop_factory(*, uvloop: bool | None = None) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop.

    Args:
        uvloop: True demands it, False refuses it, None takes it where it is installed.

    Raises:
        ImportError: uvloop is demanded and not installed.
    """
    if uvloop is False or (uvloop is None and not has_uvloop()):
        return asyncio.new_event_loop
    from uvloop import new_event_loop

    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T], *, uvloop: bool | None = None, debug: bool | None = None) -> T:
    """Run a coroutine to its end on a new loop and return its result.

    Ctrl-C cancels it and raises KeyboardInterrupt, as `asyncio.run` does; daemons have `core.daemon.run_daemon`.

    Args:
        main: what to run.
        uvloop: as for `loop_factory`.
        debug: asyncio's debug mode; None leaves it to the environment.

    Raises:
        ImportError: uvloop is demanded and not installed.
    """
    try:
        factory = loop_factory(uvloop=uvloop)
    except ImportError:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory, debug=debug) as runner:
        return runner.run(main)
