"""Many peers and many repetitions, a slice in `make test`, all in `make soak`: silent peers, stalled subscribers, contexts.

The full runs print measurements and check times (G14, G16); the slices check what does not depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
import warnings
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
from tests.descriptors import room_for
from tests.scenes.raw_octets import WirePeer, command, message
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

WHOLE = pytest.mark.soak


def say(line: str) -> None:
    """Print a measurement, for `make soak`."""
    print(f"\n{line}")  # noqa: T201


def resident_octets() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


async def exchange(*ends: core.Socket) -> None:
    """One message there and one back."""
    dealer, router = ends
    await dealer.send(b"x")
    await router.send_multipart(await router.recv_multipart())
    await dealer.recv()


async def latencies(trip: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Times of round trips in seconds, sorted."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        await trip()
        found.append(time.perf_counter() - begun)
    return sorted(found)


# -- contexts


@pytest.mark.timeout(0)
@pytest.mark.parametrize("cycles", [50, pytest.param(5000, marks=WHOLE)])
async def test_contexts_that_come_and_go_leave_no_task_no_descriptor_no_file_and_no_warning(cycles: int, tmp_path: Path) -> None:
    """Each has peers over tcp, ipc and inproc; some close in the middle of a handshake, message or accept."""
    at_rest = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(cycles):
            async with core.Context() as context:
                for endpoint in ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/{number}", "ipc://*", "inproc://here"):
                    router, dealer = context.socket(core.ROUTER, linger=0), context.socket(core.DEALER, linger=0)
                    router.bind(endpoint)
                    dealer.connect(router.last_endpoint)
                    if number % 3 == 0:
                        await exchange(dealer, router)
                    elif number % 3 == 1:
                        await dealer.send(b"x" * 100_000)
                        router.recv()
                for _ in range(number % 4):
                    await asyncio.sleep(0)
            (tmp_path / str(number)).unlink(missing_ok=True)
            at_rest = at_rest or descriptors()  # with what a loop opens when it is first used
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [str(warning.message) for warning in caught] == []
    assert descriptors() <= at_rest
    assert not list(tmp_path.iterdir())


# -- the silent and the slow


CROWD = """
import socket, sys

host, port, count, octets = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
peers = []
for _ in range(count):
    peers.append(socket.create_connection((host, port)))
    peers[-1].sendall(octets)
print("here", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def crowd(endpoint: str, count: int, octets: bytes) -> AsyncIterator[None]:
    """Many connections from another process, each sends a few bytes and no more."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    command_line = (sys.executable, "-c", CROWD, host, port, str(count), octets.hex())
    process = await asyncio.create_subprocess_exec(*command_line, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"here\n"
        yield
    finally:
        process.stdin.close()
        await process.wait()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("octets", [b"", b"\xff\x00\x00"], ids=["silent", "a few octets"])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=WHOLE)])
async def test_g14_w7_a_silent_crowd_costs_little_and_holds_nobody_up(count: int, octets: bytes) -> None:
    """Silent connections are accepted; honest peers are served meanwhile, and the end of the crowd leaves nothing."""
    room_for(count, ends=1)
    async with core.Context() as context:
        limits = {"max_pending_handshakes": count + 10, "max_pending_handshakes_per_ip": count + 10, "handshake_ivl": 600_000}
        router = context.socket(core.ROUTER, linger=0, backlog=1000, **limits)
        router.bind("tcp://127.0.0.1:*")
        known = context.socket(core.DEALER, linger=0)
        known.connect(router.last_endpoint)
        alone = await latencies(lambda: exchange(known, router), 300)
        before = resident_octets()
        async with crowd(router.last_endpoint, count, octets):
            while len(router._endpoints.sessions) < count + 1:
                await asyncio.sleep(0.01)
            each = (resident_octets() - before) / count
            together = await latencies(lambda: exchange(known, router), 300)
            for _ in range(20):
                newcomer = context.socket(core.DEALER, linger=0)
                newcomer.connect(router.last_endpoint)
                await exchange(newcomer, router)
                newcomer.close()
            assert router.counters.handshakes_failed == 0
        say(f"{count} connections, {len(octets)} octets each: {each / 1024:.1f} KiB each; honest peers, median and p99:")
        for where, times in (("alone", alone), ("in the crowd", together)):
            say(f"  {where}: {times[150] * 1e6:.0f} and {times[-3] * 1e6:.0f} us")
        # Medians, for on a machine with other work the slowest are those that were not given the processor.
        assert count < 10_000 or (each < 12 * 1024 and together[150] < 2 * alone[150])
        while len(router._endpoints.sessions) > 1:
            await asyncio.sleep(0.01)
        assert router.counters.refused_connections == 0


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("subscribers", "stalled"), [(50, 5), pytest.param(1000, 100, marks=WHOLE)])
async def test_g16_n5_stalled_subscribers_hold_nobody_up(subscribers: int, stalled: int) -> None:
    """One in ten does not read: the others get every message.

    The queue of a stalled subscriber is bounded, and its drops are counted.
    """
    room_for(subscribers)
    async with core.Context() as context:
        options = {"max_pending_handshakes_per_ip": subscribers, "backlog": 1000, "sndhwm": 10, "sndbuf": 16 * 1024}
        pub = context.socket(core.XPUB, linger=0, xpub_verbose=1, **options)
        pub.bind("tcp://127.0.0.1:*")
        peers = []
        for _ in range(subscribers):
            peer = await WirePeer.connect(pub.last_endpoint)
            await peer.shake(b"SUB")
            await peer.send(command(b"SUBSCRIBE", b""))
            assert await pub.recv() == b"\x01"
            peers.append(peer)
        body = b"x" * 8192
        octets = message(body)

        async def publish() -> None:
            pub.send(body)
            for peer in peers[:reading]:
                assert await peer.receive(len(octets)) == octets

        reading = subscribers
        alone = await latencies(publish, 30)
        reading = subscribers - stalled
        for peer in peers[reading:]:
            peer._transport.pause_reading()
        full = 0
        while pub.counters.peer_full == full:  # until the kernel holds as much for them as it will
            await publish()
        among = await latencies(publish, 100)
        before, after = alone[-2] * 1e3, among[-2] * 1e3
        say(f"{stalled} of {subscribers} stalled: a round to the others takes {after:.1f} ms, {before:.1f} ms with all of them reading")
        assert pub.counters.peer_full > 0
        assert subscribers < 1000 or among[50] < 1.2 * alone[15]
        for peer in peers:
            peer._transport.abort()
        await eventually(lambda: not pub.pattern.pipes)
