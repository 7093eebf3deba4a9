"""Blocking contexts: `core.Context` for programs without an event loop of their own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from core.blocking.shadows import Shadowable
from core.blocking.shared_loop import LOOP
from core.blocking.socket import InnerSocket, Socket
from core.errors import EFAULT, ContextTerminated, WrongOwner
from core.options import SocketDefaults, declares
from core.runtime import runtime
from core.runtime.forks import tell_of_forks
from core.runtime.instances import SharedInstance
from core.sockets.context import Context as AsynchronousContext

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

    from core.daemon.logs import RateLimitedLog
    from core.option_table import OptionValue
    from core.options import SocketSettings
    from core.security.mechanisms import Credentials
    from core.sockets.socket import Socket as AsynchronousSocket
    from core.zmtp.zap import Judge

__all__ = ["Context"]

_S = TypeVar("_S", bound=Socket)

# Attributes of a blocking context itself, and those of the asynchronous context inside that are shown; the rest are options.
_OWN: Final = frozenset(("closed", "parent"))
_INNER: Final = frozenset(("authenticator", "exclusive_ipc", "io_threads", "max_sockets", "random", "security", "warnings"))


class _InnerContext(AsynchronousContext):
    _socket_class = InnerSocket


class Context(Shadowable, SharedInstance, SocketDefaults):
    """Makes blocking sockets and ends them. Every method may be called from any thread.

    A copy, as from `copy.copy` or `Context(other)`, is a shadow: a second object for the same context, which ends nothing when it is
    collected. `term` of one of them ends the context.

    Args:
        io_threads: as for `core.Context`, or a blocking context that the new object shadows.
        options: as for `core.Context`.

    Attributes:
        closed: after `term` or `destroy`.
        parent: process that was forked, 0 in the process of the context.

    Raises:
        WrongOwner: a context of `core`, which belongs to another event loop.
    """

    _what = "context"
    _inner_class = AsynchronousContext
    _socket_class: ClassVar[type[Socket]] = Socket
    _inner: AsynchronousContext

    if TYPE_CHECKING:  # those of `_inner`, see `_INNER`
        authenticator: Judge | None
        exclusive_ipc: bool
        io_threads: int
        max_sockets: int
        random: Callable[[], float]
        security: Credentials | None
        warnings: RateLimitedLog
    _changed: threading.Condition

    def __init__(self, io_threads: int | Context = 1, **options: Any) -> None:
        self.closed = True  # until the rest has succeeded
        self.parent = 0
        if isinstance(io_threads, AsynchronousContext):
            raise WrongOwner(msg="a context of core runs on your event loop, that of core.blocking on another one: it cannot be shared")
        self._sockets: WeakSet[Socket] = WeakSet()
        if isinstance(io_threads, Context):
            self._shadow_obj = io_threads
            self._changed = io_threads._changed
            self._inner = io_threads._inner
        else:
            self._changed = runtime.current().condition()
            self._inner = _InnerContext(io_threads, **options)
            LOOP.acquire()
        self.closed = False
        tell_of_forks(self)

    # -- sockets

    @overload
    def socket(self, socket_type: int, socket_class: None = None, **options: Unpack[SocketSettings]) -> Socket: ...
    @overload
    def socket(self, socket_type: int, socket_class: type[_S], **options: Any) -> _S: ...
    def socket(self, socket_type: int, socket_class: type[Socket] | None = None, **options: Any) -> Socket:
        """Make a socket.

        Args:
            socket_type: `core.ROUTER` and so on.
            socket_class: class of the socket, with the arguments of `Socket`.
            options: by name: `rcvhwm=10`, `identity=b"a"`.

        Raises:
            ContextTerminated: after `term`.
            ZMQError: EINVAL, no such type or option.
        """
        return (socket_class or self._socket_class)(self, socket_type, **options)

    def new_socket(self, socket: Socket, socket_type: int, options: SocketSettings) -> AsynchronousSocket:
        """Make the asynchronous socket inside a new blocking one."""
        if self.parent:
            raise WrongOwner(msg=f"this context is of process {self.parent}, which was forked; make one in the child")
        if self.closed:
            raise ContextTerminated
        own = self.underlying
        if own.closed:
            raise ContextTerminated(EFAULT, "the context of this shadow was terminated")
        inner: AsynchronousSocket = LOOP.run(self._inner.socket, socket_type, **options)
        with self._changed:
            self._sockets.add(socket)
            own._sockets.add(socket)
        return inner

    def socket_closed(self, socket: Socket) -> None:
        """Note that a socket was closed."""
        with self._changed:
            self._sockets.discard(socket)
            self.underlying._sockets.discard(socket)
            self._changed.notify_all()

    def term(self) -> None:
        """End the context: calls that wait on its sockets fail with ContextTerminated.

        Waits until every socket was closed, as in libzmq, and has sent its messages within its LINGER.
        """
        if self.closed or self.parent:
            self.closed = True
            return
        self.closed = True
        if self._shadow_obj is not None:
            self.underlying.term()
            return
        try:
            LOOP.run(self._inner.term)
            with self._changed:
                self._changed.wait_for(lambda: not self._sockets)
            LOOP.run(self._inner.wait_closed)
        except BaseException:  # Ctrl-C, or what another signal handler raises
            self.closed = False  # it can be called again
            raise
        LOOP.release()

    def destroy(self, linger: int | None = None) -> None:
        """Close every socket, with this LINGER in ms if given, and end the context."""
        for socket in list(self._sockets):
            socket.close(linger)
        self.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        left_open = 0 if self.closed or error is not None else sum(not socket.closed for socket in self._sockets)
        self.destroy()
        if left_open:
            warnings.warn(f"sockets were left open and are closed with their context: {left_open}", ResourceWarning, stacklevel=2)

    def forked(self, parent: int) -> None:
        """Refuse every call in a child process, because the connections are its parent's."""
        self.parent = parent
        self._changed = runtime.current().condition()  # another thread of the parent may have had its lock

    if not TYPE_CHECKING:  # a type checker would take any name for an option

        def __setattr__(self, name: str, value: Any) -> None:
            """Set a default for sockets made from now on, or an attribute of `core.Context`."""
            if name.startswith("_") or name in _OWN or declares(type(self), Context, name):
                object.__setattr__(self, name, value)
            else:
                setattr(self._inner, name, value)

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of `core.Context`, or a default set before."""
            if name.startswith("_") or (name not in _INNER and hasattr(AsynchronousContext, name)):
                raise AttributeError(f"a blocking context has no {name!r}", name=name, obj=self)
            return getattr(self._inner, name)

    def set(self, option: int, value: int) -> None:
        """Set an option of the context; see `core.Context.set`."""
        self._inner.set(option, value)

    def get(self, option: int) -> int:
        """Return an option of the context; see `core.Context.get`."""
        return self._inner.get(option)

    def setsockopt(self, option: int | str, value: OptionValue | str) -> None:
        """Set a default for sockets made from now on; see `core.Context.setsockopt`."""
        self._inner.setsockopt(option, value)

    def getsockopt(self, option: int | str) -> OptionValue | str:
        """Return a default set before; see `core.Context.getsockopt`."""
        return self._inner.getsockopt(option)

    def __dir__(self) -> list[str]:
        options = (name for name in dir(self._inner) if not hasattr(AsynchronousContext, name))
        return sorted({*super().__dir__(), *_INNER, *options} - {"authentication", "inproc", "supervisor"})

    def __del__(self) -> None:
        if self._shadow_obj is None and not getattr(self, "closed", True) and not self.parent:
            self.closed = True
            LOOP.soon(self._inner.destroy)
            LOOP.release()

    def __repr__(self) -> str:
        count = len(self._sockets)
        return f"<core.blocking.Context with {count} open socket{'s' * (count != 1)}{', closed' * self.closed}>"
