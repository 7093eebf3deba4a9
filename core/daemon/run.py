"""The life of every daemon: start, report readiness, drain on the first signal, end at once on the second.

    @group.command()
    @click.option("--bind", type=BIND)
    @daemon_options
    def serve(bind: str, settings: DaemonSettings) -> None:
        async def body(daemon: Daemon) -> None:
            async with Something() as thing:
                thing.bind(bind)
                daemon.ready("listening", endpoint=bind)
                await daemon.until_stopped()
                # leaving the block stops accepting, tells peers and finishes open work
        run_daemon(body, settings)

SIGTERM or SIGINT ends `until_stopped`; the body then has `--drain-s` seconds for open work, and is cancelled shortly afterwards. In both
cases the exit code is 0. A second signal ends the process at once with 130, even while the loop is blocked. Tasks and calls in the
loop's pool of threads that do not end even then are named in the log, and the process ends without them.
SIGHUP reads file and environment again, and the files with keys and rules: log settings change at once, other changes are passed to the
`on_change` hook or reported as needing a restart. If anything is invalid, all is refused with the reason, and the old values stay.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES, EMFILE, ENFILE
from typing import TYPE_CHECKING, Any, Final

import click

from core import errors
from core.daemon import logs
from core.daemon.command import Context, reread
from core.daemon.exit_codes import BadConfig, Interrupted, RequestFailed, Unreachable
from core.daemon.option_fields import FiniteRange, options
from core.daemon.security_flags import security_files
from core.daemon.service_manager import ServiceManager
from core.net.names.lookups import end_waits
from core.processes.parent import READY, Parent
from core.runtime import cold_files, supervision
from core.runtime.event_loop import run, until_one_ends
from core.runtime.leftovers import end_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import FrameType

    from core.daemon.option_fields import Decorator

log = logging.getLogger("core.daemon")

# Long-lived objects are frozen out of collection after the start, and short-lived ones rarely form cycles: freezing and collecting
# every 50,000 allocations instead of every 700 was measured at 1.28 times the throughput of a broker.
GENERATION_0_THRESHOLD: Final = 50_000

# After draining for exactly --drain-s, a body still has to tell its peers and close its sockets.
LAST_WORDS_S: Final = 2.0

# Without memory every callback of the loop may fail: one line per interval, with the number of suppressed ones (P4).
SHORTAGE_S: Final = 60.0
CALLBACK: Final = "event loop callback"  # name of faults that reached the loop

# Open files that a daemon asks for at most: other limits of connections are lower (`max_connections` of a socket is 16,384), and child
# processes may close each descriptor up to the limit, one by one.
OPEN_FILES_MAX: Final = 1_048_576

# Open files that an event loop, a few endpoints and the files of a store take; with fewer nothing can be said about what fails.
OPEN_FILES_MIN: Final = 24
MORE_FILES: Final = "raise the limit of open files: `ulimit -n 1024`, or LimitNOFILE= of the unit"

_LISTEN_FIXES: Final = {
    EMFILE: MORE_FILES,
    ENFILE: "this machine has too many open files",
    errors.EADDRINUSE: "another program listens there; stop it or choose another port",
    errors.EADDRNOTAVAIL: "this machine has no such address",
    errors.ENODEV: "name an address or interface of this machine",
    EACCES: "this needs privileges; choose a port above 1023",
}


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Values of the options every daemon has."""

    drain_s: float  # seconds between the first signal and giving up on open work
    uvloop: bool | None  # None uses it where it is installed
    context: Context  # of the command, to read its sources again


