"""Stubs of typed services: functions with the signature of a service that call it.

    total = client.stub(shop.total)                       # of a function that this program can import
    print(await total([Line("tea", 2.5)], discount=0.5))

    mdp stub total > shop_client.py                       # of a service that it cannot, from its description

Type checkers see parameters and results of both. A parameter `mdp.Request` of the function is not one of the stub.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from contextlib import aclosing
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from mdp.typed.calls import Signature, pack_call, unpack_result
from mdp.typed.schema_details import ENUM_NAMES
from mdp.typed.schemas import Schema
from mdp.worker.handler import handler_of, is_typed, mark_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from mdp.client.calls import CallOptions
    from mdp.typed.descriptions import Asking, Description

T = TypeVar("T")

# Default of a parameter in a written stub: the argument is not sent, and the service has its own default.
LEFT_OUT: Final[Any] = object()

_FORMATS: Final = {
    "date-time": "datetime.datetime",
    "date": "datetime.date",
    "time": "datetime.time",
    "partial-time": "datetime.time",
    "duration": "datetime.timedelta",
    "uuid": "uuid.UUID",
    "decimal": "decimal.Decimal",
}
_TYPES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Members of an enum: those of other names may mean something to Python.
_NAME: Final = re.compile(r"(?!mro\b|name\b|value\b)[A-Za-z]\w{0,254}", re.ASCII)
_ALIASES_DEEP_MAX: Final = 8  # descriptions whose classes contain themselves without an object between


# ------------------------------------------------------------------------------------------------------------ of functions


def stub_of(client: Asking, functions: Any, options: CallOptions) -> Any:
    """Return the stub of a decorated function, or an object with those of all in a module; see `mdp.Client.stub`."""
    if isinstance(functions, ModuleType):
        handlers = [handler_of(value) for value in vars(functions).values() if callable(value)]
        found = {one.__name__: _stub(client, one, options) for one in handlers if _is_function(one)}
        if not found:
            raise TypeError(f"{functions.__name__} decorates no function of arguments with mdp.service")
        return SimpleNamespace(**found)
    return _stub(client, handler_of(functions), options)


def plain_stub_of(stubs: Any, run: Callable[..., Any], iterate: Callable[..., Any]) -> Any:
    if isinstance(stubs, SimpleNamespace):
        return SimpleNamespace(**{name: plain_stub_of(stub, run, iterate) for name, stub in vars(stubs).items()})
    end = iterate if inspect.isasyncgenfunction(stubs) else run

    def call(*positional: Any, **named: Any) -> Any:
        return end(stubs(*positional, **named))

    return functools.wraps(stubs)(call)


def _is_function(function: Callable[..., Any]) -> bool:
    mark = mark_of(function)
    return mark is not None and not mark.batch and is_typed(function)


def _stub(client: Asking, function: Callable[..., Any], options: CallOptions) -> Callable[..., Any]:
    mark = mark_of(function)
    if mark is None or not _is_function(function):
        raise TypeError(f"{function!r} is no function of arguments that is decorated with mdp.service or that of an app")
    service, result = mark.name, Signature(function).result
    if inspect.isasyncgenfunction(function):

        async def values(*positional: Any, **named: Any) -> AsyncGenerator[Any, None]:
            async with aclosing(client.stream(service, pack_call(positional, named), **options)) as parts:
                async for part in parts:
                    if part != [b""]:
                        yield unpack_result(part, result, service)

        return functools.wraps(function)(values)

    async def value(*positional: Any, **named: Any) -> Any:
        return unpack_result(await client.request(service, pack_call(positional, named), **options), result, service)

    return functools.wraps(function)(value)


# ------------------------------------------------------------------------------------------------------ of descriptions


@overload
async def ask(client: Asking, service: str, arguments: Mapping[str, Any], result: type[T]) -> T: ...


@overload
async def ask(client: Asking, service: str, arguments: Mapping[str, Any], result: Any) -> Any: ...


async def ask(client: Asking, service: str, arguments: Mapping[str, Any], result: Any) -> Any:
    """Call a service for a written stub; arguments that are LEFT_OUT are not sent."""
    return unpack_result(await client.request(service, _packed(arguments)), Schema(result), service)


async def ask_stream(client: Asking, service: str, arguments: Mapping[str, Any], result: Any) -> AsyncGenerator[Any, None]:
    """Call a generator for a written stub and yield its values."""
    schema = Schema(result)
    async with aclosing(client.stream(service, _packed(arguments))) as parts:
        async for part in parts:
            if part != [b""]:
                yield unpack_result(part, schema, service)


def _packed(arguments: Mapping[str, Any]) -> bytes:
    return pack_call([], {name: value for name, value in arguments.items() if value is not LEFT_OUT})


def stub_source(descriptions: Sequence[Description]) -> str:
    """Return a module with a function for each service, checked by type checkers; raises ValueError."""
    functions, classes = [], dict[str, str]()
    for description in descriptions:
        if not description.arguments:
            raise ValueError(f"{description.service} describes no arguments; it takes whole requests, or its description is too long")
        classes.update(class_sources(description))
        functions.append(_function_source(description))
    text = "\n\n".join([*classes.values(), *functions])
    imports = [f"import {name}" for name in ("datetime", "decimal", "enum", "uuid") if f"{name}." in text]
    names = [name for name in ("Any", "Literal") if re.search(rf"\b{name}\b", text)]
    if any("ask_stream(" in one for one in functions):
        imports.append("from collections.abc import AsyncIterator")
    imports += [f"from typing import {', '.join(names)}"] if names else []
    helpers = [name for name in ("LEFT_OUT", "ask", "ask_stream") if re.search(rf"\b{name}\b", text)]
    head = ['"""Written by `mdp stub`; write it again instead of editing it."""', "from __future__ import annotations", "\n".join(imports)]
    ours = (["import msgspec", ""] if classes else []) + ["import mdp", f"from mdp.typed.stubs import {', '.join(helpers)}"]
    return "\n\n".join([*filter(None, head), "\n".join(ours) + "\n", text]) + "\n"


def _function_source(description: Description) -> str:
    properties = description.arguments.get("properties", {})
    required = set(description.arguments.get("required", ()))
    names = {name: _name(name) for name in properties}
    client = next(name for name in ("client", "client_", "mdp_client") if name not in names)
    parameters = [f"{client}: mdp.Client"]
    for name, schema in properties.items():
        if name in description.by_name and "*" not in parameters:
            parameters.append("*")
        parameters.append(f"{name}: {_type(schema, description)}" + ("" if name in required else " = LEFT_OUT"))
    result = _type(description.result, description)
    given = "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
    called = f"{client}, {description.service!r}, {given}, {result}"
    head = f"def {_identifier(description.service)}({', '.join(parameters)})"
    lines = [f"async {head} -> {result}:"] if not description.stream else [f"async {head} -> AsyncIterator[{result}]:"]
    if description.doc:
        lines.append(f"    {description.doc!r}")
    if description.stream:
        lines += [f"    async for value in ask_stream({called}):", "        yield value"]
    else:
        lines += [f"    value: {result} = await ask({called})", "    return value"]
    return "\n".join(lines) + "\n"


def class_sources(description: Description) -> dict[str, str]:
    """Return the source of each class in a description, by name; raises ValueError as `stub_source`."""
    tags = dict(_tags([description.arguments, description.result, description.definitions]))
    found = {}
    for key, schema in description.definitions.items():  # before the classes, whose defaults are members
        if members := _members(schema):
            lines = [f"class {_identifier(key)}(enum.Enum):", *(f"    {name} = {value!r}" for name, value in members.items())]
            found[_identifier(key)] = "\n".join(lines) + "\n"
    for key, schema in description.definitions.items():
        if "properties" not in schema:
            continue  # written where it is used
        name, required = _identifier(key), set(schema.get("required", ()))
        tag_field, tag = tags.get(key, ("", ""))
        bases = ["msgspec.Struct", "kw_only=True"] + ([f"tag_field={tag_field!r}", f"tag={tag!r}"] if tag_field else [])
        lines = [f"class {name}({', '.join(bases)}):"]
        for field, inner in schema["properties"].items():
            if field != tag_field:
                lines.append(f"    {_name(field)}: {_field(inner, field in required, description)}")
        found[name] = "\n".join(lines if len(lines) > 1 else [*lines, "    pass"]) + "\n"
    return found


def _field(schema: Mapping[str, Any], required: bool, description: Description) -> str:
    kind = _type(schema, description)
    if required:
        return kind
    if not isinstance(schema, dict):
        schema = {}
    default = schema.get("default", LEFT_OUT)
    members = _members(description.definitions.get(str(schema.get("$ref")).rpartition("/")[2]))
    for name, value in members.items():
        if type(value) is type(default) and value == default:
            return f"{kind} = {kind}.{name}"
    # A default of another type is text in the schema, bytes for example; the service has its own.
    if kind.startswith("Literal[") or default is None or type(default).__name__ in kind.split(" | "):
        if type(default) in (type(None), bool, int, float, str):
            return f"{kind} = {default!r}"
    return f"{kind} | msgspec.UnsetType = msgspec.UNSET"


def _tags(parts: Iterable[Any]) -> Iterable[tuple[str, tuple[str, Any]]]:
    """Yield class, name of the tag's field and tag, of each union of classes."""
    for part in parts:
        if isinstance(part, dict):
            union = part.get("discriminator")
            if isinstance(union, dict) and isinstance(union.get("mapping"), dict):
                for tag, reference in union["mapping"].items():
                    yield str(reference).rpartition("/")[2], (str(union.get("propertyName", "type")), tag)
            yield from _tags(part.values())
        elif isinstance(part, list):
            yield from _tags(part)


