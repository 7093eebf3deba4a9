"""titanic.commands.serve: the bodies of `titanic serve` and `titanic mirror`, run without the commands."""

from __future__ import annotations

import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest

import mdp
import titanic
from mdp.commands.broker_daemon import BrokerDaemonOptions, serve_broker
from tests.scenes.lifetime import running
from titanic.commands.serve import MirrorDaemonOptions, StoreDaemonOptions, serve_mirror, serve_store
from titanic.paired_store import PairedOptions

if TYPE_CHECKING:
    from pathlib import Path


async def echo(request: mdp.Request) -> list[bytes]:
    return request.body


async def test_a_store_and_its_mirror_keep_a_request_over_a_restart(tmp_path: Path) -> None:
    async with (
        running(serve_broker, BrokerDaemonOptions(["tcp://127.0.0.1:*"])) as broker,
        running(serve_mirror, MirrorDaemonOptions("tcp://127.0.0.1:*", str(tmp_path / "copy"))) as mirror,
    ):
        (endpoint,), copy = broker.fields["endpoints"], mirror.fields["endpoint"]
        options = StoreDaemonOptions(
            str(tmp_path / "store"), PairedOptions(brokers=[endpoint], mirror=copy, mirror_bind="", journal=titanic.JournalOptions())
        )
        async with titanic.Client(endpoint, timeout=60) as client:
            async with running(serve_store, options) as first:
                ticket = await client.submit("echo", b"stored")
            async with running(serve_store, options) as second, mdp.Worker(endpoint, "echo", handler=echo):
                assert await ticket.result(60) == [b"stored"]
    assert (first.fields["message"], mirror.fields["message"]) == ("titanic serves", "titanic mirrors")
    assert (first.fields["requests"], second.fields["requests"]) == (0, 1)


async def test_a_store_in_memory_says_what_is_lost_with_it(caplog: pytest.LogCaptureFixture) -> None:
    async with running(serve_broker, BrokerDaemonOptions(["tcp://127.0.0.1:*"])) as broker:
        (endpoint,) = broker.fields["endpoints"]
        options = StoreDaemonOptions(None, PairedOptions(brokers=[endpoint], mirror="", mirror_bind="", journal=titanic.JournalOptions()))
        async with titanic.Client(endpoint, timeout=60) as client:
            async with running(serve_store, options) as store:
                for number in range(3):
                    await client.submit("nobody", b"%d" % number)
            async with running(serve_store, options):
                pass
    assert "fsync" not in store.fields
    lost = [record for record in caplog.records if record.msg == "requests are lost with this process"]
    assert [vars(record)["requests"] for record in lost] == [3]


@pytest.mark.parametrize("place", ["/dev/shm", "."])
async def test_a_store_on_a_file_system_in_memory_says_what_is_lost_with_the_machine(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = subprocess.run(["stat", "--file-system", "--format=%T", place], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=place) as directory:
        async with running(serve_mirror, MirrorDaemonOptions("tcp://127.0.0.1:*", directory)):
            pass
    assert ("a file system in memory" in caplog.text) == (kind in ("tmpfs", "ramfs"))
