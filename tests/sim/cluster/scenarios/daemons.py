"""The bodies of the daemons, as the commands run them: `mdp broker`, `titanic serve` and `titanic mirror`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.runtime.event_loop import until_one_ends
from mdp.broker.limits import BrokerOptions
from mdp.commands.broker_daemon import BrokerDaemonOptions, serve_broker
from tests.sim.cluster.faults import ALL
from tests.sim.cluster.scenario import scenario
from tests.sim.cluster.scenarios.majordomo import HEARTBEAT_MS, PORT, client, endpoint, worker
from tests.sim.cluster.scenarios.promises import answers
from tests.sim.cluster.scenarios.titanic_stores import JOURNAL, MIRROR_PORT, SERVICE, collector, nothing_is_lost, submitter
from titanic.commands.serve import MirrorDaemonOptions, StoreDaemonOptions, serve_mirror, serve_store
from titanic.paired_store import PairedOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from core.runtime.lifetime import Lifetime
    from tests.sim.cluster.process import Body, Process
    from tests.sim.cluster.scenario import Play


class SimLifetime:
    """The life of a simulated process: it is asked to stop at the end of the run."""

    drain_s = 1.0

    def __init__(self, play: Play, process: Process) -> None:
        self._play = play
        self._process = process

    def ready(self, message: str, **fields: object) -> None:
        self._process.things["ready"] = {"message": message, **fields}

    def on_reload(self, prepare: Callable[[], Callable[[], Sequence[str]]]) -> None:
        self._process.things["reload"] = prepare

    def on_change(self, apply: Callable[[Mapping[str, Any]], set[str]]) -> None:
        self._process.things["change"] = apply

    async def until_stopped(self) -> None:
        await self._play.forever(self._process)

    async def until_stopped_or(self, serving: Coroutine[Any, Any, None]) -> None:
        await until_one_ends(self.until_stopped(), serving)


def daemon(play: Play, serve: Callable[[Any, Lifetime], Coroutine[Any, Any, None]], options: Callable[[Process], object]) -> Body:
    """Return the body of a process that runs the body of a daemon."""

    async def body(process: Process) -> None:
        await serve(options(process), SimLifetime(play, process))

    return body


def broker_options(process: Process) -> BrokerDaemonOptions:
    return BrokerDaemonOptions([f"tcp://{process.host.ip}:{PORT}"], BrokerOptions(heartbeat_ms=HEARTBEAT_MS))


def mirror_options(process: Process) -> MirrorDaemonOptions:
    return MirrorDaemonOptions(f"tcp://{process.host.ip}:{MIRROR_PORT}", "copy")


@scenario(kinds=ALL, disks=("store", "mirror"), spared=("collector",), minutes=10.0, every_s=12.0)
def daemons(play: Play) -> None:
    """A broker, a Titanic and its mirror, all three as their commands run them, with workers and clients."""
    there = [endpoint(play, "broker")]

    def store_options(process: Process) -> StoreDaemonOptions:
        mirror = f"tcp://{play.ip('mirror')}:{MIRROR_PORT}"
        titanic = PairedOptions(
            brokers=there, mirror=mirror, mirror_bind="", journal=JOURNAL, go_on=True, service=SERVICE, heartbeat_ms=HEARTBEAT_MS
        )
        return StoreDaemonOptions("store", titanic)

    play.add("broker", daemon(play, serve_broker, broker_options))
    play.add("store", daemon(play, serve_store, store_options))
    play.add("mirror", daemon(play, serve_mirror, mirror_options))
    for number in range(2):
        play.add(f"worker-{number}", worker(play, there))
        play.add(f"client-{number}", submitter(play, there))
    play.add("asker", client(play, there, every_s=2.0))
    play.add("collector", collector(play, there))
    answers(play, "asker")
    nothing_is_lost(play)
    play.finals.append(lambda: _all_served(play))


def _all_served(play: Play) -> None:
    for name in ("broker", "store", "mirror"):
        if "ready" not in play.world.processes[name].things:
            play.world.violated(f"{name} was never ready")