def log_options(level: str) -> Decorator:
    """Add --log-format and --log-level with this default; logging is set up before the command runs."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, log_format: logs.LogFormat, log_level: str, **kwargs: Any) -> Any:
            logs.set_up(log_format, log_level)
            return function(*args, **kwargs)

        return options(
            click.option("--log-format", type=click.Choice(["text", "json"]), default="text"),
            click.option("--log-level", type=click.Choice(logs.LEVELS), default=level),
        )(command)

    return decorate


loop_option = click.option("--uvloop/--no-uvloop", default=None, help="Event loop.  [default: uvloop where installed]")


def daemon_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every daemon; the decorated function gets them as `settings`."""

    @functools.wraps(function)
    def command(*args: Any, drain_s: float, uvloop: bool | None, **kwargs: Any) -> Any:
        context = click.get_current_context()
        assert isinstance(context, Context)
        return function(*args, settings=DaemonSettings(drain_s, uvloop, context), **kwargs)

    drain_help = "Seconds to finish open work after SIGTERM or SIGINT."
    return options(click.option("--drain-s", type=FiniteRange(min=0), default=10.0, help=drain_help), loop_option, log_options("info"))(
        command
    )


def settle_memory() -> None:
    """Freeze all existing objects out of garbage collection, and collect the others seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GENERATION_0_THRESHOLD)


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit: the usual 1,024 would limit the connections."""
    if sys.platform == "win32":
        return  # there is no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS and filters of system calls may allow less than the hard limit
        log.info("the limit of open files stays", extra={"open_files": soft, "reason": str(error)})
    else:
        log.debug("the limit of open files is raised", extra={"from": soft, "to": wanted})


def check_open_files() -> None:
    """Raise BadConfig if a daemon may not open the few files that every one needs."""
    opened: list[int] = []
    try:
        opened += (os.open(os.devnull, os.O_RDONLY) for _ in range(OPEN_FILES_MIN))
    except OSError as error:
        if error.errno in (EMFILE, ENFILE):
            raise BadConfig(f"fewer than {OPEN_FILES_MIN} further files can be opened, a daemon needs these; {MORE_FILES}") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


