"""The body of `mdp broker`: a broker alone, in a pair or with lenders, its page and its event log."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from core.daemon.exit_codes import DiskFailed, file_problem
from core.daemon.http import serve_page
from core.runtime import cold_files, runtime
from mdp.access.rules_file import load_policies, load_rules, reloading
from mdp.broker.broker import Broker
from mdp.broker.limits import BrokerOptions
from mdp.cluster.paired_broker import PairedBroker
from mdp.eventlog.log_options import EventLogOptions
from mdp.observe.broker_metrics import BrokerMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from bstar.pair import Pair
    from core.daemon.http import NamedAddress
    from core.daemon.metrics import MetricsPage
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured
    from mdp.eventlog.files import EventLogWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerDaemonOptions:
    """Options of `mdp broker`.

    Attributes:
        new_pair: makes the broker's half of a Binary Star pair; None without a pair.
        new_broker: makes the broker if it is not in a pair: `Broker`, or one that borrows workers.
        show: shows the page of the broker within a block, in place of HTTP.
    """

    endpoints: Sequence[str]
    limits: BrokerOptions = field(default_factory=BrokerOptions)
    security: Secured | None = None
    rules_file: str | None = None
    policies_file: str | None = None
    new_pair: Callable[..., Pair] | None = None
    new_broker: Callable[..., Broker] = Broker
    http: NamedAddress | None = None
    events: str | None = None
    event_log: EventLogOptions = field(default_factory=EventLogOptions)
    show: Callable[[MetricsPage], AbstractAsyncContextManager[object]] | None = None


async def serve_broker(options: BrokerDaemonOptions, lifetime: Lifetime) -> None:
    """Serve until the process is asked to stop, then finish open requests; raises BadConfig, DiskFailed, Unreachable or core.ZMQError."""
    rules_file, policies_file = options.rules_file, options.policies_file
    policies = None if policies_file is None else await cold_files.off_loop(load_policies, policies_file)
    rules = None if rules_file is None else await cold_files.off_loop(load_rules, rules_file)
    arguments = {"security": options.security, "rules": rules, "policies": policies, **asdict(options.limits)}
    async with AsyncExitStack() as stack:
        pair = None if options.new_pair is None else await stack.enter_async_context(options.new_pair(security=options.security))
        serving = options.new_broker(**arguments) if pair is None else PairedBroker(pair, **arguments)
        # Entered first and left last: requests that the broker ends when it stops are events too.
        await stack.enter_async_context(_observed(serving, options, dict if pair is None else pair.status))
        await stack.enter_async_context(serving)
        for endpoint in options.endpoints:
            serving.bind(endpoint)
        if rules_file is not None:
            lifetime.on_reload(reloading(rules_file, load_rules, serving.set_rules))
        if policies_file is not None:
            lifetime.on_reload(reloading(policies_file, load_policies, serving.set_policies))
        lifetime.ready("broker serves", endpoints=serving.endpoints, **({} if pair is None else {"guard": pair.guard}))
        await lifetime.until_stopped_or(serving.serve_forever() if pair is None else pair.serve_forever())
        if not await serving.drain(lifetime.drain_s):
            open_requests = {name: value for name, value in serving.stats.items() if name in ("queued", "running")}
            log.warning("drain time is over, requests are still open", extra=open_requests)


@asynccontextmanager
async def _observed(
    broker: Broker,  # not bound yet
    options: BrokerDaemonOptions,
    more: Callable[[], Mapping[str, float | str | None]],  # further figures for the page
) -> AsyncIterator[None]:
    """Serve the page of a broker and write its event log within the block, if they are wanted."""
    if options.http is None and options.events is None:
        yield
        return
    async with AsyncExitStack() as stack:
        events = None if options.events is None else stack.enter_context(_event_log(options.events, options.event_log))
        recorder = broker.watch(None if events is None else events.append)
        metrics = BrokerMetrics(broker, recorder, runtime.current().monotonic, events, more)
        show = options.show or partial(serve_page, options.http)
        await stack.enter_async_context(show(metrics.page("mdp broker")))
        yield


def _event_log(directory: str, limits: EventLogOptions) -> EventLogWriter:
    from mdp.eventlog.files import EventLogWriter  # late: few brokers have one

    try:
        return EventLogWriter(directory, limits)
    except OSError as error:
        raise DiskFailed(file_problem(error, error.filename or directory)) from None
