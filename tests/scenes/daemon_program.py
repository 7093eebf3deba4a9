"""A daemon that does nothing, for the tests of what all daemons do."""

from __future__ import annotations

import asyncio
import logging
import time

import click

import core
from core.daemon.command import BIND, Group, Lazy
from core.daemon.exit_codes import DiskFailed, RequestFailed
from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.daemon.run import Daemon, DaemonSettings, daemon_options, run_daemon
from core.errors import AddressInUse, ZMQError
from tests.scenes.fault_injection import Saboteur
from tests.scenes.hanging_names import hanging

ENDS = ["when-told", "at-once", "never", "blocked", "in-use", "failed", "bind", "page", "no-memory", "no-memory-at-all"]
ENDS += [f"no-memory-for-{what}" for what in ("timer", "receiver", "thread")]


def _eat() -> None:
    raise MemoryError


async def _resolve(what: str) -> None:
    """Listen on a name that is not resolved, and say so in the log when it is being resolved."""
    page = figures_page("a daemon", "thing", dict, not_ready=str, tables=list)
    with hanging(lambda host: logging.getLogger("idle").info("resolving %s", host)):
        if what == "page":
            async with serve_page(("slow.test", 0), page):
                return
        async with core.Context() as context:
            context.socket(core.PULL).bind("tcp://slow.test:*")


async def _run_out(daemon: Daemon, ends: str) -> None:
    """Have no memory in the middle of some change."""
    if ends == "no-memory-for-timer":
        daemon.supervisor.timer("idle timer", _eat).after(0)
    elif ends == "no-memory-for-thread":
        daemon.supervisor.thread("idle thread", _eat)
    async with core.Context() as context:
        puller, pusher = context.socket(core.PULL), context.socket(core.PUSH)
        puller.bind("tcp://127.0.0.1:*")
        pusher.connect(puller.last_endpoint)
        if ends == "no-memory-for-receiver":
            puller.set_receiver(lambda messages: _eat())
        try:
            await pusher.send(b"x")
            await daemon.until_stopped()
        finally:
            logging.getLogger("idle").warning("an orderly end")


@click.group(
    cls=Group,
    name="idle",
    lazy={
        "lazy": Lazy("tests_have_no_such_module", "command", "Needs what is not there.", "spark"),
        "late": Lazy("daemon_program_late", "command", "Imported when used."),
    },
)
def main() -> None:
    """Do nothing, in an orderly way."""


@main.command()
@click.option("--bind", "binds", type=BIND, multiple=True, default=["tcp://127.0.0.1:5555"], show_default=True)
@click.option("--heartbeat-ms", type=click.IntRange(min=1), default=2500)
@click.option("--factor", type=float, default=1.5)
@click.option("--secret", hide_input=True)
@click.option(
    "--ends",
    type=click.Choice(ENDS),
    default="when-told",
)
@click.option("--fault", "faults", multiple=True, help="What is to fail once.")
@daemon_options
def serve(
    binds: tuple[str, ...],
    heartbeat_ms: int,
    factor: float,
    secret: str | None,
    ends: str,
    faults: tuple[str, ...],
    settings: DaemonSettings,
) -> None:
    """Wait for a signal."""

    async def body(daemon: Daemon) -> None:
        daemon.on_change(lambda changed: {"factor"} & set(changed))
        daemon.supervisor._probe = Saboteur(faults)
        if ends == "in-use":
            raise AddressInUse("address in use", endpoint="tcp://x:1")
        if ends == "failed":
            raise ZMQError(22, "something else")
        if ends in ("bind", "page"):
            await _resolve(ends)
        daemon.ready("listening", endpoint=binds, peer="line\nbreak \x1b[31mred")
        if ends == "at-once":
            daemon.stop()
        if ends == "blocked":
            time.sleep(60)
        if ends == "no-memory":
            for _ in range(3):
                asyncio.get_running_loop().call_soon(_eat)
            asyncio.get_running_loop().call_soon(daemon.stop)
        if ends == "no-memory-at-all":
            _eat()
        if ends.startswith("no-memory-for-"):
            await _run_out(daemon, ends)
        await daemon.until_stopped()
        if ends == "never":
            await asyncio.Event().wait()

    run_daemon(body, settings)


@main.command()
@click.argument("how")
def fail(how: str) -> None:
    """Fail as told."""
    if how == "interrupt":
        raise KeyboardInterrupt
    raise {"request": RequestFailed, "disk": DiskFailed}[how]("the peer said \x1b[31mno\nand more")


if __name__ == "__main__":
    main()