def _type(schema: Any, description: Description, deep: int = 0) -> str:
    """Return the Python type of a JSON schema, `Any` for one that is not known here."""
    if not isinstance(schema, dict) or deep > _ALIASES_DEEP_MAX:
        return "Any"

    def inner(part: Any) -> str:
        return _type(part, description, deep + 1)

    if "$ref" in schema:
        key = str(schema["$ref"]).rpartition("/")[2]
        target = description.definitions.get(key, {})
        is_class = isinstance(target, dict) and ("properties" in target or _members(target))
        return _identifier(key) if is_class else inner(target)
    if isinstance(schema.get("anyOf"), list):
        return " | ".join(dict.fromkeys(map(inner, schema["anyOf"]))) or "Any"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(type(value) in (str, int, bool, type(None)) for value in values):
        return f"Literal[{', '.join(map(repr, values))}]"
    kind = schema.get("type")
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return "bytes"
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), "str")
    if kind == "array" and isinstance(schema.get("prefixItems"), list):
        return f"tuple[{', '.join(map(inner, schema['prefixItems']))}]"
    if kind == "array":
        return f"{'set' if schema.get('uniqueItems') else 'list'}[{inner(schema.get('items'))}]"
    if kind == "object":
        return f"dict[Any, {inner(schema.get('additionalProperties'))}]"
    return _TYPES.get(str(kind), "Any")


def _members(schema: Any) -> dict[str, str | int]:
    """Return the members of an enum by name, none if a stub cannot have them."""
    if not isinstance(schema, dict):
        return {}
    names, values = schema.get(ENUM_NAMES), schema.get("enum")
    if not isinstance(names, list) or not isinstance(values, list) or {*map(type, values)} not in ({str}, {int}):
        return {}
    if not all(isinstance(name, str) and _NAME.fullmatch(name) and not keyword.iskeyword(name) for name in names):
        return {}
    found = dict(zip(names, values, strict=False))
    return found if len(found) == len(names) == len(values) == len({*values}) else {}


def _identifier(text: str) -> str:
    """Return a name for a service or class, whose own names may have other signs."""
    return _name(re.sub(r"\W", "_", text))


def _name(text: str) -> str:
    """Return a name that may become one of Python; raises ValueError."""
    if not text.isidentifier() or keyword.iskeyword(text) or len(text) > 255:
        raise ValueError(f"{text[:80]!r} cannot be a name in Python")
    return text
