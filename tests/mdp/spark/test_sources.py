"""Sources that `register` registers: those of pyproject.toml, under their names."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint

from pyspark.sql.datasource import DataSource

from mdp.spark.sources import GROUP
from tests.mdp.spark.conftest import ROOT


def test_the_entry_points_are_data_sources_under_their_own_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["entry-points"][GROUP]
    assert set(named) == {"mdp-events", "titanic"}
    for name, place in named.items():
        source = EntryPoint(name, place, GROUP).load()
        assert issubclass(source, DataSource)
        assert source.name() == name
