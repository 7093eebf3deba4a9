"""`peering` command: brokers that lend each other workers."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import BIND, CONNECT, SECONDS, Group
from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import Table, figures_page
from core.daemon.option_fields import FiniteRange, WholeRange, arguments, build, field_options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, write_json, write_line
from core.errors import ZMQError
from core.rpc.control_socket import NoAnswer
from core.runtime.event_loop import run as run_loop
from peering.broker import Broker, endpoint_of
from peering.control import ask
from peering.errors import BadName, DuplicateName, MalformedMessage, TaskLost
from peering.simulation import Plan, Result, simulate
from peering.task_router import RouterLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured
    from peering.simulation import Cluster

log = logging.getLogger("peering.daemon")

Peers = dict[str, tuple[str, str] | None]  # endpoints of each peer, cloud and state; None for the default ones


@dataclass(frozen=True)
class BrokerDaemonOptions:
    """Options of `peering broker`.

    Attributes:
        name: of the broker.
        peers: other brokers, by name.
        localfe: endpoint for clients.
        localbe: endpoint for workers.
        cloudfe: endpoint for tasks of peers.
        statebe: endpoint the state is published on.
        control: endpoint for `peering status`.
        directory: of the default endpoints, "" for the working directory.
        limits: of the broker.
        security: which peers may connect, and who we are.
        http: address of the page, None for none.
    """

    name: str
    peers: Peers = field(default_factory=dict)
    localfe: str | None = None
    localbe: str | None = None
    cloudfe: str | None = None
    statebe: str | None = None
    control: str | None = None
    directory: str = ""
    limits: RouterLimits = field(default_factory=RouterLimits)
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_broker(options: BrokerDaemonOptions, lifetime: Lifetime) -> None:
    """Serve until the process is asked to stop, then finish open tasks; raises peering.BadName, peering.DuplicateName or core.ZMQError."""
    known = dict(options.peers)
    serving = Broker(**arguments(options, without=("limits", "http")), **asdict(options.limits))

    def change(changed: Mapping[str, Any]) -> set[str]:
        return {"peers"} if "peers" in changed and _change_peers(serving, known, _peers(changed["peers"])) else set()

    page = figures_page("peering broker", "peering", serving.status, tables=lambda: _peer_table(serving))
    async with serving, serve_page(options.http, page):
        lifetime.on_change(change)
        endpoints = {flow: getattr(serving, flow) for flow in ("localfe", "localbe", "cloudfe", "statebe", "control")}
        lifetime.ready("broker runs", broker=options.name, peers=",".join(known), **endpoints)
        await lifetime.until_stopped_or(serving.serve_forever())
        if not await serving.drain(lifetime.drain_s):
            log.warning("drain time is over, tasks are still open", extra={"open": serving.machine.open})


def _change_peers(serving: Broker, before: Peers, after: Peers) -> bool:
    """Add and remove peers to match `after`; update `before`. Return whether all succeeded."""
    for name in [name for name, endpoints in before.items() if after.get(name, ()) != endpoints]:
        serving.remove_peer(name)
        del before[name]
    complete = True
    for name in after.keys() - before.keys():
        try:
            serving.add_peer(name, after[name])
            before[name] = after[name]
        except (ValueError, ZMQError) as error:  # BadName and DuplicateName are ValueErrors
            log.error("a peer was refused", extra={"peer": name, "reason": str(error)})
            complete = False
    return complete


def _peer_table(serving: Broker) -> list[Table]:
    peers = serving.status()["peers"]
    rows = [[name, "yes" if peer["up"] else "no", peer["capacity"], peer["lent"]] for name, peer in peers.items()]
    return [Table("Peers", ("peer", "up", "capacity", "lent to it"), rows)]


ENDPOINT: Final = {"type": BIND}
PEER_HELP: Final = "A peer: NAME, or NAME=CLOUD,STATE with its endpoints; repeatable. SIGHUP adds and removes peers."
DIRECTORY: Final = click.option(
    "--directory",
    default="",
    show_default=False,
    metavar="DIRECTORY",
    help="For the default endpoints, ipc://DIRECTORY/NAME-localfe.ipc and so on.  [default: the working directory]",
)


# A command line for the help of each command.
EXAMPLES: Final = {
    "broker": "peering broker DC1 --peer DC2",
    "simulate": "peering simulate --clusters 3",
    "status": "peering status DC1",
}


@click.group(cls=Group, name="peering", examples=EXAMPLES)
def main() -> None:
    """Peering: brokers that lend each other workers."""


def _peer(text: str) -> str:
    """Check a --peer and keep its text, as in a configuration file."""
    name, equals, endpoints = text.partition("=")
    if not name:
        raise click.BadParameter(f"{text}: a peer needs a name")
    if equals:
        if endpoints.count(",") != 1:
            raise click.BadParameter(f"{text}: give NAME=CLOUD,STATE with two endpoints")
        for endpoint in endpoints.split(","):
            CONNECT(endpoint)
    return text


def _peers(texts: Sequence[str]) -> Peers:
    """Return the endpoints of each peer; raises click.UsageError: a name is given twice."""
    peers: Peers = {}
    for text in texts:
        name, _, endpoints = text.partition("=")
        if name in peers:
            raise click.UsageError(f"--peer {name} is given twice")
        cloud, _, state = endpoints.partition(",")
        peers[name] = (cloud, state) if endpoints else None
    return peers


@main.command()
@click.argument("name")
@click.option("--peer", "peers", type=_peer, multiple=True, metavar="PEER", help=PEER_HELP)
@field_options(
    BrokerDaemonOptions,
    skip=("name", "peers", "directory", "limits", "security", "http"),
    localfe=ENDPOINT,
    localbe=ENDPOINT,
    cloudfe=ENDPOINT,
    statebe=ENDPOINT,
    control=ENDPOINT,
)
@DIRECTORY
@field_options(RouterLimits)
@security_options(listens=True, connects=True)
@http_option
@daemon_options
def broker(name: str, peers: tuple[str, ...], settings: DaemonSettings, **options: Any) -> None:
    """Serve clients with the workers of this broker, or with those of its peers when these are busy."""
    limits = build(RouterLimits, options)
    chosen = BrokerDaemonOptions(name, _peers(peers), limits=limits, **options)
    with exits({BadName: BadConfig, DuplicateName: BadConfig}):
        run_daemon(partial(serve_broker, chosen), settings)


# ----------------------------------------------------------------------------------------------------------------- operators


@main.command()
@click.argument("name", required=False)
@click.option("--control", type=CONNECT, help="Endpoint of the broker's --control, instead of its NAME.")
@DIRECTORY
@click.option("--timeout", type=SECONDS, default=5.0, help="Seconds to wait.")
@json_option("Print one JSON object, with all counters.")
@security_options(connects=True)
@loop_option
@log_options("warning")
def status(
    name: str | None, control: str | None, directory: str, timeout: float, as_json: bool, security: Secured | None, uvloop: bool | None
) -> None:
    """Show the status of a broker and its peers."""
    if (name is None) == (control is None):
        raise click.UsageError("which broker? give its NAME or its --control")
    try:
        where = control or endpoint_of(name or "", "control", directory)
    except BadName as error:
        raise click.UsageError(str(error)) from None
    try:
        found = run_loop(ask(where, timeout, security), uvloop=uvloop)
    except NoAnswer as error:
        raise Unreachable(str(error)) from None
    except MalformedMessage as error:
        raise Unreachable(f"{where}: {error}") from None
    if as_json:
        write_json(found)
        return
    for key, value in found.items():
        if not isinstance(value, dict):
            write_line(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
    for peer, facts in _table(found.get("peers")).items():
        state = "up" if facts.get("up") else "down"
        write_line(f"peer {peer}: {state} capacity={facts.get('capacity')} lent={facts.get('lent')}")


def _table(value: object) -> dict[str, dict[str, Any]]:
    return {str(key): item for key, item in value.items() if isinstance(item, dict)} if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------------------------------- simulation

COLUMNS: Final = ("BROKER", "IDLE", "OPEN", "AT PEERS", "FOR PEERS", "DONE", "LOST")


@main.command(name="simulate")
@click.option("--clusters", type=click.IntRange(1, 26), default=3, help="Brokers, each with clients and workers.")
@click.option("--clients", type=click.IntRange(1, 1000), default=10, help="Clients of each cluster.")
@click.option("--workers", type=click.IntRange(1, 1000), default=5, help="Workers of each cluster.")
@click.option("--requests", type=WholeRange(min=1), default=300, help="Tasks in total.")
@click.option("--burst-max", type=WholeRange(min=1), default=14, help="Tasks of a client without a pause.")
@click.option("--pause-max", "pause_max_s", type=FiniteRange(min=0), default=4.0, help="Seconds between bursts.")
@click.option("--work-max", "work_max_s", type=FiniteRange(min=0), default=1.0, help="Seconds for one task.")
@click.option("--timeout", "timeout_s", type=SECONDS, default=10.0, help="Seconds a client waits for a reply.")
@click.option("--seed", type=int, default=0, help="Seed of all randomness.")
@json_option("Print one JSON object and no table.")
@loop_option
@log_options("warning")
def simulate_command(as_json: bool, uvloop: bool | None, **options: Any) -> None:
    """Run clusters with bursts of tasks in one process, and count the result of each task."""
    screen = Screen(live=sys.stdout.isatty())
    result = run_loop(simulate(Plan(**options), None if as_json else screen.show), uvloop=uvloop)
    if as_json:
        write_json({name: getattr(result, name) for name in Result.__dataclass_fields__} | {"complete": result.complete})
    else:
        screen.write()
        click.echo(
            f"{result.sent} tasks sent, {result.done} answered right, {result.lost} lost, {result.wrong} answered wrong; "
            f"{result.borrowed} by borrowed workers; {result.seconds:.1f} s"
        )
    if not result.complete:
        raise RequestFailed(str(TaskLost(lost=result.lost, wrong=result.wrong)))


class Screen:
    """Table of a simulation: redrawn on a terminal, else written once at the end."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._drawn = 0
        self._rows: list[tuple[str | int, ...]] = []

    def show(self, clusters: list[Cluster]) -> None:
        """Update the table, and draw it on a terminal."""
        self._rows = [COLUMNS, *(cluster.row() for cluster in clusters)]
        if self._live:
            self.write()

    def write(self) -> None:
        """Write the table; on a terminal, over the previous one."""
        if self._live and self._drawn:
            click.echo(f"\x1b[{self._drawn}A", nl=False)
        for row in self._rows:
            click.echo("".join(f"{cell!s:>10}" for cell in row))
        self._drawn = len(self._rows)
