"""`mdp broker --shards N`: the front starts the shards, which are the same command with a number in their environment."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.http import serve_page
from core.daemon.option_fields import options
from core.daemon.run import run_daemon
from core.processes.children import Child, Children
from core.processes.daemon import extra_drain_s, pass_on_reload, this_command, warn_of_other_values
from core.runtime import supervision
from core.runtime.event_loop import until_one_ends
from mdp.broker.broker import Broker
from mdp.commands.broker_daemon import serve_broker
from mdp.shards.front import Front
from mdp.shards.identity import FRONT, FrontIdentity, ShardBroker
from mdp.shards.metrics_page import PAGE, FrontPage, encode_page
from mdp.shards.silence import SILENT_BEATS, Silence
from mdp.wire.shards import SHARDS_MAX, shard_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from core.daemon.metrics import MetricsPage
    from core.daemon.run import Daemon, DaemonSettings
    from core.security.credentials import Secured
    from mdp.commands.broker_daemon import BrokerDaemonOptions

PAGE_S: Final = 1.0  # interval of a shard's page: as often as a browser redraws it
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shards:
    """Value of --shards, and which of the processes this is."""

    count: int
    identity: FrontIdentity

    @property
    def number(self) -> int | None:
        """Number of this shard; None in the front, and in a broker of one process."""
        return self.identity.shard

    @property
    def is_front(self) -> bool:
        return self.count > 1 and self.number is None


def shard_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --shards; the decorated function gets a `Shards`."""

    @wraps(function)
    def command(*args: Any, shards: int, **kwargs: Any) -> Any:
        wanted = Shards(shards, FrontIdentity.found_in(os.environ))
        if wanted.is_front and sys.platform == "win32":
            raise click.UsageError("--shards needs a POSIX system")
        return function(*args, shards=wanted, **kwargs)

    return options(
        click.option(
            "--shards",
            type=click.IntRange(1, SHARDS_MAX),
            default=1,
            help="Processes that share the services; they listen next to --bind: tcp on the following ports, ipc on PATH.0, PATH.1, …",
        ),
    )(command)


def shard_endpoints(binds: Sequence[str], number: int) -> list[str]:
    """Return the endpoints of a shard; raises click.UsageError if there is none next to an endpoint of the broker."""
    found = []
    for endpoint in binds:
        place = shard_endpoint(endpoint, number)
        if place is None:
            raise click.UsageError(f"--shards: there is no endpoint for shard {number} next to {endpoint}; give a tcp port or an ipc path")
        found.append(place)
    return found


@asynccontextmanager
async def each_interval(call: Callable[[], None]) -> AsyncIterator[None]:
    """Call at the interval of the shards' pages within the block."""

    def due() -> None:
        timer.after(PAGE_S)
        call()

    timer = supervision.current().timer("mdp shard clock", due)
    timer.after(0)
    try:
        yield
    finally:
        timer.cancel()


def push_page(daemon: Daemon, page: MetricsPage | None) -> AbstractAsyncContextManager[None]:
    """Send a shard's page, or a sign of life without one, to the front at intervals within the block."""
    return each_interval(lambda: daemon.tell_parent({} if page is None else {PAGE: encode_page(page)}))


