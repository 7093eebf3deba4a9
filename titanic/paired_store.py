"""Titanic as half of a Binary Star pair: the store while active, the mirror of the other half while passive.

    async with bstar.Pair(bstar.PRIMARY, local=..., remote=...) as pair, PairedTitanic(pair, disk, options) as titanic:
        await titanic.serve_forever()

    passive    `titanic.mirror`: syncs what the other half acknowledges; votes when the broker has no Titanic
    active     checks its lineage (`titanic.mirror.succession`), asks the other half if needed, and then serves as the store, or yields

Binary Star decides which half is active, the marks in the two directories decide whose data is newer. Both must agree before anything is
served, so neither a restart in any order nor a mistake of the operator replaces newer data by older.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import core
import mdp
from bstar.errors import BinaryStarError, NotActive
from bstar.net.boot_clock import boot_clock
from core.daemon.metrics import Family, MetricsPage, Snapshot
from core.runtime import supervision
from core.runtime.event_loop import until_one_ends
from titanic.errors import TitanicError, Wounded
from titanic.journal.ownership import read_mark, write_mark
from titanic.journal.segment_log import LACKS
from titanic.mirror.peer_query import ask_peer
from titanic.mirror.replica_directory import lineage_at
from titanic.mirror.replica_link import TIMEOUT_S, MirrorLine, MirrorTerms
from titanic.mirror.replica_server import NO_LEASE, Mirror
from titanic.mirror.succession import Answer, Lineage, Role, led_mark, role_of
from titanic.store.index.limits import Limits
from titanic.store.service import Service, ServiceOptions
from titanic.store.store import Store
from titanic.wire import tsp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bstar.machine.ballot import Ballot
    from bstar.pair import Pair
    from core.security.credentials import Secured
    from titanic.journal.disk import Disk, HeldDisk
    from titanic.journal.group_commit import JournalOptions
    from titanic.journal.ownership import Mark

log = logging.getLogger("titanic")

# Errors that end one half and explain themselves.
EXPECTED: Final = (TitanicError, BinaryStarError, OSError, core.ZMQError)

VOTES_PER_HEARTBEAT: Final = 2  # a vote expires after two heartbeats
PULSES_PER_HEARTBEAT: Final = 2
FAILOVER_HEARTBEATS: Final = 3  # two of silence, half a one until a vote, and the claim
WINDOW_HEARTBEATS: Final = 2 * FAILOVER_HEARTBEATS  # twice, because machines are busy then
# Added to the time a broker needs to give up its Titanic, without a witness.
FENCED_HEARTBEATS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedOptions:
    """Options of one half.

    Attributes:
        brokers: endpoints, in order of preference.
        mirror: endpoint of the other half while it is the mirror.
        mirror_bind: endpoint of this half while it is the mirror.
        journal: of the store; `fsync` must be "always".
        go_on: acknowledge alone, once the other half may no longer take over.
        window_s: how long the mirror may take over after it lost its store, and how long a store waits before it acknowledges alone. None:
            six heartbeats of the pair; without a witness four, plus the time a broker needs to give up a silent Titanic.
        mirror_timeout_s: maximum time of one sync of the mirror.
        limits, service: of the store and its service.
        hyphens: see `Store`.
        heartbeat_ms, liveness: of the workers at the broker.
        security: of all sockets except those of the pair.
    """

    brokers: Sequence[str]
    mirror: str
    mirror_bind: str
    journal: JournalOptions
    go_on: bool = False
    window_s: float | None = None
    mirror_timeout_s: float = TIMEOUT_S
    limits: Limits = field(default_factory=Limits)
    service: ServiceOptions = field(default_factory=ServiceOptions)
    hyphens: bool = False
    heartbeat_ms: int = 2500
    liveness: int = 3
    security: Secured | None = None


def service_of(
    options: PairedOptions, disk: Disk | None, *, context: core.Context | None = None, terms: MirrorTerms | None = None, **more: Any
) -> Service:
    """Return a service with its store and the link to its mirror; `more` are further options of `Service`."""
    link = None
    if options.mirror:
        timeout_s = options.mirror_timeout_s
        link = MirrorLine(options.mirror, timeout_s=timeout_s, context=context, security=options.security, terms=terms)
    journal = options.journal if disk is not None else None
    store = Store(disk, journal, options.limits, hyphens=options.hyphens, mirror=link, go_on=options.go_on)
    more |= {"heartbeat_ms": options.heartbeat_ms, "liveness": options.liveness}
    return Service(options.brokers, store, options.service, context=context, security=options.security, **more)


class PairedTitanic:
    """One half.

    Args:
        pair: entered, and left only after this.
        disk: of the directory, which stays locked from entering to leaving.
        options: see `PairedOptions`.
        context: for the sockets; by default a new one.
        progress: see `Service`.
        on_serving: called with the store each time it was opened.

    Attributes:
        part: present activity, in words.
        turns: how often it began to serve.

    Raises:
        StoreLocked, JournalError, OSError: on entering, or from `serve_forever`, as the store and the mirror raise them.
    """

    def __init__(
        self,
        pair: Pair,
        disk: HeldDisk,
        options: PairedOptions,
        *,
        context: core.Context | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_serving: Callable[[Store], None] = lambda _: None,
    ) -> None:
        self.pair = pair
        self.options = options
        self.part = "starts"
        self.turns = 0
        self.service: Service | None = None
        self.mirror: Mirror | None = None
        self._disk = disk
        self._context = context
        # One context for all mirrors, so that its warnings about endpoints are logged once.
        self._mirror_context = context or core.Context(security=options.security)
        self._progress = progress
        self._on_serving = on_serving
        self._lineage = Lineage()  # of the directory, once it was read
        self._logged: set[tuple[str, Lineage]] = set()  # since it served last
        self._term: Ballot  # under which this half is, or was last, active
        self._changed = asyncio.Event()
        self._works: list[asyncio.Future[None]] = []
        self._lease = NO_LEASE  # of this half as the mirror
        self._again: bool  # the role could not be handed over: start the service again
        self._heartbeat_s = pair.machine.settings.heartbeat_s
        pair.on_serving(self._changed.set)
        pair.on_passive(self._changed.set)
        pair.on_handover(self._finish, self._resume)
        pair.service = self.status

    async def __aenter__(self) -> Self:
        self._disk.hold()
        try:
            self._lineage = await asyncio.to_thread(lineage_at, self._disk)
        except BaseException:
            self._disk.let_go()
            raise
        supervisor = supervision.current()
        self._works = [
            supervisor.task("titanic pair", self.pair.serve_forever, raises=True, expects=EXPECTED),
            supervisor.task("titanic turns", self._alternate, raises=True, expects=EXPECTED),
            supervisor.task("titanic votes", self._vote),
        ]
        return self

    @supervision.to_the_end
    async def __aexit__(self, *_: object) -> None:
        await supervision.cancel_all(self._works)
        if self._context is None:
            await self._mirror_context.aclose()
        self._disk.let_go()

    @property
    def window_s(self) -> float:
        """Seconds for which the mirror may take over by itself, as this half tells it when it is the store."""
        if self.options.window_s is not None:
            return self.options.window_s
        if self.pair.guard == "witness":
            return WINDOW_HEARTBEATS * self._heartbeat_s
        return self.options.heartbeat_ms * self.options.liveness / 1000 + FENCED_HEARTBEATS * self._heartbeat_s

    @property
    def is_window_short(self) -> bool:
        """Whether a mirror can hardly take over alone, since the window ends when a fail-over does, or before."""
        return self.options.go_on and self.window_s <= FAILOVER_HEARTBEATS * self._heartbeat_s

    # ---- roles

    async def serve_forever(self) -> None:
        """Wait until the pair or this half fails, and raise the error. Cancel-safe."""
        done, _ = await asyncio.wait(self._works, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()

    async def drain(self, drain_s: float) -> bool:
        """Finish what is in flight and hand over if the other half can take over; call it before leaving."""
        return await self.pair.drain(drain_s)

    async def _alternate(self) -> None:
        while True:
            if self.pair.serves():
                self._term = self.pair.ballot()
                await self._lead()
            else:
                await self._follow()

    def _is_active(self) -> bool:
        """Return whether this half is still active under the same ballot."""
        return self.pair.ballot() == self._term

    def _serves(self) -> bool:
        """Return whether an answer may leave at this moment (BST-29)."""
        return self.pair.serves() and self._is_active()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the pair holds; it is checked after each change of the pair."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _while_active(self, work: asyncio.Future[Any]) -> bool:
        """Wait for a future, but only while active; return whether it finished."""
        ended = asyncio.ensure_future(self._until(lambda: not self._is_active()))
        try:
            await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
            return work.done() and self._is_active()
        finally:
            await supervision.cancel_all((work, ended))

    # ---- passive

    async def _follow(self) -> None:
        async with Mirror(self._disk, paired=True, lease=self._lease, context=self._mirror_context) as mirror:
            mirror.bind(self.options.mirror_bind)
            self.mirror, self.part = mirror, "mirror"
            log.info("mirror of the other half", extra={"holds": mirror.replica.lineage.kind.name.lower()})
            try:
                await until_one_ends(mirror.until_failed(), self._until(self.pair.serves))
            finally:
                self.mirror = None
        self._lease = mirror.lease

    # ---- active

    async def _lead(self) -> None:
        """Serve as the store if our data allows it, otherwise yield; return after a change."""
        self._again = False
        mark, lineage = await asyncio.to_thread(self._read_lineage)
        leased = self._lease.holds(boot_clock()) and self._serves()
        alone = role_of(lineage, go_on=self.options.go_on, leased=leased) is Role.SERVE
        if not alone:
            answer = await self._ask_peer()
            if answer is not Answer.FOLLOW:
                await self._yield_to(answer)
                return
        if await self._write_mark(mark, led_mark(mark, lineage, alone=alone)):
            heard_at, self._lease = self._lease.said_at, NO_LEASE
            await self._serve(alone, heard_at)

    def _read_lineage(self) -> tuple[Mark | None, Lineage]:
        mark, self._lineage = read_mark(self._disk), lineage_at(self._disk)
        return mark, self._lineage

    async def _ask_peer(self) -> Answer | None:
        """Ask the other half whether this one may lead; return None if it is no longer active before the answer."""
        self.part = "asks the other half"
        self._log_once(logging.INFO, "asking the other half")
        options = self.options
        asked = asyncio.ensure_future(
            ask_peer(options.mirror, self._lineage, self._heartbeat_s, context=self._context, security=options.security)
        )
        return asked.result() if await self._while_active(asked) else None

    async def _yield_to(self, answer: Answer | None) -> None:
        """Yield to the other half if its data is more complete; wait if an operator must decide."""
        if answer is Answer.NEITHER:
            self.part = "neither can lead"
            self._log_once(logging.ERROR, "neither half can tell which data is newer; see titanic promote")
            await self._pause()
        elif answer is Answer.LEAD:
            self.part = "gives way"
            self._log_once(logging.INFO, "the other half has newer data and leads")
            await self._hand_over()

    async def _hand_over(self) -> None:
        """Hand the active role over if the other half is there, and wait one heartbeat."""
        with suppress(NotActive):
            await self.pair.switchover(0)
        await self._pause()

    async def _pause(self) -> None:
        await self._while_active(asyncio.ensure_future(asyncio.sleep(self._heartbeat_s)))

    def _log_once(self, level: int, what: str) -> None:
        """Log an event once per lineage, although the question is repeated every heartbeat."""
        if (what, self._lineage) not in self._logged:
            self._logged.add((what, self._lineage))
            log.log(level, what, extra={"holds": self._lineage.kind.name.lower(), "epoch": self._lineage.epoch})

    async def _write_mark(self, before: Mark | None, mark: Mark) -> bool:
        """Write the mark of a store, which begins a new epoch; return whether to continue."""
        if mark != before:
            try:
                await asyncio.to_thread(write_mark, self._disk, mark)
            except OSError as error:
                if error.errno not in LACKS:
                    raise
                self.part = f"its store cannot be written: {os.strerror(error.errno)}"
                self._log_once(
                    logging.ERROR, f"{self.part}, so this half cannot lead; the other half leads if it can, else this one tries again"
                )
                await self._hand_over()
                return False
        if self._serves():
            return True
        # The write took so long that the other half is active: nothing was done in this epoch, so withdraw it.
        if before is not None and mark != before:
            await asyncio.to_thread(write_mark, self._disk, before)
        return False

    async def _serve(self, alone: bool, heard_at: float | None) -> None:
        """Serve as the store while active; `heard_at` is when this half heard of the other one as the store."""
        terms = MirrorTerms(self.window_s, self._heartbeat_s / PULSES_PER_HEARTBEAT, alone, self._serves)
        service = service_of(
            self.options, self._disk, context=self._context, terms=terms,
            guard=self._serves, about=self._pair_status, progress=self._progress, drain_s=0.0,
        )  # fmt: skip
        store = service.store
        if heard_at is not None:
            store.heard_ms = int((boot_clock() - heard_at) * 1000)
        self.part = "opens the store"
        async with service:
            self.service, self.part = service, "store"
            self.turns += 1
            self._logged.clear()
            self._on_serving(store)
            log.info("the store", extra={"requests": len(store.index.entries), "alone": alone})
            try:
                await self._watch_service(service)
            finally:
                self.service = None
                self.part = "ends its turn"

    async def _watch_service(self, service: Service) -> None:
        """Wait until the service must end; raise its error."""
        link = service.store.mirror
        assert link is not None
        while self._is_active() and not self._again and not link.stale:
            change = asyncio.ensure_future(self._until(lambda: not self._is_active() or self._again or link.stale))
            opening = [] if service.opening.done() else [service.opening]
            try:
                await asyncio.wait([change, *opening], timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await supervision.cancel_all([change])
            if service.opening.done():
                service.opening.result()
            if service.store.wounded is not None:
                raise Wounded(service.store.wounded)  # the other half can write
        if link.stale:
            # The other half does not accept our data as newer than its own.
            await self._yield_to(await self._ask_peer())

    # ---- handing over

    async def _finish(self, drain_s: float) -> bool:
        if self.service is not None:
            await self.service.drain(drain_s)
        return True

    def _resume(self) -> None:
        self._again = True
        self._changed.set()

    # ---- votes

    async def _vote(self) -> None:
        """Watch the broker: a missing Titanic while neither half is active counts as a vote (BST-10)."""
        options = self.options
        where: dict[str, Any] = {"context": self._context, "security": options.security}
        async with mdp.Client(options.brokers, timeout=self._heartbeat_s, attempts=1, **where) as client:
            while True:
                await asyncio.sleep(self._heartbeat_s / VOTES_PER_HEARTBEAT)
                if self.pair.active_role() is None and await self._is_missed(client):
                    await self.pair.vote()

    async def _is_missed(self, client: mdp.Client) -> bool:
        """Return whether clients find no Titanic. With a witness it is enough that the broker can be reached."""
        try:
            code = await client.mmi("service", tsp.REQUEST)
        except mdp.RequestError:
            return False
        return code == "404" or self.pair.guard == "witness"

    # ---- status

    def status(self) -> dict[str, Any]:
        """Return the status of this half for operators."""
        found: dict[str, Any] = {"part": self.part, "turns": self.turns}
        if self.service is not None:
            store = self.service.store
            link = store.mirror
            assert link is not None
            state = "serving" if self.service.connected else "waits for the mirror" if link.state != "in step" else "registers"
            wound = None if store.wounded is None else f"wounded: {store.wounded}"
            state = wound or store.stalled or state
            return {**found, "state": state, "mirror": link.state, "requests": len(store.index.entries)}
        mirror = self.mirror
        lineage = mirror.replica.lineage if mirror is not None else self._lineage
        found |= {"holds": lineage.kind.name.lower(), "epoch": lineage.epoch}
        if mirror is not None:
            left_s = max(0.0, mirror.lease.until - boot_clock())
            found |= {"connected": mirror.connected, "may_take_over_s": round(left_s, 3)}
        return found

    def _pair_status(self) -> dict[str, Any]:
        return {"role": self.pair.role.name.lower(), "ballot": str(self.pair.ballot()), "guard": self.pair.guard}

    def page(self) -> MetricsPage:
        """Return the metrics page: of the store while it serves, else of the mirror."""

        def not_ready() -> str:
            if self.service is not None:
                return self.service.page().not_ready()
            return self.pair.trouble if self.mirror is not None else self.part

        def families() -> list[Family]:
            found = [_family(name, number) for name, number in self.pair.metrics().items()]
            return [*found, *(self.service.page().families() if self.service is not None else ())]

        def snapshot() -> Snapshot:
            figures = {name: value for name, value in self.status().items() if isinstance(value, int | float | str)}
            if self.service is None:
                return Snapshot(figures)
            shown = self.service.page().snapshot()
            return Snapshot({**figures, **shown.figures}, shown.tables, shown.counters)

        return MetricsPage("titanic serve", not_ready, families, snapshot)


def _family(name: str, number: float) -> Family:
    short = name.removesuffix("_total")
    return Family(short, "gauge" if short == name else "counter", f"{short.replace('_', ' ')}.", (), [((), number)])
