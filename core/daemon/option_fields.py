"""Command-line options from a dataclass: name, type, default and help are written once, in the dataclass.

A field `heartbeat_ms: float = 2500` becomes `--heartbeat-ms FLOAT`, its line under "Attributes:" in the docstring the help. A field
`Sequence[str]` becomes an option that may be repeated, a field without default one that must be given.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import reduce
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from core.machine.value_copies import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
T = TypeVar("T")

_ENTRY = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)
_RULE_IDS = re.compile(r" \((?:fault )?[A-Z]{1,4}-?\d+\)")


class FiniteRange(click.FloatRange):
    """A range of numbers; not a number, infinity, and what no calculation can use are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return _usable(self, value, number, param, ctx)


class WholeRange(click.IntRange):
    """A range of integers that calculations can use."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _usable(self, value, super().convert(value, param, ctx), param, ctx)


def _usable(of: click.ParamType[Any], value: Any, number: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if number > NUMBER_MAX:
        of.fail(f"{value} is too large, above 2**53.", param, ctx)
    return number


def attribute_texts(cls: type) -> dict[str, str]:
    """Return the docstring's line on each attribute, without rule ids."""
    attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    plain = {name: _RULE_IDS.sub("", " ".join(text.split())) for name, text in _ENTRY.findall(attributes)}
    # Attribute names in a text become flags.
    flags = {f"`{name}`": f"--{name.replace('_', '-')}" for name in plain}
    for name, text in plain.items():
        for attribute, flag in flags.items():
            text = text.replace(attribute, flag)
        plain[name] = (text[:1].upper() + text[1:]).replace(" [", "  [")  # as click writes its own
    return plain


def options(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds several options, in the order of `--help`."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(decorators), function)


def field_options(
    cls: type,
    *,
    skip: Collection[str] = (),
    zero: Collection[str] = (),
    choices: dict[str, list[str]] | None = None,
    **special: dict[str, Any],
) -> Decorator:
    """Add an option for each field of a dataclass not in `skip`; numbers are positive, or 0 if in `zero`.

    Args:
        cls: the dataclass.
        skip: fields without an option.
        zero: numbers that may be 0.
        choices: the texts that a field may be.
        special: by field: `flag`, if it is not the name of the field, and other arguments of its `click.option`.
    """
    texts = attribute_texts(cls)

    def option(field: dataclasses.Field[Any]) -> Decorator:
        given = dict(special.get(field.name, {}))
        several, _, kind = str(field.type).removesuffix(" | None").removesuffix("]").rpartition("[")
        name = field.name.replace("_", "-")
        flag = given.pop("flag", f"--{name}/--no-{name}" if kind == "bool" else f"--{name}")
        given.setdefault("help", texts.get(field.name))
        if "type" not in given:
            given["type"] = _click_type(kind, field.name in zero, (choices or {}).get(field.name))
        if field.default is dataclasses.MISSING:
            given.setdefault("required", True)
        else:
            given.setdefault("default", field.default)
        return click.option(flag, field.name, is_flag=kind == "bool" or None, multiple=several == "Sequence", **given)

    return options(*(option(field) for field in dataclasses.fields(cls) if field.name not in skip))


def build(cls: type[T], values: dict[str, Any], **more: Any) -> T:
    """Make a dataclass of the values of its options, which are taken out of `values`."""
    names = [field.name for field in dataclasses.fields(cls) if field.name in values]  # type: ignore[arg-type]  # of a dataclass
    return cls(**{name: values.pop(name) for name in names}, **more)


def arguments(chosen: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as arguments of what they are the options of."""
    return {field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen) if field.name not in without}


def given(context: click.Context, cls: type) -> dict[str, Any]:
    """Return the values of a dataclass's fields that came from flag, environment or file, not from defaults."""
    names = [field.name for field in dataclasses.fields(cls) if field.name in context.params]
    return {name: context.params[name] for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def _click_type(kind: str, zero: bool, values: list[str] | None) -> Any:
    if values:
        return click.Choice(values)
    if kind == "int":
        return WholeRange(min=0 if zero else 1)
    if kind == "float":
        return FiniteRange(min=0, min_open=not zero)
    return {"str": str, "bool": bool}[kind]
