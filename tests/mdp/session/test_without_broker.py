"""A worker without a broker says why, at once, and when it has found one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

import mdp
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
