"""Promises with a time: one of several is well, so requests are answered soon, and what was stored is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import bstar
import freelance
from bstar.net.boot_clock import boot_clock
from tests.sim.cluster.faults import PROCESS, Fault
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.chapters import SERVER_PORT, asker, cloud, cloud_client, cloud_worker, paired_service, reply_to
from tests.sim.cluster.scenarios.majordomo import PORT, broker, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import answers, in_time, one_serves, watch_brokers
from tests.sim.cluster.scenarios.titanic_stores import (
    STORE_WITNESS_PORT,
    WITNESS_PORT,
    collector,
    nothing_is_lost,
    paired_broker,
    paired_store,
    submitter,
    witness,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack
    from random import Random

    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play
    from tests.sim.cluster.scenarios.chapters import Ask
    from tests.sim.cluster.world import World

PATIENCE_S = 20.0  # of clients that ask once
SILENT_S = 6.0  # a worker or broker is silent for three heartbeats, then the request is with another one
SUSPECT_S = 0.5
NEXT_S = 2.0  # a server that hangs is waited for a third of the time of a request, then the next one is asked
HALVES = ("one", "two")


@scenario(
    kinds=(*PROCESS, "isolate", "mute", "cut", "one way", "flap", "reset", "half open", "black hole"),
    spared=("broker", "worker-1", "worker-2", "client-0", "client-1"),
    minutes=10.0,
)
def one_worker_fails(play: Play) -> None:
    """Three workers of which one fails in every way: each request is answered soon, though clients send it once."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    for number in range(3):
        play.add(f"worker-{number}", worker(play, there, concurrency=2))
    for number in range(2):
        play.add(f"client-{number}", client(play, there, every_s=0.5, timeout_s=PATIENCE_S, attempts=1))
    watch_brokers(play, workers=3)
    answers(play, "client-0", "client-1")
    in_time(play, SILENT_S, modes=("plain", "key", "wait"))
    in_time(play, SILENT_S, modes=("once",), errors=("WorkerLost",))
    in_time(play, 2.2, modes=("deadline",), errors=("DeadlineExceeded",))


CROWD = 8  # workers of one machine, more than the deliveries of a request


@scenario(kinds=("power", "sleep"), disks=("many",), spared=("broker", "worker-0", "worker-1", "client-0"), minutes=5.0, every_s=20.0)
def machine_fails(play: Play) -> None:
    """Most workers are on one machine that fails as a whole: its requests count as lost once."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    for number in range(CROWD):
        play.add(f"crowd-{number}", worker(play, there, concurrency=2), "many")
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there, concurrency=2))
    play.add("client-0", client(play, there, every_s=0.1, timeout_s=PATIENCE_S, attempts=1, modes=("plain", "wait")))
    watch_brokers(play, workers=CROWD + 2)
    answers(play, "client-0")
    in_time(play, 2 * SILENT_S, modes=("plain", "wait"))


BACK_S = 2.5  # two heartbeats, and what a connection takes


@scenario(kinds=("reset",), minutes=5.0, every_s=5.0)
def resets(play: Play) -> None:
    """Connections are reset, and nothing else fails: every worker is registered again within two heartbeats."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    for number in range(3):
        play.add(f"worker-{number}", worker(play, there))
    play.add("client-0", client(play, there, every_s=0.5, timeout_s=PATIENCE_S, attempts=2))
    full_at = [0.0]

    def all_there() -> None:
        served = play.world.processes["broker"].things.get("broker")
        if served is not None and not play.stopping:
            full_at[0] = play.world.now if served.stats["workers"] == 3 else full_at[0]
            resets = max((mark.at for mark in play.world.marks if mark.kind == "fault"), default=0.0)
            assert play.world.now - max(full_at[0], resets) < BACK_S, f"{served.stats['workers']} of 3 workers are registered"

    play.world.checks.append(all_there)
    watch_brokers(play, workers=3)
    answers(play, "client-0")
    in_time(play, BACK_S, modes=("plain", "key", "wait"))


# ---- freelance


def _hang(world: World, fault: Fault) -> Callable[[], None]:
    """Let the handlers of a server hang, though it answers PINGs."""
    process = world.processes[fault.who]
    process.things["hangs"] = True
    return lambda: process.things.update(hangs=False)


