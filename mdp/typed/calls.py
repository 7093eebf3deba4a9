"""Typed calls: a function's annotations are the schema of what is sent to it and of what it returns. Pure.

    @mdp.service("area")
    async def area(width: float, height: float = 1.0) -> float: ...

    await client.call("area", 2.0, height=3.0, result=float)

On the wire a call is a request with one body frame, msgpack of `[[positional…], {name: argument}]`, and its result one frame, msgpack of
the value; so clients in any language can make one. `mdp.typed.schemas` defines the schemas.

The error shows whose fault it is: `BadArguments` of the caller (the function was not called), `HandlerError` of the function, `BadResult`
of its author: the result is not of the annotated type, or not of the type that the caller expects.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgpack

from core.machine.bounded_msgpack import BadMsgpack, unpack
from mdp.errors import BadArguments, BadResult, HandlerError
from mdp.request import Request
from mdp.typed.schemas import SchemaRegistry, TypeMismatch, pack_by_type

if typing.TYPE_CHECKING:
    from mdp.typed.schemas import Schema

__all__ = ["BAD_ARGUMENTS", "BAD_RESULT", "BadArguments", "BadResult", "Signature", "pack_call", "typed_handler", "unpack_result"]

BAD_ARGUMENTS: Final = BadArguments.default_code
BAD_RESULT: Final = BadResult.default_code


# ------------------------------------------------------------------------------------------------------------ the caller's side


def pack_call(positional: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """Return the body frame of a call; raises TypeError for an argument of a type that cannot be sent."""
    return _packed([[*positional], {**named}])


def unpack_result(body: Sequence[bytes], schema: Schema, service: str | bytes) -> Any:
    """Return the value in a reply; raises BadResult if it is not msgpack, or not of this schema."""
    try:
        return schema.unpack(_unpacked(body))
    except (TypeMismatch, RecursionError) as error:
        name = service if isinstance(service, str) else service.decode(errors="replace")
        raise BadResult(name, text=_says(error)) from None


def _packed(value: Any) -> bytes:
    try:
        octets: bytes = msgpack.packb(value, default=pack_by_type)
    except (ValueError, OverflowError, RecursionError) as error:  # too deep, too large, or not UTF-8
        raise TypeError(f"this cannot be sent: {error}") from None
    return octets


def _unpacked(body: Sequence[bytes]) -> Any:
    """Return the value in the only frame of a body; raises TypeMismatch if that is not what it has."""
    if len(body) != 1:
        raise TypeMismatch("one frame", f"a body of {len(body)}")
    try:
        return unpack(body[0], strict_map_key=False)  # keys may be numbers
    except BadMsgpack:
        raise TypeMismatch("msgpack", "something else") from None


def _says(error: TypeMismatch | RecursionError) -> str:
    return str(error) if isinstance(error, TypeMismatch) else "it is nested too deeply"


# ---------------------------------------------------------------------------------------------------------- the function's side


class Signature:
    """The schemas of a function's arguments and result; a parameter annotated `mdp.Request` gets the request and is not an argument.

    Raises TypeError: an annotation is missing, or of a type that cannot be sent.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise TypeError(f"{self._name}: its annotations are needed at run time: {error}") from None
        schemas = SchemaRegistry()
        self._request_name = ""
        self._schemas: dict[str, Schema] = {}
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{self._name} takes {parameter}: each argument of a service has a name")
            if parameter.name not in hints:
                raise TypeError(f"{self._name}: parameter {parameter.name} has no annotation")
            if hints[parameter.name] is Request:
                self._request_name = parameter.name
                continue
            self._schemas[parameter.name] = schemas.of(hints[parameter.name])
            parameters.append(parameter)
        self._signature = inspect.Signature(parameters)
        result = hints.get("return", Any)
        if typing.get_origin(result) in (AsyncIterator, AsyncGenerator):
            result = typing.get_args(result)[0]
        self._result = schemas.of(result)

    def unpack_arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments by name; raises TypeMismatch if they are not those of the function."""
        call = _unpacked(request.body)
        if type(call) is not list or len(call) != 2 or type(call[0]) is not list or type(call[1]) is not dict:
            raise TypeMismatch("[[positional…], {name: argument}]", "something else")
        positional, named = call
        if not all(type(name) is str for name in named):
            raise TypeMismatch("names of arguments", "something else")
        try:
            bound = self._signature.bind(*positional, **named).arguments
        except TypeError as error:
            raise TypeMismatch(f"{self._name}{self._signature}", str(error)) from None
        for name, value in bound.items():
            try:
                bound[name] = self._schemas[name].unpack(value)
            except TypeMismatch as error:
                raise error.within(name) from None
        if self._request_name:
            bound[self._request_name] = request
        return bound

    def pack_result(self, value: Any) -> bytes:
        """Return the body frame of a reply; raises HandlerError with the code BAD_RESULT."""
        try:
            return _packed(self._result.pack(value))
        except (TypeMismatch, RecursionError) as error:
            raise HandlerError(code=BAD_RESULT, text=f"{self._name}: {_says(error)}") from None
        except TypeError as error:
            raise HandlerError(code=BAD_RESULT, text=f"{self._name}: {error}") from None

    def arguments_of(self, request: Request) -> dict[str, Any]:
        """Return the arguments by name; raises HandlerError with the code BAD_ARGUMENTS."""
        try:
            return self.unpack_arguments(request)
        except (TypeMismatch, RecursionError) as error:
            raise HandlerError(code=BAD_ARGUMENTS, text=_says(error)) from None


def typed_handler(function: Callable[..., Any], name: str) -> Callable[[Request], Any]:
    """Return a handler of the same kind (coroutine function, asynchronous generator or plain) that calls a typed function.

    `name` is for the log. Raises TypeError: an annotation is missing, or of a type that cannot be sent.
    """
    signature = Signature(function)
    if inspect.isasyncgenfunction(function):

        async def parts(request: Request) -> AsyncIterator[bytes]:
            async with aclosing(function(**signature.arguments_of(request))) as values:
                async for value in values:
                    yield signature.pack_result(value)

        return _named(parts, name)
    if inspect.iscoroutinefunction(function):

        async def answer(request: Request) -> bytes:
            return signature.pack_result(await function(**signature.arguments_of(request)))

        return _named(answer, name)

    def plain(request: Request) -> bytes:
        return signature.pack_result(function(**signature.arguments_of(request)))

    return _named(plain, name)


def _named(handler: Callable[[Request], Any], name: str) -> Callable[[Request], Any]:
    handler.__qualname__ = name
    return handler
