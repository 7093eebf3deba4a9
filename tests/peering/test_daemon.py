"""peering.cli: the body of `peering broker`, run without the command."""

from __future__ import annotations

from peering.cli import BrokerDaemonOptions, serve_broker
from peering.control import ask
from tests.scenes.lifetime import running

TCP = "tcp://127.0.0.1:*"


async def test_it_serves_and_takes_other_peers_on_a_reload() -> None:
    async with running(serve_broker, BrokerDaemonOptions("one", {}, TCP, TCP, TCP, TCP, TCP)) as broker:
        control = broker.fields["control"]
        assert (await ask(control, 60.0))["peers"] == {}
        assert broker.change({"log_level": "debug"}) == set()
        assert broker.change({"peers": ("two=tcp://127.0.0.1:9,tcp://127.0.0.1:19",)}) == {"peers"}
        assert [*(await ask(control, 60.0))["peers"]] == ["two"]
        assert broker.change({"peers": ()}) == {"peers"}
        assert (await ask(control, 60.0))["peers"] == {}
