"""Handlers for `mdp worker`: three that are built in, to try things out, and any function that can be imported.

A handler takes an `mdp.Request` and returns the body of the reply.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mdp.request import Request

__all__ = ["BUILT_IN", "SLEEP_S_MAX", "HandlerNotFound", "echo", "fail", "find_handler", "import_app", "sleep"]

SLEEP_S_MAX: Final = 3600.0  # an hour: longer is a typing error, and keeps a worker from draining


class HandlerNotFound(Exception):
    """There is nothing to be called under this name.

    Args:
        name: as it was given.
        reason: one lower-case clause.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


async def echo(request: Request) -> list[bytes]:
    """Return the body as it came."""
    return list(request.body)


async def sleep(request: Request) -> list[bytes]:
    """Return the body after as many seconds as its first frame says.

    Raises:
        ValueError: the first frame is not a number from 0 to `SLEEP_S_MAX`.
    """
    seconds = float(request.body[0])
    if not 0 <= seconds <= SLEEP_S_MAX:
        raise ValueError(f"cannot sleep {seconds} s, only 0 to {SLEEP_S_MAX} s")
    await asyncio.sleep(seconds)
    return list(request.body)


async def fail(request: Request) -> list[bytes]:
    """Fail with the text of the first frame.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(request.body[0].decode("utf-8", "backslashreplace"))


BUILT_IN: Final[dict[str, Callable[[Request], Any]]] = {"echo": echo, "sleep": sleep, "fail": fail}


def find_handler(name: str) -> Callable[[Request], Any]:
    """Return a built-in handler by name, or import `package.module:function`.

    Raises:
        HandlerNotFound: no such built-in, module or function.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise HandlerNotFound(name, f"is neither one of {', '.join(BUILT_IN)} nor package.module:function")
    found: Any = _import(name, module_name)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise HandlerNotFound(name, f"{module_name} has no {path}") from None
    if not callable(found):
        raise HandlerNotFound(name, f"{path} is a {type(found).__name__} and cannot be called")
    handler: Callable[[Request], Any] = found
    return handler


def import_app(module_name: str) -> ModuleType:
    """Import a module for what it registers with `mdp.service`.

    Raises:
        HandlerNotFound: there is no such module.
    """
    return _import(module_name, module_name)


def _import(name: str, module_name: str) -> ModuleType:
    if not module_name or module_name.startswith("."):
        raise HandlerNotFound(name, "needs the full name of a module, a relative one has nothing to start from")
    # As `python -m` does: what lies in the working directory can be named.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something it imports is not
        raise HandlerNotFound(name, f"no module {error.name}; looked in {os.getcwd()} and the installed packages") from None