def _hangs(random: Random, begin: float, end: float) -> list[Fault]:
    found, at = [], begin
    while (at := at + random.uniform(5.0, 15.0)) + 40.0 < end:
        found.append(Fault(round(at, 3), 40.0, "hang", "server-0"))
        at += 40.0
    return found


@scenario(kinds=(), directed=_hangs, minutes=5.0)
def hanging_server(play: Play) -> None:
    """Three servers, of which the first one hangs for long: only a few requests wait for it."""
    play.world.kinds["hang"] = _hang
    names = [f"server-{number}" for number in range(3)]
    places = [f"tcp://{play.ip(name)}:{SERVER_PORT}" for name in names]

    async def server(process: Process) -> None:
        async def handle(frames: list[bytes]) -> list[bytes]:
            while process.things.get("hangs"):
                await asyncio.sleep(1.0)
            return [reply_to(play, process, frames[0])]

        async with freelance.Server(f"tcp://{process.host.ip}:{SERVER_PORT}", handle):
            await play.forever(process)

    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        asked = await stack.enter_async_context(freelance.Client(places, timeout=5.0, hedge=None))

        async def ask(body: bytes) -> bytes:
            return b"".join(await asked.request(body))

        return ask

    for name in names:
        play.add(name, server)
    play.add("client-0", asker(play, entered))
    answers(play, "client-0")
    in_time(play, NEXT_S)

    def check() -> None:
        slow = [one for one in play.history.operations if one.ended is not None and one.ended - one.begun > SUSPECT_S]
        if len(slow) > 0.3 * len(play.history.operations):
            play.world.violated(f"{len(slow)} of {len(play.history.operations)} requests waited for a server that hangs")

    play.finals.append(check)


# ---- peering

LENT_S = 1.5  # a task whose worker or broker is lost goes to another one at once


@scenario(kinds=("crash", "stop", "reset"), spared=("cloud-0", "cloud-2", "worker-2", "worker-3", "client-0", "client-1"), minutes=10.0)
def lenders_fail(play: Play) -> None:
    """A cloud borrows workers of two others, of which one fails, with its workers: each task is done soon."""
    names = ("cloud-0", "cloud-1", "cloud-2")
    for name in names:
        play.add(name, cloud(play, name, [other for other in names if other != name]))
    for number in range(4):
        play.add(f"worker-{number}", cloud_worker(play, names[1 + number // 2]))
    for number in range(2):
        play.add(f"client-{number}", cloud_client(play, "cloud-0", every_s=0.3))
    answers(play, "client-0", "client-1")
    in_time(play, LENT_S)


# ---- pairs


def _handovers(random: Random, begin: float, end: float) -> list[Fault]:
    found, at = [], begin
    while (at := at + random.uniform(12.0, 20.0)) + 3.0 < end:
        found.append(Fault(round(at, 3), 3.0, "stop active", random.choice(HALVES)))
    return found


def _active(world: World, names: Sequence[str]) -> Process | None:
    for name in names:
        process = world.processes[name]
        pair = process.things.get("pair")
        if pair is not None and process.life is not None and process.alive and process.life.context.run(pair.serves):
            return process
    return None


def _stop_active(world: World, fault: Fault) -> Callable[[], None]:
    """End the active half in order; it is started again."""
    process = _active(world, HALVES)
    if process is None:
        return lambda: None
    process.stop()
    return process.start


def _crash_active(world: World, fault: Fault) -> Callable[[], None]:
    process = _active(world, STORES)
    if process is None:
        return lambda: None
    process.crash()
    return process.start


def pair_client(play: Play, patience_s: float, *, every_s: float = 1.0) -> Body:
    """Return the body of a client of the pair that waits so long for each reply."""

    async def entered(process: Process, stack: AsyncExitStack) -> Ask:
        asked = await stack.enter_async_context(bstar.Client(*(f"tcp://{play.ip(host)}:{PORT}" for host in HALVES), patience=patience_s))

        async def ask(body: bytes) -> bytes:
            return b"".join(await asked.request(body))

        return ask

    return asker(play, entered, every_s=every_s)


@scenario(kinds=(), directed=_handovers, minutes=5.0)
def handovers(play: Play) -> None:
    """A pair whose active half is stopped in order again and again: the other one serves within a heartbeat."""
    play.world.kinds["stop active"] = _stop_active
    play.add("witness", witness(play, WITNESS_PORT, "service"))
    for n in (0, 1):
        play.add(HALVES[n], paired_service(play, n, HALVES))

    play.add("client-0", pair_client(play, PATIENCE_S, every_s=0.2))
    one_serves(play, *HALVES)
    answers(play, "client-0")
    in_time(play, 1.0)


@scenario(
    kinds=("disk full", "disk full", "isolate", "cut", "crash"),
    disks=(*HALVES, "witness"),
    spared=("worker-0", "client-0"),
    minutes=5.0,
    every_s=6.0,
)
def full_ballots(play: Play) -> None:
    """A pair of brokers and a witness whose disks are full now and then: none of them fails for it."""
    brokers = [endpoint(play, host) for host in HALVES]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES))
    play.add("worker-0", worker(play, brokers))
    play.add("client-0", client(play, brokers))
    watch_brokers(play, workers=1)
    one_serves(play, *HALVES)
    answers(play, "client-0")

    def check() -> None:
        for mark in play.world.marks:
            if mark.kind == "failed" and mark.who in (*HALVES, "witness"):
                play.world.violated(f"{mark.who} failed at {mark.at:.3f}: {mark.what}")
                return

    play.finals.append(check)


# ---- pairs with clients that wait


PATIENT_S = 600.0  # of clients that wait: longer than a run
PATIENT_ATTEMPTS = 20
PAIR_FAULTS = ("crash", "suspend", "isolate", "cut", "flap", "reset")
PATIENT = ("client-0", "client-1")


@scenario(kinds=PAIR_FAULTS, spared=(*PATIENT, "worker-0", "worker-1"), minutes=10.0)
def patient_brokers(play: Play) -> None:
    """A pair of brokers with a witness; clients that wait for long get every reply, whatever becomes of the three."""
    brokers = [endpoint(play, host) for host in HALVES]
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, brokers))
    for name in PATIENT:
        play.add(name, client(play, brokers, timeout_s=PATIENT_S / PATIENT_ATTEMPTS, attempts=PATIENT_ATTEMPTS, modes=("wait",)))
    watch_brokers(play, workers=2)
    one_serves(play, *HALVES)
    answers(play, *PATIENT)
    in_time(play, PATIENT_S, modes=("wait",))


