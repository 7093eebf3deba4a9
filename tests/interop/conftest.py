"""Our sockets and libzmq's, made with limits on every wait, and closed whatever a test does.

A broker of ours for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from tests.interop.ends import Foreign, Ours
from tests.scenes.loops import each_case_on_one_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let cases of one test take turns on the loops."""
    each_case_on_one_loop(config, items, Path(__file__).parent)


@pytest.fixture
async def ours() -> AsyncIterator[Ours]:
    """Maker of our ends."""
    async with core.Context() as context:
        yield Ours(context)


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    """Maker of libzmq's ends."""
    maker = Foreign()
    yield maker
    maker.close()


@pytest.fixture(params=["tcp", "ipc"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An endpoint to bind: tcp with a free port, or a new ipc path."""
    return "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path / 'socket'}"


@pytest.fixture
async def broker() -> AsyncIterator[mdp.Broker]:
    """Our broker on a free port."""
    async with mdp.Broker() as serving:
        serving.bind("tcp://127.0.0.1:*")
        yield serving


@pytest.fixture
def where(broker: mdp.Broker) -> str:
    """Its endpoint."""
    return broker.endpoints[0]


@pytest.fixture(params=["PLAIN", "CURVE"])
def mechanism(request: pytest.FixtureRequest) -> str:
    """Security of the connection."""
    name: str = request.param
    return name
