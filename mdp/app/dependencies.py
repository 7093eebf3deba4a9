"""Dependencies of handlers: parameters that get a value for each request instead of an argument of the caller.

    async def get_pool() -> AsyncIterator[Pool]: ...

    @app.service("order")
    async def order(number: int, pool: Annotated[Pool, mdp.Depends(get_pool)]) -> str: ...

The function of a dependency is plain, a coroutine function, or a generator (plain or asynchronous) that yields once; it goes on when the
handler has ended, and an error of the handler is raised at its `yield`. It may take the `mdp.Request`, and dependencies of its own.
"""

from __future__ import annotations

import functools
import inspect
import typing
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mdp.request import Request
from mdp.typed.schemas import hints_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_REQUEST = "request_of_the_dependencies"  # parameter that is added where a function takes no request


@dataclass(frozen=True, slots=True)
class Depends:
    """Mark of a parameter, in `Annotated`: its value is what a function returns or yields, for each request.

    Attributes:
        function: makes the value.
    """

    function: Callable[..., Any]


class _Plan:
    """Parameters of a function that are dependencies, and that gets the request."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.hints = hints = hints_of(function)
        self.request = ""
        self.needs: dict[str, _Plan] = {}
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name)
            details = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
            mark = next((one for one in details if isinstance(one, Depends)), None)
            if mark is not None:
                self.needs[parameter.name] = _Plan(mark.function)
            elif hint is Request:
                self.request = parameter.name

    @property
    def waits(self) -> bool:
        """Whether a value can be had only in a coroutine."""
        kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        return any(kind(self.function) for kind in kinds) or any(need.waits for need in self.needs.values())

    def check_arguments(self) -> None:
        """Raise TypeError if a dependency has parameters for which there is no value."""
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name not in self.needs and name != self.request and parameter.default is parameter.empty:
                raise TypeError(f"{self.function.__qualname__}: parameter {name} is neither an mdp.Request nor a dependency")
        for need in self.needs.values():
            need.check_arguments()

    def values(self, request: Request, stack: ExitStack) -> dict[str, Any]:
        """Return the values of the dependencies; their ends are put on the stack."""
        return {name: need.value(request, stack) for name, need in self.needs.items()}

    def value(self, request: Request, stack: ExitStack) -> Any:
        arguments = self.values(request, stack) | ({self.request: request} if self.request else {})
        if inspect.isgeneratorfunction(self.function):
            return stack.enter_context(contextmanager(self.function)(**arguments))
        return self.function(**arguments)

    async def values_later(self, request: Request, stack: AsyncExitStack) -> dict[str, Any]:
        """Return the values of the dependencies, some of which wait."""
        return {name: await need.value_later(request, stack) for name, need in self.needs.items()}

    async def value_later(self, request: Request, stack: AsyncExitStack) -> Any:
        arguments = await self.values_later(request, stack) | ({self.request: request} if self.request else {})
        if inspect.isasyncgenfunction(self.function):
            return await stack.enter_async_context(asynccontextmanager(self.function)(**arguments))
        if inspect.isgeneratorfunction(self.function):
            return stack.enter_context(contextmanager(self.function)(**arguments))
        value = self.function(**arguments)
        return await value if inspect.isawaitable(value) else value


def injected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same kind without the parameters that are dependencies, the same if none; raises TypeError."""
    plan = _Plan(function)
    if not plan.needs:
        return function
    for need in plan.needs.values():
        need.check_arguments()
    signature = inspect.signature(function)
    left = [parameter for name, parameter in signature.parameters.items() if name not in plan.needs]
    hints = {name: hint for name, hint in plan.hints.items() if name not in plan.needs}
    if not plan.request and left and left[0].annotation is inspect.Parameter.empty:
        plan.request = left[0].name  # a handler of bytes, without annotations
    name = plan.request or _REQUEST
    if not plan.request:
        # Not annotated as a request where callers look: a function that takes only the request would be a handler of bytes.
        left.append(inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation="Dependencies"))
        hints[_REQUEST] = Request
    shown = signature.replace(parameters=left)

    def split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Request, dict[str, Any]]:
        arguments = dict(shown.bind(*args, **kwargs).arguments)
        request = arguments[name]
        if not plan.request:
            del arguments[name]
        return request, arguments

    made = _around(plan, split)
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined]  # what is seen of the function is what callers may give
    made.__signature__ = shown  # type: ignore[attr-defined]
    made.__annotations__ = hints
    return made


def _around(plan: _Plan, split: Callable[..., tuple[Request, dict[str, Any]]]) -> Callable[..., Any]:
    function = plan.function
    if inspect.isasyncgenfunction(function):

        async def parts(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            request, arguments = split(args, kwargs)
            async with AsyncExitStack() as stack:
                values = await plan.values_later(request, stack)
                async with aclosing(function(**arguments, **values)) as results:
                    async for result in results:
                        yield result

        return parts
    if inspect.iscoroutinefunction(function):

        async def answer(*args: Any, **kwargs: Any) -> Any:
            request, arguments = split(args, kwargs)
            async with AsyncExitStack() as stack:
                return await function(**arguments, **await plan.values_later(request, stack))

        return answer
    if plan.waits:
        raise TypeError(f"{function.__qualname__} is a plain function and cannot wait for its dependencies; make it `async def`")

    def plain(*args: Any, **kwargs: Any) -> Any:
        request, arguments = split(args, kwargs)
        with ExitStack() as stack:
            return function(**arguments, **plan.values(request, stack))

    return plain
