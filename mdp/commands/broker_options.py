"""`mdp broker`: the command, its HTTP page and event log, and the brokers it borrows workers from."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from bstar.pair_options import pair_errors, pair_of, pair_options
from core.daemon.command import BIND, CONNECT, Command
from core.daemon.exit_codes import BadConfig
from core.daemon.http import http_option
from core.daemon.option_fields import FiniteRange, build, field_options, options
from core.daemon.run import daemon_options, run_daemon
from core.daemon.security_flags import security_options
from mdp.broker.broker import Broker
from mdp.broker.limits import BrokerOptions
from mdp.commands.broker_daemon import BrokerDaemonOptions, serve_broker
from mdp.commands.client_options import DEFAULT_BROKER
from mdp.commands.shards import run_sharded, shard_options
from mdp.eventlog.log_options import EventLogOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.daemon.run import DaemonSettings
    from mdp.commands.shards import Shards

lending_options = options(
    click.option("--peer", "peers", type=CONNECT, multiple=True, help="A broker to borrow workers from when ours are busy; repeatable."),
    click.option("--peer-name", help="Name of this broker, different from all others.  [default: a new one at each start]"),
    click.option(
        "--peer-state-ms",
        type=FiniteRange(min=10, max=30_000),
        default=1000,
        help="Interval of asking peers for their capacity; a peer without an answer for three intervals is lost.",
    ),
    click.option("--peer-hops", type=click.IntRange(1, 16), default=1, help="Brokers a request may pass after the first one."),
)


def broker_of(values: dict[str, Any], *, paired: bool) -> Callable[..., Broker]:
    """Remove the lending options from a command's; return the broker's factory. Raises click.UsageError if they exclude each other."""
    peers, name = values.pop("peers"), values.pop("peer_name")
    state_ms, hops = values.pop("peer_state_ms"), values.pop("peer_hops")
    if not peers:
        if name is not None:
            raise click.UsageError("--peer-name needs a --peer")
        return Broker
    if paired:
        raise click.UsageError("a broker of a pair borrows no workers: leave --peer or --bstar out")
    from mdp.cluster.lending_broker import LendingBroker  # not imported without peers
    from peering.peer_router import check_name  # not imported without peers

    try:
        check_name((name or "-").encode())
    except ValueError as error:  # BadName is one
        raise BadConfig(f"--peer-name: {error}") from None
    return partial(LendingBroker, peers, name=name or "", state_ms=state_ms, hops_max=hops)


def observe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --http, --events and its limits; the function gets `http`, `events` and `event_log`."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        return function(*args, event_log=build(EventLogOptions, kwargs), **kwargs)

    events_option = click.option("--events", metavar="DIR", help="Directory for the event log of all requests (specs/events.md).")
    return options(http_option, events_option, field_options(EventLogOptions))(command)


@click.command(cls=Command)
@click.option("--bind", "binds", type=BIND, multiple=True, default=[DEFAULT_BROKER], help="May be repeated.")
@click.option("--rules", type=click.Path(dir_okay=False), help="TOML file with access rules for services; SIGHUP reads it again.")
@click.option("--policies", type=click.Path(dir_okay=False), help="TOML file with rates and retries of services; SIGHUP reads it again.")
@field_options(BrokerOptions, zero=("start_hold_ms", "hold_replies_ms"))
@shard_options
@observe_options
@pair_options
@lending_options
@security_options(listens=True, connects=True, required=False)
@daemon_options
def broker(
    binds: tuple[str, ...], rules: str | None, policies: str | None, shards: Shards, settings: DaemonSettings, **values: Any
) -> None:
    """Serve clients and workers of MDP/0.1, 0.2 and 0.3."""
    new_pair = pair_of(values)
    new_broker = broker_of(values, paired=new_pair is not None)
    limits = build(BrokerOptions, values)
    chosen = BrokerDaemonOptions(
        binds, limits, rules_file=rules, policies_file=policies, new_pair=new_pair, new_broker=new_broker, **values
    )
    if shards.count > 1:
        run_sharded(shards, chosen, settings)
        return
    with pair_errors():
        run_daemon(partial(serve_broker, chosen), settings)
