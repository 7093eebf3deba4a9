"""A worker without a broker says why, at once, and when it has found one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import core
import mdp
from core.rpc.connect_times import CONNECT_TIMEOUT_MS
from mdp.session.connection import Connection
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

LOG = "mdp.worker"


@pytest.mark.parametrize("dialect", ["auto", "0.3", "0.1"])
async def test_a_worker_logs_that_its_broker_is_unreachable_and_connected_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    with caplog.at_level(logging.INFO, LOG):
        async with mdp.Worker(endpoint, "echo", handler=echo, dialect=dialect, reconnect_ms=20) as worker:
            await eventually(lambda: "cannot reach" in caplog.text)
            (line,) = [record.getMessage() for record in caplog.records if "cannot reach" in record.getMessage()]
            assert line.startswith(f"echo: cannot reach the broker at {endpoint}: ")
            assert "reason unknown" not in line
            assert "; next try in " in line
            await asyncio.sleep(0.3)  # several attempts, one line
            assert caplog.text.count("cannot reach") == 1
            for words in ("connected after", "connected again after"):
                async with mdp.Broker() as broker:
                    broker.bind(endpoint)
                    await eventually(lambda: worker.connected)
                    assert f"echo: {words}" in caplog.text
                    caplog.clear()
                await eventually(lambda: not worker.connected)


def length(text: str) -> int:
    return len(text)


async def test_of_the_services_of_an_app_one_says_that_the_broker_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = mdp.App()
    for name in ("a", "b", "c"):
        app.service(name)(length)
    endpoint = f"ipc://{tmp_path}/broker"
    with caplog.at_level(logging.INFO, LOG):
        async with app.serve(endpoint, reconnect_ms=20), mdp.Broker() as broker:
            await eventually(lambda: "cannot reach" in caplog.text)
            broker.bind(endpoint)
            await eventually(lambda: caplog.text.count("connected after") == 3)
    assert caplog.text.count("cannot reach") == 1


async def test_a_client_that_is_refused_says_so_at_once_and_is_let_in_without_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    (broker_public, broker_secret), (public, secret), (other, _) = (core.curve_keypair() for _ in range(3))
    ours = core.Curve(secret_key=secret, server_key=broker_public)
    theirs = core.Curve(secret_key=broker_secret, keys={other: "another"})
    async with mdp.Broker(security=theirs) as broker:
        here = broker.bind("tcp://127.0.0.1:*")
        soon: dict[str, Any] = {"security": ours, "socket_options": {"refused_ivl": 1}}
        async with mdp.Client(here, **soon) as client, mdp.Worker(here, "echo", handler=echo, **soon):
            reply = client.request("echo", b"x", wait=True, timeout=60)
            await eventually(lambda: caplog.text.count("cannot reach") == 2)
            for line in (record.getMessage() for record in caplog.records if "cannot reach" in record.getMessage()):
                assert line.endswith("authentication refused with status 400; next try in 0.0 s")
            assert theirs.authenticator is not None
            theirs.authenticator.authorize(public, "ann")
            assert await reply == [b"x"]


async def test_what_accepts_connections_and_speaks_another_protocol_is_named() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, mdp.Client(f"tcp://127.0.0.1:{port}") as client:
        with pytest.raises(mdp.Unreachable) as caught:
            await client.request("echo", b"x", timeout=0.5, attempts=1)
    assert "it accepted the connection and has not begun to speak ZMTP" in str(caught.value)


@pytest.mark.parametrize(("proxy", "wait_ms"), [(b"", CONNECT_TIMEOUT_MS), (b"127.0.0.1:1080", 0)])
async def test_connecting_is_begun_anew_unless_a_proxy_may_need_longer(proxy: bytes, wait_ms: int) -> None:
    """BEY-05: the system asks a machine that is off ever less often."""
    async with core.Context() as context:
        nothing = Mock()
        options = {"socks_proxy": proxy}
        connection = Connection(context, "tcp://127.0.0.1:1", options, on_joined=nothing, on_batch=nothing, on_lost=nothing)
        assert connection._socket.connect_timeout == wait_ms
        connection.close()
        await connection.wait_closed()
