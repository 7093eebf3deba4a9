"""A broker of several processes: the front, and the shards behind it on the same machine."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from mdp.shards.front import Front
from mdp.shards.identity import FrontIdentity, ShardBroker
from mdp.wire.shards import shard_endpoint, shard_of
from tests.sim.cluster.faults import CLOCK, NETWORK, PROCESS
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import answers, watch_broker, watch_brokers
from tests.sim.cluster.scenarios.stock import raw_client, raw_worker

if TYPE_CHECKING:
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play

SHARDS = 2


def front(play: Play) -> Body:
    async def body(process: Process) -> None:
        async with Front(SHARDS) as served:
            process.things["front"] = served
            served.bind(endpoint(play, process.host.name))
            await play.forever(process)

    return body


def shard(play: Play, number: int) -> Body:
    """Return the body of a shard, which is started again when it has failed."""

    async def body(process: Process) -> None:
        place = shard_endpoint(endpoint(play, process.host.name), number)
        assert place is not None
        async with ShardBroker(FrontIdentity(), SHARDS, number, heartbeat_ms=HEARTBEAT_MS) as served:
            served.bind(place)
            watch_broker(process, served)
            await play.forever(process)

    return body


def service_of(number: int) -> str:
    """Return a service of a shard."""
    return next(name for name in (f"service-{n}" for n in count()) if shard_of(name.encode(), SHARDS) == number)


@scenario(kinds=PROCESS + NETWORK + CLOCK, minutes=10.0)
def sharded_broker(play: Play) -> None:
    """Two shards and their front; peers that connect to the shards, and peers that do not know of them."""
    there = endpoint(play, "broker")
    play.add("front", front(play), "broker")
    for number in range(SHARDS):
        play.add(f"shard-{number}", shard(play, number), "broker")
        service = service_of(number)
        play.add(f"worker-{number}", worker(play, there, service))
        play.add(f"worker-{number}-old", worker(play, there, service, dialect="0.1"))
        play.add(f"worker-{number}-raw", raw_worker(play, "broker", service))
        play.add(f"client-{number}", client(play, there, service=service))
        play.add(f"client-{number}-raw", raw_client(play, "broker", service=service))
    play.add("client-old", client(play, there, service=service_of(0), dialect="0.2"))
    watch_brokers(play, workers=3 * SHARDS)
    names = [name for name in play.world.processes if name.startswith("client-")]
    answers(play, *names)
    play.finals.append(lambda: play.history.check_answers({"plain": 0.5}))
    play.calm.append(lambda: _all_forwarded(play, len(play.world.processes)))


def _all_forwarded(play: Play, peers_max: int) -> None:
    """Demand that the front keeps connections of present peers only."""
    # A connection that swallows everything is there until the system gives up sending, a quarter of an hour later.
    peers_max += sum(mark.kind == "fault" and mark.what.startswith("black hole") for mark in play.world.marks)
    stats = play.world.processes["front"].things["front"].stats()
    if stats["front_peers"] > peers_max or stats["front_links"] > peers_max * SHARDS:
        play.world.violated(f"the front keeps connections of peers that are gone: {stats}")
