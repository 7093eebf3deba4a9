"""The bodies of `titanic serve` and `titanic mirror`."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.runtime import runtime
from titanic.journal.disk import HeldDisk, RealDisk
from titanic.journal.ownership import check_is_of_no_pair
from titanic.mirror.replica_server import Mirror
from titanic.paired_store import PairedOptions, PairedTitanic, service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bstar.pair import Pair
    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured
    from titanic.store.store import Store

log = logging.getLogger("titanic")
PROGRESS_S: Final = 5.0
TWO_ALONE: Final = (
    "without --bstar-witness: while the halves cannot reach each other, both may acknowledge requests alone; "
    "when they are connected again, what the half with the lower ballot acknowledged alone is lost. Use a witness, or --mirror-away refuse"
)


@dataclass(frozen=True)
class StoreDaemonOptions:
    """Options of `titanic serve`; without `directory` everything is kept in memory.

    `titanic` has those of the store, its service and its mirror; `fenced` says that the pair of `new_pair` has no witness.
    """

    directory: str | None
    titanic: PairedOptions
    new_pair: Callable[..., Pair] | None = None
    fenced: bool = False
    http: NamedAddress | None = None


async def serve_store(options: StoreDaemonOptions, lifetime: Lifetime) -> None:
    """Serve stored requests until asked to stop, then finish open work; raises titanic.StoreError, bstar.PairFault or Unreachable."""
    directory, titanic = options.directory, options.titanic
    log.info(durability(titanic.journal.fsync, directory is None, titanic.mirror, "go-on" if titanic.go_on else "refuse"))
    if options.new_pair is not None and directory is not None:
        if options.fenced and titanic.go_on:
            log.warning(TWO_ALONE)
        await _serve_half(options.new_pair, HeldDisk(directory), options, lifetime)
    else:
        await _serve_alone(None if directory is None else RealDisk(directory), options, lifetime)


async def _serve_alone(disk: RealDisk | None, options: StoreDaemonOptions, lifetime: Lifetime) -> None:
    if disk is not None:
        check_is_of_no_pair(disk)
    service = service_of(options.titanic, disk, progress=_Progress())
    async with service, serve_page(options.http, service.page()):
        stored = service.store
        _print_problems(stored)
        where = {"store": "memory"} if disk is None else {"store": disk.directory, "fsync": options.titanic.journal.fsync}
        status = {name: stored.status[name] for name in ("state", "requests", "segments", "problems")}
        lifetime.ready("titanic serves", **where, **status)
        await lifetime.until_stopped_or(service.until_failed())
        await service.drain(lifetime.drain_s)
        if disk is None and stored.status["requests"]:
            log.warning("requests are lost with this process", extra={"requests": stored.status["requests"]})


async def _serve_half(new_pair: Callable[..., Pair], disk: HeldDisk, options: StoreDaemonOptions, lifetime: Lifetime) -> None:
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(new_pair(security=options.titanic.security))
        half = PairedTitanic(pair, disk, options.titanic, progress=_Progress(), on_serving=_print_problems)
        await stack.enter_async_context(half)
        await stack.enter_async_context(serve_page(options.http, half.page()))
        status = half.status()
        lifetime.ready("titanic is one of two", store=disk.directory, guard=pair.guard, holds=status["holds"], epoch=status["epoch"])
        await lifetime.until_stopped_or(half.serve_forever())
        await half.drain(lifetime.drain_s)


def _print_problems(stored: Store) -> None:
    for problem in stored.problems:
        click.echo(f"titanic: {problem}", err=True)


def durability(fsync: str | int, memory: bool, mirror: str | None, mirror_away: str) -> str:
    """Return the meaning of 200 with these options, and what can be lost after it."""
    if memory:
        return "200 means: in memory; the end of this process loses everything"
    if mirror:
        alone = "; while the mirror is away, on this disk only" if mirror_away == "go-on" else ""
        return f"200 means: synced on this disk and on the mirror{alone}; the loss of either machine loses nothing else"
    if fsync == "always":
        return "200 means: synced; neither kill -9 nor a power failure loses anything"
    if fsync == "never":
        return "200 means: written; kill -9 loses nothing, a power failure what the system had not written yet"
    return f"200 means: written; kill -9 loses nothing, a power failure what was accepted in the last {fsync} ms"


class _Progress:
    """Logs the progress of reading the store every few seconds; called in another thread."""

    def __init__(self) -> None:
        self._now = runtime.current().monotonic
        self._said_s = self._now()

    def __call__(self, done: int, most: int) -> None:
        now = self._now()
        if now - self._said_s >= PROGRESS_S:
            self._said_s = now
            log.info("reading the store", extra={"segments": done, "of": most})


@dataclass(frozen=True)
class MirrorDaemonOptions:
    """Options of `titanic mirror`; `take_over` says whether a directory that holds a store may be replaced."""

    endpoint: str
    directory: str
    take_over: bool = False
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_mirror(options: MirrorDaemonOptions, lifetime: Lifetime) -> None:
    """Keep a copy of a store until the process is asked to stop; raises titanic.StoreError or Unreachable."""
    copy = Mirror(RealDisk(options.directory), take_over=options.take_over, security=options.security)
    page = figures_page("titanic mirror", "titanic_mirror", lambda: copy.figures, not_ready=copy.lacks)
    async with copy, serve_page(options.http, page):
        where = copy.bind(options.endpoint)
        lifetime.ready("titanic mirrors", endpoint=where, store=options.directory, step=copy.replica.mark.step.value)
        await lifetime.until_stopped_or(copy.until_failed())