@scenario(kinds=PAIR_FAULTS, spared=PATIENT, minutes=10.0)
def patient_services(play: Play) -> None:
    """A pair of a user's servers with a witness; clients that wait for long get every reply."""
    play.add("witness", witness(play, WITNESS_PORT, "service"))
    for n in (0, 1):
        play.add(HALVES[n], paired_service(play, n, HALVES))
    for name in PATIENT:
        play.add(name, pair_client(play, PATIENT_S))
    one_serves(play, *HALVES)
    answers(play, *PATIENT)
    in_time(play, PATIENT_S)


# ---- stores


STORES = ("store-0", "store-1")


def _disasters(random: Random, begin: float, end: float) -> list[Fault]:
    """Return losses of a disk, halves that are cut off, and failures of a half that alone has everything."""
    found, at = [], begin
    while (at := at + random.uniform(15.0, 30.0)) + BEHIND_S < end:
        who = random.randrange(2)
        one, two = STORES[who], STORES[1 - who]
        what = random.random()
        if what < 0.4:
            found.append(Fault(round(at, 3), round(random.uniform(3.0, 6.0), 3), "lose disk", one, two, round(random.random(), 3)))
        elif what < 0.6:
            found.append(Fault(round(at, 3), round(random.uniform(3.0, 6.0), 3), "lose disk and power", one, two))
        elif what < 0.8:
            found.append(Fault(round(at, 3), BEHIND_S, "cut", one, two))
            found.append(Fault(round(at + random.uniform(11.0, 13.0), 3), 4.0, "crash active", one))
            at += BEHIND_S
        else:
            lasts_s = round(random.uniform(5.0, 10.0), 3)
            found += [Fault(round(at, 3), lasts_s, "cut", one, other) for other in (two, "witness")]
            found.append(Fault(round(at + 0.05, 3), 0.1, "reset", one, two))
    return found


