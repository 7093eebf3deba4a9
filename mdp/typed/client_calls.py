"""Calls of typed services: arguments and results by annotations, with the requests and streams of a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from mdp.client.calls import CALL_OPTIONS, CallOptions
from mdp.errors import BadArguments

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
    from types import ModuleType

    from mdp.request import Request
    from mdp.typed.schemas import Schema

P = ParamSpec("P")
T = TypeVar("T")


class TypedCalls(ABC):
    """The methods of `mdp.Client` for functions with annotations."""

    _schemas: dict[Any, Schema] | None = None  # of results of `call`, by annotation

    @abstractmethod
    def request(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> Awaitable[list[bytes]]:
        """Send a request; see `mdp.Client`."""

    @abstractmethod
    def stream(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> AsyncGenerator[list[bytes], None]:
        """Send a request for a reply in parts; see `mdp.Client`."""

    @overload
    async def call(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: CallOptions | None = None, **named: Any
    ) -> T: ...

    @overload
    async def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: CallOptions | None = None, **named: Any
    ) -> Any: ...

    async def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: CallOptions | None = None, **named: Any
    ) -> Any:
        """Call a typed function, a service with annotations, and return its result; see `mdp.typed.calls`.

        Args:
            service: name of the service.
            arguments: positional arguments of the function.
            result: type to convert the result to: `float`, `list[str]`, a dataclass, …; without conversion when left out.
            options: of `request`, by name: `{"deadline": 5.0}`.
            named: keyword arguments of the function.

        Raises:
            BadArguments: they are not those of the function; it was not called.
            HandlerError: the function failed.
            BadResult: the result is not of its annotated type, or not of the type `result`.
            TypeError: an argument, or the type `result`, cannot be sent.
            RequestError: as the future of `request`.
        """
        from mdp.typed import calls  # late: not every client needs it

        schema = self._schema_of(result)
        try:
            body = await self.request(service, calls.pack_call(arguments, named), **options or {})
        except BadArguments as error:
            _advise(error, named)
            raise
        return calls.unpack_result(body, schema, service)

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: CallOptions | None = None, **named: Any
    ) -> AsyncGenerator[T, None]: ...

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: CallOptions | None = None, **named: Any
    ) -> AsyncGenerator[Any, None]: ...

    async def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: CallOptions | None = None, **named: Any
    ) -> AsyncGenerator[Any, None]:
        """Call a typed generator and yield its values; arguments and errors as for `call`.

        Leaving the loop early ends the generator; call `aclose` on the iterator where that must have happened.
        """
        from mdp.typed import calls

        schema = self._schema_of(result)
        async with aclosing(self.stream(service, calls.pack_call(arguments, named), **options or {})) as parts:
            async for part in parts:
                if part != [b""]:  # the end of a generator without values; no value packs to it
                    yield calls.unpack_result(part, schema, service)

    def _schema_of(self, result: Any) -> Schema:
        from mdp.typed import schemas

        if self._schemas is None:
            self._schemas = {}
        schema = self._schemas.get(result)
        if schema is None:
            schema = self._schemas[result] = schemas.Schema(result)
        return schema

    @overload
    def stub(  # type: ignore[overload-overlap]  # the last overload is for plain functions
        self, functions: Callable[Concatenate[Request, P], AsyncIterator[T]], *, options: CallOptions | None = None
    ) -> Callable[P, AsyncGenerator[T, None]]: ...

    @overload
    def stub(
        self, functions: Callable[Concatenate[Request, P], Coroutine[Any, Any, T]], *, options: CallOptions | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def stub(  # type: ignore[overload-overlap]  # as above
        self, functions: Callable[P, AsyncIterator[T]], *, options: CallOptions | None = None
    ) -> Callable[P, AsyncGenerator[T, None]]: ...

    @overload
    def stub(
        self, functions: Callable[P, Coroutine[Any, Any, T]], *, options: CallOptions | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def stub(self, functions: ModuleType, *, options: CallOptions | None = None) -> Any: ...

    @overload
    def stub(self, functions: Callable[P, T], *, options: CallOptions | None = None) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def stub(self, functions: Any, *, options: CallOptions | None = None) -> Any:
        """Return a function that calls a typed service, with parameters and result as its own function has them.

        Args:
            functions: decorated with `mdp.service`; or a module: then an object with the stubs of all its functions, by their names.
            options: of each request, by name: `{"deadline": 5.0}`.

        Raises:
            TypeError: it is not decorated, or takes whole requests.
        """
        from mdp.typed import stubs

        return stubs.stub_of(self, functions, options or {})


def _advise(error: BadArguments, named: Mapping[str, Any]) -> None:
    """Add to an error what to do with options of a request that were given as arguments of the function."""
    options = [name for name in named if name in CALL_OPTIONS]
    if options:
        error.text += (
            f"; if {options[0]} is an option of the request: options={{{options[0]!r}: …}}, or client.with_options({options[0]}=…)"
        )
