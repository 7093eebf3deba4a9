"""Effect of 10,000 silent peers, and of 100 that do not read, on other peers (G14, G16): p50, p99.

    python -m benchmarks.crowds [--connections 10000] [--subscribers 1000] [--stalled 100] [--seconds 20] [--json]

An idle crowd is at one of two otherwise equal servers, and one program alternates between the two every few milliseconds; an active crowd
is suspended and resumed in turns. So other load on the machine affects both alike. Servers run on one CPU;
crowds and subscribers on another one.

- *silent*: the connections are open and send nothing. *dripping*: each sends one byte of its greeting a second, compared with the same
  connections when they are silent. Measured are round trips of a known peer, and the time of a new peer from `connect` to its first
  answer. Limits of unfinished handshakes are lifted, or there would be no crowd.
- *hellos*: the same over CURVE; the crowd are connections from eight addresses that send HELLO, wait for the answer, and reconnect, a
  thousand a second.
- *stalled*: subscribers that do not read, until messages are dropped for each of them. Measured is the time from the order to publish to
  each other subscriber's receipt, 1 KiB, one message at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import sys
from statistics import median
from time import perf_counter, sleep
from typing import Any, cast

import core
from benchmarks import keys
from benchmarks.crowd import GREETING
from benchmarks.process import Program, free_endpoint
from benchmarks.program import Options, body_of, main, quantile, ready, report, run_on_loop
from core.security.curve import CurveClient
from core.zmtp import z85
from core.zmtp.frames import encode_command

MODULE = "benchmarks.crowds"
NEWCOMERS = 2  # for each block of trips
TRIPS = 100
BODY_BYTES = 1024
READY_SUB = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB" + b"\x04\x0a\x09SUBSCRIBE"
GREETED_BYTES = 64 + 28  # a publisher's greeting and READY
FLOODING_ADDRESSES = 8
FLOODING = 256  # connections at a time
HELLOS_PER_S = 1000
WELCOMED_BYTES = 64 + 2 + 168  # a server's greeting and WELCOME
CURVE_SERVER: dict[str, Any] = {"curve_server": 1, "curve_secretkey": keys.SERVER_SECRET}
CURVE_CLIENT: dict[str, Any] = {"curve_secretkey": keys.CLIENT_SECRET, "curve_serverkey": keys.SERVER_PUBLIC}
ROUNDS = 5
SETTLE_S = 1.0  # for a resumed crowd to catch up
PATIENCE_S = 120.0


def descriptors(count: int) -> None:
    """Have the system allow so many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard))


