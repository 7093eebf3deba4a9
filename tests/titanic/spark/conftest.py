"""The Spark session of all tests, and a store at a broker with a service that counts what it executes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.mdp.spark.conftest import ROOT
from tests.mdp.spark.conftest import spark as spark  # the same session: a second Java process would cost as much as all tests
from tests.scenes.titanic_spark_processes import House

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with House(tmp_path_factory.mktemp("titanic-house"), environment) as house:
        yield house
