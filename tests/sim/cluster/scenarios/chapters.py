"""Freelance with names, pirates, peering, lending brokers, and a service of a user on a Binary Star pair."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import bstar
import core
import freelance
import mdp
import peering
import pirate
from core.machine.envelope import READY
from core.runtime.event_loop import until_one_ends
from freelance.names.resolver import Names
from freelance.names.server import NameServer
from mdp.broker.limits import BrokerOptions
from tests.sim.cluster.faults import CLOCK, NETWORK, PROCESS, Fault
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import (
    BOUND_S,
    HEARTBEAT_MS,
    PORT,
    WAITING_MAX,
    broker,
    client,
    endpoint,
    worker,
)
from tests.sim.cluster.scenarios.promises import answers, one_serves, stays, watch_broker, watch_brokers, watch_pair
from tests.sim.cluster.scenarios.titanic_stores import STATE_PORT, WITNESS_PORT, pair_of, witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from random import Random

    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

    Ask = Callable[[bytes], Awaitable[bytes]]

NAMES_PORT, SERVER_PORT = 5570, 5571
FRONTEND_PORT, BACKEND_PORT, CLOUD_PORT, CLOUD_STATE_PORT, CONTROL_PORT = 5555, 5556, 5557, 5558, 5559
REPLY_S = 5.0
CLOUD_PORTS = {
    "localfe": FRONTEND_PORT,
    "localbe": BACKEND_PORT,
    "cloudfe": CLOUD_PORT,
    "statebe": CLOUD_STATE_PORT,
    "control": CONTROL_PORT,
}


def reply_to(play: Play, process: Process, body: bytes) -> bytes:
    """Note an execution and return its reply."""
    operation = play.history.run(int(body), process.name)
    return operation.id + b" %d" % len(operation.runs)


def asker(
    play: Play, entered: Callable[[Process, AsyncExitStack], Awaitable[Ask]], *, every_s: float = 1.0, most: int = WAITING_MAX
) -> Body:
    """Return the body of a client that asks again and again; `entered` makes what asks, within a stack."""

    async def body(process: Process) -> None:
        asking: set[asyncio.Task[None]] = set()
        async with AsyncExitStack() as stack:
            ask = await entered(process, stack)
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                if len(asking) < most and not play.stopping:
                    task = asyncio.ensure_future(_asked(play, process, ask))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))
            if asking:
                await asyncio.wait(asking)

    return body


async def _asked(play: Play, process: Process, ask: Ask) -> None:
    operation = play.history.begin(process.name, process.life, "plain", 2 * BOUND_S)
    try:
        reply = await ask(operation.id)
    except _REFUSALS as error:
        play.history.settle(operation, None, type(error).__name__)
    else:
        play.history.settle(operation, reply)


_REFUSALS: tuple[type[Exception], ...] = (core.ZMQError, TimeoutError, freelance.FreelanceError, pirate.PirateError, bstar.BinaryStarError)


# ---- freelance


def name_server(play: Play, other: str) -> Body:
    async def body(process: Process) -> None:
        async with NameServer(f"tcp://{process.host.ip}:{NAMES_PORT}", peers=[f"tcp://{play.ip(other)}:{NAMES_PORT}"]) as served:
            await until_one_ends(play.forever(process), served.serve_forever())

    return body


def named_server(play: Play, names: Sequence[str]) -> Body:
    """Return the body of a freelance server that leases a name for its endpoint."""

    async def body(process: Process) -> None:
        place = f"tcp://{process.host.ip}:{SERVER_PORT}"
        async with (
            freelance.Server(place, lambda frames: [reply_to(play, process, frames[0])]),
            Names([f"tcp://{play.ip(host)}:{NAMES_PORT}" for host in names]) as resolver,
        ):
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                try:
                    async with resolver.lease("echo", bind=[place], connect=[place], ttl=10.0):
                        await ending
                except freelance.FreelanceError:
                    await asyncio.wait([ending], timeout=1.0)

    return body


def named_client(play: Play, names: Sequence[str]) -> Body:
    """Return the body of a client that follows a name."""

    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        resolver = await stack.enter_async_context(Names([f"tcp://{play.ip(host)}:{NAMES_PORT}" for host in names]))
        asked = await stack.enter_async_context(freelance.Client([f"tcp://{play.ip('server-0')}:{SERVER_PORT}"], timeout=REPLY_S))
        await stack.enter_async_context(resolver.follow(asked, "echo"))

        async def ask(body: bytes) -> bytes:
            return b"".join(await asked.request(body))

        return ask

    return asker(play, entered)


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def freelance_names(play: Play) -> None:
    """Two name servers, three servers that lease a name, two clients that follow it."""
    names = ("names-0", "names-1")
    for n in (0, 1):
        play.add(names[n], name_server(play, names[1 - n]))
    for n in range(3):
        play.add(f"server-{n}", named_server(play, names))
    for n in range(2):
        play.add(f"client-{n}", named_client(play, names))
    answers(play, "client-0", "client-1")
    play.finals.append(lambda: play.history.check_answers({"plain": 0.4}))


# ---- pirates


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def paranoid_pirates(play: Play) -> None:
    """A queue, three workers with heartbeats, two clients that retry."""

    async def queue(process: Process) -> None:
        ip = process.host.ip
        async with pirate.Queue(f"tcp://{ip}:{FRONTEND_PORT}", f"tcp://{ip}:{BACKEND_PORT}", heartbeat_ms=HEARTBEAT_MS) as served:
            process.things["queue"] = served
            await until_one_ends(play.forever(process), served.serve_forever())

    async def pirate_worker(process: Process) -> None:
        async def handle(frames: list[bytes]) -> list[bytes]:
            reply = reply_to(play, process, frames[0])
            await asyncio.sleep(play.random.expovariate(20.0))
            return [reply]

        there = f"tcp://{play.ip('queue')}:{BACKEND_PORT}"
        async with pirate.Worker(there, handle, heartbeat_ms=HEARTBEAT_MS, reconnect_max_ms=4000) as served:
            await until_one_ends(play.forever(process), served.serve_forever())

    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        asked = await stack.enter_async_context(pirate.Client(f"tcp://{play.ip('queue')}:{FRONTEND_PORT}", timeout=2.5, attempts=3))

        async def ask(body: bytes) -> bytes:
            return b"".join(await asked.request(body))

        return ask

    play.add("queue", queue)
    for n in range(3):
        play.add(f"worker-{n}", pirate_worker)
    for n in range(2):
        play.add(f"client-{n}", asker(play, entered, most=1))
    stays(play, "queue", ("ready", "worker_gone", "worker_silent", "worker_expired", "request_lost"))
    answers(play, "client-0", "client-1")
    play.finals.append(lambda: play.history.check_answers({"plain": 0.4}))


# ---- peering


def cloud(play: Play, name: str, others: Sequence[str]) -> Body:
    """Return the body of a broker of one cloud."""

    async def body(process: Process) -> None:
        ip = process.host.ip
        peers = {other: (f"tcp://{play.ip(other)}:{CLOUD_PORT}", f"tcp://{play.ip(other)}:{CLOUD_STATE_PORT}") for other in others}
        places = {
            "localfe": FRONTEND_PORT,
            "localbe": BACKEND_PORT,
            "cloudfe": CLOUD_PORT,
            "statebe": CLOUD_STATE_PORT,
            "control": CONTROL_PORT,
        }
        where: dict[str, Any] = {place: f"tcp://{ip}:{port}" for place, port in places.items()}
        async with peering.Broker(name, peers, **where) as served:
            await until_one_ends(play.forever(process), served.serve_forever())

    return body


def cloud_worker(play: Play, cloud_name: str) -> Body:
    """Return the body of a REQ worker, which begins again after a silent time."""

    async def body(process: Process) -> None:
        ending = asyncio.ensure_future(play.forever(process))
        async with core.Context() as context:
            while not ending.done():
                async with context.socket(core.REQ, linger=0) as socket:
                    socket.connect(f"tcp://{play.ip(cloud_name)}:{BACKEND_PORT}")
                    await socket.send(READY)
                    async for frames in _until(socket, ending, 10.0):
                        end = frames.index(b"") + 1
                        await socket.send_multipart([*frames[:end], reply_to(play, process, frames[end])])

    return body


async def _until(socket: core.Socket, ending: asyncio.Future[None], silent_s: float) -> AsyncIterator[list[bytes]]:
    while not ending.done():
        try:
            async with asyncio.timeout(silent_s):
                frames = await socket.recv_multipart()
        except TimeoutError:
            return
        yield frames


def cloud_client(play: Play, cloud_name: str, *, every_s: float = 1.0) -> Body:
    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        context = await stack.enter_async_context(core.Context())

        async def ask(body: bytes) -> bytes:
            async with asyncio.timeout(REPLY_S), context.socket(core.REQ, linger=0) as socket:
                socket.connect(f"tcp://{play.ip(cloud_name)}:{FRONTEND_PORT}")
                await socket.send(body)
                return b"".join(await socket.recv_multipart())

        return ask

    return asker(play, entered, every_s=every_s)


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def clouds(play: Play) -> None:
    """Three brokers that lend each other workers, with workers at two of them and clients at all."""
    names = ("cloud-0", "cloud-1", "cloud-2")
    for name in names:
        play.add(name, cloud(play, name, [other for other in names if other != name]))
    for n in range(4):
        play.add(f"worker-{n}", cloud_worker(play, names[n % 2]))
    for n in range(3):
        play.add(f"client-{n}", cloud_client(play, names[n]))
    answers(play, *(f"client-{n}" for n in range(3)))
    play.finals.append(lambda: play.history.check_answers({"plain": 0.4}))


# ---- brokers that lend


def lending_broker(play: Play, others: Sequence[str]) -> Body:
    async def body(process: Process) -> None:
        peers = [endpoint(play, other) for other in others]
        async with mdp.LendingBroker(peers, heartbeat_ms=HEARTBEAT_MS) as served:
            served.bind(f"tcp://{process.host.ip}:{PORT}")
            watch_broker(process, served)
            await play.forever(process)

    return body


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def lending(play: Play) -> None:
    """Two brokers that borrow workers from each other; most workers are at one, most clients at the other."""
    names = ("broker-0", "broker-1")
    for n in (0, 1):
        play.add(names[n], lending_broker(play, [names[1 - n]]))
    for n, at in enumerate((0, 0, 1)):
        play.add(f"worker-{n}", worker(play, endpoint(play, names[at]), concurrency=2))
    for n, at in enumerate((1, 1, 0)):
        play.add(f"client-{n}", client(play, endpoint(play, names[at]), every_s=0.5))
    watch_brokers(play, linear=False)  # each keeps its own replies
    answers(play, *(f"client-{n}" for n in range(3)))
    play.finals.append(lambda: play.history.check_answers({"plain": 0.5}))


@scenario(kinds=("isolate", "cut", "one way", "flap", "slow link", "reset", "half open", "skew", "jump"), minutes=10.0)
def steady_broker(play: Play) -> None:
    """A broker that never fails: requests with one key have one reply, whatever becomes of links."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    for n, kind in enumerate(("coroutine", "thread", "coroutine")):
        play.add(f"worker-{n}", worker(play, there, kind=kind))
    for n in range(3):
        play.add(f"client-{n}", client(play, there))
    watch_brokers(play)
    answers(play, *(f"client-{n}" for n in range(3)))
    play.finals.append(lambda: play.history.check_keys(BrokerOptions().results_ms / 1000 - BOUND_S))
    play.finals.append(lambda: play.history.check_answers({"plain": 0.6, "key": 0.6}))


