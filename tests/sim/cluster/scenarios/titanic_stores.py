"""Stored requests: one Titanic, or two of a pair with mirrors, behind one broker or a pair of brokers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import bstar
import mdp
import titanic
from core.runtime.event_loop import until_one_ends
from tests.sim.cluster.faults import ALL, CLOCK, NETWORK, PROCESS
from tests.sim.cluster.scenario import HEALED_S, scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, PORT, broker, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import answers, one_serves, watch_broker, watch_brokers, watch_pair
from titanic.journal.disk import HeldDisk, RealDisk
from titanic.paired_store import PairedOptions, PairedTitanic, service_of
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.cluster.history import Operation
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

STATE_PORT, WITNESS_PORT, MIRROR_PORT = 5003, 5010, 5565
STORE_STATE_PORT, STORE_WITNESS_PORT = 6003, 6010
ROLES = (bstar.PRIMARY, bstar.BACKUP)
JOURNAL = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))
SERVICE = titanic.ServiceOptions(dispatch=DispatchOptions(retry_s=0.5, retry_max_s=4.0, probe_s=0.5, probe_max_s=2.0))
SUBMIT_S = 20.0  # in which a submit settles
RESULT_S = 40.0  # after healing, in which an accepted request has its reply
LATER = 0.3  # share of the requests whose reply the collector asks for, at the end: it must have been kept all the time
CLOSED = 0.7  # share of the requests that are closed when their reply is there
LATEST_S = 2.0  # before the end of a run: what is accepted then may have no reply yet
COLLECT_S = 0.005  # between two questions of the collector
BACKLOG_MAX_BYTES = 100_000  # of a store, not yet written
SEGMENTS_MAX = 20  # of a store, besides four times what its requests need
SMALL = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=16384, reserve_bytes=4096))  # so that many are filled
OPEN_MAX = 30  # accepted requests without a reply, of one client


def store(play: Play, brokers: Sequence[str], journal: titanic.JournalOptions = JOURNAL) -> Body:
    """Return the body of a single Titanic with a directory."""

    async def body(process: Process) -> None:
        options = PairedOptions(brokers=brokers, mirror="", mirror_bind="", journal=journal, service=SERVICE, heartbeat_ms=HEARTBEAT_MS)
        service = service_of(options, RealDisk("store"))
        async with service:
            process.things["store"] = service.store
            await until_one_ends(play.forever(process), service.until_failed())
            await service.drain(1.0)

    return body


def pair_of(
    play: Play,
    process: Process,
    n: int,
    hosts: Sequence[str],
    name: str,
    ports: tuple[int, int],
    witness: str,
    key: bytes | None = None,
) -> bstar.Pair:
    """Return one half of a pair whose witness is on a host of its own."""
    state, asked = ports
    return bstar.Pair(
        ROLES[n],
        local=f"tcp://{process.host.ip}:{state}",
        remote=f"tcp://{play.ip(hosts[1 - n])}:{state}",
        witness=f"tcp://{play.ip(witness)}:{asked}",
        heartbeat_ms=HEARTBEAT_MS,
        store=f"ballots/{name}",
        lone_backup=True,
        pair_key=key,
    )


def witness(play: Play, port: int, name: str, key: bytes | None = None) -> Body:
    async def body(process: Process) -> None:
        address = f"tcp://{process.host.ip}:{port}"
        async with bstar.Witness(address, heartbeat_ms=HEARTBEAT_MS, store=f"ballots/witness-{name}", pair_key=key) as asked:
            await until_one_ends(play.forever(process), asked.serve_forever())

    return body


def paired_broker(play: Play, n: int, hosts: Sequence[str], key: bytes | None = None) -> Body:
    async def body(process: Process) -> None:
        pair = pair_of(play, process, n, hosts, "broker", (STATE_PORT, WITNESS_PORT), "witness", key)
        async with pair, mdp.PairedBroker(pair, heartbeat_ms=HEARTBEAT_MS) as served:
            served.bind(f"tcp://{process.host.ip}:{PORT}")
            watch_pair(play, process, pair)
            watch_broker(process, served)
            await until_one_ends(play.forever(process), pair.serve_forever())

    return body


def paired_store(play: Play, n: int, hosts: Sequence[str], brokers: Sequence[str], *, go_on: bool = True) -> Body:
    async def body(process: Process) -> None:
        options = PairedOptions(
            brokers=brokers,
            mirror=f"tcp://{play.ip(hosts[1 - n])}:{MIRROR_PORT}",
            mirror_bind=f"tcp://{process.host.ip}:{MIRROR_PORT}",
            journal=JOURNAL,
            service=SERVICE,
            go_on=go_on,
            heartbeat_ms=HEARTBEAT_MS,
        )
        pair = pair_of(play, process, n, hosts, "store", (STORE_STATE_PORT, STORE_WITNESS_PORT), "witness")
        async with pair, PairedTitanic(pair, HeldDisk("store"), options) as half:
            process.things["half"] = half
            watch_pair(play, process, pair)
            await until_one_ends(play.forever(process), half.serve_forever())
            await half.drain(1.0)

    return body


def submitter(
    play: Play, brokers: Sequence[str], *, every_s: float = 2.0, more: Sequence[bytes] = (), later: float = LATER, closed: float = CLOSED
) -> Body:
    """Return the body of a client that stores requests, waits for their replies and closes some of them.

    Args:
        play: the run.
        brokers: of the store.
        every_s: mean time between two requests.
        more: frames of each request.
        later: share of the requests that are left to the collector.
        closed: share of the others that are closed when their reply is there.
    """

    async def body(process: Process) -> None:
        works: set[asyncio.Task[None]] = set()
        async with titanic.Client(brokers, timeout=3.0, attempts=2) as asked:
            ending = asyncio.ensure_future(play.forever(process))
            while not ending.done():
                if len(works) < OPEN_MAX and not play.stopping:
                    operation = play.history.begin(process.name, process.life, "stored", SUBMIT_S)
                    task = asyncio.ensure_future(_store(play, asked, operation, more, later, closed))
                    works.add(task)
                    task.add_done_callback(works.discard)
                await asyncio.wait([ending], timeout=play.random.expovariate(1 / every_s))
            for task in works:
                task.cancel()
            if works:
                await asyncio.wait(works)

    return body


async def _store(play: Play, asked: titanic.Client, operation: Operation, more: Sequence[bytes], later: float, closed: float) -> None:
    try:
        ticket = await asked.submit("echo", operation.id, *more, key=f"submit-{operation.number}")
    except (titanic.TitanicError, mdp.RequestError) as error:
        play.history.settle(operation, None, type(error).__name__)
        return
    play.history.accepted(operation)
    operation.ticket = ticket.uuid
    if play.random.random() < later:
        return
    while True:
        try:
            reply = await ticket.result(20.0)
        except (titanic.Pending, mdp.RequestError, titanic.Unavailable):
            await asyncio.sleep(1.0)
            continue
        except titanic.TitanicError as error:
            play.history.settle(operation, None, type(error).__name__)
            play.world.violated(f"accepted request {operation.number} ended with {type(error).__name__}: {error}")
            return
        break
    if operation.ended is None:
        play.history.settle(operation, b"".join(reply))
    if play.random.random() < closed:
        with suppress(titanic.TitanicError, mdp.RequestError):
            await ticket.close()


def collector(play: Play, brokers: Sequence[str]) -> Body:
    """Return the body of a client that asks, at the end, for every accepted request without a reply."""

    async def body(process: Process) -> None:
        ending = asyncio.ensure_future(play.forever(process))
        async with titanic.Client(brokers, timeout=3.0, attempts=3) as asked:
            while not play.stopping and not ending.done():
                if play.healed_at is not None and play.world.now > play.healed_at + 15.0:
                    for operation in play.history.operations:
                        if operation.ticket and operation.ended is None and not ending.done():
                            await _collect(play, asked, operation)
                            await asyncio.sleep(COLLECT_S)  # a thousand at once look like a busy loop
                await asyncio.wait([ending], timeout=1.0)
            await ending

    return body


async def _collect(play: Play, asked: titanic.Client, operation: Operation) -> None:
    try:
        reply = await asked.ticket(operation.ticket).result(3.0)
    except (titanic.Pending, mdp.RequestError, titanic.Unavailable):
        return
    except titanic.TitanicError as error:
        if operation.ended is not None:
            return  # its client has its reply, and has closed it meanwhile
        play.world.violated(f"accepted request {operation.number} was lost: {type(error).__name__}: {error}")
        return
    if operation.ended is None:
        play.history.settle(operation, b"".join(reply))


def nothing_is_lost(play: Play) -> None:
    """Demand that everything acknowledged has its reply at the end."""

    def check() -> None:
        until = (play.healed_at or 0.0) + HEALED_S - LATEST_S
        lost = [one for one in play.history.operations if one.ticket and one.result is None and (one.accepted or 0.0) < until]
        for one in lost[:3]:
            play.world.violated(
                f"request {one.number} was accepted at {one.accepted:.3f} and has no reply {one.error} (executed {len(one.runs)} times)"
            )

    def bounded() -> None:
        begun = play.history.counts["begun stored"]
        for process in play.world.processes.values():
            service = getattr(process.things.get("half"), "service", None)
            kept = process.things.get("store") if service is None else service.store
            if kept is not None and process.alive:
                log, entries = kept.journal.log, len(kept.index.entries)
                assert entries <= begun, f"{process.name} keeps {entries} requests of {begun}"
                assert kept.journal.backlog_bytes <= BACKLOG_MAX_BYTES, f"{process.name} has not written {kept.journal.backlog_bytes} bytes"
                segments = SEGMENTS_MAX + 4 * kept.index.bytes_used // log.options.segment_bytes
                assert len(log.spans) <= segments, f"{process.name} has {len(log.spans)} segments for {kept.index.bytes_used} bytes"

    def collected() -> bool:
        return all(one.ended is not None for one in play.history.operations if one.ticket and one.begun < (play.healed_at or 0.0))

    def accepts() -> bool:
        since = play.healed_at or 0.0
        late = [one for one in play.history.operations if one.mode == "stored" and one.begun > since]
        return {one.client for one in late if one.ticket} >= submitters

    submitters = {name for name in play.world.processes if name.startswith("client-")}
    play.world.checks.append(bounded)
    play.serves.append(("the store, with every accepted request,", collected))
    play.serves.append(("the store, to each client,", accepts))
    play.finals.append(check)
    play.finals.append(lambda: play.history.check_accepted("stored", 0.3))


@scenario(kinds=ALL, disks=("store",), minutes=10.0)
def one_store(play: Play) -> None:
    """One broker, one Titanic on a disk that fails and loses power, workers, and clients that store requests."""
    there = [endpoint(play, "broker")]
    play.add("broker", broker(play))
    play.add("store", store(play, there))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there))
        play.add(f"client-{number}", submitter(play, there))
    play.add("collector", collector(play, there))
    watch_brokers(play)
    nothing_is_lost(play)


@scenario(kinds=("crash", "stop", "power", "slow disk"), disks=("store",), spared=("broker", "collector"), minutes=5.0, every_s=20.0)
def compacted_store(play: Play) -> None:
    """A store that fills a small segment every few seconds: what is closed is dropped, whatever ends the store meanwhile."""
    there = [endpoint(play, "broker")]
    play.add("broker", broker(play))
    play.add("store", store(play, there, SMALL))
    play.add("worker-0", worker(play, there))
    play.add("client-0", submitter(play, there, every_s=0.4, more=[bytes(3000)], later=0.02, closed=1.0))
    play.add("collector", collector(play, there))
    watch_brokers(play)
    nothing_is_lost(play)


@scenario(kinds=PROCESS + NETWORK + CLOCK, spared=("collector",), minutes=10.0)
def broker_pair(play: Play) -> None:
    """Two brokers of a pair with a witness, workers and clients."""
    hosts = ("broker-0", "broker-1")
    brokers = [endpoint(play, host) for host in hosts]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(hosts[n], paired_broker(play, n, hosts))
    for number, kind in enumerate(("coroutine", "thread")):
        play.add(f"worker-{number}", worker(play, brokers, kind=kind))
        play.add(f"client-{number}", client(play, brokers))
    watch_brokers(play)
    one_serves(play, *hosts)
    answers(play, "client-0", "client-1")
    play.finals.append(lambda: play.history.check_answers({"plain": 0.3}))


@scenario(kinds=ALL, disks=("store-0", "store-1"), spared=("collector",), minutes=10.0, every_s=12.0)
def store_pair(play: Play) -> None:
    """One broker, two Titanics that mirror each other, a witness, workers, and clients that store requests."""
    there = [endpoint(play, "broker")]
    hosts = ("store-0", "store-1")
    play.add("broker", broker(play))
    play.add("witness", witness(play, STORE_WITNESS_PORT, "store"))
    for n in (0, 1):
        play.add(hosts[n], paired_store(play, n, hosts, there))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there))
        play.add(f"client-{number}", submitter(play, there))
    play.add("collector", collector(play, there))
    watch_brokers(play)
    one_serves(play, *hosts)
    nothing_is_lost(play)


@scenario(kinds=ALL, disks=("site-0", "site-1"), spared=("collector",), minutes=10.0, every_s=12.0)
def whole_cluster(play: Play) -> None:
    """Two sites with a broker and a Titanic each, witnesses, workers and clients of both."""
    hosts = ("site-0", "site-1")
    brokers = [endpoint(play, host) for host in hosts]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    play.add("store-witness", witness(play, STORE_WITNESS_PORT, "store"), "witness")
    for n in (0, 1):
        play.add(f"broker-{n}", paired_broker(play, n, hosts), hosts[n])
        play.add(f"store-{n}", paired_store(play, n, hosts, brokers), hosts[n])
    for number in range(2):
        play.add(f"worker-{number}", worker(play, brokers))
        play.add(f"client-{number}", submitter(play, brokers))
        play.add(f"asker-{number}", client(play, brokers, every_s=2.0))
    play.add("collector", collector(play, brokers))
    watch_brokers(play)
    one_serves(play, "broker-0", "broker-1")
    one_serves(play, "store-0", "store-1")
    answers(play, "asker-0", "asker-1")
    nothing_is_lost(play)
