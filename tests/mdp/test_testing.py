"""mdp.testing: what a test gets."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Literal

ROOT = Path(__file__).parents[2]
PLAIN, WITH_PYTEST = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "testing.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@mdp.service("double", concurrency=2)
async def double(request: mdp.Request) -> list[bytes]:
    return [*request.body, *request.body]


def loud(request: mdp.Request) -> bytes:
    return request.body[0].upper()


@pytest.fixture
async def shop() -> AsyncIterator[mdp.testing.Local]:
    """Return it as a program's own fixture would."""
    async with mdp.testing.broker(double, services={"loud": loud}) as local:
        yield local


async def test_everything_is_ready_when_the_block_begins(shop: mdp.testing.Local) -> None:
    assert await shop.client.request("double", b"x") == [b"x", b"x"]
    assert await shop.client.request("loud", b"x") == [b"X"]
    assert [worker.service for worker in shop.workers] == ["double", "loud"]
    assert shop.broker.stats["workers"] == 2
    assert shop.workers[0].options.concurrency == 2


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_both_transports_serve(transport: Literal["inproc", "tcp"]) -> None:
    async with mdp.testing.broker(double, transport=transport) as local:
        assert local.endpoint.startswith(f"{transport}://")
        assert await local.client.request("double", b"x") == [b"x", b"x"]


async def test_tcp_is_reached_from_other_contexts() -> None:
    async with mdp.testing.broker(double, transport="tcp") as local, mdp.Client(local.endpoint) as other:
        assert await other.request("double", b"x") == [b"x", b"x"]


async def test_two_test_brokers_are_independent(shop: mdp.testing.Local) -> None:
    async with mdp.testing.broker() as empty:
        with pytest.raises(mdp.NoService):
            await empty.client.request("double", b"x")
        assert await shop.client.request("double", b"x") == [b"x", b"x"]


async def test_limits_are_the_brokers() -> None:
    async with mdp.testing.broker(manage=True) as local:
        assert await local.client.mmi("enable", "nobody") == "404"
    with pytest.raises(TypeError, match="no_such_limit"):
        async with mdp.testing.broker(no_such_limit=1):
            pass


async def test_more_workers_and_clients_can_be_added(shop: mdp.testing.Local) -> None:
    second = await shop.add_worker(double, concurrency=1)
    named = await shop.add_worker("shout", loud)
    assert shop.workers[2:] == [second, named]
    assert shop.broker.stats["workers"] == 4
    client = await shop.add_client(timeout=1.0)
    assert await client.request("shout", b"x") == [b"X"]


async def test_a_request_left_open_ends_with_the_block() -> None:
    cancelled = asyncio.Event()

    async def hangs(request: mdp.Request) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with mdp.testing.broker(services={"hangs": hangs}) as local:
        reply = local.client.request("hangs", b"x")
        while not local.workers[0].running:
            await asyncio.sleep(0)
    assert cancelled.is_set()
    assert isinstance(reply.exception(), mdp.ClientClosed)


async def test_a_handler_without_a_name_is_refused_and_nothing_is_left() -> None:
    with pytest.raises(TypeError, match="a handler without a service"):
        async with mdp.testing.broker(loud):
            pass


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, as a user of the installed packages would."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_the_page_runs_without_a_test_framework(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN, encoding="utf-8")
    ended = run(tmp_path, "plain.py")
    assert (ended.stdout, ended.stderr) == ("[b'x', b'x']\n", "")


def test_the_page_runs_with_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(WITH_PYTEST, encoding="utf-8")
    ended = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "test_shop.py")
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr
