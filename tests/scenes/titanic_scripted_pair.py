"""Halves of Titanic pairs in virtual time, whose Binary Star servers do what a test says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bstar
import core
import mdp
import titanic
from bstar.errors import NotActive
from bstar.machine.ballot import NO_BALLOT, Ballot
from tests.scenes.titanic_pair import JOURNAL
from tests.sim.disk import SimDisk
from titanic.paired_store import PairedOptions, PairedTitanic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bstar.pair import Pair
    from titanic.journal.disk import HeldDisk

__all__ = ["BROKER", "HEARTBEAT_S", "HeldSimDisk", "PairScene", "ScriptedPair", "half_in", "pair_scene"]

HEARTBEAT_S = 1.0
BROKER = "inproc://broker"


class HeldSimDisk(SimDisk):
    """A disk in memory that is held as `HeldDisk` is."""

    def hold(self) -> None:
        super().lock()

    def let_go(self) -> None:
        super().unlock()

    def lock(self) -> None: ...
    def unlock(self) -> None: ...


class ScriptedPair:
    """A stand-in of a `bstar.Pair` that serves when a test says so."""

    def __init__(self, guard: str = "witness") -> None:
        self.machine = SimpleNamespace(settings=SimpleNamespace(heartbeat_s=HEARTBEAT_S))
        self.role = bstar.PRIMARY
        self.guard = guard
        self.trouble = ""
        self.service: Callable[[], dict[str, Any]] | None = None
        self.active: bstar.State | None = None  # which of the two is active, as far as this one knows
        self.votes = 0
        self.switchovers: list[float] = []
        self.switches = True  # the other half can take over
        self.answers = True  # an answer may leave at this moment
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ballot = NO_BALLOT
        self._on_serving: list[Callable[[], None]] = []
        self._on_passive: list[Callable[[], Any]] = []
        self._finish: Callable[[float], Awaitable[bool]]
        self._resume: Callable[[], None]

    def on_serving(self, callback: Callable[[], None]) -> None:
        self._on_serving.append(callback)

    def on_passive(self, callback: Callable[[], Any]) -> None:
        self._on_passive.append(callback)

    def on_handover(self, finish: Callable[[float], Awaitable[bool]], resume: Callable[[], None]) -> None:
        self._finish, self._resume = finish, resume

    def serves(self) -> bool:
        return self._ballot != NO_BALLOT and self.answers

    def ballot(self) -> Ballot:
        return self._ballot

    def active_role(self) -> bstar.State | None:
        return self.active

    def metrics(self) -> dict[str, float]:
        return {"bstar_active": float(self.serves()), "bstar_became_active_total": 2.0}

    async def serve_forever(self) -> None:
        await asyncio.shield(self.failed)

    async def vote(self) -> None:
        self.votes += 1

    async def drain(self, drain_s: float) -> bool:
        return await self._finish(drain_s)

    async def switchover(self, drain_s: float = 10.0) -> None:
        self.switchovers.append(drain_s)
        if not self.switches:
            raise NotActive("the peer cannot take over", active="")
        await self._finish(drain_s)
        self.become_passive()

    def stay(self) -> None:
        """The role could not be handed over: the half goes on."""
        self._resume()

    def become_active(self) -> None:
        self._ballot, self.active = Ballot(self._ballot.counter + 1, 1), self.role
        for callback in self._on_serving:
            callback()

    def become_passive(self) -> None:
        self._ballot, self.active = NO_BALLOT, None
        for callback in self._on_passive:
            callback()


class PairScene:
    """A broker and two halves, which are each other's mirrors."""

    def __init__(self, context: core.Context, broker: mdp.Broker) -> None:
        self.context, self.broker = context, broker
        self.pairs = [ScriptedPair(), ScriptedPair()]
        self.disks = [HeldSimDisk(), HeldSimDisk()]
        self.halves: list[PairedTitanic] = []
        self.stacks = [AsyncExitStack(), AsyncExitStack()]
        self.client = titanic.Client(BROKER, context=context, timeout=5.0)

    def half(self, n: int, **options: Any) -> PairedTitanic:
        """Return one half that is not started."""
        return half_in(self.context, self.pairs[n], self.disks[n], **{"mirror": mirror_at(1 - n), "mirror_bind": mirror_at(n), **options})

    async def start(self, n: int, **options: Any) -> PairedTitanic:
        return await self.stacks[n].enter_async_context(self.half(n, **options))

    async def stop(self, n: int) -> None:
        await self.stacks[n].aclose()

    async def serving(self, half: PairedTitanic) -> titanic.Service:
        """Wait until a half has registered its services."""
        while half.service is None or not half.service.connected:
            await asyncio.sleep(0.01)
        return half.service

    async def is_part(self, half: PairedTitanic, part: str) -> None:
        """Wait until a half does something."""
        while half.part != part:
            await asyncio.sleep(0.01)


def mirror_at(n: int) -> str:
    return f"inproc://mirror{n}"


def half_in(context: core.Context | None, pair: ScriptedPair, disk: HeldSimDisk, **options: Any) -> PairedTitanic:
    more = {name: options.pop(name) for name in ("progress", "on_serving") if name in options}
    given = {"brokers": [BROKER], "mirror": mirror_at(1), "mirror_bind": mirror_at(0), "journal": JOURNAL, "go_on": True}
    return PairedTitanic(cast("Pair", pair), cast("HeldDisk", disk), PairedOptions(**{**given, **options}), context=context, **more)


@asynccontextmanager
async def pair_scene() -> AsyncIterator[PairScene]:
    """Yield a broker and two halves that are not started."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        broker.bind(BROKER)
        scene = PairScene(context, broker)
        try:
            async with scene.client:
                yield scene
        finally:
            for n in (0, 1):
                await scene.stop(n)
