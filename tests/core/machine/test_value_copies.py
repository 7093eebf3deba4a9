"""core.machine.value_copies: copies by fields, and which numbers are taken."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from core.machine.value_copies import NUMBER_MAX, KeepsFields, check_counts, check_not_negative, check_positive, check_whole, reduced

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int | None = None
    seen: bool = False
    name: object = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class Fault(KeepsFields, Exception):
    """An error whose parameters are not its text."""

    def __init__(self, *, size: int) -> None:
        super().__init__(f"{size} bytes", size)
        self.size = size


def remade(value: Any) -> Any:
    """Make a value again as pickle does."""
    make, arguments = value.__reduce__()
    return make(*arguments)


def takes(check: Callable[..., None], *values: Any, **numbers: Any) -> bool:
    """Tell whether a check takes them."""
    try:
        check(*values, **numbers)
    except (TypeError, ValueError):
        return False
    return True


class SystemFault(KeepsFields, OSError):
    """An error of the system whose parameters are not its text."""

    def __init__(self, *, number: int) -> None:
        super().__init__(f"fault {number}")
        self.number = number


def test_a_copy_of_a_value_has_its_fields() -> None:
    point = Point(1, y=2, name="p")
    for other in (copy.copy(point), remade(point)):
        assert (other, other is point) == (point, False)


def test_a_copy_of_an_error_has_its_text_and_fields() -> None:
    for other in (copy.copy(Fault(size=3)), remade(Fault(size=3))):
        assert (type(other), other.args, other.size, str(other)) == (Fault, ("3 bytes", 3), 3, "('3 bytes', 3)")


def test_a_copy_of_an_error_of_the_system_has_them_too() -> None:
    """OSError takes its `args` in another place than other errors do."""
    error = SystemFault(number=5)
    for other in (copy.copy(error), remade(error)):
        assert (type(other), other.args, other.number) == (SystemFault, ("fault 5",), 5)


@pytest.mark.parametrize("values", [(1,), (1, None), (1, 2, True), (True, 2, False, 1.5)])
def test_fields_of_integers_and_bools_are_that(values: Any) -> None:
    assert takes(check_whole, Point(*values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((1.0,), "x is 1.0, it must be int"),
        ((None,), "x is None, it must be int"),
        ((1, "2"), "y is '2', it must be int | None"),
        ((1, None, 1), "seen is 1, it must be bool"),
    ],
)
def test_a_field_that_is_none_is_named(values: Any, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        check_whole(Point(*values))
    assert str(raised.value) == said


@pytest.mark.parametrize("value", [1, 0.001, NUMBER_MAX, float(NUMBER_MAX), None, True])
def test_positive_numbers_are_taken(value: Any) -> None:
    assert takes(check_positive, a=1, b=value)
    assert takes(check_not_negative, a=0, b=value)


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, -math.inf, NUMBER_MAX + 1, math.inf, "1", Decimal(1), b"1"])
def test_other_numbers_are_refused_by_name(value: Any) -> None:
    wanted = ValueError if isinstance(value, int | float) else TypeError
    for check in (check_positive, check_not_negative, check_counts):
        with pytest.raises(wanted, match=r"^wrong is ") as raised:
            check(right=1, wrong=value)
        assert type(raised.value) is wanted


def test_zero_is_not_positive_and_not_negative() -> None:
    assert takes(check_not_negative, a=0, b=0.0)
    for check in (check_positive, check_counts):
        with pytest.raises(ValueError, match="a is 0, it must be positive"):
            check(a=0)


def test_no_limit_is_taken_where_it_may_be_given() -> None:
    assert takes(check_positive, math.inf, a=math.inf, b=NUMBER_MAX)
    assert takes(check_not_negative, math.inf, a=math.inf, b=NUMBER_MAX)
    for check in (check_positive, check_not_negative):
        with pytest.raises(ValueError, match=r"a is too large, above 2\*\*53"):
            check(math.inf, a=NUMBER_MAX + 1)


def test_a_count_is_an_integer() -> None:
    assert takes(check_counts, a=1, b=NUMBER_MAX)
    for value in (1.0, None):
        with pytest.raises(TypeError, match=f"a is {value}, it must be int"):
            check_counts(a=value)
