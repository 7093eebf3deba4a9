"""freelance.cli: the body of `freelance serve`, run without the command."""

from __future__ import annotations

import freelance
from freelance.cli import ServerDaemonOptions, serve_server
from tests.scenes.lifetime import running


async def test_it_answers_until_it_is_stopped() -> None:
    async with running(serve_server, ServerDaemonOptions("tcp://127.0.0.1:*")) as server:
        async with freelance.Client([server.fields["endpoint"]], timeout=60) as client:
            assert await client.request(b"hello") == [b"hello"]
    assert server.fields["model"] == "3"
