"""Handlers for `mdp worker`: three built-in ones for trials, and any function that can be imported.

A handler takes an `mdp.Request` and returns the body of the reply.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from core.rpc.handlers import HandlerNotFound, import_handler, import_named

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mdp.request import Request

SLEEP_S_MAX: Final = 3600.0  # an hour: longer is a typing error, and would block draining


async def echo(request: Request) -> list[bytes]:
    """Return the body unchanged."""
    return list(request.body)


async def sleep(request: Request) -> list[bytes]:
    """Return the body after the number of seconds in its first frame; raises ValueError."""
    seconds = float(request.body[0])
    if not 0 <= seconds <= SLEEP_S_MAX:
        raise ValueError(f"cannot sleep {seconds} s, only 0 to {SLEEP_S_MAX} s")
    await asyncio.sleep(seconds)
    return list(request.body)


async def fail(request: Request) -> list[bytes]:
    """Fail with the text of the first frame; raises RuntimeError: always."""
    raise RuntimeError(request.body[0].decode("utf-8", "backslashreplace"))


BUILT_IN: Final[dict[str, Callable[[Request], Any]]] = {"echo": echo, "sleep": sleep, "fail": fail}


def find_handler(name: str) -> Callable[[Request], Any]:
    """Return a built-in handler by name, or import `package.module:function`; raises HandlerNotFound."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if not all(name.partition(":")):
        raise HandlerNotFound(name, f"is neither one of {', '.join(BUILT_IN)} nor package.module:function")
    return import_handler(name)


def import_app(module_name: str) -> ModuleType:
    """Import a module that registers handlers with `mdp.service`; raises HandlerNotFound: there is no such module."""
    return import_named(module_name, module_name)