BEHIND_S = 20.0  # after which a half that was cut off is certainly behind the other one
OTHER_TOO = 0.6  # above, the other half loses its power at the same moment, and what it has not synced
LOSE_S = 2.5  # at most so long after the mirror was cut off, which takes the store a little longer to know


def _lose_disk(world: World, fault: Fault) -> Callable[[], None]:
    """Cut a half off, then take its power and its disks, unless it alone has what was acknowledged."""
    if not _both_have_all(world, fault):
        return lambda: None
    host, other = world.hosts[fault.who], world.hosts[fault.other]
    links = [(host.ip, other.ip), (other.ip, host.ip)]
    for link in links:
        world.network.cut(*link)
    lost = [False]

    def lose() -> None:
        process = world.processes[fault.who]
        if host.up and process.alive and not _is_sole(process) and world.processes[fault.other].alive:
            lost[0] = True
            _take_disks(world, fault.who)
            if fault.amount > OTHER_TOO:
                _take_power(world, fault.other)

    world.loop.after(fault.amount * LOSE_S, lose)

    def undo() -> None:
        for link in links:
            world.network.heal(*link)
        if lost[0]:
            host.up = True
            world.processes[fault.who].start()

    return undo


def _lose_disk_and_power(world: World, fault: Fault) -> Callable[[], None]:
    """Take the disks of one half, and the power of both, at the same moment."""
    store = _store_in_step(world)
    if store is None or store is not _active(world, STORES) or not world.processes[fault.who].alive:
        return lambda: None
    _take_disks(world, fault.who)
    _take_power(world, fault.other)

    def undo() -> None:
        world.hosts[fault.who].up = True
        world.processes[fault.who].start()

    return undo


def _take_disks(world: World, name: str) -> None:
    host = world.hosts[name]
    host.up = False
    world.processes[name].crash(silent=True)
    host.disks.directories.clear()
    host.disks.locks.clear()
    world.mark("lost", name, "all of its disks")


def _take_power(world: World, name: str) -> None:
    """Take the power for a moment, and with it what was not synced."""
    world.processes[name].crash(silent=True)
    world.hosts[name].disks.lose_power(world.random)
    world.processes[name].start_later(1.0)


def _both_have_all(world: World, fault: Fault) -> bool:
    halves = [world.processes[name].things.get("half") for name in (fault.who, fault.other)]
    return all(world.processes[name].alive for name in (fault.who, fault.other)) and any(map(_is_in_step, halves))


def _store_in_step(world: World) -> Process | None:
    """Return the half that is the store, and acknowledges nothing without the other one."""
    found = [world.processes[name] for name in STORES if _is_in_step(world.processes[name].things.get("half"))]
    return found[0] if len(found) == 1 and not _is_sole(found[0]) else None


def _is_in_step(half: object) -> bool:
    """Return whether this half is the store, and the other one has everything that it has acknowledged."""
    service = getattr(half, "service", None)
    return service is not None and service.store.mirror is not None and bool(service.store.mirror.live)


def _is_sole(process: Process) -> bool:
    """Return whether only this half may have what was acknowledged."""
    half = process.things["half"]
    if half.service is not None:
        attached = half.service.store._mirror
        return bool(attached.disk._mark.alone)
    assert process.life is not None
    lease = half.mirror.lease if half.mirror is not None else half._lease
    return bool(half._term == half.pair.ballot() or process.life.context.run(lambda: half.pair.serves() and lease.holds(boot_clock())))


@scenario(kinds=(*PROCESS, "reset", "slow link"), spared=("collector",), minutes=10.0, every_s=30.0, directed=_disasters)
def lost_disks(play: Play) -> None:
    """Two Titanics that mirror each other, of which one loses its disk for good: the other one has everything."""
    play.world.kinds |= {"lose disk": _lose_disk, "lose disk and power": _lose_disk_and_power, "crash active": _crash_active}
    there = [endpoint(play, "broker")]
    play.add("broker", broker(play))
    play.add("witness", witness(play, STORE_WITNESS_PORT, "store"))
    for n in (0, 1):
        play.add(STORES[n], paired_store(play, n, STORES, there))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there))
        play.add(f"client-{number}", submitter(play, there, every_s=0.5))
    play.add("collector", collector(play, there))
    watch_brokers(play)
    one_serves(play, *STORES)
    nothing_is_lost(play)
