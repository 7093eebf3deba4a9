"""`mdp` command: broker, workers and clients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

import core
from bstar.pair_options import pair_errors, pair_of, pair_options
from core.daemon.command import BIND, Group, Lazy
from core.daemon.exit_codes import RequestFailed
from core.daemon.http import http_option
from core.daemon.option_fields import FiniteRange, build, field_options, given
from core.daemon.run import DaemonSettings, daemon_options, run_daemon, settle_memory
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_frame, read_frames, write_frames, write_json, write_reply
from core.errors import LocalProtocolError
from core.processes.daemon import processes_options, run_processes
from mdp.app.app import App
from mdp.app.find import find_app
from mdp.broker.limits import BrokerOptions
from mdp.commands.bench import Load, measure, measure_open, report
from mdp.commands.broker_daemon import BrokerDaemonOptions, serve_broker
from mdp.commands.broker_options import broker_of, lending_options, observe_options
from mdp.commands.client_options import BROKER, DEFAULT_BROKER, HEADERS, ask, client_options, header_map, output_options
from mdp.commands.events import events, trace
from mdp.commands.operator import check, dlq, services, workers
from mdp.commands.settings.completion import service_names
from mdp.commands.settings.config import config
from mdp.commands.settings.contexts import context_names, ctx, layer_of
from mdp.commands.shards import run_sharded, shard_options
from mdp.commands.top import top
from mdp.commands.typed import argument_options, call_typed, describe, stub, typed_call_of
from mdp.commands.worker_daemon import WorkerDaemonOptions, serve_workers
from mdp.wire.options import DEADLINE_MS_MAX, KEY_BYTES_MAX
from mdp.wire.policies import PRIORITIES
from mdp.worker.builtin_handlers import BUILT_IN, HandlerNotFound, find_handler
from mdp.worker.handler import services_of
from mdp.worker.worker import LOG_PAYLOADS, Worker, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from core.daemon.http import NamedAddress
    from core.processes.daemon import Processes
    from core.security.credentials import Secured
    from mdp.client.calls import CallOptions, Priority
    from mdp.client.client import Client
    from mdp.commands.shards import Shards

__all__ = ["main"]

# Fields of `WorkerOptions` that the daemon's own options set, and those that only a program can set.
NOT_ON_THE_COMMAND_LINE: Final = ("drain_s", "error_reply", "metadata", "rate", "retry", "seed", "version")


# A command line for the help of each command.
EXAMPLES: Final = {
    "call": "mdp call --wait echo hello world",
    "broker": "mdp broker --bind tcp://*:5555 --http 127.0.0.1:9390",
    "worker": "mdp worker --app shop --concurrency 4",
    "services": "mdp services --broker tcp://10.0.0.1:5555",
    "workers": "mdp workers echo",
    "check": "mdp check --service echo",
    "describe": "mdp describe total",
    "stub": "mdp stub total",
    "dlq": "mdp dlq ls",
    "top": "mdp top --every 1",
    "events show": "mdp events show /var/log/majordomo --service echo",
    "events tail": "mdp events tail /var/log/majordomo",
    "trace": "mdp trace 00000000000000a1 /var/log/majordomo",
    "mmi": "mdp mmi service echo",
    "bench": "mdp bench --service echo --window 100",
    "ctx add": "mdp ctx add production --broker tcp://10.0.0.1:5555 --timeout 1",
    "ctx ls": "mdp ctx ls",
    "ctx use": "mdp ctx use production",
    "ctx rm": "mdp ctx rm production",
    "config check": "mdp config check /etc/majordomo/broker.toml",
    "dispatch": "mdp dispatch --service total --input orders.csv --output answers.csv",
    "demo": "mdp demo",
    "report": "mdp report /var/log/majordomo --html report.html",
}


@click.group(
    cls=Group,
    name="mdp",
    layer=layer_of,
    examples=EXAMPLES,
    lazy={
        "dispatch": Lazy("mdp.spark.commands", "dispatch", "Send the rows of a file to workers, as a Spark job.", "spark"),
        "report": Lazy("mdp.spark.commands", "report", "Write a page about a broker's event log.", "spark"),
        "demo": Lazy("mdp.spark.commands", "demo", "Run a Spark job on real data through a broker and workers.", "spark"),
    },
)
@click.option("--context", metavar="NAME", shell_complete=context_names, help="Context of this command; see mdp ctx.")
def main(context: str | None) -> None:
    """Majordomo: requests to named services, answered by any free worker."""


for verb in (services, workers, check, describe, stub, dlq, top, events, trace, ctx, config):
    main.add_command(verb)


# ------------------------------------------------------------------------------------------------------------------- daemons


@main.command()
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


@main.command()
@BROKER
@click.option("--service", help="Name of the service; with --app it is the handler's own.")
@click.option("--handler", metavar="NAME", help=f"{', '.join(BUILT_IN)}, or package.module:function.")
@click.option("--app", metavar="MODULE[:APP]", help="Serve an mdp.App, or every handler of a module that is decorated with mdp.service.")
@field_options(
    WorkerOptions,
    skip=NOT_ON_THE_COMMAND_LINE,
    zero=("blocked_s",),
    choices={"dialect": ["auto", "0.1", "0.2", "0.3"], "log_payloads": [*LOG_PAYLOADS]},
)
@security_options(connects=True)
@http_option
@processes_options
@daemon_options
def worker(
    brokers: tuple[str, ...],
    service: str | None,
    handler: str | None,
    app: str | None,
    security: Secured | None,
    http: NamedAddress | None,
    processes: Processes,
    settings: DaemonSettings,
    **_: Any,
) -> None:
    """Answer requests to a service."""
    if processes.are_wanted:
        run_processes(processes, settings, "worker process", partial(_page_of_process, http))
        return
    # Options of a decorated handler apply unless given here.
    try:
        program = None if app is None else find_app(app)
        context = core.Context(security=security)  # one for all workers of the program
        chosen = given(settings.context, WorkerOptions) | {"drain_s": settings.drain_s, "context": context}
        serving = _workers(brokers, service, handler, program, chosen, app or "")
    except (HandlerNotFound, LocalProtocolError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None

    resources = program.resources if isinstance(program, App) else None
    run_daemon(partial(serve_workers, WorkerDaemonOptions(brokers, serving, context, resources, http)), settings)


def _page_of_process(http: NamedAddress | None, number: int) -> list[str]:
    """Return the option of a process for its own page: the ports follow each other."""
    return [] if http is None or not http.port else ["--http", str(http._replace(port=http.port + number))]


def _workers(
    brokers: Sequence[str], service: str | None, handler: str | None, app: App | ModuleType | None, options: dict[str, Any], name: str
) -> list[Worker]:
    if app is not None:
        if service is not None or handler is not None:
            raise click.UsageError("--app brings services and handlers; leave --service and --handler out")
        if isinstance(app, App):
            return app.workers(brokers, **options)
        handlers = services_of(app)
        if not handlers:
            raise HandlerNotFound(name, "decorates nothing with mdp.service")
        return [Worker(brokers, found, **options) for found in handlers]
    if service is None:
        raise click.UsageError("which service? give --service NAME or --app MODULE")
    if handler is None:
        if service not in BUILT_IN:
            raise click.UsageError(f"which handler? give --handler; only {', '.join(BUILT_IN)} are built in")
        handler = service
    return [Worker(brokers, service, handler=find_handler(handler), **options)]


# ------------------------------------------------------------------------------------------------------------------- clients


def _checked_key(context: click.Context, parameter: click.Parameter, key: str | None) -> str | None:
    if key is not None and not 0 < len(key.encode()) <= KEY_BYTES_MAX:
        raise click.BadParameter(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
    return key


@main.command()
@client_options
@click.option(
    "--deadline",
    type=FiniteRange(min=0, min_open=True, max=DEADLINE_MS_MAX / 1000),
    help="Seconds for the whole request; the worker knows it too.",
)
@click.option("--key", callback=_checked_key, help="Idempotency key: requests with the same key are one request.")
@click.option("--once", is_flag=True, help="At most once: never sent or given to a worker again.")
@click.option("--wait", is_flag=True, help="Wait for a service that has no worker yet.")
@click.option("--priority", type=click.Choice([*PRIORITIES]), help="Which of the waiting requests are given to workers first.")
@click.option("--progress", is_flag=True, help="Print what the handler says of its progress, on stderr.")
@HEADERS
@argument_options
@output_options
@click.argument("service", shell_complete=service_names)
@click.argument("body", nargs=-1)
def call(
    service: str,
    body: tuple[str, ...],
    as_json: bool,
    deadline: float | None,
    key: str | None,
    once: bool,
    wait: bool,
    priority: Priority | None,
    progress: bool,
    headers: tuple[str, ...],
    positional: list[Any] | None,
    named: dict[str, Any] | None,
    **asking: Any,
) -> None:
    """Send a request of BODY frames to SERVICE and print the reply, one frame a line; '-' is standard input."""
    options: CallOptions = {"deadline": deadline, "key": key, "once": once, "wait": wait, "priority": priority}
    options["headers"] = header_map(headers)
    if progress:
        options["progress"] = lambda report: click.echo(str(report), err=True)
    arguments = typed_call_of(positional, named)
    if arguments is not None:
        if body:
            raise click.UsageError("arguments of a function, or BODY? --args and --kwargs do not go with BODY")
        ask(lambda client: call_typed(client, service, arguments, as_json, **options), **asking)
        return
    frames = read_frames(body)
    reply = ask(lambda client: client.request(service, *frames, **options), **asking)
    write_reply(reply, as_json, service=service)


@main.command()
@client_options
@output_options
@click.argument("name")
@click.argument("body", nargs=-1)
def mmi(name: str, body: tuple[str, ...], as_json: bool, **asking: Any) -> None:
    """Ask the broker about itself and print the code: `mdp mmi service echo` is 200 or 404."""
    frames, service = read_frames(body), name if name.startswith("mmi.") else f"mmi.{name}"
    reply = ask(lambda client: client.request(service, *frames), **asking)
    if as_json:
        write_json({"code": json_frame(reply[0]), "data": [json_frame(frame) for frame in reply[1:]]})
    else:
        write_frames(reply)


@main.command()
@client_options
@click.option("--service", default="echo", shell_complete=service_names, help="Service to ask; any reply counts.")
@click.option("--requests", type=click.IntRange(min=1), default=100_000, help="Requests to measure.")
@click.option("--window", type=click.IntRange(min=1), default=1000, help="Requests in flight; with --rate at most.")
@click.option("--rate", type=FiniteRange(min=0), default=0.0, help="Requests/s at random times, answered or not; 0 for --window.")
@click.option("--size", type=click.IntRange(min=0, max=16 * 2**20), default=16, help="Bytes of each body.")
@output_options
def bench(as_json: bool, service: str, requests: int, window: int, rate: float, size: int, **asking: Any) -> None:
    """Measure rate, latency and loss of requests to a service."""
    load = Load(service, requests, window, size, rate)

    async def talk(client: Client) -> dict[str, Any]:
        code = await client.mmi("service", service)
        if code != "200":
            raise RequestFailed(f"{service}: nothing to measure, the broker answers {code}")
        settle_memory()
        figures = await (measure_open if rate else measure)(client, load)
        if not as_json:
            click.echo(report(load, figures))
        return figures.as_dict(load)

    figures = ask(talk, window=window, **asking)
    if as_json:
        write_json(figures)
    if figures["lost"]:
        raise RequestFailed(f"{service}: {figures['lost']} of {requests} requests were lost: {figures['errors']}")
