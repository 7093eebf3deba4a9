"""Broken promises, one at a time, each of which the simulator must catch.

`python -m tests.sim.cluster.mutants` prints the time to each catch; the table is in `specs/simulation.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import mdp
import peering
from bstar.machine import ballot as ballot_rules
from bstar.machine.ballot import COUNTER_MAX, Ceiling, LeaseTable
from bstar.machine.driver import Machine
from bstar.net.ballot_file import BallotFile
from bstar.net.ballot_writer import BallotWriter
from bstar.net.lease_client import LeaseClient
from bstar.reactor import Reactor
from core.net.connector import Connector
from core.rpc import connect_times
from core.runtime.supervision import Timer
from core.zmtp.scan import Batch
from freelance.models.agent import Agent
from freelance.models.server_list import ServerList
from mdp.broker.broker import Broker
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.requests.idempotency import SharedRequestTable
from mdp.broker.requests.reply_cache import ReplyCache
from mdp.broker.requests.request_ends import RequestEnds
from mdp.broker.requests.request_table import RequestTable
from mdp.client.requester import Requester
from mdp.session import shared_connection
from mdp.session.broker_search import BrokerSearch
from mdp.shards.front import Front
from mdp.worker.cancellations import Cancellations
from mdp.worker.runners import Runners
from mdp.worker.session import WorkerSession
from peering.local_workers import LocalWorkers
from peering.task_router import TaskRouter
from pirate.lru_queue import WorkerQueue
from tests.sim.cluster.scenario import run
from tests.sim.cluster.scenarios import ALL
from titanic.journal import record
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal
from titanic.journal.segment_log import SegmentLog
from titanic.mirror import replica_server
from titanic.mirror.mirrored_disk import MirroredDisk
from titanic.mirror.replica_directory import Replica
from titanic.mirror.replica_link import MirrorLine
from titanic.mirror.replica_server import Mirror
from titanic.mirror.succession import Answer, LeaseEstimate
from titanic.store.delivery_queue import DeliveryQueue
from titanic.store.index.request_index import RequestIndex
from titanic.store.maintenance import Maintenance
from titanic.store.store import Store
from titanic.wire.mirror_frames import Call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MUTANTS", "Mutant", "caught"]

CPU_S = 600.0  # in which each must be caught
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


def _not_once(give_back: Any) -> Any:
    def again(table: Any, request: Any, *arguments: Any, **named: Any) -> None:
        if request.extras is not None:
            request.extras.once = False
        give_back(table, request, *arguments, **named)

    return again


def _alone(_: Any) -> Any:
    return RequestTable.finish_one


def _granted(_: Any) -> Any:
    def ask(table: LeaseTable, ballot: Any, *, holding: bool, lease_s: float, now: float) -> Any:
        highest = max(ballot, table.highest)
        return table._replace(holder=ballot, until=now + lease_s, highest=highest), ballot_rules.Answer(True, ballot, highest, lease_s)

    return ask


async def _saved(*_: Any) -> bool:
    return True


def _no_sync(live: Any) -> Any:
    return lambda replica, call, arguments: None if call in (Call.SYNC, Call.SYNC_DIRECTORY) else live(replica, call, arguments)


def _lost_again(queue_first: Any) -> Any:
    """Give a request whose worker was lost to any worker, not only to those heard since."""
    return lambda table, request, now, *, lost=False: queue_first(table, request, now)


def _believed(request: Any) -> Any:
    def believe(machine: Any, seen: Any, now: float) -> Any:
        if seen.counter < 2**40:
            machine.member = machine.member._replace(counter=max(machine.member.counter, seen.counter))
        return request(machine, seen, now)

    return believe


def _fails_at_times(tick: Any) -> Any:
    calls = count(1)

    def fail(machine: Any, now: float) -> Any:
        if next(calls) % 20 == 0:
            raise ValueError("two requests with one deadline")
        return tick(machine, now)

    return fail


def _dies_quietly(_: Any) -> Any:
    """End the writer of a store at an error that is not of its disk, without a word."""

    def write(journal: Any) -> None:
        commit, calls = journal.log.commit, count(1)

        def fails(*arguments: Any, **named: Any) -> Any:
            if next(calls) > 50:
                raise RuntimeError
            return commit(*arguments, **named)

        journal.log.commit = fails
        with suppress(RuntimeError):
            journal._commit_until_closed()

    return write


def _grows(away: Any) -> Any:
    def without_cap(search: Any) -> None:
        away(search)
        search._most_s = search._times.reconnect_max_s

    return without_cap


def _each_time(_: Any) -> Any:
    """Cancel a handler for each reason, not for the first one only."""

    def drop(runners: Any, request: Any) -> bool:
        request.cancelled = True
        if request not in runners.running:
            return True
        request._task.cancel()
        return False

    return drop


def _restarted(give_back: Any) -> Any:
    def again(table: Any, request: Any, *arguments: Any, **named: Any) -> None:
        if request.extras is not None:
            request.extras.streamed = False
        give_back(table, request, *arguments, **named)

    return again


def _left_early(resources: Any) -> Any:
    @asynccontextmanager
    async def early(app: Any) -> Any:
        async with resources(app) as state:
            pass
        yield state

    return early


def _first_channel(_: Any) -> Any:
    """Give what arrives on a shared connection to its first worker."""

    def received(trunk: Any, batch: Batch) -> None:
        for channel in [*trunk._channels.values()][:1]:
            channel.on_batch(Batch.of([], [message[1:] for message in batch]))

    return received


async def _idle(*_: Any) -> None: ...


def _raises(_: Any) -> Any:
    def fail(writer: Any, error: OSError) -> None:
        raise error

    return fail


def _all_again(close: Any) -> Any:
    def close_all(cancellations: Any, tasks: Any) -> None:
        cancellations.since.clear()
        close(cancellations, tasks)

    return close_all


def _waits_for_all(_: Any) -> Any:
    """Wait for handlers of a worker that closes, however long they take."""

    async def close(runners: Any) -> None:
        runners._closed = True
        runners._queue.clear()
        runners._cancellations.close(runners._tasks)
        while runners._tasks:
            await asyncio.wait(runners._tasks)

    return close


MUTANTS: tuple[Mutant, ...] = (
    Mutant("a store acknowledges before the sync", "one_store", SegmentLog, "commit", _unsynced),
    Mutant("no sync reaches the disk", "one_store", RealDisk, "sync", _nothing),
    Mutant("a new file's name is not synced", "one_store", RealDisk, "sync_directory", _nothing),
    Mutant("a reply that was stored is not given to those that wait", "one_store", Store, "_end_written", _nothing),
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
    Mutant("a client does not notice a silent broker", "one_store", Requester, "_check_silence", _nothing),
    Mutant("a client sends nothing again", "resets", Requester, "_resend", _nothing),
    Mutant("a client forgets its time limits", "one_broker", Requester, "tick", lambda _: lambda machine, now: []),
    Mutant("replies of a key are not found again", "steady_broker", ReplyCache, "find", _nothing),
    Mutant("replies of a key are not kept", "steady_broker", ReplyCache, "complete", _nothing),
    Mutant("requests of a client that is gone are kept", "one_broker", RequestEnds, "forget_client", _nothing),
    Mutant("requests with `once` are given to another worker", "one_worker_fails", RequestTable, "give_back", _not_once),
    Mutant("those that wait for a key's reply are forgotten", "one_broker", SharedRequestTable, "finish_one", _alone),
    Mutant("a witness grants what another server holds", "service_pair", LeaseTable, "ask", _granted),
    Mutant("a ballot is used before it is written", "service_pair", BallotWriter, "_save", lambda _: _saved),
    Mutant("no checksum is checked", "one_store", record, "crc32", lambda _: lambda data, seed=0: 0),
    Mutant("a mirror takes over after the end of its lease", "lost_disks", LeaseEstimate, "holds", _true),
    Mutant("the passive half gives its data up", "lost_disks", replica_server, "judge", lambda _: lambda mine, theirs: Answer.FOLLOW),
    Mutant("a mirror answers before it has synced", "lost_disks", Replica, "_live", _no_sync),
    Mutant("compaction drops open requests", "one_store", RequestIndex, "live_draft", _nothing),
    Mutant("a server that does not answer is waited for", "hanging_server", Agent, "_ask_next", _false),
    Mutant(
        "a cloud does not notice the loss of another one", "lenders_fail", TaskRouter, "peer_lost", lambda _: lambda machine, peer, now: []
    ),
    Mutant("a cloud does not publish its state", "clouds", peering.Broker, "_publish", _nothing),
    Mutant("a cloud does not notice the loss of a worker", "lenders_fail", LocalWorkers, "gone", _nothing),
    Mutant("the front does not notice the loss of a peer", "sharded_broker", Front, "_forget", _nothing),
    Mutant("a worker comes back late after a long outage", "returning_pair", BrokerSearch, "_is_away", _grows),
    Mutant("the system decides when to connect again", "returning_broker", connect_times, "CONNECT_TIMEOUT_MS", lambda _: 0),
    Mutant("workers that are lost together count one by one", "machine_fails", RequestTable, "queue_first", _lost_again),
    Mutant("a broker that starts does not wait for its workers", "returning_broker", Dispatcher, "begin", _nothing),
    Mutant("a ballot that a client names is believed", "lied_to_pair", Machine, "request", _believed),
    Mutant("a tick of a broker fails now and then", "one_broker", Dispatcher, "tick", _fails_at_times),
    Mutant("the writer of a store dies quietly", "one_store", Journal, "_write", _dies_quietly),
    Mutant("records on the disk are not acknowledged", "one_store", Journal, "_acknowledge", _nothing),
    Mutant("a handler is cancelled again for each reason", "clean_ups", Runners, "drop", _each_time),
    Mutant("a worker that ends cancels its handlers again", "clean_ups", Cancellations, "close", _all_again),
    Mutant("a runner that has ended is not replaced", "clean_ups", Runners, "_replace", _nothing),
    Mutant("a worker waits for handlers that ignore their end", "clean_ups", Runners, "close", _waits_for_all),
    Mutant("any counter is plausible", "far_claims", Ceiling, "at", lambda _: lambda ceiling, now: COUNTER_MAX),
    Mutant("a half whose ballot cannot be written ends", "full_ballots", BallotWriter, "_failed", _raises),
    Mutant("segments are never compacted", "compacted_store", Maintenance, "_compact", lambda _: _idle),
    Mutant("the upkeep of a store dies quietly", "compacted_store", Maintenance, "_run", lambda _: _idle),
    Mutant("a mirror follows every peer that says hello", "lied_to_mirrors", Mirror, "_believes", _true),
    Mutant("a reply in parts is begun again", "apps_of_pair", RequestTable, "give_back", _restarted),
    Mutant("resources end before the handlers", "apps_of_pair", mdp.App, "resources", _left_early),
    Mutant("a shared connection gives all to one worker", "apps_of_shards", shared_connection._Trunk, "_received", _first_channel),
    Mutant("the end of a shared connection is not told", "apps_of_shards", shared_connection._Trunk, "end", _nothing),
    Mutant("a queue never ticks", "paranoid_pirates", WorkerQueue, "tick", lambda _: lambda queue, now: []),
)


def caught(mutant: Mutant, cpu_max_s: float = CPU_S, minutes: float = MINUTES) -> tuple[float, int, str]:
    """Play seeds until one fails; return CPU seconds, the seed, and what was found; seed -1 if nothing was."""
    right = mutant.owner.__dict__[mutant.name]
    begun = time.process_time()
    setattr(mutant.owner, mutant.name, mutant.make(right))
    try:
        for seed in count():
            if seed and time.process_time() - begun > cpu_max_s:
                break
            result = run(ALL[mutant.scenario], seed, minutes=minutes)
            if result.failed:
                return time.process_time() - begun, seed, result.violations[0]
    finally:
        setattr(mutant.owner, mutant.name, right)
    return time.process_time() - begun, -1, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster.mutants")
    parser.add_argument("words", nargs="*", help="only mistakes with one of these words")
    parser.add_argument("--seconds", type=float, default=CPU_S, help="CPU time for each")
    given = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if given.words and not any(word in mutant.what for word in given.words):
            continue
        cpu_s, seed, found = caught(mutant, given.seconds)
        missed += seed < 0
        sys.stdout.write(f"| {mutant.what} | `{mutant.scenario}` | {cpu_s:.1f} s | {'NOT CAUGHT' if seed < 0 else found[:90]} |\n")
        sys.stdout.flush()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