class ShardWatch:
    """Takes what the shards send to the front, and notices those that send nothing."""

    page: FrontPage
    children: Children

    def __init__(self, daemon: Daemon, settings: DaemonSettings) -> None:
        self._daemon = daemon
        self._settings = settings
        self._silence = Silence()

    def not_ready(self) -> str:
        if self._daemon.stopping:
            return "draining"
        missing = [str(child.number) for child in self.children.all if not child.ready or child.number in self._silence.silent]
        return f"shards that do not serve: {', '.join(missing)}" if missing else ""

    def figures(self) -> dict[str, int]:
        shards, silent = self.children.all, len(self._silence.silent)
        starts = sum(max(0, child.starts - 1) for child in shards)
        return {"shards_ready": sum(child.ready for child in shards) - silent, "shards_silent": silent, "shard_restarts": starts}

    def on_message(self, child: Child, message: dict[str, Any]) -> None:
        if self._silence.heard(child.number):
            log.info("a shard is no longer silent", extra={"process_number": child.number, "pid": child.pid})
        if PAGE in message:
            self.page.received(child.number, message[PAGE])

    def on_change(self, child: Child) -> None:
        self._silence.heard(child.number)
        if not child.ready:
            self.page.ended(child.number)
        warn_of_other_values(self._settings, child)

    def beat(self) -> None:
        """Report shards that are silent from now on; call it at each interval."""
        for number in self._silence.beat(child.number for child in self.children.all if child.ready):
            self.page.forget(number)
            text = "a shard is silent, and so are its services; when it is killed, another one is started"
            log.warning(text, extra={"process_number": number, "pid": self.children.all[number].pid, "silent_s": SILENT_BEATS * PAGE_S})


def run_sharded(shards: Shards, options: BrokerDaemonOptions, settings: DaemonSettings) -> None:
    """Run the front of a sharded broker, or one of the shards, until a signal; raises ChildFailed or click.UsageError."""
    if options.new_pair is not None or options.new_broker is not Broker:
        raise click.UsageError("a broker of several shards is not half of a pair, and borrows no workers: leave --bstar and --peer out")
    if shards.number is None:
        _run_front(shards, options, settings)
        return
    identity = shards.identity
    identity.admit(options.security)
    own = replace(
        options,
        endpoints=shard_endpoints(options.endpoints, shards.number),
        new_broker=partial(ShardBroker, identity, shards.count, shards.number),
    )

    async def body(daemon: Daemon) -> None:
        daemon.on_reload(lambda: lambda: _admit_again(identity, options.security))
        if own.http is not None:
            await serve_broker(replace(own, show=partial(push_page, daemon)), daemon)
            return
        async with push_page(daemon, None):
            await serve_broker(own, daemon)

    run_daemon(body, settings)


def _admit_again(identity: FrontIdentity, security: Secured | None) -> Sequence[str]:
    """Let the front in after the users were read again, which replaces them all."""
    identity.admit(security)
    return ()


def _run_front(shards: Shards, options: BrokerDaemonOptions, settings: DaemonSettings) -> None:
    for number in range(shards.count):
        shard_endpoints(options.endpoints, number)
    identity, shard_security = FrontIdentity.made_for(options.security)

    def command(number: int) -> list[str]:
        if options.events is None:
            return this_command()
        from mdp.eventlog.files import shard_log  # late, as in `mdp.commands.broker_daemon`

        return [*this_command(), "--events", str(shard_log(options.events, number))]

    async def body(daemon: Daemon) -> None:
        watch = ShardWatch(daemon, settings)
        front = Front(shards.count, options.limits, security=options.security, shard_security=shard_security, more=watch.figures)
        page = watch.page = FrontPage(shards.count, front.stats, watch.not_ready)
        children = watch.children = Children(
            shards.count,
            command,
            name="shard",
            environment=lambda number: {FRONT: identity.encode(number)},
            on_message=watch.on_message,
            on_change=watch.on_change,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(front)
            for endpoint in options.endpoints:
                front.bind(endpoint)
            await stack.enter_async_context(children)
            await stack.enter_async_context(each_interval(watch.beat))
            await stack.enter_async_context(serve_page(options.http, page.page("mdp broker")))
            daemon.on_reload(pass_on_reload(children))
            daemon.on_second_signal(children.end_at_once)

            async def serve() -> None:
                await children.until_ready()
                daemon.ready("broker serves", endpoints=front.endpoints, shards=shards.count, pids=children.pids)
                await children.until_failed()

            await until_one_ends(daemon.until_stopped(), serve())
            front.refuse_connections()
            await children.drain()  # the front forwards until they have ended

    run_daemon(body, replace(settings, drain_s=settings.drain_s + extra_drain_s))
