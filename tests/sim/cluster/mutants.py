"""Broken promises, one at a time, each of which the simulator must catch.

`python -m tests.sim.cluster.mutants` prints the time to each catch; the table is in `specs/simulation.md`.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from bstar.machine.ballot import LeaseTable
from bstar.net.ballot_file import BallotFile
from bstar.net.lease_client import LeaseClient
from bstar.reactor import Reactor
from core.net.connector import Connector
from core.runtime.supervision import Timer
from freelance.models.server_list import ServerList
from mdp.broker.broker import Broker
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.requests.request_table import RequestTable
from mdp.worker.session import WorkerSession
from pirate.lru_queue import WorkerQueue
from tests.sim.cluster.scenario import run
from tests.sim.cluster.scenarios import ALL
from titanic.journal.disk import RealDisk
from titanic.journal.segment_log import SegmentLog
from titanic.mirror.mirrored_disk import MirroredDisk
from titanic.mirror.replica_link import MirrorLine
from titanic.mirror.replica_server import Mirror
from titanic.store.delivery_queue import DeliveryQueue
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MUTANTS", "Mutant", "caught"]

SEEDS = 6
MINUTES = 5.0


class Mutant(NamedTuple):
    """One broken promise: the attribute that is replaced, and the scenario that must notice."""

    what: str
    scenario: str
    owner: Any
    name: str
    make: Callable[[Any], Any]  # from the right attribute


def _nothing(_: Any) -> Any:
    return lambda *arguments, **named: None


def _true(_: Any) -> Any:
    return lambda *arguments, **named: True


def _false(_: Any) -> Any:
    return lambda *arguments, **named: False


def _unsynced(commit: Any) -> Any:
    return lambda log, drafts, *, sync, essential: commit(log, drafts, sync=False, essential=essential)


def _every_other(call: Any) -> Any:
    """Leave out every second call."""
    count = [0]

    def sometimes(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        return call(*arguments, **named) if count[0] % 2 else None

    return sometimes


def _twice(call: Any) -> Any:
    def twice(*arguments: Any, **named: Any) -> Any:
        call(*arguments, **named)
        return call(*arguments, **named)

    return twice


MUTANTS: tuple[Mutant, ...] = (
    Mutant("a store acknowledges before the sync", "one_store", SegmentLog, "commit", _unsynced),
    Mutant("no sync reaches the disk", "one_store", RealDisk, "sync", _nothing),
    Mutant("a new file's name is not synced", "one_store", RealDisk, "sync_directory", _nothing),
    Mutant("a reply that was stored is not given to those that wait", "one_store", Store, "_note_end", _nothing),
    Mutant("a delivery that failed is not tried again", "one_store", DeliveryQueue, "failed", _nothing),
    Mutant("requests found at the start are not delivered", "one_store", Store, "start_dispatch", _nothing),
    Mutant("the result of a probe is forgotten", "one_store", DeliveryQueue, "probed", _nothing),
    Mutant("a store acknowledges without its mirror", "lost_disks", MirroredDisk, "_settled", _nothing),
    Mutant("a store goes on alone at once", "lost_disks", MirrorLine, "may_go_alone", _true),
    Mutant("a mirror is never brought in step", "lost_disks", MirroredDisk, "join", _false),
    Mutant("a mirror does not answer", "store_pair", Mirror, "_answer", _nothing),
    Mutant("no ballot is on disk", "service_pair", BallotFile, "save", _nothing),
    Mutant("an active server serves without a lease", "broker_pair", Reactor, "serves", _true),
    Mutant("a pair never ticks", "service_pair", Reactor, "_tick", _nothing),
    Mutant("state messages of the peer are ignored", "service_pair", Reactor, "_on_state_message", _nothing),
    Mutant("answers of the witness are ignored", "service_pair", Reactor, "_on_witness_answer", _nothing),
    Mutant("the witness is not asked", "broker_pair", LeaseClient, "ask", _nothing),
    Mutant("a lease is not released", "handovers", LeaseTable, "release", lambda _: lambda table, *arguments: table),
    Mutant("a broker never sets its timer again", "one_broker", Broker, "_rearm", _nothing),
    Mutant("a broker never ticks", "one_broker", Dispatcher, "tick", lambda _: lambda machine, now: []),
    Mutant("a lost worker's requests are dropped", "one_broker", RequestTable, "give_back", _nothing),
    Mutant("replies are dropped", "one_broker", RequestTable, "finish", _nothing),
    Mutant("a lost peer is not noticed", "one_worker_fails", Dispatcher, "peer_lost", lambda _: lambda machine, peer, now: []),
    Mutant("waiting requests are not given to a free worker", "one_broker", RequestTable, "feed", _nothing),
    Mutant("a request is placed twice", "one_broker", RequestTable, "place", _twice),
    Mutant("a worker sends no heartbeats", "one_broker", WorkerSession, "_beat", _nothing),
    Mutant("every second answer of a worker is lost", "one_worker_fails", WorkerSession, "answer", _every_other),
    Mutant("a worker does not notice the loss of its broker", "resets", WorkerSession, "lost", _nothing),
    Mutant("a socket does not connect again", "one_broker", Connector, "_run", _nothing),
    Mutant("a timer is set once", "one_broker", Timer, "at", _every_other),
    Mutant("a silent server stays in use", "hanging_server", ServerList, "failed", _nothing),
    Mutant("servers are not asked whether they live", "freelance_names", ServerList, "tick", lambda _: lambda servers, now: ([], [])),
    Mutant("a queue never ticks", "paranoid_pirates", WorkerQueue, "tick", lambda _: lambda queue, now: []),
)


def caught(mutant: Mutant, seeds: int = SEEDS, minutes: float = MINUTES) -> tuple[float, int, str]:
    """Return CPU seconds, the seed, and what was found; seed -1 if nothing was."""
    right = mutant.owner.__dict__[mutant.name]
    begun = time.process_time()
    setattr(mutant.owner, mutant.name, mutant.make(right))
    try:
        for seed in range(seeds):
            result = run(ALL[mutant.scenario], seed, minutes=minutes)
            if result.failed:
                return time.process_time() - begun, seed, result.violations[0]
    finally:
        setattr(mutant.owner, mutant.name, right)
    return time.process_time() - begun, -1, ""


def main() -> int:
    missed = 0
    for mutant in MUTANTS:
        cpu_s, seed, found = caught(mutant)
        missed += seed < 0
        sys.stdout.write(f"| {mutant.what} | `{mutant.scenario}` | {cpu_s:.1f} s | {'NOT CAUGHT' if seed < 0 else found[:90]} |\n")
        sys.stdout.flush()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
