"""freelance.names.cli: the body of `freelance names serve`, run without the command."""

from __future__ import annotations

import pytest

from core.daemon.exit_codes import BadConfig
from freelance.names.cli import NameServerDaemonOptions, serve_names
from freelance.names.resolver import Names
from tests.scenes.lifetime import running

TCP = "tcp://127.0.0.1:*"


async def test_it_knows_its_initial_names() -> None:
    options = NameServerDaemonOptions(TCP, names=[("production", "shop", {"connect": ["tcp://shop:1"]})])
    async with running(serve_names, options) as server:
        async with Names([server.fields["endpoint"]]) as names:
            assert await names.resolve("shop") == "tcp://shop:1"
    assert server.fields["names"] == 1


async def test_a_malformed_initial_name_is_named() -> None:
    with pytest.raises(BadConfig, match=r"names\.toml: production\.shop"):
        async with running(
            serve_names, NameServerDaemonOptions(TCP, names=[("production", "shop", {"connect": [""]})], source="names.toml")
        ):
            pass