class Daemon:
    """A running daemon, as its body sees it."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.settings = settings
        self._on_change: Callable[[Mapping[str, Any]], set[str]] = lambda changed: set()
        self._at_once: Callable[[], None] = lambda: None
        self._files: list[Callable[[], Callable[[], Sequence[str]]]] = []
        files = security_files(settings.context)
        if files is not None:
            self._files.append(files.prepare)
        self._loop = asyncio.get_running_loop()
        self._body: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._signalled = False
        self._start_ended = False  # by a signal, while it waited for name servers
        self._drain_is_over = False
        self._reloading: asyncio.Task[None] | None = None
        self._reload_wanted = False
        self._is_ready = False
        self._shortage_at: float | None = None  # time of the last line about missing memory
        self._untold = 0
        self.supervisor = supervision.Supervisor()
        self.supervisor.ran_out = self._end_at_once
        self._manager = ServiceManager(os.environ)
        self._parent = Parent.found_in(os.environ)  # None unless this is one of several processes
        self._still_alive = self.supervisor.timer("daemon watchdog", self._ping)

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    @property
    def drain_s(self) -> float:
        return self.settings.drain_s

    def on_reload(self, prepare: Callable[[], Callable[[], Sequence[str]]]) -> None:
        """Read a file again on SIGHUP.

        `prepare` reads it, or raises a `click.ClickException`, and returns a function that applies it and returns the names of options that
        need a restart. `prepare` runs in another thread, what it returns on the loop. Nothing is applied unless everything is valid.
        """
        self._files.append(prepare)

    def on_change(self, apply: Callable[[Mapping[str, Any]], set[str]]) -> None:
        """Call a function on SIGHUP with the parameters that changed; it returns the names of those it applied."""
        self._on_change = apply

    def on_second_signal(self, end: Callable[[], None]) -> None:
        """Call a function before the process ends at once, within the signal's handler: it must not wait or log."""
        self._at_once = end

    def ready(self, message: str, **fields: object) -> None:
        """Log that the daemon serves, and freeze its objects out of garbage collection."""
        log.info(message, extra=fields)
        settle_memory()
        self._manager.tell("READY=1", f"STATUS={message}")
        self.tell_parent({READY: message})
        if self._manager.watchdog_s:
            self._ping()
        self._is_ready = True
        if self._reload_wanted:
            self._begin_reload()

    def tell_parent(self, message: dict[str, Any]) -> None:
        """Send a message to the process that started this one as one of several; nothing without one."""
        if self._parent is not None:
            self._parent.tell(message)

    def _ping(self) -> None:
        """Report to the service manager, twice per watchdog period, that the event loop runs."""
        self._still_alive.after(self._manager.watchdog_s / 2)
        self._manager.tell("WATCHDOG=1")

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            log.info("draining", extra={"drain_s": self.settings.drain_s})
            self._manager.tell("STOPPING=1", "STATUS=draining")
            give_up_s = self.settings.drain_s + LAST_WORDS_S
            self.supervisor.later("daemon drain", give_up_s, self._end_drain, failed=lambda _: self._end_drain())

    async def until_stopped(self) -> None:
        """Wait for the first signal. Cancel-safe."""
        await self._stopped.wait()

    async def until_stopped_or(self, serving: Coroutine[Any, Any, None]) -> None:
        """Wait for the first signal or the end of `serving`, and raise its error. Cancel-safe; cancels what is left."""
        await until_one_ends(self.until_stopped(), serving)

    async def serve(self, body: Callable[[Daemon], Coroutine[Any, Any, None]]) -> None:
        """Run the body under signal handlers until it returns or its drain time is over."""
        self._loop.set_exception_handler(self._on_loop_error)
        with supervision.scope(self.supervisor):
            self._body = asyncio.ensure_future(body(self))
        restore = self._take_signals()
        if self._parent is not None:
            self._parent.watch(self._loop, self._on_parent_stop, self._on_parent_end)
        try:
            await self._body
        except asyncio.CancelledError:
            if not self._drain_is_over:
                raise
        except Exception:
            if not self._start_ended:
                raise
        finally:
            self._still_alive.cancel()
            if self._parent is not None:
                self._parent.close()
            if self._reloading is not None:
                self._reloading.cancel()
            for number, handler in restore.items():
                signal.signal(number, handler)
        if self._drain_is_over:
            log.warning("drain time is over, leaving with open work", extra={"drain_s": self.settings.drain_s})

    def _end_drain(self) -> None:
        if self._body is not None and not self._body.done():
            self._drain_is_over = True
            self._body.cancel()

    def _end_at_once(self, name: str) -> None:
        """End as if killed: records may be half changed, and an orderly end would send or store them."""
        with suppress(MemoryError):
            log.critical("out of memory; give the daemon more, or lower its limits", extra={"what": name})
            logging.shutdown()
        os._exit(RequestFailed.exit_code)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log and count an error that a callback of the loop has raised; the daemon goes on."""
        error = context.get("exception")
        if not isinstance(error, MemoryError):
            if isinstance(error, Exception):
                self.supervisor.count(CALLBACK)
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if self._shortage_at is not None and now - self._shortage_at < SHORTAGE_S:
            self._untold += 1
            return
        log.error("out of memory", extra={"what": str(context.get("message", "")).partition("\n")[0], "left_out": self._untold})
        self._shortage_at, self._untold = now, 0

    def _take_signals(self) -> dict[int, Any]:
        """Install handlers; returns the old ones. Not the loop's handlers, because these wait for a blocked loop."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        wanted = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self._on_stop_signal)
        if hasattr(signal, "SIGHUP"):
            wanted[signal.SIGHUP] = self._on_reload_signal
        before: dict[int, Any] = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        self._reload_wanted = any(getattr(handler, "called", False) for handler in before.values())  # see `majordomo_toolkit.starting`
        return before

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            # No buffer is flushed here: the interrupted code may have locked the stream.
            try:
                os.write(2, b"second signal, ending at once\n")
                self._at_once()
            finally:
                os._exit(Interrupted.exit_code)
        self._signalled = True
        self._loop.call_soon_threadsafe(self.stop)
        self._start_ended = end_waits()

    def _on_parent_stop(self) -> None:
        """Stop as for the first signal, even if there was one."""
        self._signalled = True
        self.stop()

    def _on_parent_end(self) -> None:
        """Stop as for a signal: the end of the parent is the first one or, after its own, the second."""
        log.warning("the parent process has ended")
        self._on_stop_signal(signal.SIGTERM, None)

    def _on_reload_signal(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._begin_reload)

    def _begin_reload(self) -> None:
        self._reload_wanted = True
        if not self._is_ready:
            return  # files that are read again are not known yet
        if self._reloading is None or self._reloading.done():
            self._reloading = self.supervisor.task("daemon reload", self._reload, restart=supervision.ONCE)

    async def _reload(self) -> None:
        while self._reload_wanted:  # again for a signal that came meanwhile
            self._reload_wanted = False
            await self._reload_once()

    async def _reload_once(self) -> None:
        context = self.settings.context
        try:
            changed = await cold_files.off_loop(reread, context)
            prepared = [await cold_files.off_loop(prepare) for prepare in self._files]
        except click.ClickException as error:
            log.error("reload refused, the old values stay", extra={"reason": error.format_message()})
            return
        applied = {"log_format", "log_level"} & set(changed)
        if applied:
            merged = context.params | changed
            logs.set_up(merged["log_format"], merged["log_level"])
        applied |= self._on_change(changed)
        context.params.update({name: changed[name] for name in applied})
        waiting = sorted((set(changed) - applied).union(*(apply() for apply in prepared)))
        log.info("reloaded", extra={"applied": ",".join(sorted(applied)), "need_restart": ",".join(waiting)})


