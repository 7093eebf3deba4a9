"""Contexts: the sockets of one part of a program, with their inproc names and random numbers; contexts are independent."""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, Unpack, cast

from core.constants import HWM, SUB, SUBSCRIBE, ContextOption, SocketType
from core.daemon.logs import RateLimitedLog
from core.errors import EINVAL, EPROTONOSUPPORT, ContextTerminated, InvalidEndpoint, InvalidOption, WrongOwner, ZMQError
from core.net.inproc import InprocNames
from core.option_table import TABLE, row_of
from core.options import SocketDefaults, declares
from core.runtime import runtime, supervision
from core.runtime.forks import tell_of_forks
from core.runtime.instances import SharedInstance
from core.runtime.write_scheduler import WriteScheduler
from core.security.zap_client import Authentication
from core.sockets.socket import Socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from core.net.socket_port import ContextSocket, Deferred
    from core.option_table import OptionValue
    from core.options import SocketSettings
    from core.security.mechanisms import Credentials
    from core.zmtp.zap import Judge

log = logging.getLogger("core.context")

# Attributes of a context itself; other public names are options of its sockets.
_OWN: Final = frozenset(
    (
        "authentication authenticator closed exclusive_ipc inproc io_threads max_sockets on_end parent random security supervisor "
        "waiting_for_loop warnings"
    ).split()
)
# The highest number that can be asked for, and the default: file descriptors end first.
SOCKETS_MAX: Final = 65_535
# Options of a context that are attributes of it, by number.
_CONTEXT_OPTIONS: Final = {ContextOption.IO_THREADS: "io_threads", ContextOption.MAX_SOCKETS: "max_sockets"}
_CONTEXT_NAMES: Final = {option.name: int(option) for option in ContextOption}
_DEFAULTS_OF: Final = frozenset(name for row in TABLE for name in (row.name, row.name.upper())) | {"identity", "IDENTITY", "hwm", "HWM"}


def _default_name(option: int | str) -> str:
    """Return the name under which a default is kept; "hwm" is both directions."""
    return "hwm" if option == HWM or (isinstance(option, str) and option.lower() == "hwm") else row_of(option).name