def address(endpoint: str) -> tuple[str, int]:
    """Host and port of a tcp endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


# -- servers


async def echo(options: Options) -> None:
    """Serve a ROUTER that answers, with limits for a crowd."""
    descriptors(options.count + 500)
    async with core.Context() as context:
        room: dict[str, Any] = (
            CURVE_SERVER
            if options.curve
            else {"max_pending_handshakes": options.count + 100, "max_pending_handshakes_per_ip": options.count + 100}
        )
        router = context.socket(core.ROUTER, backlog=1000, handshake_ivl=600_000, **room)
        router.set_receiver(lambda messages: router.send_many(messages))
        router.bind(options.endpoint)
        ready()
        await asyncio.get_running_loop().create_future()


async def publisher(options: Options) -> None:
    """Serve an XPUB, and a ROUTER that orders a message and returns for how many it was dropped."""
    descriptors(options.count + 500)
    async with core.Context() as context:
        pub = context.socket(core.XPUB, backlog=1000, sndhwm=10, sndbuf=16 * 1024, max_pending_handshakes_per_ip=1000)
        pub.bind(options.endpoint)
        control = context.socket(core.ROUTER)
        control.bind("tcp://127.0.0.1:*")
        body = body_of(BODY_BYTES)

        def order(messages: list[list[bytes]]) -> None:
            dropped = pub.counters.peer_full
            pub.send(body)
            control.send_multipart([messages[0][0], b"%d" % (pub.counters.peer_full - dropped)])

        control.set_receiver(order)
        ready(control=control.last_endpoint)
        await asyncio.get_running_loop().create_future()


# -- crowds


async def crowd(options: Options, *, octets: bytes = b"", dripping: bool = False) -> None:
    """Open connections that send some bytes and then nothing, or one byte a second each, and read nothing."""
    descriptors(options.count + 500)
    peers = []
    for _ in range(options.count):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(address(options.endpoint))
        peer.sendall(octets)
        peers.append(peer)
    ready()
    slices = 100  # of a second
    for octet in GREETING[:-1] if dripping else b"":
        for part in range(slices):
            begun = perf_counter()
            for peer in peers[part::slices]:
                peer.send(bytes((octet,)))
            await asyncio.sleep(max(0.0, 1 / slices - (perf_counter() - begun)))
    await asyncio.get_running_loop().create_future()


class Hello(asyncio.Protocol):
    """Connection that sends HELLO and closes when it is answered or refused."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._left = WELCOMED_BYTES
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send everything at once."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(self._octets)

    def data_received(self, data: bytes) -> None:
        """Close with a reset, so that the port is free again."""
        self._left -= len(data)
        if self._left <= 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the next one start."""
        self.over.set_result(None)


async def flood(options: Options) -> None:
    """Send HELLO on many connections, repeatedly."""
    client = CurveClient(
        b"",
        secret_key=z85.decode(keys.CLIENT_SECRET),
        server_key=z85.decode(keys.SERVER_PUBLIC),
        random_bytes=os.urandom,
        metadata_bytes_max=0,
    )
    octets = GREETING.replace(b"NULL\0", b"CURVE") + encode_command(client.start()[0])

    async def one(number: int) -> None:
        source = f"127.0.0.{10 + number % FLOODING_ADDRESSES}"
        loop = asyncio.get_running_loop()
        await asyncio.sleep(number / HELLOS_PER_S)
        while True:
            begun = loop.time()
            _, hello = await loop.create_connection(lambda: Hello(octets), *address(options.endpoint), local_addr=(source, 0))
            await hello.over
            await asyncio.sleep(begun + options.count / HELLOS_PER_S - loop.time())

    tasks = [asyncio.ensure_future(one(number)) for number in range(options.count)]
    await asyncio.sleep(1)
    ready()
    await asyncio.gather(*tasks)


# -- measured peers


async def ask(options: Options) -> None:
    """Alternate between two servers: round trips of a known peer, and new peers."""
    async with core.Context() as context:
        endpoints = options.endpoint.split()
        secured: dict[str, Any] = CURVE_CLIENT if options.curve else {}
        known = [context.socket(core.DEALER, linger=0, **secured) for _ in endpoints]
        for dealer, endpoint in zip(known, endpoints, strict=True):
            dealer.connect(endpoint)
        trips: list[list[float]] = [[] for _ in endpoints]
        first: list[list[float]] = [[] for _ in endpoints]
        body = body_of(16)
        ready()
        end = perf_counter() + options.seconds
        while perf_counter() < end:
            for number, endpoint in enumerate(endpoints):
                dealer = known[number]
                for _ in range(TRIPS):
                    begun = perf_counter()
                    await dealer.send(body)
                    await dealer.recv()
                    trips[number].append(perf_counter() - begun)
                for _ in range(NEWCOMERS):
                    begun = perf_counter()
                    newcomer = context.socket(core.DEALER, linger=0, **secured)
                    newcomer.connect(endpoint)
                    await newcomer.send(body)
                    await newcomer.recv()
                    first[number].append(perf_counter() - begun)
                    newcomer.close()
        report({"round trip": [found(times) for times in trips], "newcomer": [found(times) for times in first]})


class Subscriber(asyncio.Protocol):
    """Subscriber in raw bytes that records when a message of known length is complete."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._left = GREETED_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send everything at once."""
        cast("asyncio.WriteTransport", transport).write(GREETING + READY_SUB)

    def data_received(self, data: bytes) -> None:
        """Count down to the end of the greeting, then to the end of each message."""
        self._left -= len(data)
        while self._left <= 0:
            self._left += BODY_BYTES + 9
            self._group.came()


class Group:
    """Subscribers of one publisher that read.

    Attributes:
        times: seconds from the order to each receipt.
    """

    def __init__(self, endpoint: str, control: core.Socket, count: int) -> None:
        self._endpoint = endpoint
        self._control = control
        self._count = count
        self._missing = count  # greetings, then receipts of this message
        self._begun = 0.0
        self._all = asyncio.get_running_loop().create_future()
        self.times: list[float] = []

    async def connect(self) -> None:
        """Connect all to the publisher."""
        for _ in range(self._count):
            await asyncio.get_running_loop().create_connection(lambda: Subscriber(self), *address(self._endpoint))
        await self._all

    def came(self) -> None:
        """Record that one of them has a message, or the greeting."""
        if self._begun:
            self.times.append(perf_counter() - self._begun)
        self._missing -= 1
        if not self._missing:
            self._all.set_result(None)

    async def publish(self) -> int:
        """Have one message published; return for how many it was dropped, once all others have it."""
        self._missing, self._all = self._count, asyncio.get_running_loop().create_future()
        self._begun = perf_counter()
        await self._control.send(b"")
        dropped = int(await self._control.recv())
        await self._all
        return dropped


async def read(options: Options) -> None:
    """Alternate between two publishers, message by message; `window` subscribers of the second do not read."""
    descriptors(2 * options.count + 500)
    async with core.Context() as context:
        groups = []
        for endpoint, at in zip(*[iter(options.endpoint.split())] * 2, strict=True):
            control = context.socket(core.DEALER, linger=0)
            control.connect(at)
            groups.append(Group(endpoint, control, options.count))
            await groups[-1].connect()
        begun = perf_counter()
        while await groups[-1].publish() < options.window:
            if perf_counter() - begun > PATIENCE_S:
                raise TimeoutError("nobody stalls")
        for group in groups:
            group.times.clear()
        ready()
        end = perf_counter() + options.seconds
        while perf_counter() < end:
            for group in groups:
                await group.publish()
        report({"receipt": [found(group.times) for group in groups]})


