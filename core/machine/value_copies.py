"""Copies and pickles of values and errors by their fields, and checks of fields and numbers. Pure.

Spark and process pools pickle what user code refers to. Compiled, a frozen dataclass cannot be filled after it was made, as `copy` and
`pickle` do; and an error is made again of its text alone, which an `__init__` with other parameters refuses.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, TypeVar

NUMBER_MAX: Final = 2**53  # a number above it is a mistake, and would become an endless one when it is multiplied
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


def check_positive(most: float = NUMBER_MAX, /, **numbers: object) -> None:
    """Check numbers by name, None is left out; `most` is inf where that means no limit.

    Raises:
        TypeError: no number.
        ValueError: not above zero, or too large.
    """
    for name, value in numbers.items():
        if value is not None and not _number(name, value, most) > 0:
            raise ValueError(f"{name} is {value}, it must be positive")


def check_not_negative(most: float = NUMBER_MAX, /, **numbers: object) -> None:
    """Check numbers as `check_positive` does, but zero is allowed."""
    for name, value in numbers.items():
        if value is not None and not _number(name, value, most) >= 0:
            raise ValueError(f"{name} is {value}, it must not be negative")


def check_counts(**numbers: object) -> None:
    """Check integers by name; raises TypeError: none, ValueError: not positive."""
    check_positive(**numbers)
    for name, value in numbers.items():
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, it must be int")


def _number(name: str, value: object, most: float) -> int | float:
    if not isinstance(value, int | float):  # a Decimal for example: times of the event loop are added to it
        raise TypeError(f"{name} is {value!r}, it must be int or float")
    if value > NUMBER_MAX and value != most:
        raise ValueError(f"{name} is too large, above 2**53")
    return value


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
