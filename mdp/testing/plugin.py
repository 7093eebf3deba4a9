"""A pytest plugin: a broker, the workers of an app and a client as fixtures, and tests in virtual time.

    pytest_plugins = "mdp.testing"              # conftest.py

    @pytest.fixture
    def mdp_app():
        return shop.app                         # an mdp.App, a module, a decorated handler, or a list of them

    @pytest.mark.virtual_time
    async def test_a_lost_worker(mdp_client, mdp_broker): ...

Fixtures are asynchronous, for pytest-asyncio 1.4 or later (extra `testing`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from mdp.testing.local_broker import Local, broker
from mdp.testing.virtual_time import LIMIT_S, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mdp.client.client import Client

    LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

__all__ = ["mdp_app", "mdp_broker", "mdp_client", "mdp_limits"]

_MARK: Final = "virtual_time"
_HOOK: Final = "pytest_asyncio_loop_factories"


@pytest.fixture
def mdp_app() -> Any:
    """Return what is served, an `mdp.App`, a module, a handler or handlers; a program's tests define their own."""
    return []


@pytest.fixture
def mdp_limits() -> dict[str, Any]:
    """Return limits of the broker, as for `mdp.testing.broker`; a program's tests define their own."""
    return {}


@pytest_asyncio.fixture
async def mdp_broker(mdp_app: Any, mdp_limits: dict[str, Any]) -> AsyncIterator[Local]:
    """Run a broker that serves `mdp_app`: an `mdp.testing.Local`."""
    served = mdp_app if isinstance(mdp_app, list | tuple) else [mdp_app]
    async with broker(*served, **mdp_limits) as local:
        yield local


@pytest_asyncio.fixture
async def mdp_client(mdp_broker: Local) -> Client:
    """Return a client of `mdp_broker`."""
    return mdp_broker.client


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARK}(seed=0, limit_s={LIMIT_S:g}): run the test and its asynchronous fixtures in virtual time (mdp.testing)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse tests in virtual time where nothing could run them so."""
    if not getattr(config.hook, _HOOK).has_spec() and any(item.get_closest_marker(_MARK) for item in items):
        raise pytest.UsageError(f"{_MARK} needs pytest-asyncio 1.4 or later; fix: pip install 'majordomo-toolkit[testing]'")


@pytest.hookimpl(specname=_HOOK, tryfirst=True, optionalhook=True)
def pytest_virtual_loop(item: pytest.Item) -> LoopFactories | None:
    marker = item.get_closest_marker(_MARK)
    return None if marker is None else {"virtual": partial(VirtualLoop, *marker.args, **marker.kwargs)}


@pytest.hookimpl(specname=_HOOK, trylast=True, optionalhook=True)
def pytest_usual_loop() -> LoopFactories:
    """Run all others on asyncio's loop, unless another plugin or conftest.py says otherwise: pytest-asyncio wants an answer."""
    return {"asyncio": asyncio.new_event_loop}
