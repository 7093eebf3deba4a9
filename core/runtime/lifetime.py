"""Interface between the body of a daemon and the process it runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any


class Lifetime(Protocol):
    """Lifetime of a process: it serves until it is asked to stop, then finishes open work.

    The body of every daemon is an `async def serve_…(options, lifetime)`. A command runs it in `core.daemon.run.Daemon`, which stops it on
    SIGTERM or SIGINT; a simulation and tests bring their own.
    """

    @property
    def drain_s(self) -> float:
        """Seconds between the request to stop and giving up on open work."""

    def ready(self, message: str, **fields: object) -> None:
        """Report that the daemon serves; the fields say where and how."""

    def on_reload(self, prepare: Callable[[], Callable[[], Sequence[str]]]) -> None:
        """Register a file that is read again on request; see `core.daemon.run.Daemon.on_reload`."""

    def on_change(self, apply: Callable[[Mapping[str, Any]], set[str]]) -> None:
        """Register a function that takes the options changed by a reload and returns those it applied."""

    async def until_stopped(self) -> None:
        """Wait until the process is asked to stop. Cancel-safe."""

    async def until_stopped_or(self, serving: Coroutine[Any, Any, None]) -> None:
        """Wait for the request to stop or the end of `serving`, and raise its error. Cancel-safe; cancels what is left."""
