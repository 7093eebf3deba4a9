"""Versions of PySpark that some features need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import types

if TYPE_CHECKING:
    from collections.abc import Callable


class SparkTooOld(RuntimeError):
    """A feature needs a later PySpark than the installed one."""

    def __init__(self, feature: str, needed: str) -> None:
        super().__init__(feature, needed)
        self.feature = feature
        self.needed = needed
        self.installed = pyspark.__version__

    def __str__(self) -> str:
        return f"{self.feature} needs PySpark {self.needed} or later, this is {self.installed}"


def has_spark(version: str) -> bool:
    return _numbers(pyspark.__version__) >= _numbers(version)


def parsed_type(ddl: str) -> types.DataType:
    """Return the type of a DDL text such as "km double", with the active session; raises Spark's ParseException."""
    if has_spark("4.0"):
        return types.DataType.fromDDL(ddl)
    parse: Callable[[str], types.DataType] = types._parse_datatype_string  # what fromDDL calls; before 4.0 it has no public name
    return parse(ddl)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
