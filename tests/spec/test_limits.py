"""Limits for unknown and slow peers: ZMTP-11, ZMTP-75 and faults N5, P5, W7, W8 at sockets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import core
from tests.descriptors import room_for
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, command
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


@contextlib.asynccontextmanager
async def silent(endpoint: str, count: int) -> AsyncIterator[list[WirePeer]]:
    """So many connections that say nothing, opened at once."""
    peers = await asyncio.gather(*(WirePeer.connect(endpoint) for _ in range(count)))
    try:
        yield list(peers)
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def ask(make: Make, endpoint: str, router: core.Socket) -> bytes:
    """An honest peer asks and is answered."""
    dealer = make(core.DEALER, connect=endpoint)
    await dealer.send(b"hello")
    peer, body = await router.recv_multipart()
    await router.send_multipart([peer, body])
    answer: bytes = await dealer.recv()
    dealer.close()
    return answer


async def test_w8_one_address_has_so_many_unfinished_handshakes_and_finished_ones_do_not_count(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, max_pending_handshakes_per_ip=3)
    watch = Watch(router)
    async with silent(router.last_endpoint, 10):
        await eventually(lambda: router.counters.handshakes_failed == 7)
        assert watch.seen[core.EVENT_ACCEPTED] == 10
        assert await ask(make, router.last_endpoint, router) == b"hello"  # the oldest that says nothing makes way
    await eventually(lambda: not router._endpoints.sessions)
    for _ in range(5):
        assert await ask(make, router.last_endpoint, router) == b"hello"


async def test_w8_no_more_connections_than_allowed_and_a_place_that_gets_free_is_used(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, max_connections=2)
    watch = Watch(router)
    dealers = [make(core.DEALER, connect=router.last_endpoint) for _ in range(3)]
    await watch.peers(2)
    await eventually(lambda: router.counters.refused_connections > 0)
    assert len(router.pattern.pipes) == 2
    for dealer in dealers:
        dealer.close()
    assert await ask(make, router.last_endpoint, router) == b"hello"


async def test_w7_a_thousand_silent_connections_hold_nobody_up_and_leave_in_time(make: Make) -> None:
    room_for(1000)
    router = make(core.ROUTER, bind=TCP, backlog=1000, max_pending_handshakes_per_ip=2000, handshake_ivl=3000, max_pending_handshakes=2000)
    watch = Watch(router)
    async with silent(router.last_endpoint, 1000):
        await watch.until(core.EVENT_ACCEPTED, 1000)
        for _ in range(10):
            assert await ask(make, router.last_endpoint, router) == b"hello"
        await watch.until(core.EVENT_HANDSHAKE_FAILED_PROTOCOL, 1000)
    await eventually(lambda: not router._endpoints.sessions)
    assert router.counters.handshakes_failed == 1000


async def test_w7_octets_now_and_then_do_not_prolong_a_handshake(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, handshake_ivl=100)
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        for octet in GREETING_NULL + command(b"READY"):
            if watch.seen[core.EVENT_HANDSHAKE_FAILED_PROTOCOL]:
                break
            await peer.send(bytes((octet,)))
            await asyncio.sleep(0.01)
        await watch.until(core.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    (failed,) = [event for event in watch.events if event.event == core.Event.HANDSHAKE_FAILED_PROTOCOL]
    assert "100 ms" in failed.reason


async def test_w8_a_thousand_connects_at_once_are_all_served(make: Make, context: core.Context) -> None:
    """Those the backlog or the cap of an address turns away come back by themselves."""
    room_for(1000)
    pull = make(core.PULL, bind=TCP)
    pushes = [make(core.PUSH, connect=pull.last_endpoint) for _ in range(1000)]
    for number, push in enumerate(pushes):
        await push.send(b"%d" % number)
    assert sorted([int(await pull.recv()) for _ in pushes]) == list(range(1000))


async def test_n5_a_subscriber_that_stops_reading_holds_its_own_mark_and_nobody_else_up(make: Make) -> None:
    pub = make(core.XPUB, bind=TCP, sndhwm=10, sndbuf=4096, xpub_verbose=1)
    async with await WirePeer.connect(pub.last_endpoint) as stalled:
        await stalled.shake(b"SUB")
        await stalled.send(command(b"SUBSCRIBE"))
        assert await pub.recv() == b"\x01"
        stalled._transport.pause_reading()
        reader = make(core.SUB, connect=pub.last_endpoint)
        reader.subscribe(b"")
        assert await pub.recv() == b"\x01"
        body = b"x" * 20_000
        for number in range(500):
            await pub.send(b"%d " % number + body)
            assert (await reader.recv()).startswith(b"%d " % number)
        held = max(len(pipe.outbox) for pipe in pub.pattern.pipes)
        assert held <= 10
        assert pub.counters.peer_full > 0
        stalled._transport.abort()


EXHAUSTED = """
import asyncio, errno, os, resource, socket, sys, time

