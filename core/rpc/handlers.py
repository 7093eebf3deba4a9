"""Functions named on a command line as `package.module:function`, imported like `python -m`."""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from core.daemon.option_fields import Decorator


class HandlerNotFound(Exception):
    """No function has this name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason  # one lower-case clause


def handler_option(text: str) -> Decorator:
    """Add --handler with this help text; the decorated function gets `handler`, the function or None.

    The module is imported when the command runs, not for --show-config or a reload.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, handler: str | None, **kwargs: Any) -> Any:
            return function(*args, handler=None if handler is None else _import_or_blame(handler), **kwargs)

        return click.option("--handler", metavar="MODULE:FUNCTION", help=f"{text}  [default: echo]")(command)

    return decorate


def echo(body: list[bytes]) -> list[bytes]:
    return body


def _import_or_blame(name: str) -> Callable[..., Any]:
    try:
        return import_handler(name)
    except HandlerNotFound as error:
        context = click.get_current_context()
        (option,) = [one for one in context.command.params if one.name == "handler"]
        raise click.BadParameter(str(error), ctx=context, param=option) from None


def import_handler(name: str) -> Callable[..., Any]:
    """Return the function named by `package.module:function`, which may contain dots; raises HandlerNotFound."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise HandlerNotFound(name, "is not package.module:function")
    found: Any = import_named(name, module_name)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise HandlerNotFound(name, f"{module_name} has no {path}") from None
    if not callable(found):
        raise HandlerNotFound(name, f"{path} is a {type(found).__name__} and cannot be called")
    handler: Callable[..., Any] = found
    return handler


def import_named(name: str, module_name: str) -> ModuleType:
    """Import a module; raises HandlerNotFound, which shows `name`, if there is none, and errors of an existing module unchanged."""
    if not module_name or module_name.startswith("."):
        raise HandlerNotFound(name, "needs the full name of a module, a relative one has nothing to start from")
    # Like `python -m`: the working directory is searched too.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but not something that it imports
        raise HandlerNotFound(name, f"no module {error.name}; looked in {os.getcwd()} and the installed packages") from None
