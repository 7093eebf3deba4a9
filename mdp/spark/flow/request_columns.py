"""Columns of requests: names as Spark resolves them, nested fields, expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

# Names of columns that are computed for requests and left out of the result.
_COMPUTED = "_mdp_request_"


@dataclass(frozen=True, slots=True)
class Projection:
    """DataFrame with all columns that requests need."""

    df: DataFrame  # the columns of the job's frame, then those that are computed for requests
    request: tuple[str, ...]  # columns that become the request, in this frame
    names: tuple[str, ...]  # their names in a table
    key: str | None  # column with the key


def project(df: DataFrame, request: Sequence[str | Column], key: str | Column | None) -> Projection:
    """Find columns, and add those that are expressions or fields of structs; raises ValueError if one does not exist."""
    missing: list[str] = []
    computed: list[Column] = []

    def find(what: str | Column) -> tuple[str, str]:
        """Return the name of a column in the new frame, and what it is called."""
        if isinstance(what, str) and (name := _name_of(df, what)) is not None:
            return name, name
        try:
            found = df.select(what).columns
        except AnalysisException:
            found = []
        if len(found) != 1:
            missing.append(str(what))
            return "", ""
        computed.append((F.col(what) if isinstance(what, str) else what).alias(f"{_COMPUTED}{len(computed)}"))
        return f"{_COMPUTED}{len(computed) - 1}", found[0]

    columns = [find(what) for what in request]
    key_name = None if key is None else find(key)[0]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; there are {', '.join(df.columns)}")
    names = tuple(called for _, called in columns)
    return Projection(df.select("*", *computed) if computed else df, tuple(name for name, _ in columns), names, key_name)


def _name_of(df: DataFrame, name: str) -> str | None:
    """Return the column of a name, in any case unless the session is case-sensitive."""
    if name in df.columns:
        return name
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return None
    alike = [column for column in df.columns if column.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None