import core


async def main():
    async with core.Context() as context:
        router, dealer = context.socket(core.ROUTER, linger=0), context.socket(core.DEALER, linger=0)
        router.bind("tcp://127.0.0.1:*")
        dealer.connect(router.last_endpoint)
        failures = []
        router.on_event(failures.append, core.EVENT_ACCEPT_FAILED)

        async def echo(asking):
            await asking.send(b"x")
            await router.send_multipart(await router.recv_multipart())
            return await asking.recv()

        await echo(dealer)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 6, hard))
        host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
        crowd = []
        try:
            while True:
                crowd.append(socket.socket())
                crowd[-1].setblocking(False)
                crowd[-1].connect_ex((host, int(port)))
        except OSError as error:
            print(error.strerror)
        for endpoint in ("tcp://127.0.0.1:*", "ipc://*", "ipc://in-this-folder"):
            try:
                context.socket(core.PULL).bind(endpoint)
            except core.ZMQError as error:
                print(endpoint, errno.errorcode[error.errno])
        for _ in range(20):
            await echo(dealer)
            await asyncio.sleep(0.01)
        print("served")
        cpu, begun = time.process_time(), time.monotonic()
        await asyncio.sleep(1)
        print("at rest" if time.process_time() - cpu < 0.2 * (time.monotonic() - begun) else "busy")
        for member in crowd:
            member.close()
        newcomer = context.socket(core.DEALER, linger=0)
        newcomer.connect(router.last_endpoint)
        async with asyncio.timeout(100):
            await echo(newcomer)
        print("recovered")
        print({failure.reason for failure in failures})


core.run(main(), uvloop=sys.argv[1] == "uvloop")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_p5_pyzmq_1642_without_descriptors_peers_are_served_and_newcomers_later(loop: str) -> None:
    """In a process of its own, for the limit of descriptors is the whole process's."""
    done = subprocess.run([sys.executable, "-c", EXHAUSTED, loop], capture_output=True, text=True, timeout=40, check=False)
    told = "{'Too many open files'}" if loop == "asyncio" else "set()"  # uvloop takes newcomers and closes them
    refused = [f"{endpoint} EMFILE" for endpoint in ("tcp://127.0.0.1:*", "ipc://*", "ipc://in-this-folder")]
    assert done.stdout.splitlines() == ["Too many open files", *refused, "served", "at rest", "recovered", told], done.stderr
    assert "Traceback" not in done.stderr


CROWDED = """
import asyncio, os, resource, socket, sys

import core


async def main():
    async with core.Context() as context:
        router, dealer = context.socket(core.ROUTER, linger=0), context.socket(core.DEALER, linger=0)
        router.bind("tcp://127.0.0.1:*")
        dealer.connect(router.last_endpoint)
        refused = asyncio.Event()
        router.on_event(lambda event: refused.set(), core.EVENT_ACCEPT_FAILED)

        async def echo(asking):
            await asking.send(b"x")
            await router.send_multipart(await router.recv_multipart())
            return await asking.recv()

        await echo(dealer)
        host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
        crowd = [socket.socket() for _ in range(60)]
        files = len(os.listdir("/proc/self/fd")) + 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for member in crowd:
            member.setblocking(False)
            member.connect_ex((host, int(port)))
        await refused.wait()
        work = [os.open(os.devnull, os.O_RDONLY) for _ in range(files // 8 - 4)]
        await echo(dealer)
        print("works")
        for file in work:
            os.close(file)
        newcomer = context.socket(core.DEALER, linger=0)
        newcomer.connect(router.last_endpoint)
        await echo(newcomer)
        print("served, and silent ones disconnected" if router.counters.handshakes_failed else "served")


core.run(main(), uvloop=sys.argv[1] == "uvloop")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_p5_connections_leave_an_eighth_of_the_files_and_silent_ones_make_way_for_newcomers(loop: str) -> None:
    done = subprocess.run([sys.executable, "-c", CROWDED, loop], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["works", "served, and silent ones disconnected"], done.stderr
