"""`mdp worker`: the command, and its body: workers of one program, their resources and their page."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

import core
from core.daemon.command import Command
from core.daemon.http import http_option, serve_page
from core.daemon.option_fields import field_options, given
from core.daemon.run import daemon_options, run_daemon
from core.daemon.security_flags import security_options
from core.errors import LocalProtocolError
from core.processes.daemon import processes_options, run_processes
from core.rpc.handlers import HandlerNotFound
from mdp.app.app import App, begin
from mdp.commands.client_options import BROKER
from mdp.observe.worker_metrics import worker_page
from mdp.worker.builtin_handlers import BUILT_IN, find_handler, import_app
from mdp.worker.handler import services_of
from mdp.worker.worker import LOG_PAYLOADS, Worker, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import ModuleType

    from core.daemon.http import NamedAddress
    from core.daemon.run import DaemonSettings
    from core.processes.daemon import Processes
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

_USUAL_NAME = "app"


def find_app(name: str) -> App | ModuleType:
    """Return the app of this name, or the module if there is none called `app` in it; raises HandlerNotFound."""
    module_name, colon, path = name.partition(":")
    module = import_app(module_name)
    found = getattr(module, path if colon else _USUAL_NAME, None)
    if isinstance(found, App):
        return found
    if colon:
        raise HandlerNotFound(name, f"{module_name} has no mdp.App called {path}")
    return module


# Fields of `WorkerOptions` that the daemon's own options set, and those that only a program can set.
NOT_ON_THE_COMMAND_LINE: Final = ("drain_s", "error_reply", "metadata", "rate", "retry", "seed", "version")


@dataclass(frozen=True)
class WorkerDaemonOptions:
    """Options of `mdp worker`.

    `resources` makes what the handlers share: entered first and left last. `context` is closed at the end.
    """

    brokers: Sequence[str]
    workers: Sequence[Worker]
    context: core.Context
    resources: Callable[[], AbstractAsyncContextManager[object]] | None = None
    http: NamedAddress | None = None


async def serve_workers(options: WorkerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer requests until the process is asked to stop, then finish open ones; raises Unreachable: the page cannot be served."""
    workers = options.workers
    async with options.context, AsyncExitStack() as stack:
        if options.resources is not None:
            await stack.enter_async_context(options.resources())
        await begin(workers, stack)
        await stack.enter_async_context(serve_page(options.http, worker_page(workers)))
        lifetime.ready("worker serves", services=[one.service for one in workers], brokers=list(options.brokers))
        await lifetime.until_stopped()
        # All at the same time: one by one, each would get its own drain time.
        await asyncio.gather(*(one.drain(lifetime.drain_s) for one in workers))


@click.command(cls=Command)
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
