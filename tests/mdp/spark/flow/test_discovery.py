"""Brokers behind `name://`: name servers on sockets, the executor's bridge, and what the entry point names."""

from __future__ import annotations

import asyncio
import tomllib
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from freelance.names.resolver import Names
from freelance.names.server import NameServer
from mdp.spark.dispatch_choices import NAMES
from mdp.spark.flow.discovery import NameServers, name_servers
from mdp.spark.flow.session_options import read_names, settings_of
from mdp.spark.rows.exchange import Chunk
from mdp.spark.rows.job import destination
from mdp.spark.rows.loop_bridge import Bridge, Destination
from mdp.spark.rows.options import Bounds
from tests.mdp.spark.conftest import ROOT
from tests.mdp.spark.flow.test_session_options import Session

if TYPE_CHECKING:
    from collections.abc import Callable

N1 = "tcp://127.0.0.1:5050"


def entries(*, named: bool = True) -> Callable[..., list[EntryPoint]]:
    """Return what `importlib.metadata` says where the package is installed as it is now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return lambda group: [EntryPoint(name, place, group) for name, place in project["entry-points"][NAMES].items()] if named else []


async def shout(request: mdp.Request) -> bytes:
    return request.body[0].upper()


def asked(bridge: Bridge, to: Destination) -> list[list[bytes] | None]:
    chunk = Chunk([(b"hello",)], ["k"])
    with bridge.exchange(to, "shout", 4, wait=True) as passage:
        passage(chunk)
        chunk.finished.result()
    return [answer.reply for answer in chunk.answers]


async def test_an_executor_finds_its_broker_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.flow.discovery.entry_points", entries())
    async with mdp.Broker() as broker, NameServer("tcp://127.0.0.1:*") as server:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with Names([server.identity], environment="test") as names:
            await names.set("broker", connect=[endpoint])
        to = destination("name://broker", "shout", Bounds(timeout=20.0), None, None, NameServers((server.identity,), "test"))
        async with mdp.Worker(endpoint, "shout", handler=shout):
            bridge = Bridge()
            try:
                assert await asyncio.to_thread(asked, bridge, to) == [[b"HELLO"]]
            finally:
                await asyncio.to_thread(bridge.close)


async def test_where_the_package_is_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.flow.discovery.entry_points", entries(named=False))
    to = destination("name://broker", "shout", Bounds(timeout=1.0), None, None, N1)
    bridge = Bridge()
    try:
        with pytest.raises(LookupError, match="where the package is installed"):
            await asyncio.to_thread(asked, bridge, to)
    finally:
        await asyncio.to_thread(bridge.close)


def test_name_servers_are_given_in_several_ways_or_by_the_session() -> None:
    assert name_servers(f"{N1}, tcp://b:1") == name_servers([N1, "tcp://b:1"]) == NameServers((N1, "tcp://b:1"), "production")
    assert name_servers(None) is None
    assert read_names(settings_of(Session())) is None  # type: ignore[arg-type]  # all that is asked of a session
    assert read_names(settings_of(Session(names=N1, names_environment="test"))) == NameServers((N1,), "test")  # type: ignore[arg-type]


def test_a_name_without_name_servers_is_said_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="no name servers are given"):
        destination(("tcp://a:5555", "name://broker"), "s", Bounds(), None, None)
    with pytest.raises(core.InvalidEndpoint):
        destination("name://broker", "s", Bounds(), None, None, "nonsense")
    with pytest.raises(ValueError, match="no name server"):
        name_servers("")