def run_daemon(body: Callable[[Daemon], Coroutine[Any, Any, None]], settings: DaemonSettings) -> None:
    """Run a daemon to its orderly end; raises Unreachable, RequestFailed, or BadConfig without a required uvloop or enough files."""

    async def main() -> None:
        failure: BaseException | None = None
        try:
            await Daemon(settings).serve(body)
        except BaseException as error:
            failure = error
            raise
        finally:
            left = await end_leftovers(LAST_WORDS_S)
            if left:
                # They cannot be ended, and the interpreter would wait for them without limit.
                log.warning("ending with tasks or threads that do not end", extra={"left": left}, exc_info=failure)
                logging.shutdown()
                os._exit(0 if failure is None else getattr(failure, "exit_code", RequestFailed.exit_code))

    raise_open_files()
    check_open_files()
    try:
        run(main(), uvloop=settings.uvloop)
    except MemoryError:
        raise RequestFailed("out of memory; give the daemon more, or lower its limits") from None
    except ImportError as error:
        if error.name != "uvloop":
            raise
        raise BadConfig("uvloop is not installed; pip install uvloop, or leave --uvloop out") from None
    except errors.ZMQError as error:
        problem = listen_problem(error)
        if not problem:
            raise
        raise Unreachable(problem) from None


def listen_problem(error: errors.ZMQError) -> str:
    """Say why an endpoint cannot be listened on and what to do; nothing for an error of another kind."""
    endpoint = getattr(error, "endpoint", "")
    if isinstance(error, errors.EndpointNotFound | errors.InvalidEndpoint):
        return ""
    if isinstance(error, errors.EndpointError) and endpoint.startswith("ipc://"):
        return f"cannot listen: {error.strerror}"  # says itself what to do
    if error.errno not in _LISTEN_FIXES:
        return ""
    where = "" if endpoint in error.strerror else f" on {endpoint}"
    return f"cannot listen{where}: {error.strerror}; {_LISTEN_FIXES[error.errno]}"
