"""A context and a maker of sockets with limits on every wait."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.loops import each_case_on_one_loop
from tests.scenes.raw_octets import Delivery, at_once, octet_by_octet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Make = Callable[..., core.Socket]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let cases of one test take turns on the loops."""
    each_case_on_one_loop(config, items, Path(__file__).parent)


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    """One context, closed with everything in it."""
    async with core.Context(seed=1) as made:
        yield made


@pytest.fixture
def make(context: core.Context) -> Make:
    """Make a socket: linger 0, ten seconds for every wait, quick to reconnect."""

    def socket(kind: int, *, bind: str = "", connect: str = "", **options: int | bytes) -> core.Socket:
        limits: dict[str, int | bytes] = {"linger": 0, "rcvtimeo": 60_000, "sndtimeo": 60_000, "reconnect_ivl": 1}
        made = context.socket(kind, **(limits | options))
        if bind:
            made.bind(bind)
        if connect:
            made.connect(connect)
        return made

    return socket


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An endpoint to bind on each transport."""
    return {"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{tmp_path / 's'}", "inproc": "inproc://anywhere"}[request.param]


@pytest.fixture(params=[at_once, octet_by_octet], ids=["at once", "octet by octet"])
def delivery(request: pytest.FixtureRequest) -> Delivery:
    """Division of the peer's bytes into reads (HAR-02)."""
    found: Delivery = request.param
    return found


@asynccontextmanager
async def bound(kind: int, **options: Any) -> AsyncIterator[core.Socket]:
    """A socket of ours that listens."""
    async with core.Context() as context:
        socket = context.socket(kind, linger=0, rcvtimeo=60_000, sndtimeo=60_000, **options)
        socket.bind("tcp://127.0.0.1:*")
        yield socket
