"""Sources that `register` registers: those of pyproject.toml, under their names."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mdp.spark.eventlog.source import EventsSource
from mdp.spark.sources import GROUP, register
from mdp.spark.sql.versions import SparkTooOld
from tests.mdp.spark.conftest import ROOT
from titanic.spark.source import TitanicSource


def test_the_entry_points_are_data_sources_under_their_own_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["entry-points"][GROUP]
    assert set(named) == {"mdp-events", "titanic"}
    for name, place in named.items():
        source = EntryPoint(name, place, GROUP).load()
        assert issubclass(source, DataSource)
        assert source.name() == name


def test_sources_are_registered_though_their_streams_need_a_later_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySpark 4.0, which has data sources and no limits of their micro-batches."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    for name in ("mdp.spark.eventlog.source", "mdp.spark.eventlog.stream", "titanic.spark.source"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("mdp.spark.sql.functions.register_functions", lambda spark: None)
    monkeypatch.setattr("mdp.spark.sql.table_function.register_table_function", lambda spark: None)
    monkeypatch.setattr(
        "mdp.spark.sources.entry_points", lambda group: [EntryPoint("mdp-events", "mdp.spark.eventlog.source:EventsSource", group)]
    )
    registered: list[str] = []
    session: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda source: registered.append(source.name())))
    assert register(session) == registered == ["mdp-events"]


def test_streams_that_need_a_later_pyspark_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySpark 4.1, whose readers of streams are asked in another way."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    for name in ("mdp.spark.eventlog.stream", "titanic.spark.stream_reader"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    with pytest.raises(SparkTooOld, match=r"an event log as a stream needs PySpark 4.2 or later, this is 4.1.0"):
        EventsSource({"path": "events"}).streamReader(StructType())
    with pytest.raises(SparkTooOld, match=r"a stream of replies needs PySpark 4.2 or later"):
        TitanicSource({"broker": "tcp://a:1"}).streamReader(StructType())
