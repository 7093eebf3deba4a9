"""Command `bstar`: servers, witness and clients of a Binary Star pair."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bstar import operator
from bstar.ballot_cli import ballot
from bstar.client import Client
from bstar.errors import HandlerError, MalformedMessage, NoServer, NotActive
from bstar.machine.fsm import State
from bstar.machine.wire import RequestKind
from bstar.pair import Pair
from bstar.pair_options import HEARTBEAT, KEY_HELP, key_from, pair_errors
from bstar.witness import Witness
from core.daemon.command import BIND, CONNECT, SECONDS, Group
from core.daemon.exit_codes import RequestFailed, Unreachable, exits
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.option_fields import FiniteRange, arguments, field_options, options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_frame, json_option, read_frames, write_frames, write_json, write_line
from core.rpc.control_socket import NoAnswer
from core.rpc.handlers import handler_option
from core.runtime.event_loop import run as run_loop
from core.runtime.event_loop import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from bstar.net.voter import Request
    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured


@dataclass(frozen=True)
class ServerDaemonOptions:
    """Options of `bstar run`.

    Attributes:
        primary: which of the two this is.  [required]
        local: endpoint to publish the state on.
        remote: endpoint on which the peer publishes its state.
        frontend: endpoint for clients.
        witness: endpoint of the witness; without one the pair is fenced.
        heartbeat_ms: the same on both servers and the witness.
        store: ballot file, kept over restarts; one for each server.
        pair_key: key of the pair, None without one.
        control: endpoint for status and switchover; for operators only.
        compatible: be compatible with a stock member, fatal states included.
        lone_backup: a backup that never heard its primary may serve.
        handler: answers requests; None echoes them.
        security: which peers may connect, and who we are.
        http: address of the page, None for none.
    """

    primary: bool
    local: str
    remote: str
    frontend: str
    witness: str | None = None
    heartbeat_ms: int = 1000
    store: str | None = None
    pair_key: bytes | None = None
    control: str | None = None
    compatible: bool = False
    lone_backup: bool = False
    handler: Callable[[Request], Any] | None = None
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_server(options: ServerDaemonOptions, lifetime: Lifetime) -> None:
    """Run one server of a pair until asked to stop, then finish open requests; raises errors of `bstar` and core.ZMQError."""
    role = State.PRIMARY if options.primary else State.BACKUP
    pair = Pair(role, **arguments(options, without=("primary", "frontend", "handler", "http")))
    page = figures_page("bstar run", "bstar", pair.status, not_ready=lambda: pair.trouble)
    async with pair, serve_page(options.http, page):
        endpoint = pair.voter(options.frontend, handler=options.handler or _echo)
        lifetime.ready("server runs", role=role.name.lower(), frontend=endpoint, local=pair.endpoint, guard=pair.guard)
        await lifetime.until_stopped_or(pair.serve_forever())
        await pair.drain(lifetime.drain_s)


def _echo(request: Request) -> list[bytes]:
    return request.body


@dataclass(frozen=True)
class WitnessDaemonOptions:
    """Options of `bstar witness`, for one pair or several.

    Attributes:
        binds: endpoint for the two servers of a pair; one for each pair.
        heartbeat_ms: that of the pair, the longest of several.
        stores: file that keeps the highest ballot over a restart; one for each --bind, in order.
        pair_keys: keys of the pairs, one for each endpoint; or none.
        security: which servers may connect.
        http: address of the page, None for none.
    """

    binds: Sequence[str]
    heartbeat_ms: int = 1000
    stores: Sequence[str] = ()
    pair_keys: Sequence[bytes | None] = ()
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_witness(options: WitnessDaemonOptions, lifetime: Lifetime) -> None:
    """Run the witnesses of pairs until asked to stop; raises bstar.StoreLocked, bstar.StoreDamaged or core.ZMQError."""
    async with AsyncExitStack() as stack:
        ones = [
            Witness(endpoint, heartbeat_ms=options.heartbeat_ms, store=store, pair_key=key, security=options.security)
            for endpoint, store, key in zip_longest(options.binds, options.stores, options.pair_keys)
        ]
        for one in ones:
            await stack.enter_async_context(one)
        page = figures_page(
            "bstar witness",
            "bstar_witness",
            lambda: sum((one.counters for one in ones), Counter()),
            not_ready=lambda: "; ".join(filter(None, (one.trouble for one in ones))),
        )
        await stack.enter_async_context(serve_page(options.http, page))
        lifetime.ready("witness runs", endpoint=", ".join(one.endpoint for one in ones), pair_key=bool(options.pair_keys))
        await lifetime.until_stopped_or(until_one_ends(*(one.serve_forever() for one in ones)))


T = TypeVar("T")


# A command line for the help of each command.
EXAMPLES: Final = {
    "run": "bstar run --primary --local tcp://10.0.0.1:5003 --remote tcp://10.0.0.2:5003 --frontend tcp://*:5001",
    "call": "bstar call --primary tcp://10.0.0.1:5001 --backup tcp://10.0.0.2:5001 hello",
    "status": "bstar status --control tcp://10.0.0.1:5010",
    "switchover": "bstar switchover --control tcp://10.0.0.1:5010",
    "witness": "bstar witness --bind tcp://*:5020",
    "ballot show": "bstar ballot show /var/lib/bstar/ballot",
    "ballot reset": "bstar ballot reset /var/lib/bstar/ballot",
}


@click.group(cls=Group, name="bstar", examples=EXAMPLES)
def main() -> None:
    """Binary Star: two servers, one of which serves."""


main.add_command(ballot)

# ------------------------------------------------------------------------------------------------------------------- daemons


@main.command()
@field_options(
    ServerDaemonOptions,
    skip=("pair_key", "handler", "security", "http"),
    primary={"flag": "--primary/--backup", "default": None, "required": False},
    local={"type": BIND},
    remote={"type": CONNECT},
    frontend={"type": BIND},
    witness={"type": CONNECT},
    heartbeat_ms={"type": HEARTBEAT},
    store={"metavar": "FILE"},
    control={"type": BIND},
    compatible={"flag": "--compatible"},
    lone_backup={"flag": "--lone-backup"},
)
@click.option("--pair-key-file", type=click.Path(dir_okay=False), help=KEY_HELP)
@handler_option("Answers requests.")
@security_options(listens=True, connects=True)
@http_option
@daemon_options
def run(primary: bool | None, pair_key_file: str | None, settings: DaemonSettings, **given: Any) -> None:
    """Run one server of a pair."""
    if primary is None:
        raise click.UsageError("which of the two is this? give --primary or --backup")
    if given["compatible"] and (given["witness"] or given["store"] or pair_key_file):
        raise click.UsageError("--compatible has no ballots: leave --witness, --store and --pair-key-file out")
    chosen = ServerDaemonOptions(primary, pair_key=key_from(pair_key_file), **given)
    with pair_errors():
        run_daemon(partial(serve_server, chosen), settings)


@main.command()
@field_options(
    WitnessDaemonOptions,
    skip=("pair_keys", "security", "http"),
    binds={"flag": "--bind", "type": BIND},
    heartbeat_ms={"type": HEARTBEAT},
    stores={"flag": "--store", "metavar": "FILE"},
)
@click.option(
    "--pair-key-file",
    "key_files",
    type=click.Path(dir_okay=False),
    multiple=True,
    help="File with the pair's key, as both servers have it; one for each --bind, in order.",
)
@security_options(listens=True)
@http_option
@daemon_options
def witness(binds: tuple[str, ...], stores: tuple[str, ...], key_files: tuple[str, ...], settings: DaemonSettings, **given: Any) -> None:
    """Run the witness of one or more pairs: a third process that makes two masters impossible."""
    if stores and len(stores) != len(binds):
        raise click.UsageError(f"{len(binds)} --bind and {len(stores)} --store: each pair needs a file of its own, or none has one")
    if key_files and len(key_files) != len(binds):
        raise click.UsageError(f"{len(binds)} --bind and {len(key_files)} --pair-key-file: each pair has a key of its own, or none has one")
    keys = [key_from(path) for path in key_files]

    chosen = WitnessDaemonOptions(binds, stores=stores, pair_keys=keys, **given)
    with pair_errors():
        run_daemon(partial(serve_witness, chosen), settings)


# ----------------------------------------------------------------------------------------------------------------- operators

_client_options = options(json_option(), security_options(connects=True), loop_option, log_options("warning"))


def _ask(talk: Coroutine[Any, Any, T], where: str, uvloop: bool | None) -> T:
    try:
        return run_loop(talk, uvloop=uvloop)
    except NotActive as error:
        raise RequestFailed(str(error)) from None
    except MalformedMessage as error:
        raise Unreachable(f"{where} is none of ours: {error}") from None
    except NoAnswer as error:
        raise Unreachable(str(error)) from None


def _print(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(status)
        return
    for name, value in status.items():
        if isinstance(value, dict):
            value = " ".join(f"{key}={_word(item)}" for key, item in value.items())
        elif isinstance(value, list):
            value = ", ".join(" ".join(_word(item) for item in entry.values() if item != "") for entry in value)
        write_line(f"{name}: {_word(value)}".rstrip())


def _word(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


@main.command()
@click.option("--peer", "peers", type=CONNECT, multiple=True, help="Endpoint on which a server, or a stock member, publishes its state.")
@click.option("--control", "controls", type=CONNECT, multiple=True, help="Control endpoint of a server, for a detailed status.")
@click.option("--witness", "witnesses", type=CONNECT, multiple=True, help="Endpoint of the witness.")
@click.option("--timeout", type=SECONDS, default=5.0, help="Seconds to wait.")
@_client_options
def status(
    peers: tuple[str, ...],
    controls: tuple[str, ...],
    witnesses: tuple[str, ...],
    timeout: float,
    as_json: bool,
    security: Secured | None,
    uvloop: bool | None,
) -> None:
    """Show the status of servers or the witness; each option may be repeated."""
    asked: dict[str, Coroutine[Any, Any, dict[str, Any]]] = {where: operator.look_in_words(where, timeout, security) for where in peers}
    asked |= {where: operator.order(where, RequestKind.STATUS, timeout, security) for where in controls}
    asked |= {where: operator.look_at_witness(where, timeout, security) for where in witnesses}
    if not asked:
        raise click.UsageError("give one of --peer, --control and --witness")
    if len(asked) == 1:
        ((where, talk),) = asked.items()
        _print(_ask(talk, where, uvloop), as_json)
        return
    found = run_loop(operator.ask_all(asked), uvloop=uvloop)
    if as_json:
        write_json(found)
    else:
        for number, (where, words) in enumerate(found.items()):
            click.echo(f"{chr(10) if number else ''}[{where}]")
            _print(words, as_json)
    silent = [where for where, words in found.items() if "error" in words]
    if silent:
        raise Unreachable(f"no answer from {', '.join(silent)}")


@main.command()
@click.option("--control", type=CONNECT, required=True, help="Control endpoint of the active server.")
@click.option("--timeout", type=SECONDS, default=30.0, help="Seconds to wait.")
@_client_options
def switchover(control: str, timeout: float, as_json: bool, security: Secured | None, uvloop: bool | None) -> None:
    """Hand the active role to the other server; no request is lost."""
    _print(_ask(operator.order(control, RequestKind.SWITCHOVER, timeout, security), control, uvloop), as_json)


@main.command()
@click.option("--primary", type=CONNECT, required=True, help="Endpoint of the primary for clients.")
@click.option("--backup", type=CONNECT, required=True, help="Endpoint of the backup for clients.")
@click.option("--timeout", type=SECONDS, default=1.0, help="Seconds for one server.")
@click.option("--settle", type=FiniteRange(min=0), default=2.0, help="Seconds before a silent one is asked again.")
@click.option("--patience", type=SECONDS, default=30.0, help="Seconds for the whole.")
@click.option("--stock", is_flag=True, help="The servers are stock members.")
@_client_options
@click.argument("body", nargs=-1, required=True)
def call(primary: str, backup: str, as_json: bool, body: tuple[str, ...], uvloop: bool | None, **given: Any) -> None:
    """Send a request to the active server and print the reply, one frame a line. '-' is standard input."""
    frames = read_frames(body)

    async def talk() -> dict[str, Any]:
        async with Client(primary, backup, **given) as client:
            reply = await client.request(*frames)
            return {"frames": reply, "server": client.server, "ballot": str(client.ballot)}

    with exits({NoServer: Unreachable, HandlerError: RequestFailed}):
        outcome = run_loop(talk(), uvloop=uvloop)
    if as_json:
        write_json({**outcome, "frames": [json_frame(frame) for frame in outcome["frames"]]})
    else:
        write_frames(outcome["frames"])