def found(times: list[float]) -> dict[str, float]:
    """Median and 99th percentile in microseconds."""
    return {"count": len(times), "p50_us": quantile(times, 0.5) * 1e6, "p99_us": quantile(times, 0.99) * 1e6}


# -- the harness


def silent(options: argparse.Namespace) -> dict[str, Any]:
    """Measure G14: two ROUTERs, one with the crowd."""
    alone, crowded, count = free_endpoint(), free_endpoint(), options.connections
    with (
        Program(MODULE, "echo", Options(alone, count=count, cpu=options.cpus[0])),
        Program(MODULE, "echo", Options(crowded, count=count, cpu=options.cpus[0])) as server,
    ):
        before = server.resident_bytes()
        with Program(MODULE, "crowd", Options(crowded, count=count, cpu=options.cpus[1]), PATIENCE_S):
            each = (server.resident_bytes() - before) / count
            asking = Options(f"{alone} {crowded}", seconds=options.seconds, cpu=options.cpus[0])
            with Program(MODULE, "ask", asking) as asker:
                return {"bytes_each": each, **asker.line(options.seconds + PATIENCE_S)}


def in_turns(options: argparse.Namespace, role: str, count: int, *, curve: bool = False) -> dict[str, Any]:
    """Measure G14, C3: one ROUTER and a crowd that is suspended and resumed, because it takes processor time from all."""
    endpoint = free_endpoint()
    asking = Options(endpoint, seconds=options.seconds / (2 * ROUNDS), cpu=options.cpus[0], curve=curve)
    rounds: list[list[dict[str, Any]]] = [[], []]
    with (
        Program(MODULE, "echo", Options(endpoint, count=count, cpu=options.cpus[0], curve=curve)),
        Program(MODULE, role, Options(endpoint, count=count, cpu=options.cpus[1]), PATIENCE_S) as crowd,
    ):
        for _ in range(ROUNDS):
            for going in (False, True):
                os.kill(crowd.pid, signal.SIGCONT if going else signal.SIGSTOP)
                sleep(SETTLE_S)
                with Program(MODULE, "ask", asking) as asker:
                    rounds[going].append(asker.line(asking.seconds + PATIENCE_S))
    return {what: [medians([each[what][0] for each in turn]) for turn in rounds] for what in ("round trip", "newcomer")}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure, and the number of measurements."""
    return {name: median(run[name] for run in runs) for name in ("p50_us", "p99_us")} | {"count": sum(run["count"] for run in runs)}


def stalled(options: argparse.Namespace) -> dict[str, Any]:
    """Measure G16: two publishers with as many readers, one with subscribers that do not read as well."""
    alone, crowded = free_endpoint(), free_endpoint()
    count = options.subscribers - options.stalled
    with (
        Program(MODULE, "publisher", Options(alone, count=options.subscribers, cpu=options.cpus[0])) as one,
        Program(MODULE, "publisher", Options(crowded, count=options.subscribers, cpu=options.cpus[0])) as other,
        Program(MODULE, "stall", Options(crowded, count=options.stalled, cpu=options.cpus[1]), PATIENCE_S),
    ):
        endpoints = f"{alone} {one.facts['control']} {crowded} {other.facts['control']}"
        reading = Options(endpoints, count=count, window=options.stalled, seconds=options.seconds, cpu=options.cpus[1])
        with Program(MODULE, "read", reading, PATIENCE_S) as reader:
            return reader.line(options.seconds + PATIENCE_S)


def command_line() -> None:
    """Measure according to the command line, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--subscribers", type=int, default=1_000)
    parser.add_argument("--stalled", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    options.cpus = (allowed[0], allowed[-1])
    result = {
        "silent": silent(options),
        "dripping": in_turns(options, "drip", options.connections),
        "hellos": in_turns(options, "flood", FLOODING, curve=True),
        "stalled": stalled(options),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(name, f"{figures['bytes_each'] / 1024:.1f} KiB each" if "bytes_each" in figures else "")
        for what in ("round trip", "newcomer", "receipt"):
            if what in figures:
                (alone, crowded) = figures[what]
                print(f"  {what}, {alone['count']} and {crowded['count']}:", end="")
                for part in ("p50_us", "p99_us"):
                    print(f" {part[:3]} {alone[part]:.0f} and {crowded[part]:.0f} us, {crowded[part] / alone[part]:.2f} times;", end="")
                print()


if __name__ == "__main__":
    if len(sys.argv) > 2 and not sys.argv[1].startswith("-"):
        main(
            {
                "echo": lambda options: run_on_loop(echo(options)),
                "publisher": lambda options: run_on_loop(publisher(options)),
                "crowd": lambda options: run_on_loop(crowd(options)),
                "flood": lambda options: run_on_loop(flood(options)),
                "drip": lambda options: run_on_loop(crowd(options, dripping=True)),
                "stall": lambda options: run_on_loop(crowd(options, octets=GREETING + READY_SUB)),
                "ask": lambda options: run_on_loop(ask(options)),
                "read": lambda options: run_on_loop(read(options)),
            }
        )
    else:
        command_line()
