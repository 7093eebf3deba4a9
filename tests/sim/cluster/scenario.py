"""A scenario: processes, work, faults and what must hold; and how one is run.

    @scenario(hosts=("broker", "one", "two"), kinds=NETWORK + PROCESS)
    def echo(play: Play) -> None:
        play.add("broker", broker())
        play.add("one", worker(play, "echo"))
        play.add("two", client(play, "echo"))

A run has four parts: everything starts; faults for most of the time; everything is healed, and must serve within a bound; everything
ends, and nothing may be left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.cluster.faults import ALL, Fault, Faults, draw
from tests.sim.cluster.history import History
from tests.sim.cluster.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.sim.cluster.process import Body, Life, Process

__all__ = ["SCENARIOS", "Play", "Result", "Scenario", "run", "scenario"]

CALM_S: Final = 10.0  # before the first fault
HEALED_S: Final = 60.0  # after the last one: then everything serves
LAST_S: Final = 30.0  # in which everything ends


@dataclass(frozen=True)
class Scenario:
    """A scenario: what is built, which faults there are.

    Attributes:
        build: adds processes, work and checks.
        kinds: of faults.
        disks: hosts whose disks may fail.
        spared: processes and hosts without faults of their own.
        every_s: mean time between two faults.
        minutes: of virtual time, with faults.
        directed: draws further faults between two times, for what random ones meet too rarely.
    """

    name: str
    build: Callable[[Play], None]
    kinds: tuple[str, ...] = ALL
    disks: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    every_s: float = 8.0
    minutes: float = 10.0
    directed: Callable[[Random, float, float], list[Fault]] | None = None


SCENARIOS: dict[str, Scenario] = {}


def scenario(**options: Any) -> Callable[[Callable[[Play], None]], Callable[[Play], None]]:
    """Make a function a scenario of its name."""

    def decorate(build: Callable[[Play], None]) -> Callable[[Play], None]:
        name = build.__name__
        SCENARIOS[name] = Scenario(name, build, **options)
        return build

    return decorate


class Play:
    """One run of a scenario, while it is built and played.

    Attributes:
        serves: each returns whether something serves, asked when everything is healed.
        together: called after each step of these processes.
        calm: called when everything has been healed for a minute; they call `world.violated`.
        finals: called at the end, likewise.
        stopping: no new requests.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History(world)
        self.random = Random(f"{world.seed} work")
        self.serves: list[tuple[str, Callable[[], object]]] = []
        self.together: dict[str, list[Callable[[], None]]] = {}
        self.calm: list[Callable[[], None]] = []
        self.finals: list[Callable[[], None]] = []
        self.stopping = False
        self.healed_at: float | None = None

    def add(self, name: str, body: Body, host: str | None = None) -> Process:
        """Add a process, on a host of its own name unless another is given."""
        return self.world.process(name, body, host)

    def ip(self, host: str) -> str:
        return self.world.host(host).ip

    async def forever(self, process: Process) -> None:
        """Wait until the run asks this process to end in order."""
        assert process.life is not None
        await process.life.asked.wait()


@dataclass
class Result:
    """Outcome of one run."""

    scenario: str
    seed: int
    faults: list[Fault]
    violations: list[str]
    trace: int
    virtual_s: float
    steps: int
    world: World = field(repr=False)
    history: History = field(repr=False)

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def run(chosen: Scenario, seed: int, *, minutes: float | None = None, faults: Sequence[Fault] | None = None) -> Result:
    """Play a scenario with a seed; with these faults instead of drawn ones, if given."""
    world = World(seed)
    play = Play(world)
    chosen.build(play)
    until = CALM_S + 60 * (chosen.minutes if minutes is None else minutes)
    if faults is None:
        faults = draw(
            Random(f"{seed} faults"),
            begin=CALM_S,
            end=until,
            every_s=chosen.every_s,
            kinds=chosen.kinds,
            processes=[name for name in world.processes if name not in chosen.spared],
            hosts=[name for name in world.hosts if name not in chosen.spared],
            disks=chosen.disks,
            others=list(world.hosts),
        )
        if chosen.directed is not None:
            faults = sorted([*faults, *chosen.directed(Random(f"{seed} directed faults"), CALM_S, until)])
    world.run(_course(play, Faults(world, faults), until))
    return Result(chosen.name, seed, [*faults], world.violations, world.loop.trace, world.now, world.loop.steps, world, play.history)


async def _course(play: Play, faults: Faults, until: float) -> None:
    world = play.world
    await world.sleep_until(until + 0.001)
    await world.eventually(lambda: not faults.open, 1.0, "the faults are over")
    play.healed_at = world.now
    world.mark("calm", "world", "everything is healed")
    for process in world.processes.values():
        if process.things.get("wounded"):
            process.stop()  # as its document asks of an operator
        process.start()
    for name, serves in play.serves:
        await world.eventually(serves, HEALED_S - (world.now - play.healed_at), f"{name} serves again")
    await world.sleep_until(play.healed_at + HEALED_S)
    for operation in play.history.open():
        if operation.begun < play.healed_at and world.now > max(operation.begun, play.healed_at) + operation.bound_s:
            world.violated(
                f"request {operation.number} ({operation.mode}) of {operation.client} never ended, begun at {operation.begun:.3f}"
            )
    for check in play.calm:
        check()
    play.stopping = True
    await _end(play)
    for final in play.finals:
        final()


def _has_ended(life: Life) -> bool:
    return not life.alive


async def _end(play: Play) -> None:
    """Let every process end in order, the last one first; nothing of it may be left or have failed."""
    world = play.world
    for process in reversed(world.processes.values()):
        life = process.life
        if life is None or not life.alive:
            continue
        process.wanted = False
        process.stop()
        await world.eventually(partial(_has_ended, life), LAST_S, f"{process.name} ends")
    for process in world.processes.values():
        if process.life is not None and process.life.supervisor.faults:
            world.violated(f"{process.name}: faults {dict(process.life.supervisor.faults)}")
