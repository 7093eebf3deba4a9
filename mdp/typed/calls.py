"""Typed calls: a function's annotations are the schema of what is sent to it and of what it returns. Pure.

    @mdp.service("area")
    async def area(width: float, height: float = 1.0) -> float: ...

    await client.call("area", 2.0, height=3.0, result=float)

On the wire a call is a request with one body frame, msgpack of `[[positional…], {name: argument}]`, and its result one frame, msgpack of
the value; so clients in any language can make one. `mdp.typed.schemas` has the types.

The error shows whose fault it is: `BadArguments` of the caller (the function was not called), `HandlerError` of the function, `BadResult`
of its author: the result is not of the annotated type, or not of the type that the caller expects.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from core.machine.bounded_msgpack import claimed
from mdp.errors import BadArguments, BadResult, HandlerError
from mdp.request import Request
from mdp.typed.schemas import Schema, TypeMismatch, hints_of, json_schemas, pack_by_type

BAD_ARGUMENTS: Final = BadArguments.default_code
BAD_RESULT: Final = BadResult.default_code


# Where the arguments begin: after an array's header of two elements, in its usual and its longer forms.
_OUTER_BYTES: Final = {0x92: 1, 0xDC: 3, 0xDD: 5}
_CALL: Final = "[[positional…], {name: argument}]"
_names_of_call: Final = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]).decode


# ------------------------------------------------------------------------------------------------------------ the caller's side


def pack_call(positional: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """Return the body frame of a call; raises TypeError for an argument of a type that cannot be sent."""
    return pack_by_type([positional, named])


def unpack_result(body: Sequence[bytes], schema: Schema, service: str | bytes) -> Any:
    """Return the value in a reply; raises BadResult if it is not msgpack, or not of this schema."""
    try:
        return schema.unpack(_only_frame(body))
    except TypeMismatch as error:
        name = service if isinstance(service, str) else service.decode(errors="replace")
        raise BadResult(name, text=str(error)) from None


def _only_frame(body: Sequence[bytes]) -> bytes:
    if len(body) != 1:
        raise TypeMismatch(f"expected one frame, got {len(body)}")
    return body[0]


# ---------------------------------------------------------------------------------------------------------- the function's side


class Signature:
    """The schemas of a function's arguments and result; a parameter annotated `mdp.Request` gets the request and is not an argument.

    A call is decoded in one piece: for each number of positional arguments there is a schema, in which the other parameters are fields of a
    struct. Raises TypeError for an annotation that is missing, cannot be resolved, or is of a type that cannot be sent.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        hints = hints_of(function)
        self._request_name = ""
        self._types: dict[str, Any] = {}
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{self._name} takes {parameter}: each argument of a service has a name")
            if parameter.name not in hints:
                raise TypeError(f"{self._name}: parameter {parameter.name} has no annotation")
            if hints[parameter.name] is Request:
                self._request_name = parameter.name
                continue
            self._types[parameter.name] = hints[parameter.name]
            self._schema_of(parameter.name, hints[parameter.name])
            parameters.append(parameter)
        self._signature = inspect.Signature(parameters)
        self._positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        self._calls: dict[int, Schema] = {}  # by number of positional arguments
        result = hints.get("return", Any)
        if typing.get_origin(result) in (AsyncIterator, AsyncGenerator):
            result = typing.get_args(result)[0]
        self.result = self._schema_of("its result", result)

    def __str__(self) -> str:
        names = {Any: "Any"}
        parameters = [one.replace(annotation=self._types[name]) for name, one in self._signature.parameters.items()]
        text = str(inspect.Signature(parameters, return_annotation=names.get(self.result.annotation, self.result.annotation)))
        return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)  # without modules

    def json_schemas(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return JSON schemas: of an object with the arguments, of the result, and of the classes in both by name."""
        (*schemas, result), definitions = json_schemas([*self._types.values(), self.result.annotation])
        properties = dict(zip(self._types, schemas, strict=True))
        required = []
        for name, parameter in self._signature.parameters.items():
            if parameter.default is parameter.empty:
                required.append(name)
            elif type(parameter.default) in (type(None), bool, int, float, str):
                properties[name] = {**properties[name], "default": parameter.default}
        arguments = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return arguments, result, definitions

    @property
    def by_name(self) -> list[str]:
        return [name for name in self._types if name not in self._positional]

    def _schema_of(self, what: str, annotation: Any) -> Schema:
        try:
            return Schema(annotation)
        except TypeError as error:
            raise TypeError(f"{self._name}: {what}: {error}") from None

    def _call_of(self, count: int) -> Schema:
        schema = self._calls.get(count)
        if schema is None:
            given = self._positional[:count]
            fields: list[Any] = [
                (name, self._types[name]) if one.default is one.empty else (name, self._types[name], msgspec.UNSET)
                for name, one in self._signature.parameters.items()
                if name not in given
            ]
            # Fields of a struct with defaults come last; the names are what is sent, so the order does not matter.
            named = msgspec.defstruct("Named", sorted(fields, key=len), forbid_unknown_fields=True)
            schema = self._calls[count] = Schema(tuple[tuple[*(self._types[name] for name in given)], named])  # type: ignore[misc]
        return schema

    # Hot path: once per request.
    def unpack_arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments by name; raises TypeMismatch if they are not those of the function."""
        octets = _only_frame(request.body)
        count = claimed(octets[_OUTER_BYTES.get(octets[0] if octets else 0, len(octets)) :][:5])
        if count > len(self._positional):
            raise self._unbound([None] * (len(self._positional) + 1), {}, TypeMismatch(f"expected {_CALL}"))
        try:
            positional, named = self._call_of(count).unpack(octets)
        except TypeMismatch as error:
            raise self._placed(error, octets) from None
        arguments = dict(zip(self._positional, positional, strict=False))
        if len(self._types) > count:
            for name in named.__struct_fields__:
                value = getattr(named, name)
                if value is not msgspec.UNSET:
                    arguments[name] = value
        if self._request_name:
            arguments[self._request_name] = request
        return arguments

    def _placed(self, error: TypeMismatch, octets: bytes) -> TypeMismatch:
        """Return the error with the name of the argument, or the reason why the call does not match the function."""
        found = re.match(r"\[0\]\[(\d+)\](.*)|\[1\]\.(\w+)(.*)", error.place, re.DOTALL)
        if found is not None:
            number, behind, name, behind_name = found.groups()
            return TypeMismatch(error.problem, f".{name or self._positional[int(number)]}{behind or behind_name or ''}")
        try:
            positional, named = _names_of_call(octets)
        except ValueError:
            return TypeMismatch(f"expected a call of {self._name}{self}, by client.call or mdp call --args, got other bytes")
        return self._unbound(positional, named, error)

    def _unbound(self, positional: Sequence[Any], named: Mapping[str, Any], other: TypeMismatch) -> TypeMismatch:
        """Return the error that the arguments are not those of the function, or the other one if they are."""
        try:
            self._signature.bind(*positional, **named)
        except TypeError as error:
            unknown = min(named.keys() - self._signature.parameters.keys(), default="")
            more = f", and there is no {unknown!r}" if unknown and repr(unknown) not in str(error) else ""
            return TypeMismatch(f"expected {self._name}{self}, got another call: {error}{more}")
        return other

    def pack_result(self, value: Any) -> bytes:
        """Return the body frame of a reply; raises HandlerError with the code BAD_RESULT."""
        try:
            return self.result.pack(value)
        except (TypeMismatch, TypeError) as error:
            raise HandlerError(code=BAD_RESULT, text=f"{self._name}: {error}") from None

    def arguments_of(self, request: Request) -> dict[str, Any]:
        """Return the arguments by name; raises HandlerError with the code BAD_ARGUMENTS."""
        try:
            return self.unpack_arguments(request)
        except TypeMismatch as error:
            raise HandlerError(code=BAD_ARGUMENTS, text=str(error)) from None


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
