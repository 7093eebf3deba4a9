"""Documented paths of modules that have moved: what was imported from them is there, and is the same."""

from __future__ import annotations

from importlib import import_module

import pytest

PATHS = {
    "mdp.eventlog_files": "mdp.eventlog.files",
    "mdp.spark.geo": "mdp.spark.demo.nearest",
    "mdp.tracing": "mdp.observe.tracing",
    "titanic.disk": "titanic.journal.disk",
    "titanic.service": "titanic.store.service",
}


@pytest.mark.parametrize(("path", "place"), PATHS.items())
def test_a_documented_path_leads_to_the_module(path: str, place: str) -> None:
    documented, module = import_module(path), import_module(place)
    assert documented.__all__
    assert all(getattr(documented, name) is getattr(module, name) for name in documented.__all__)
