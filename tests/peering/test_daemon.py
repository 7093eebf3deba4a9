"""peering.cli: the body of `peering broker`, run without the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peering.cli import BrokerDaemonOptions, Peers, serve_broker
from peering.control import ask
from tests.scenes.lifetime import running

if TYPE_CHECKING:
    from collections.abc import Mapping

TCP = "tcp://127.0.0.1:*"


def peers_of(changed: Mapping[str, Any]) -> Peers | None:
    return changed.get("peers")


async def test_it_serves_and_takes_other_peers_on_a_reload() -> None:
    async with running(serve_broker, BrokerDaemonOptions("one", {}, TCP, TCP, TCP, TCP, TCP, peers_of=peers_of)) as broker:
        control = broker.fields["control"]
        assert (await ask(control, 60.0))["peers"] == {}
        assert broker.change({"log_level": "debug"}) == set()
        assert broker.change({"peers": {"two": ("tcp://127.0.0.1:9", "tcp://127.0.0.1:19")}}) == {"peers"}
        assert [*(await ask(control, 60.0))["peers"]] == ["two"]
        assert broker.change({"peers": {}}) == {"peers"}
        assert (await ask(control, 60.0))["peers"] == {}
