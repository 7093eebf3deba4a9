"""Command `titanic serve`: the store as a daemon, alone or as half of a Binary Star pair."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from bstar.pair_options import pair_errors, pair_of, pair_options
from core.daemon.command import BIND, CONNECT, Command
from core.daemon.http import http_option
from core.daemon.option_fields import FiniteRange, build, field_options, given, options
from core.daemon.run import DaemonSettings, daemon_options, run_daemon
from core.daemon.security_flags import security_options
from mdp.commands.client_options import BROKER
from titanic.access.verbs import OWNERLESS
from titanic.commands.daemons import StoreDaemonOptions, serve_store
from titanic.commands.operator import disk_errors
from titanic.journal.group_commit import JournalOptions
from titanic.journal.segment_log import LogOptions
from titanic.mirror.replica_link import TIMEOUT_S
from titanic.paired_store import PairedOptions
from titanic.store.delivery_queue import DispatchOptions
from titanic.store.index.limits import Limits
from titanic.store.service import ServiceOptions

if TYPE_CHECKING:
    from core.daemon.http import NamedAddress


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
@click.option("--segment-bytes", type=click.IntRange(min=65536), default=LogOptions().segment_bytes, help="Size of a segment.")
@click.option("--heartbeat-ms", type=click.IntRange(min=1), default=2500, help="Must equal that of the broker.")
@click.option("--liveness", type=click.IntRange(min=1), default=3, help="Silent intervals after which a broker is dead.")
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
