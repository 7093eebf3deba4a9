"""A command that runs as several processes of itself: `--processes N`, `--reload`.

The first process only starts, watches and stops the others, which have the same command line with `--processes 1`.
"""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import reread
from core.daemon.option_fields import options
from core.daemon.run import LAST_WORDS_S, run_daemon
from core.processes.children import CHILDREN_MAX, Children
from core.runtime.event_loop import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.daemon.run import Daemon, DaemonSettings
    from core.processes.children import Child

log = logging.getLogger("core.processes")

# A process ends within its drain time, its last messages and the end of its tasks; after that it is killed.
extra_drain_s: Final = 2 * LAST_WORDS_S + 2.0


@dataclass(frozen=True, slots=True)
class Processes:
    """Values of the options of a command that can run as several processes."""

    count: int
    reload: bool
    folders: tuple[str, ...]  # whose source files are watched

    @property
    def are_wanted(self) -> bool:
        """Whether this process starts others, and does nothing else."""
        return self.count > 1 or self.reload


def processes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --processes, --reload and --reload-dir; the decorated function gets them as `processes`."""

    @functools.wraps(function)
    def command(*args: Any, processes: int, reload: bool, reload_dirs: tuple[str, ...], **kwargs: Any) -> Any:
        wanted = Processes(processes, reload, reload_dirs)
        if wanted.are_wanted and sys.platform == "win32":
            raise click.UsageError("--processes and --reload need a POSIX system")
        return function(*args, processes=wanted, **kwargs)

    return options(
        click.option(
            "--processes",
            type=click.IntRange(1, CHILDREN_MAX),
            default=1,
            help="Processes that do the same work; each is started again when it ends.",
        ),
        click.option("--reload/--no-reload", default=False, help="For development: start anew when a source file changes."),
        click.option(
            "--reload-dir",
            "reload_dirs",
            multiple=True,
            type=click.Path(exists=True, file_okay=False),
            default=["."],
            help="Folder whose source files --reload watches; may be repeated.",
        ),
    )(command)


def this_command() -> list[str]:
    """Return the command line of this process, to run it again; options that are appended replace those in it."""
    return [sys.executable, *sys.orig_argv[1:]]


def run_processes(processes: Processes, settings: DaemonSettings, name: str, more: Callable[[int], Sequence[str]] = lambda _: ()) -> None:
    """Run the processes of a command until a signal, and drain them.

    Args:
        processes: how many, and whether a change of the source starts them anew.
        settings: of the daemon.
        name: of one process, for log and error texts.
        more: returns further options of a process by its number, from 0.

    Raises:
        ChildFailed: a process cannot start.
    """
    command = [*this_command(), "--processes", "1", "--no-reload"]

    async def body(daemon: Daemon) -> None:
        children = Children(
            processes.count,
            lambda number: [*command, *more(number)],
            name=name,
            on_change=None if processes.reload else partial(warn_of_other_values, settings),  # all are started anew together
            is_tolerant=processes.reload,
        )

        def begin_anew(changed: list[str]) -> None:
            log.info("source files changed, processes start anew", extra={"files": changed[:10], "count": len(changed)})
            children.restart_all()

        async def serve() -> None:
            await children.until_ready()
            daemon.ready("processes serve", count=processes.count, pids=children.pids)
            await children.until_failed()

        async with children:
            daemon.on_reload(pass_on_reload(children))
            daemon.on_second_signal(children.end_at_once)
            watching = []
            if processes.reload:
                from core.processes.source_changes import watch_sources  # late: for developers only

                watching = [watch_sources(processes.folders, begin_anew)]
            await until_one_ends(daemon.until_stopped(), serve(), *watching)

    run_daemon(body, replace(settings, drain_s=settings.drain_s + extra_drain_s))


def warn_of_other_values(settings: DaemonSettings, child: Child) -> None:
    """Log that a process was started again with values that the others do not have."""
    if not child.ready or child.starts < 2:
        return
    try:
        changed = reread(settings.context)
    except click.ClickException:  # it has just been changed again
        return
    if changed:
        text = "a process was started again with changed values, which the others do not have; restart all to have one set of values"
        log.warning(text, extra={"process_number": child.number, "pid": child.pid, "changed": ",".join(sorted(changed))})


def pass_on_reload(children: Children) -> Callable[[], Callable[[], Sequence[str]]]:
    """Return a function for `Daemon.on_reload` that lets the processes read their files again; the parent has found them valid."""

    def apply() -> Sequence[str]:
        children.reread()
        return ()

    return lambda: apply
