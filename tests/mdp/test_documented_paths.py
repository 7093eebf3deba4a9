"""Documented paths of moved modules lead to them, and documented loggers have their names."""

from __future__ import annotations

import logging
from importlib import import_module

import pytest

import core

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


@pytest.mark.parametrize("name", ["core.daemon", "core.context", "core.socket", "core.authenticator", "core.supervision", "mdp.audit"])
def test_a_documented_logger_has_its_name(name: str) -> None:
    for module in ("core.daemon.run", "core.security.authenticator", "mdp.access.audit_log"):
        import_module(module)
    core.Context().term()
    assert name in logging.root.manager.loggerDict