# ---- a service of a user on a pair


def paired_service(play: Play, n: int, hosts: Sequence[str]) -> Body:
    async def body(process: Process) -> None:
        async with pair_of(play, process, n, hosts, "service", (STATE_PORT, WITNESS_PORT), "witness") as pair:
            pair.voter(f"tcp://{process.host.ip}:{PORT}", handler=lambda request: [reply_to(play, process, request.body[0])])
            watch_pair(play, process, pair)
            await until_one_ends(play.forever(process), pair.serve_forever())
            await pair.drain(1.0)

    return body


def _dark(random: Random, begin: float, end: float) -> list[Fault]:
    """Return moments at which the whole pair and its witness lose their power."""
    found, at = [], begin
    while (at := at + random.uniform(30.0, 60.0)) + 20.0 < end:
        found += [Fault(round(at, 3), round(random.uniform(1.0, 6.0), 3), "power", host) for host in ("one", "two", "witness")]
    return found


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0, directed=_dark)
def service_pair(play: Play) -> None:
    """Two servers of a Binary Star pair with a witness, and clients that fail over."""
    hosts = ("one", "two")
    play.add("witness", witness(play, WITNESS_PORT, "service"))
    for n in (0, 1):
        play.add(hosts[n], paired_service(play, n, hosts))

    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        asked = await stack.enter_async_context(bstar.Client(*(f"tcp://{play.ip(host)}:{PORT}" for host in hosts), patience=2 * REPLY_S))

        async def ask(body: bytes) -> bytes:
            return b"".join(await asked.request(body))

        return ask

    for n in range(2):
        play.add(f"client-{n}", asker(play, entered))
    one_serves(play, *hosts)
    answers(play, "client-0", "client-1")
    play.finals.append(lambda: play.history.check_answers({"plain": 0.4}))
