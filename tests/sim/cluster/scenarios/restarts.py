"""Brokers that are away for a while: requests that arrive before the workers have come back wait for them (BEY-05)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.cluster.faults import Fault
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import broker, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import answers, in_time, one_serves, watch_brokers
from tests.sim.cluster.scenarios.redundancy import HALVES, PATIENT, PATIENT_S
from tests.sim.cluster.scenarios.titanic_stores import WITNESS_PORT, paired_broker, witness

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.sim.cluster.scenario import Play


def _around(play: Play, brokers: str | Sequence[str]) -> None:
    """Add two workers and two clients that never fail; none of the requests may be refused."""
    for number in range(2):
        play.add(f"worker-{number}", worker(play, brokers))
    for name in PATIENT:
        play.add(name, client(play, brokers, timeout_s=PATIENT_S, attempts=1, modes=("plain",)))
    watch_brokers(play, workers=2)
    answers(play, *PATIENT)
    # A request is sent twice at most, so it may be lost with two brokers; it is never refused for want of workers.
    in_time(play, PATIENT_S, errors=("Timeout",))


@scenario(kinds=("crash", "power"), disks=("broker",), spared=("worker-0", "worker-1", *PATIENT), minutes=10.0, every_s=20.0)
def returning_broker(play: Play) -> None:
    """A broker that crashes or loses its power for up to half a minute, and nothing else fails."""
    there = endpoint(play, "broker")
    play.add("broker", broker(play))
    _around(play, there)


def _outages(random: Random, begin: float, end: float) -> list[Fault]:
    """Return times in which both halves are down, one after the other or together, with or without power."""
    found, at = [], begin
    while (at := at + random.uniform(20.0, 60.0)) + 70.0 < end:
        kind = random.choice(("crash", "power"))
        lasts_s = random.choice((3.0, 12.0, 40.0))
        found += [
            Fault(round(at + random.uniform(0.0, 3.0), 3), round(lasts_s * random.uniform(0.5, 1.5), 3), kind, name) for name in HALVES
        ]
        at += lasts_s
    return found


@scenario(kinds=("crash", "suspend"), spared=("worker-0", "worker-1", *PATIENT), minutes=10.0, every_s=20.0, directed=_outages)
def returning_pair(play: Play) -> None:
    """A pair of brokers with a witness, of which now and then both halves are down."""
    play.add("witness", witness(play, WITNESS_PORT, "broker"))
    for n in (0, 1):
        play.add(HALVES[n], paired_broker(play, n, HALVES))
    one_serves(play, *HALVES)
    _around(play, [endpoint(play, host) for host in HALVES])
