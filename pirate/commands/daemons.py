"""The bodies of `pirate queue` and `pirate worker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.rpc.handlers import echo
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
    running = Queue(
        options.frontend,
        options.backend,
        simple=options.simple,
        heartbeat_ms=options.heartbeat_ms,
        liveness=options.liveness,
        ttl=options.ttl,
        waiting_max=options.waiting_max,
        guide_compatible=options.guide_compatible,
        security=options.security,
    )
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
    running = Worker(
        options.endpoints,
        options.handler,
        simple=options.simple,
        heartbeat_ms=options.heartbeat_ms,
        liveness=options.liveness,
        heartbeat_busy=options.heartbeat_busy,
        reconnect_ms=options.reconnect_ms,
        reconnect_max_ms=options.reconnect_max_ms,
        security=options.security,
    )
    async with running:
        lifetime.ready("worker runs", queues=",".join(options.endpoints), kind=_kind(options.simple))
        await lifetime.until_stopped_or(running.serve_forever())
        await running.drain(lifetime.drain_s)


def _kind(simple: bool) -> str:
    return "simple" if simple else "paranoid"
