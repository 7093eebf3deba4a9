"""bstar.client: a client says why it reaches neither server, and nothing when it reaches one."""

from __future__ import annotations

import pytest

import bstar
import core
from tests.scenes.waiting import eventually

pytestmark = pytest.mark.usefixtures("soon")
REACHED = "neither server can be reached"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bstar.client.LOG_AFTER_S", 0.0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "bstar.client"]


async def test_a_client_that_reaches_neither_server_says_why_long_before_it_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    async with bstar.Client("ipc://no-primary", "ipc://no-backup", patience=3600.0) as client:
        reply = client.request(b"x")
        await eventually(lambda: bool(lines(caplog)))
        reply.cancel()
    (line,) = lines(caplog)
    assert line.startswith(f"{REACHED}, and both are tried again: primary at ipc://no-primary: ")
    assert line.count("No such file or directory") == 2


async def test_a_client_that_reaches_one_server_says_nothing_of_the_other(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context, context.socket(core.ROUTER) as server:
        server.bind("tcp://127.0.0.1:*")
        async with bstar.Client("ipc://no-primary", server.last_endpoint, patience=3600.0) as client:
            reply = client.request(b"x")
            await server.recv_multipart()
            reply.cancel()
            assert lines(caplog) == []
            server.close()
            await eventually(lambda: bool(lines(caplog)))
    assert REACHED in lines(caplog)[0]
