"""Options of `mdp broker` for observation: the HTTP page and the event log."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from core.daemon.exit_codes import DiskFailed
from core.daemon.http import http_option, serve_page
from core.daemon.option_fields import build, field_options, options
from mdp.eventlog.files import EventLogOptions, EventLogWriter
from mdp.observe.broker_metrics import BrokerMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mdp.broker.broker import Broker

__all__ = ["Observation", "observe_options"]


class Observation:
    """HTTP page and event log of a broker."""

    def __init__(self, http: tuple[str, int] | None, directory: str | None, options: EventLogOptions) -> None:
        self.http = http  # host and port of the HTTP page; None: no page
        self.directory = directory  # of the event log; None: no log
        self.options = options

    @asynccontextmanager
    async def observe(self, broker: Broker, more: Callable[[], Mapping[str, float | str | None]] = dict) -> AsyncIterator[None]:
        """Observe a broker that is not yet bound until the block ends; `more` are further figures for the page.

        Raises DiskFailed if the directory cannot be written, ExitError if the page cannot be served.
        """
        if self.http is None and self.directory is None:
            yield
            return
        async with AsyncExitStack() as stack:
            log = None if self.directory is None else stack.enter_context(self._open(self.directory))
            recorder = broker.watch(None if log is None else log.append)
            metrics = BrokerMetrics(broker, recorder, time.monotonic, log, more)
            await stack.enter_async_context(serve_page(self.http, metrics.page("mdp broker")))
            yield

    def _open(self, directory: str) -> EventLogWriter:
        try:
            return EventLogWriter(directory, self.options)
        except OSError as error:
            raise DiskFailed(f"{error.filename or directory}: {error.strerror or error}") from None


def observe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --http, --events and its limits; the function gets `observation`."""

    @wraps(function)
    def command(*args: Any, http: tuple[str, int] | None, events: str | None, **kwargs: Any) -> Any:
        return function(*args, observation=Observation(http, events, build(EventLogOptions, kwargs)), **kwargs)

    events_option = click.option("--events", metavar="DIR", help="Directory for the event log of all requests (specs/events.md).")
    return options(http_option, events_option, field_options(EventLogOptions))(command)
