"""Which way a handler is called: with one `mdp.Request`, or with the arguments its annotations name. Pure.

    async def handler(request): ...                                         one request
    async def handler(request: mdp.Request) -> bytes: ...                   one request
    async def handler(width: float, height: float = 1.0) -> float: ...      arguments
    async def handler(request: mdp.Request, width: float) -> float: ...     arguments, and the request beside them

The annotations decide, and a default value never does: a function whose first parameter is a request, and whose others are annotated and
all have defaults, could be either, and is refused.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_typed"]

_REQUEST_NAMES = ("Request", "Any", "object")


def is_typed(function: Callable[..., Any]) -> bool:
    """Tell whether a function decorated with `mdp.service` takes arguments, or one `mdp.Request` as handlers do.

    Raises:
        TypeError: it could be either.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return True
    first, *others = parameters
    words = _words(first)
    if words and words not in _REQUEST_NAMES:
        return True
    # A second parameter without default, and the first gets the request beside the arguments.
    if words == "Request" and any(other.default is other.empty and other.kind is not other.VAR_KEYWORD for other in others):
        return True
    given = function.keywords if isinstance(function, functools.partial) else {}
    unclear = [other.name for other in others if other.default is not other.empty and _words(other) and other.name not in given]
    if words and unclear:
        name, names = getattr(function, "__qualname__", repr(function)), ", ".join(unclear)
        mend = f"put {first.name} behind them, as in ({names}: ... = ..., *, {first.name}: mdp.Request)"
        raise TypeError(
            f"{name}{inspect.signature(function)}: may callers give {names}, or are these defaults all there is? "
            f"For callers to give them, {mend}; else take {first.name} alone, with functools.partial or without annotations for the others"
        )
    return False


def _words(parameter: inspect.Parameter) -> str:
    """Return the last name of an annotation, which may be a text; empty for none."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "?")
    return words.strip("\"'").rpartition(".")[2] or "?"
