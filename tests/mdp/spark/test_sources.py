"""Sources that `register` registers: those of pyproject.toml, under their names."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from mdp.spark.sources import GROUP, register
from tests.mdp.spark.conftest import ROOT

if TYPE_CHECKING:
    import pytest


def test_the_entry_points_are_data_sources_under_their_own_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["entry-points"][GROUP]
    assert set(named) == {"mdp-events", "titanic"}
    for name, place in named.items():
        source = EntryPoint(name, place, GROUP).load()
        assert issubclass(source, DataSource)
        assert source.name() == name


def test_sources_that_need_a_later_pyspark_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySpark 4.0, which has data sources and no limits of their micro-batches."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    for name in ("mdp.spark.eventlog.source", "mdp.spark.eventlog.stream", "titanic.spark.source"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("mdp.spark.sql.functions.register_functions", lambda spark: None)
    monkeypatch.setattr("mdp.spark.sql.table_function.register_table_function", lambda spark: None)
    monkeypatch.setattr(
        "mdp.spark.sources.entry_points", lambda group: [EntryPoint("mdp-events", "mdp.spark.eventlog.source:EventsSource", group)]
    )
    assert register(object()) == []  # type: ignore[arg-type]  # nothing is registered in it
