"""Command `titanic serve`: the store as a daemon, alone or as half of a Binary Star pair."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bstar.pair_options import pair_errors, pair_of, pair_options
from core.daemon.command import BIND, CONNECT, Command
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.option_fields import FiniteRange, WholeRange, build, field_options, given, options
from core.daemon.run import DaemonSettings, daemon_options, run_daemon
from core.daemon.security_flags import security_options
from core.runtime import runtime
from mdp.commands.client_options import BROKER
from titanic.access.verbs import OWNERLESS
from titanic.commands.operator import disk_errors
from titanic.journal.disk import HeldDisk, RealDisk
from titanic.journal.group_commit import JournalOptions
from titanic.journal.ownership import check_is_of_no_pair
from titanic.journal.segment_log import LogOptions
from titanic.mirror.replica_link import TIMEOUT_S
from titanic.mirror.replica_server import Mirror
from titanic.paired_store import PairedOptions, PairedTitanic, service_of
from titanic.store.index.limits import DispatchOptions, Limits
from titanic.store.service import ServiceOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from bstar.pair import Pair
    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured
    from titanic.store.store import Store

AnyDisk = TypeVar("AnyDisk", bound=RealDisk)

log = logging.getLogger("titanic")
PROGRESS_S: Final = 5.0
TWO_ALONE: Final = (
    "without --bstar-witness: while the halves cannot reach each other, both may acknowledge requests alone; "
    "when they are connected again, what the half with the lower ballot acknowledged alone is lost. Use a witness, or --mirror-away refuse"
)
ON_TMPFS: Final = "the store is on a file system in memory: a restart of the machine, and a power failure, lose all that is stored"
SHORT_WINDOW: Final = (
    "--mirror-window is not longer than a fail-over takes (three heartbeats of the pair): the mirror can hardly take over alone. "
    "Make it longer, or the heartbeats shorter"
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
        await _serve_half(options.new_pair, _warned(HeldDisk(directory)), options, lifetime)
    else:
        await _serve_alone(None if directory is None else _warned(RealDisk(directory)), options, lifetime)


def _warned(disk: AnyDisk) -> AnyDisk:
    if disk.is_in_memory:
        log.warning(ON_TMPFS)
    return disk


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
        if half.is_window_short:
            log.warning(SHORT_WINDOW)
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
    copy = Mirror(_warned(RealDisk(options.directory)), take_over=options.take_over, security=options.security)
    page = figures_page("titanic mirror", "titanic_mirror", lambda: copy.figures, not_ready=copy.lacks)
    async with copy, serve_page(options.http, page):
        where = copy.bind(options.endpoint)
        lifetime.ready("titanic mirrors", endpoint=where, store=options.directory, step=copy.replica.mark.step.value)
        await lifetime.until_stopped_or(copy.until_failed())


class Fsync(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and older ones do
    """always, never, or interval=MS."""

    name = "always|interval=MS|never"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if isinstance(value, int):
            return value
        name, _, number = str(value).partition("=")
        if value in ("always", "never"):
            return name
        if name == "interval" and number.isdigit() and 0 < int(number) <= 3_600_000:
            return int(number)
        return self.fail(f"{value!r} is none of always, never, interval=MS (1 to 3600000)", param, ctx)


_mirror_options = options(
    click.option(
        "--mirror", type=CONNECT, help="Endpoint of a titanic mirror that must have synced every record before it is acknowledged."
    ),
    click.option(
        "--mirror-bind", type=BIND, help="With --bstar: endpoint to bind while this half is the mirror; the --mirror of the other half."
    ),
    click.option(
        "--mirror-away",
        type=click.Choice(["refuse", "go-on"]),
        default="refuse",
        help="While the mirror is away: refuse requests, or acknowledge what is on this disk only.",
    ),
    click.option(
        "--mirror-timeout",
        type=FiniteRange(min=0.1),
        default=TIMEOUT_S,
        help="Seconds for one sync of the mirror before it counts as away.",
    ),
    click.option(
        "--mirror-window",
        type=FiniteRange(min=0.1, max=9999),
        help="With --bstar and go-on: seconds for which a mirror that lost its store may take over, and a store waits before acknowledging "
        "alone; the same on both.  [default: six heartbeats; without a witness four, plus the time a broker takes to drop a Titanic]",
    ),
)

# Of a store in memory: with records of 1 KB its process takes some three times as much.
MEMORY_BYTES_MAX: Final = 256 * 1024**2


@click.command(cls=Command)
@BROKER
@click.option("--store", type=click.Path(file_okay=False), help="Directory of the store; created if it does not exist.")
@click.option("--fsync", type=Fsync(), default="always", help="When a request counts as stored.")
@click.option(
    "--memory",
    is_flag=True,
    help="Store nothing on disk; everything is lost when the process ends. --bytes-max is 268435456 then, unless given.",
)
@click.option("--hyphens", is_flag=True, help="Accept UUIDs with hyphens too.")
@click.option("--segment-bytes", type=WholeRange(min=65536), default=LogOptions().segment_bytes, help="Size of a segment.")
@click.option("--heartbeat-ms", type=WholeRange(min=1), default=2500, help="Must equal that of the broker.")
@click.option("--liveness", type=WholeRange(min=1), default=3, help="Silent intervals after which a broker is dead.")
@click.option(
    "--scrub-s",
    type=FiniteRange(min=0),
    default=JournalOptions().scrub_s,
    help="Seconds after which a segment is read again to find damage early; 0 for never.",
)
@_mirror_options
@field_options(Limits, zero=("retain_ms", "keys_max", "key_age_ms"))
@field_options(ServiceOptions, skip=("dispatch",), zero=("max_attempts", "permission_ms"), choices={"ownerless": [*OWNERLESS]})
@field_options(DispatchOptions)
@pair_options
@security_options(listens=True, connects=True, required=False)
@http_option
@daemon_options
def serve(
    brokers: tuple[str, ...],
    store: str | None,
    fsync: str | int,
    memory: bool,
    mirror: str | None,
    mirror_bind: str | None,
    mirror_away: str,
    http: NamedAddress | None,
    settings: DaemonSettings,
    **values: Any,
) -> None:
    """Serve titanic.request, titanic.reply and titanic.close at a broker, and deliver stored requests."""
    fenced = values["bstar_witness"] is None
    new_pair = pair_of(values)
    if memory == (store is not None):
        raise click.UsageError("give either --store DIR or --memory")
    if memory and "bytes_max" not in given(click.get_current_context(), Limits):
        values["bytes_max"] = MEMORY_BYTES_MAX
    if mirror is not None and (memory or fsync != "always"):
        raise click.UsageError("--mirror needs --fsync always and --store DIR")
    if (new_pair is not None) != (mirror_bind is not None) or (new_pair is not None and mirror is None):
        raise click.UsageError("half of a pair needs --bstar, --mirror and --mirror-bind: each is the mirror of the other")
    paired = build(
        PairedOptions,
        values,
        brokers=brokers,
        mirror=mirror or "",
        mirror_bind=mirror_bind or "",
        journal=build(JournalOptions, values, log=build(LogOptions, values), fsync=fsync),
        go_on=mirror_away == "go-on",
        window_s=values.pop("mirror_window"),
        mirror_timeout_s=values.pop("mirror_timeout"),
        limits=build(Limits, values),
        service=build(ServiceOptions, values, dispatch=build(DispatchOptions, values)),
    )

    chosen = StoreDaemonOptions(store, paired, new_pair, fenced, http)
    with disk_errors(store), pair_errors():
        run_daemon(partial(serve_store, chosen), settings)
