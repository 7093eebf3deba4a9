"""Ten times more requests than the broker may hold: refused at once, memory within 1.1 times the limit (fault B4)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import core
import mdp
from mdp.broker.limits import BrokerOptions
from mdp.wire.commands import client_request, worker_ready
from mdp.wire.events import Failure, parse_at_client
from mdp.wire.options import encode_options
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from tests.scenes.programs import Programs

MIB = 2**20
AT_ONCE = 64


class Flood(NamedTuple):
    """Limit of the broker, how many times that is sent, size of bodies, number of services with a limit each."""

    flags: tuple[str, ...]
    limit: int
    times: int
    body: int
    services: int

    @property
    def requests(self) -> int:
        return self.times * self.limit // self.body


FLOODS = [
    Flood(("--memory-max-bytes", str(32 * MIB), "--queue-max-bytes", str(64 * MIB)), 32 * MIB, 10, 16 * 1024, 1),
    Flood((), BrokerOptions().memory_max_bytes, 3, 256 * 1024, 5),
]


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


async def send_flood(client: core.Socket, pid: int, flood: Flood) -> tuple[Counter[str], int]:
    """Send the flood; return what became of it by code, and the most memory the broker had meanwhile."""
    codes: Counter[str] = Counter()
    most = resident(pid)
    body = b"\xa5" * flood.body

    def count(batch: list[list[bytes]]) -> None:
        for frames in batch:
            event = parse_at_client(frames)
            codes[event.code if isinstance(event, Failure) else type(event).__name__] += 1

    client.set_receiver(count)
    for serial in range(flood.requests):
        service = b"stuck%d" % (serial % flood.services)
        await client.send_multipart(client_request("0.3", service, [body], id=serial.to_bytes(8, "big")))
        if serial % AT_ONCE == 0:
            await asyncio.sleep(0)
            most = max(most, resident(pid))
    while sum(codes.values()) < flood.requests - flood.limit // flood.body:  # the rest may be held
        await asyncio.sleep(0.01)
        most = max(most, resident(pid))
    return codes, most


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS, ids=["a small limit", "as it comes"])
async def test_memory_stays_within_the_limit_and_others_are_served(tmp_path: Path, programs: Programs, flood: Flood) -> None:
    endpoint = f"ipc://{tmp_path / 'broker'}"
    broker = programs.start("mdp", "broker", "--bind", "ipc://broker", "--heartbeat-ms", "600000", *flood.flags)
    await asyncio.to_thread(broker.said, "broker serves")
    async with (
        core.Context() as context,
        mdp.Worker(endpoint, "echo", handler=echo, heartbeat_ms=600_000),  # as the broker
        mdp.Client(endpoint, timeout=60) as client,
    ):
        for number in range(flood.services):
            stuck = context.socket(core.DEALER, linger=0)
            stuck.connect(endpoint)
            await stuck.send_multipart(worker_ready("0.3", b"stuck%d" % number, options=encode_options({"credit": 1})))
            while await client.mmi("service", f"stuck{number}") != "200":
                await asyncio.sleep(0.01)
        assert await client.request("echo", b"x", wait=True) == [b"x"]
        before = resident(broker.process.pid)
        flooding = context.socket(core.DEALER, linger=0, sndhwm=0, rcvhwm=0)
        flooding.connect(endpoint)
        codes, most = await send_flood(flooding, broker.process.pid, flood)
        assert set(codes) == {"BUSY"}
        assert most - before <= flood.limit * 1.1
        assert most >= before + flood.limit * 0.5, "the flood did arrive"
        body = b"y" * flood.body
        # What is held takes the room of everybody; when its client goes, others are served again.
        with pytest.raises(mdp.Busy):
            await client.request("echo", body)
        flooding.close()
        while True:
            try:
                assert await client.request("echo", body) == [body]
                break
            except mdp.Busy:
                await asyncio.sleep(0.01)


BIG = """
import mdp

@mdp.service("big", inline=True)
def big(request: mdp.Request) -> bytes:
    return b"\\xa5" * 2**20
"""


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.timeout(300)
async def test_memory_stays_within_the_limit_when_ten_times_as_much_is_asked_for_and_not_read(tmp_path: Path, programs: Programs) -> None:
    """Answers of 1 MiB, 50 for each of 14 clients that do not read; each is within its own limit."""
    (tmp_path / "bigs.py").write_text(BIG)
    limit, clients, each = BrokerOptions().unread_max_bytes, 14, 50
    assert clients * each * MIB > 10 * limit
    endpoint = f"ipc://{tmp_path / 'broker'}"
    limits = ("--unread-total-max-bytes", str(limit), "--heartbeat-ms", "600000")
    broker = programs.start("mdp", "broker", "--bind", "ipc://broker", *limits)
    await asyncio.to_thread(broker.said, "broker serves")
    programs.start("mdp", "worker", "--broker", "ipc://broker", "--app", "bigs", "--heartbeat-ms", "600000")
    async with core.Context() as context, mdp.Client(endpoint, timeout=60) as client:
        assert await client.request("big", b"x", wait=True) == [b"\xa5" * MIB]
        before = most = resident(broker.process.pid)
        deaf = [context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0) for _ in range(clients)]
        for number, socket in enumerate(deaf):
            socket.connect(endpoint)
            for serial in range(each):
                await socket.send_multipart(client_request("0.3", b"big", [b"x"], id=(number << 32 | serial).to_bytes(8, "big")))
        least_after_cut = most + 10 * limit
        while broker_waits := json.loads((await client.request("mmi.stats", b""))[1]):
            most = max(most, now := resident(broker.process.pid))
            if broker_waits["cut_slow"]:
                least_after_cut = min(least_after_cut, now)
            if broker_waits["accepted"] >= clients * each and not broker_waits["running"] and not broker_waits["queued"]:
                break
            await asyncio.sleep(0.01)
        assert broker_waits["cut_slow"] > 0
        assert most - before <= limit * 1.1
        assert most - before >= limit * 0.4, "the answers did wait"
        assert least_after_cut - before <= limit * 0.75, "what waited for those who were cut went back to the system"
        assert await client.request("big", b"x") == [b"\xa5" * MIB]
        for socket in deaf:
            socket.close()
