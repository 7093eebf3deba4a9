"""mdp.commands.broker_daemon: the body of `mdp broker`, run without the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mdp
from core.daemon.exit_codes import BadConfig, DiskFailed
from mdp.broker.limits import BrokerOptions
from mdp.commands.broker_daemon import BrokerDaemonOptions, serve_broker
from mdp.eventlog.files import read_events
from tests.scenes.lifetime import running

if TYPE_CHECKING:
    from pathlib import Path

RULES = '[[allow]]\nanonymous = true\ncall = ["{name}"]\nserve = ["*"]\n'


async def echo(request: mdp.Request) -> list[bytes]:
    return request.body


async def test_it_serves_until_it_is_stopped_and_logs_what_it_did(tmp_path: Path) -> None:
    options = BrokerDaemonOptions(["tcp://127.0.0.1:*"], BrokerOptions(start_hold_ms=0), events=str(tmp_path / "events"))
    async with running(serve_broker, options) as lifetime:
        (endpoint,) = lifetime.fields["endpoints"]
        async with mdp.Worker(endpoint, "echo", handler=echo), mdp.Client(endpoint) as client:
            assert await client.request("echo", b"x", wait=True) == [b"x"]
    assert lifetime.fields["message"] == "broker serves"
    assert any(event.service == "echo" for event in read_events(tmp_path / "events"))


async def test_its_rules_are_read_again(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES.format(name="other"))
    async with running(serve_broker, BrokerDaemonOptions(["tcp://127.0.0.1:*"], rules_file=str(rules))) as lifetime:
        (endpoint,) = lifetime.fields["endpoints"]
        async with mdp.Worker(endpoint, "echo", handler=echo), mdp.Client(endpoint) as client:
            with pytest.raises(mdp.Forbidden):
                await client.request("echo", b"x", wait=True)
            rules.write_text(RULES.format(name="echo"))
            (prepare,) = lifetime.files
            assert prepare()() == []
            assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_its_policies_are_read_again(tmp_path: Path) -> None:
    """POL-04."""
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\nservices = ["echo"]\nrate = {per_s = 0.001}\n')
    async with running(serve_broker, BrokerDaemonOptions(["tcp://127.0.0.1:*"], policies_file=str(policies))) as lifetime:
        (endpoint,) = lifetime.fields["endpoints"]
        async with mdp.Worker(endpoint, "echo", handler=echo), mdp.Client(endpoint) as client:
            assert await client.request("echo", b"1", wait=True) == [b"1"]
            waiting = client.request("echo", b"2")
            policies.write_text('[[policy]]\nservices = ["echo"]\nrate = false\n')
            (prepare,) = lifetime.files
            assert prepare()() == []
            assert await waiting == [b"2"]


async def test_what_it_cannot_read_or_write_is_said_before_it_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no = [rules")
    for options, error in (
        (BrokerDaemonOptions([], rules_file=str(tmp_path / "file")), BadConfig),
        (BrokerDaemonOptions([], policies_file=str(tmp_path / "file")), BadConfig),
        (BrokerDaemonOptions([], events=str(tmp_path / "file")), DiskFailed),
    ):
        with pytest.raises(error):
            async with running(serve_broker, options):
                pass
