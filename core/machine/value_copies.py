"""Copies and pickles of values and errors by their fields, and types of fields that are checked. Pure.

Spark and process pools pickle what user code refers to. Compiled, a frozen dataclass cannot be filled after it was made, as `copy` and
`pickle` do; and an error is made again of its text alone, which an `__init__` with other parameters refuses.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=BaseException)
# Classes by annotation.
_WHOLE: Final[dict[str, type | tuple[type, ...]]] = {"int": int, "int | None": (int, type(None)), "bool": bool}


def reduced(value: Any) -> tuple[Any, ...]:
    """Return what `__reduce__` of a dataclass returns: a copy is made by `__init__`."""
    return _value, (type(value), {one.name: getattr(value, one.name) for one in fields(value)})


def _value(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**values)


def check_whole(value: Any) -> None:
    """Raise TypeError for an integer or bool of a dataclass that is none, as compiled code does."""
    for one in fields(value):
        wanted = _WHOLE.get(str(one.type), object)
        if not isinstance(getattr(value, one.name), wanted):
            raise TypeError(f"{one.name} is {getattr(value, one.name)!r}, it must be {one.type}")


class KeepsFields:
    """Base of the root of a tree of errors: a copy of one has its text and fields."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _error, (type(self), getattr(self, "args", ()), dict(vars(self)))


def _error(kind: type[E], args: tuple[Any, ...], values: dict[str, Any]) -> E:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(values)
    return error
