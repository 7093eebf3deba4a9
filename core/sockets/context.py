"""Contexts: the sockets of one part of a program, with their inproc names and random numbers; contexts are independent."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Self

from core.constants import SocketType
from core.daemon.logs import RateLimitedLog
from core.errors import EINVAL, EPROTONOSUPPORT, ContextTerminated, InvalidEndpoint, WrongOwner, ZMQError
from core.net.inproc import InprocNames
from core.options import TABLE, row_of
from core.runtime import runtime, supervision
from core.runtime.forks import tell_of_forks
from core.runtime.write_scheduler import WriteScheduler
from core.security.zap_client import Authentication
from core.sockets.socket import Socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from core.net.socket_port import ContextSocket
    from core.options import OptionValue
    from core.security.mechanisms import Credentials
    from core.zmtp.zap import Judge

__all__ = ["Context"]

log = logging.getLogger("core.context")

# Attributes of a context itself; other public names are options of its sockets.
_OWN: Final = frozenset(
    ("authentication authenticator closed exclusive_ipc inproc io_threads parent random security supervisor warnings").split()
)
_DEFAULTS_OF: Final = frozenset(name for row in TABLE for name in (row.name, row.name.upper())) | {"identity", "IDENTITY", "hwm", "HWM"}


class Context:
    """Makes sockets and ends them.

    Args:
        io_threads: accepted for programs written for libzmq; everything runs on the loop.
        resolver: turns the name of a `name://` endpoint into an endpoint, at each connect attempt.
        authenticator: checks credentials in-process; without one a ZAP handler is asked.
        security: `core.Curve` or `core.Plain` for every socket without security options of its own; its authenticator is used
            unless another one is given.
        exclusive_ipc: refuse to bind an ipc path on which another process listens. libzmq takes such a path over, and so do
            sockets of other contexts; daemons refuse.
        seed: of the context's random numbers (first ids, jitter), for reproducible runs.

    Attributes:
        security: as given.
        authentication: has credentials checked.
        supervisor: starts the tasks and timers of the sockets.
        warnings: rate-limited log of faults that peers cause.
        random: the context's source of randomness.
    """

    def __init__(
        self,
        io_threads: int = 1,
        *,
        resolver: Callable[[str], Awaitable[str]] | None = None,
        authenticator: Judge | None = None,
        security: Credentials | None = None,
        seed: int | None = None,
        exclusive_ipc: bool = False,
    ) -> None:
        self.random: Callable[[], float] = runtime.current().chance(seed).random
        self.inproc = InprocNames()
        self.supervisor = supervision.current()
        self.authentication = Authentication(self.socket, self.inproc, self.supervisor)
        self.exclusive_ipc = exclusive_ipc
        self.warnings = RateLimitedLog(logging.getLogger("core.socket"))
        self.security = security
        self.authenticator = security.authenticator if authenticator is None and security is not None else authenticator
        self._warned = False
        self.io_threads = io_threads
        self._resolver = resolver
        self._sockets: dict[ContextSocket, None] = {}
        self._closing: dict[ContextSocket, None] = {}
        self._defaults: dict[str, OptionValue | str] = {}
        self._scheduler: tuple[asyncio.AbstractEventLoop, WriteScheduler] | None = None
        self.closed = False
        self.parent = 0
        tell_of_forks(self)

    def forked(self, parent: int) -> None:
        """Refuse every call in a child process, because the connections are its parent's."""
        self.parent = parent
        for socket in (*self._sockets, *self._closing):
            socket.end_in_child()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a default for sockets made from now on, when the name is an option's: `context.linger = 0`."""
        if name in _DEFAULTS_OF:
            self.setsockopt(name.lower(), value)
        elif name.startswith("_") or name in _OWN:
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(f"a context has no attribute and its sockets no option {name!r}")

    def __getattr__(self, name: str) -> Any:
        """Return a default set before."""
        if name in _DEFAULTS_OF and row_of(name.lower()).name in self._defaults:
            return self._defaults[row_of(name.lower()).name]
        raise AttributeError(f"no default was set for {name!r}")

    @property
    def authenticator(self) -> Judge | None:
        """Checks credentials in-process; without one a ZAP handler is asked."""
        return self.authentication.judge

    @authenticator.setter
    def authenticator(self, judge: Judge | None) -> None:
        self.authentication.judge = judge

    @property
    def scheduler(self) -> WriteScheduler:
        """The write scheduler of the running loop."""
        loop = asyncio.get_running_loop()
        if self._scheduler is None or self._scheduler[0] is not loop:
            self._scheduler = (loop, WriteScheduler(self.own_loop(), self.supervisor))
        return self._scheduler[1]

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop.

        Raises:
            WrongOwner: sockets of the context are used on another open loop.
        """
        loop = asyncio.get_running_loop()
        if self._scheduler is not None and self._scheduler[0] is not loop and self._sockets and not self._scheduler[0].is_closed():
            raise WrongOwner(msg="this context has sockets on another event loop; make a context for each loop")
        return loop

    def socket(self, socket_type: int, **options: OptionValue | str) -> Socket:
        """Make a socket.

        Args:
            socket_type: `core.ROUTER` and so on.
            options: by name: `rcvhwm=10`, `identity=b"a"`.

        Raises:
            ContextTerminated: after `term`.
            ZMQError: EINVAL, no such type or option.
        """
        if self.parent:
            raise WrongOwner(msg=f"this context is of process {self.parent}, which was forked; make one in the child")
        if self.closed:
            raise ContextTerminated
        try:
            kind = SocketType(socket_type)
        except ValueError:
            raise ZMQError(EINVAL, f"no socket type {socket_type!r}") from None
        socket = Socket(self, kind, {**self._defaults, **options})
        self._sockets[socket] = None
        return socket

    def setsockopt(self, option: int | str, value: OptionValue | str) -> None:
        """Set a default for sockets made from now on."""
        self._defaults[row_of(option).name] = value

    def bound_unprotected(self, endpoint: str, text: str) -> None:
        """Log, once for all sockets, that an endpoint without protection can be reached by others."""
        if not self._warned:
            self._warned = True
            log.warning(text, extra={"endpoint": endpoint})

    async def resolve(self, name: str) -> str:
        """Return the endpoint behind a `name://` name.

        Raises:
            InvalidEndpoint: the context has no resolver.
        """
        if self._resolver is None:
            raise InvalidEndpoint(EPROTONOSUPPORT, "this context has no resolver for name://", endpoint=f"name://{name}")
        return await self._resolver(name)

    def socket_closed(self, socket: ContextSocket) -> None:
        """Note that a socket was closed and may linger."""
        self._sockets.pop(socket, None)
        self._closing[socket] = None

    def socket_departed(self, socket: ContextSocket) -> None:
        """Forget a closed socket that has sent everything."""
        self._closing.pop(socket, None)

    def destroy(self, linger: int | None = None) -> None:
        """Close every socket, with this LINGER in ms if given; `wait_closed` waits for them."""
        self.closed = True
        for socket in list(self._sockets):
            socket.close(linger)

    def term(self) -> None:
        """End the context: every later call on its sockets fails with ContextTerminated (SOCK-16)."""
        self.closed = True
        for socket in list(self._sockets):
            socket.terminate()

    async def wait_closed(self) -> None:
        """Wait until all sockets have sent their messages (within LINGER) and no task is left."""
        while self._closing:
            socket = next(iter(self._closing))
            await socket.wait_closed()
            self._closing.pop(socket, None)
        if self.closed:
            await self.authentication.wait_closed()

    async def aclose(self, linger: int | None = None) -> None:
        """Close every socket and wait."""
        self.term()
        self.destroy(linger)
        await self.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.term()
        self.destroy()
