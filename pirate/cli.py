"""`pirate` command: queue, workers and clients of the pirate patterns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import BIND, CONNECT, SECONDS, Group
from core.daemon.exit_codes import RequestFailed, Unreachable, exits
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.option_fields import FiniteRange, WholeRange, arguments, field_options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, read_frames, write_reply
from core.rpc.handlers import echo, handler_option
from core.runtime import runtime
from core.runtime.event_loop import run as run_loop
from pirate.client import Client
from pirate.errors import NoReply, SimulatedCrash
from pirate.fault_injection import Mishaps
from pirate.ppp import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from pirate.queue_server import Queue
from pirate.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured


@dataclass(frozen=True)
class QueueDaemonOptions:
    """Options of `pirate queue`.

    Attributes:
        frontend: endpoint for clients.
        backend: endpoint for workers.
        simple: workers are REQ sockets without heartbeats, or speak PPP.
        heartbeat_ms: interval of heartbeats, both ways.
        liveness: silent intervals until a worker is given up.
        ttl: seconds a request waits for a worker; 0: for ever.  [default: 7.5; 0 if `simple`]
        waiting_max: maximum waiting requests.
        guide_compatible: a heartbeat of an unknown worker registers it.
        security: which peers may connect.
        http: address of the page, None for none.
    """

    frontend: str = "tcp://*:5555"
    backend: str = "tcp://*:5556"
    simple: bool = False
    heartbeat_ms: float = 1000
    liveness: int = 3
    ttl: float | None = None
    waiting_max: int = 1000
    guide_compatible: bool = False
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_queue(options: QueueDaemonOptions, lifetime: Lifetime) -> None:
    """Give requests to workers until the process is asked to stop, then finish open ones; raises core.ZMQError or Unreachable."""
    running = Queue(**arguments(options, without=("http",)))
    page = figures_page("pirate queue", "pirate_queue", lambda: {"idle": running.idle, **running.counters})
    async with running, serve_page(options.http, page):
        lifetime.ready("queue runs", frontend=running.frontend, backend=running.backend, kind=_kind(options.simple))
        await lifetime.until_stopped_or(running.serve_forever())
        await running.drain(lifetime.drain_s)


@dataclass(frozen=True)
class WorkerDaemonOptions:
    """Options of `pirate worker`.

    Attributes:
        endpoints: backend; repeatable.
        handler: function from the body's frames to the reply's.
        simple: workers are REQ sockets without heartbeats, or speak PPP.
        heartbeat_ms: interval of heartbeats, the same as the queue's.
        liveness: silent intervals until the queue is given up.
        heartbeat_busy: heartbeat while working too; not for the guide's queue.
        reconnect_ms: first pause before reconnecting; it doubles.
        reconnect_max_ms: the longest pause.
        security: what it presents to the queues.
    """

    endpoints: Sequence[str] = ("tcp://127.0.0.1:5556",)
    handler: Callable[[list[bytes]], Any] = echo
    simple: bool = False
    heartbeat_ms: float = 1000
    liveness: int = 3
    heartbeat_busy: bool = False
    reconnect_ms: float = 1000
    reconnect_max_ms: float = 32_000
    security: Secured | None = None


async def serve_worker(options: WorkerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer requests of a queue until the process is asked to stop, then finish the open one."""
    running = Worker(**arguments(options))
    async with running:
        lifetime.ready("worker runs", queues=",".join(options.endpoints), kind=_kind(options.simple))
        await lifetime.until_stopped_or(running.serve_forever())
        await running.drain(lifetime.drain_s)


def _kind(simple: bool) -> str:
    return "simple" if simple else "paranoid"


HEARTBEAT: Final = FiniteRange(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
KIND: Final = {"flag": "--simple/--paranoid", "show_default": "paranoid"}


# A command line for the help of each command.
EXAMPLES: Final = {
    "client": "pirate client hello",
    "queue": "pirate queue",
    "worker": "pirate worker --queue tcp://127.0.0.1:5556",
}


@click.group(cls=Group, name="pirate", examples=EXAMPLES)
def main() -> None:
    """Pirates: clients that retry, a queue, and workers that reconnect."""


@main.command()
@field_options(
    QueueDaemonOptions,
    skip=("security", "http"),
    frontend={"type": BIND},
    backend={"type": BIND},
    simple=KIND,
    heartbeat_ms={"type": HEARTBEAT},
    ttl={"type": FiniteRange(min=0)},
    guide_compatible={"flag": "--guide-compatible"},
)
@security_options(listens=True)
@http_option
@daemon_options
def queue(settings: DaemonSettings, **options: Any) -> None:
    """Give clients' requests to workers, the longest idle one first."""
    run_daemon(partial(serve_queue, QueueDaemonOptions(**options)), settings)


@main.command()
@field_options(
    WorkerDaemonOptions,
    skip=("handler", "security"),
    endpoints={"flag": "--queue", "type": CONNECT},
    simple=KIND,
    heartbeat_ms={"type": HEARTBEAT},
    heartbeat_busy={"flag": "--heartbeat-busy"},
)
@handler_option("Function from the body's frames to the reply's.")
@click.option("--simulate-failures", is_flag=True, help="Crash or stall at random. Never for real work.")
@click.option("--seed", type=int, help="Seed of the simulated failures.  [default: random]")
@security_options(connects=True)
@daemon_options
def worker(
    handler: Callable[[list[bytes]], Any] | None,
    simulate_failures: bool,
    seed: int | None,
    settings: DaemonSettings,
    **options: Any,
) -> None:
    """Answer requests of a queue, one at a time."""
    answer = handler or echo
    if simulate_failures:
        answer = Mishaps(answer, runtime.current().chance(seed))
    if options["reconnect_max_ms"] < options["reconnect_ms"]:
        raise click.UsageError("--reconnect-max-ms is less than --reconnect-ms")

    chosen = WorkerDaemonOptions(handler=answer, **options)
    with exits({SimulatedCrash: RequestFailed}):
        run_daemon(partial(serve_worker, chosen), settings)


@main.command()
@click.option("--to", "endpoints", type=CONNECT, multiple=True, default=["tcp://127.0.0.1:5555"], help="Queue or server.")
@click.option("--timeout", type=SECONDS, default=2.5, help="Seconds for each attempt, and for the answer once the server is connected.")
@click.option("--attempts", type=WholeRange(min=1), default=3, help="In total.")
@click.option("--relaxed", is_flag=True, help="Keep the socket and number the requests; for REP and queues.")
@click.option("--policy", type=click.Choice(["ordered", "round-robin"]), default="ordered", help="Of several.")
@click.option("--requests", type=WholeRange(min=0), help="Instead of BODY: send numbers from 1 to this and check echoes; 0: no end.")
@json_option("Print one JSON object for each reply.")
@click.argument("body", nargs=-1)
@security_options(connects=True)
@loop_option
@log_options("error")
def client(
    endpoints: tuple[str, ...], requests: int | None, as_json: bool, body: tuple[str, ...], uvloop: bool | None, **options: Any
) -> None:
    """Send a request, retry if needed, and print the reply, one frame a line. '-' is standard input."""
    if (requests is None) == (not body):
        raise click.UsageError("what to send? give BODY or --requests")
    frames = read_frames(body)

    async def talk() -> None:
        async with Client(endpoints, check=eq if requests is not None else None, **options) as one:
            if requests is None:
                write_reply(await one.request(*frames), as_json)
                return
            number = 0
            while number < requests or not requests:
                number += 1
                write_reply(await one.request(b"%d" % number), as_json)

    with exits({NoReply: Unreachable}):
        run_loop(talk(), uvloop=uvloop)
