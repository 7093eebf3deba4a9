"""Names that are loaded on first use."""

from __future__ import annotations

import sys

import pytest

from majordomo_toolkit.lazy_names import lazy_names


def test_a_missing_extra_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    load = lazy_names("mdp.spark", {"pyspark": ["dispatch"]}, extra="spark")
    with pytest.raises(ModuleNotFoundError) as caught:
        load("dispatch")
    assert str(caught.value) == "mdp.spark.dispatch needs pyspark, which is not installed; fix: pip install 'majordomo-toolkit[spark]'"
    assert caught.value.name == "pyspark"


def test_a_module_of_ours_that_is_not_there_is_our_mistake() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mdp\.spark\.missing'$"):
        lazy_names("mdp.spark", {"mdp.spark.missing": ["dispatch"]}, extra="spark")("dispatch")