class Context(SharedInstance, SocketDefaults):
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
        authentication: has credentials checked.
        max_sockets: sockets that may be open at the same time, those of the context's own use included.
        on_end: what is called, once, when the program ends the context, and on which event loop.
        supervisor: starts the tasks and timers of the sockets.
        warnings: rate-limited log of faults that peers cause.
        random: the context's source of randomness.
    """

    _socket_class: ClassVar[type[Socket]] = Socket

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
        if not isinstance(io_threads, int):
            raise TypeError(f"io_threads is {io_threads!r}, not a number; for a copy of a context use Context.shadow")
        if io_threads < 0:
            raise InvalidOption(f"io_threads is {io_threads}, it must not be negative", option="io_threads")
        self.random: Callable[[], float] = runtime.current().chance(seed).random
        self.inproc = InprocNames()
        self.supervisor = supervision.current()
        self.authentication = Authentication(self.inner_socket, self.inproc, self.supervisor)
        self.exclusive_ipc = exclusive_ipc
        self.warnings = RateLimitedLog(logging.getLogger("core.socket"))
        self.security = security
        self.authenticator = security.authenticator if authenticator is None and security is not None else authenticator
        self._warned = False
        self.io_threads = io_threads
        self.max_sockets = SOCKETS_MAX
        self._resolver = resolver
        self._sockets: dict[ContextSocket, None] = {}
        self._closing: dict[ContextSocket, None] = {}
        self.waiting_for_loop: dict[Deferred, None] = {}
        self.on_end: dict[Callable[[], object], asyncio.AbstractEventLoop] = {}
        self._defaults: dict[str, OptionValue | str] = {}
        self._topic: bytes | None = None  # of SUB sockets made from now on
        self._scheduler: tuple[asyncio.AbstractEventLoop, WriteScheduler] | None = None
        self.closed = False
        self.parent = 0
        tell_of_forks(self)

    def forked(self, parent: int) -> None:
        """Refuse every call in a child process, because the connections are its parent's."""
        self.parent = parent
        self.on_end = {}  # the servers and clients are the parent's too
        for socket in (*self._sockets, *self._closing):
            socket.end_in_child()

    if not TYPE_CHECKING:  # a type checker would take any name for an option

        def __setattr__(self, name: str, value: Any) -> None:
            """Set a default for sockets made from now on, when the name is an option's: `context.linger = 0`."""
            if name in _DEFAULTS_OF or name == "subscribe":
                self.setsockopt(name.lower(), value)
            elif name in _CONTEXT_NAMES:
                self.set(_CONTEXT_NAMES[name], value)
            elif name.startswith("_") or name in _OWN or declares(type(self), Context, name):
                object.__setattr__(self, name, value)
            else:
                raise AttributeError(f"a context has no attribute and its sockets no option {name!r}")

        def __getattr__(self, name: str) -> Any:
            """Return a default set before, or an option of the context by its upper-case name."""
            if name in _CONTEXT_NAMES:
                return self.get(_CONTEXT_NAMES[name])
            if name in _DEFAULTS_OF and _default_name(name) in self._defaults:
                return self._defaults[_default_name(name)]
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

    def socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> Socket:
        """Make a socket.

        Args:
            socket_type: `core.ROUTER` and so on.
            options: by name: `rcvhwm=10`, `identity=b"a"`.

        Raises:
            ContextTerminated: after `term`.
            ZMQError: EINVAL, no such type or option.
        """
        settings = {**self._defaults, **cast("dict[str, OptionValue | str]", options)}
        socket = self.inner_socket(socket_type, **cast("SocketSettings", settings))
        if self._topic is not None and socket.socket_type == SUB:
            socket.subscribe(self._topic)
        return socket

    def inner_socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> Socket:
        """Make a socket that has none of the defaults of the context, for its own use."""
        if self.parent:
            raise WrongOwner(msg=f"this context is of process {self.parent}, which was forked; make one in the child")
        if self.closed:
            raise ContextTerminated
        try:
            kind = SocketType(socket_type)
        except ValueError:
            raise ZMQError(EINVAL, f"no socket type {socket_type!r}") from None
        if len(self._sockets) >= self.max_sockets:
            raise ZMQError(errno.EMFILE, f"the context has {len(self._sockets)} open sockets, its limit max_sockets")
        socket = self._socket_class(self, kind, cast("dict[str, OptionValue | str]", options))
        self._sockets[socket] = None
        return socket

    # -- options

    def set(self, option: int, value: int) -> None:
        """Set an option of the context: `core.MAX_SOCKETS`; IO_THREADS is accepted without effect.

        Raises:
            InvalidOption: no such option, or a number out of range (EINVAL).
        """
        name = _CONTEXT_OPTIONS.get(ContextOption(option)) if option in _CONTEXT_NAMES.values() else None
        if name is None or not 0 <= value <= SOCKETS_MAX:
            raise InvalidOption(f"a context has no option {option} that can be {value!r}", option=str(option))
        setattr(self, name, value)

    def get(self, option: int) -> int:
        """Return an option of the context.

        Raises:
            InvalidOption: no such option (EINVAL).
        """
        if option in _CONTEXT_OPTIONS:
            return int(getattr(self, _CONTEXT_OPTIONS[ContextOption(option)]))
        if option == ContextOption.SOCKET_LIMIT:
            return SOCKETS_MAX
        if option == ContextOption.MAX_MSGSZ:
            return int(row_of("max_message_bytes").default)
        raise InvalidOption(f"a context has no option {option}", option=str(option))

    def setsockopt(self, option: int | str, value: OptionValue | str) -> None:
        """Set a default for sockets made from now on; SUBSCRIBE is for those that subscribe (SUB)."""
        if option in (SUBSCRIBE, "subscribe"):
            self._topic = value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, bytes) else None
        else:
            self._defaults[_default_name(option)] = value

    def getsockopt(self, option: int | str) -> OptionValue | str:
        """Return a default set before.

        Raises:
            InvalidOption: none was set (EINVAL).
        """
        name = _default_name(option)
        if name not in self._defaults:
            raise InvalidOption(f"no default was set for {name}", option=name)
        return self._defaults[name]

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
        """Close every socket, with this LINGER in ms if given; `wait_closed` waits for them.

        Raises:
            WrongOwner: another thread runs the event loop of a socket; nothing is closed then.
        """
        if not self.parent:
            for socket in self._sockets:
                socket.check_loop()
        self.closed = True
        for socket in list(self._sockets):
            socket.close(linger)
        self._say_end()

    def term(self) -> None:
        """End the context, from any thread: every later call on its sockets fails with ContextTerminated (SOCK-16)."""
        self.closed = True
        for socket in list(self._sockets):
            socket.terminate()
        self._say_end()

    def _say_end(self) -> None:
        here = asyncio._get_running_loop()
        for call, loop in list(self.on_end.items()):
            if loop is here:
                self._call_at_end(call)
            else:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._call_at_end, call)

    def _call_at_end(self, call: Callable[[], object]) -> None:
        if self.on_end.pop(call, None) is not None:  # else what it belongs to has ended meanwhile
            self.supervisor.call("core context end", call)

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

    # -- copies

    @classmethod
    def shadow(cls, address: Context) -> Context:
        """Return an asynchronous context itself: it needs no second object, as it ends nothing when it is collected.

        Raises:
            WrongOwner: a context of `core.blocking`, whose sockets run on another event loop.
            TypeError: no context; an address of libzmq's has no meaning here.
        """
        if isinstance(address, Context):
            return address
        if isinstance(address, SharedInstance):
            raise WrongOwner(msg="a context of core.blocking runs on an event loop of its own: it cannot be shared with this one")
        raise TypeError(f"{address!r} is not a context")

    @property
    def underlying(self) -> Context:
        """The context itself, see `shadow`."""
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.term()
        self.destroy()

    def __repr__(self) -> str:
        count = len(self._sockets)
        return f"<core.Context with {count} open socket{'s' * (count != 1)}{', closed' * self.closed}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_DEFAULTS_OF, *_CONTEXT_NAMES})
