"""Ten times as many requests as the broker may hold: refused at once, memory within the limit and a tenth (fault B4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.events import Failure, parse_at_client
from mdp.options import encode_options
from mdp.protocol import client_request, worker_ready
from tests.mdp.everyday import echo

if TYPE_CHECKING:
    from tests.command_line import Programs

MIB = 2**20
LIMIT = 32 * MIB
BODY = 16 * 1024
FLOOD = 10 * LIMIT // BODY
AT_ONCE = 64


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


async def flood(client: core.Socket, pid: int) -> tuple[Counter[str], int]:
    """Send the flood; return what became of it by code, and the most memory the broker had meanwhile."""
    codes: Counter[str] = Counter()
    most = resident(pid)
    body = b"\xa5" * BODY

    def count(batch: list[list[bytes]]) -> None:
        for frames in batch:
            event = parse_at_client(frames)
            codes[event.code if isinstance(event, Failure) else type(event).__name__] += 1

    client.set_receiver(count)
    for serial in range(FLOOD):
        await client.send_multipart(client_request("0.3", b"stuck", [body], id=serial.to_bytes(8, "big")))
        if serial % AT_ONCE == 0:
            await asyncio.sleep(0)
            most = max(most, resident(pid))
    held = LIMIT // (BODY + 1024)
    while sum(codes.values()) < FLOOD - held - AT_ONCE:
        await asyncio.sleep(0.01)
        most = max(most, resident(pid))
    return codes, most


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(300)
async def test_memory_stays_within_the_limit_and_others_are_served(tmp_path: Path, programs: Programs) -> None:
    endpoint = f"ipc://{tmp_path / 'broker'}"
    limits = ("--memory-max-bytes", str(LIMIT), "--queue-max-bytes", str(2 * LIMIT), "--heartbeat-ms", "600000")

    broker = programs.start("mdp", "broker", "--bind", "ipc://broker", *limits)
    await asyncio.to_thread(broker.said, "broker serves")
    async with (
        core.Context() as context,
        mdp.Worker(endpoint, "echo", handler=echo, heartbeat_ms=600_000),  # as the broker
        mdp.Client(endpoint, timeout=60) as client,
    ):
        stuck = context.socket(core.DEALER, linger=0)
        stuck.connect(endpoint)
        await stuck.send_multipart(worker_ready("0.3", b"stuck", options=encode_options({"credit": 1})))
        while await client.mmi("service", "stuck") != "200":
            await asyncio.sleep(0.01)
        assert await client.request("echo", b"x", wait=True) == [b"x"]
        before = resident(broker.process.pid)
        flooding = context.socket(core.DEALER, linger=0, sndhwm=0, rcvhwm=0)
        flooding.connect(endpoint)
        codes, most = await flood(flooding, broker.process.pid)
        assert set(codes) == {"BUSY"}
        assert codes["BUSY"] >= FLOOD - LIMIT // BODY
        assert most - before <= LIMIT * 1.1
        assert most >= before + LIMIT * 0.5, "the flood did arrive"
        # What is held takes the room of everybody; when its client goes, others are served again.
        with pytest.raises(mdp.Busy):
            await client.request("echo", b"y" * BODY)
        flooding.close()
        while True:
            try:
                assert await client.request("echo", b"y" * BODY) == [b"y" * BODY]
                break
            except mdp.Busy:
                await asyncio.sleep(0.01)
