"""Peers that know nothing of the toolkit: clients and workers of RFC 7, clients of RFC 9."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.cluster.faults import ALL
from tests.sim.cluster.raw_peer import RawPeer, connect
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, PORT, broker, client, endpoint, reply_of, worker
from tests.sim.cluster.scenarios.promises import answers, watch_brokers
from tests.sim.cluster.scenarios.titanic_stores import OPEN_MAX, SUBMIT_S, collector, nothing_is_lost, store

if TYPE_CHECKING:
    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

CLIENT, WORKER = b"MDPC01", b"MDPW01"
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = (bytes([number]) for number in range(1, 6))
HEARTBEAT_S = HEARTBEAT_MS / 1000
LIVENESS = 3
TRY_S, TRIES = 3.0, 3
BOUND_S = TRY_S * TRIES + 1.0
AGAIN_S = 1.0


async def _ask(ip: str, service: bytes, *body: bytes) -> list[bytes] | None:
    """Ask once over a new connection, as a Lazy Pirate does; return the body of the reply, None without one."""
    try:
        async with await connect(ip, PORT, b"REQ", TRY_S) as peer:
            peer.send(b"", CLIENT, service, *body)
            frames = await peer.recv(TRY_S)
    except (TimeoutError, OSError):
        return None
    assert frames[:3] == [b"", CLIENT, service]
    return frames[3:]


async def _ask_again(ip: str, service: bytes, *body: bytes) -> list[bytes] | None:
    for _ in range(TRIES):
        if (reply := await _ask(ip, service, *body)) is not None:
            return reply
    return None


def raw_client(play: Play, host: str, *, service: str = "echo", every_s: float = 1.0) -> Body:
    """Return the body of a REQ client of RFC 7, which has one request at a time."""

    async def body(process: Process) -> None:
        ending = asyncio.ensure_future(play.forever(process))
        while not ending.done():
            if not play.stopping:
                operation = play.history.begin(process.name, process.life, "plain", BOUND_S)
                reply = await _ask_again(play.ip(host), service.encode(), operation.id)
                play.history.settle(operation, None if reply is None else b"".join(reply), "" if reply else "Timeout")
            await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))

    return body


def raw_worker(play: Play, host: str, service: str = "echo") -> Body:
    """Return the body of a DEALER worker of RFC 7."""

    async def body(process: Process) -> None:
        ending = asyncio.ensure_future(play.forever(process))
        while not ending.done():
            try:
                async with await connect(play.ip(host), PORT, b"DEALER") as peer:
                    await _work(play, process, peer, service, ending)
            except (TimeoutError, OSError):
                await asyncio.wait([ending], timeout=AGAIN_S)

    return body


async def _work(play: Play, process: Process, peer: RawPeer, service: str, ending: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    peer.send(b"", WORKER, READY, service.encode())
    heard_at = beat_at = loop.time()
    while not ending.done() and loop.time() < heard_at + LIVENESS * HEARTBEAT_S:
        if loop.time() >= beat_at + HEARTBEAT_S:
            beat_at = loop.time()
            peer.send(b"", WORKER, HEARTBEAT)
        try:
            frames = await peer.recv(HEARTBEAT_S / 4)
        except TimeoutError:
            continue
        heard_at = loop.time()
        assert frames[:2] == [b"", WORKER]
        if frames[2] == DISCONNECT:
            return
        if frames[2] == REQUEST:
            operation = play.history.run(int(frames[5]), process.name)
            peer.send(b"", WORKER, REPLY, frames[3], b"", reply_of(operation))
    if ending.done():
        peer.send(b"", WORKER, DISCONNECT)


def stock_submitter(play: Play, host: str, *, every_s: float = 2.0) -> Body:
    """Return the body of a client of RFC 9: it stores requests, and asks for their replies again and again."""

    async def body(process: Process) -> None:
        works: set[asyncio.Task[None]] = set()
        ending = asyncio.ensure_future(play.forever(process))
        while not ending.done():
            if len(works) < OPEN_MAX and not play.stopping:
                operation = play.history.begin(process.name, process.life, "stored", SUBMIT_S)
                task = asyncio.ensure_future(_store(play, play.ip(host), operation))
                works.add(task)
                task.add_done_callback(works.discard)
            await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))
        for task in works:
            task.cancel()
        if works:
            await asyncio.wait(works)

    return body


async def _store(play: Play, ip: str, operation: Operation) -> None:
    # RFC 9 has no key, so that a second try would be a second request.
    answer = await _ask(ip, b"titanic.request", b"echo", operation.id)
    if answer is None or answer[0] != b"200":
        play.history.settle(operation, None, "Timeout" if answer is None else f"code {answer[0].decode()}")
        return
    operation.ticket = answer[1].decode()
    play.history.accepted(operation)
    while operation.ended is None:
        reply = await _ask(ip, b"titanic.reply", answer[1])
        if reply is None or reply[0] in (b"300", b"500"):
            await asyncio.sleep(1.0)
        elif reply[0] != b"200":
            play.history.settle(operation, None, f"code {reply[0].decode()}")
            play.world.violated(f"accepted request {operation.number} ended with code {reply[0].decode()}")
        elif operation.ended is None:
            play.history.settle(operation, b"".join(reply[1:]))


@scenario(kinds=ALL, disks=("store",), spared=("collector",), minutes=10.0)
def stock_peers(play: Play) -> None:
    """One broker and one Titanic; most clients and workers know nothing of the toolkit."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    play.add("store", store(play, [there]))
    for number in range(2):
        play.add(f"worker-{number}", raw_worker(play, "broker"))
        play.add(f"asker-{number}", raw_client(play, "broker"))
    play.add("worker-2", worker(play, there))
    play.add("client-0", stock_submitter(play, "broker"))
    play.add("asker-2", client(play, there, dialect="0.2"))
    play.add("collector", collector(play, [there]))
    watch_brokers(play)
    answers(play, "asker-0", "asker-1", "asker-2")
    nothing_is_lost(play)
