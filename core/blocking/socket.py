"""Blocking sockets: the verbs of `core.Socket`, which return when they are done."""

from __future__ import annotations

import warnings
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, Unpack, overload

from core.address import endpoint_text
from core.blocking.shadows import Shadowable
from core.blocking.shared_loop import LOOP
from core.constants import NOBLOCK, POLLIN, SocketType
from core.errors import ContextTerminated, SocketClosed, WrongOwner
from core.options import OptionValues, UpperCase, declares
from core.sockets.endpoints import EndpointScope
from core.sockets.socket import Socket as AsynchronousSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from core.frame import Frame
    from core.option_table import OptionValue
    from core.options import SocketSettings
    from core.sockets.results.futures import Awaitable
    from core.zmtp.frames import Message

__all__ = ["Socket"]

# Set as an attribute, these are calls.
_CALLS: Final = frozenset(("subscribe", "unsubscribe"))


class InnerSocket(AsynchronousSocket):
    """Socket on the loop; a message for a thread can be put back until the thread has it."""

    __slots__ = ()

    def recv_multipart(self, flags: int = 0, copy: object = True, track: object = False) -> Awaitable[Any]:
        """Receive one message."""
        if not copy:
            return self._receive_framed(lambda message: message, flags)
        return self._untaken(None, flags) if self._is_there(flags) else super().recv_multipart(flags)

    def receive_as(self, shape: Callable[[Message], Any], flags: int, single: bool) -> Awaitable[Any]:
        """Receive a message, or its next frame, converted."""
        return self._untaken(shape, flags, single=single) if self._is_there(flags) else super().receive_as(shape, flags, single)

    def _receive_framed(self, shape: Callable[[Message], Any], flags: int, *, single: bool = False) -> Awaitable[Any]:
        if self._is_there(flags):
            return self._untaken(shape, flags, single=single, framed=True)
        return super()._receive_framed(shape, flags, single=single)

    def _is_there(self, flags: int) -> bool:
        """Return whether a receive that may wait gets a message at once, which would be taken from the socket then."""
        waits = not flags & NOBLOCK and self.options.rcvtimeo != 0 and self._receiver is None
        return waits and not self._receivers and (bool(self._rests) or self.pattern.readable())

    def _untaken(self, shape: Callable[[Message], Any] | None, flags: int, *, single: bool = False, framed: bool = False) -> Awaitable[Any]:
        pending = self._receive_later(shape, flags, single=single, framed=framed)
        self._serve_receivers()
        return pending


class SocketsContext(Protocol):
    """The context of a socket, which imports this module."""

    parent: int
    closed: bool

    def socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> Socket: ...  # make a socket
    def new_socket(self, socket: Socket, socket_type: int, options: SocketSettings) -> AsynchronousSocket: ...
    def socket_closed(self, socket: Socket) -> None: ...  # note that a socket was closed
    def term(self) -> None: ...  # end the context
    def destroy(self, linger: int | None = None) -> None: ...  # close every socket and end the context


class Socket(Shadowable, OptionValues, UpperCase):
    """A socket whose calls block; made by `Context.socket`. Every method may be called from any thread.

    Options are attributes (`socket.rcvhwm = 10`), and available through `setsockopt` and `getsockopt`.

    A copy, as from `copy.copy` or `Socket(other)`, is a shadow: a second object for the same socket, which closes nothing when it is
    collected. What is done to one of them, closing included, is done to the socket.

    Args:
        context: of the socket, or a blocking socket that the new object shadows.
        socket_type: `core.ROUTER` and so on.
        options: by name.

    Attributes:
        context: of the socket.

    Raises:
        WrongOwner: a socket of `core`, which belongs to another event loop.
    """

    _what = "socket"
    _inner_class = AsynchronousSocket
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)  # pyzmq's are generic: `zmq.Socket[bytes]`
    context: SocketsContext

    if TYPE_CHECKING:
        hwm: int
        identity: bytes
        mechanism: int
        socket_type: SocketType
        last_endpoint: str
        rcvmore: bool
        counters: Any

    def __init__(self, context: SocketsContext | Socket, socket_type: int = -1, **options: Unpack[SocketSettings]) -> None:
        if isinstance(context, AsynchronousSocket):
            raise WrongOwner(msg="a socket of core runs on your event loop, that of core.blocking on another one: it cannot be shared")
        self._monitor = None
        if isinstance(context, Socket):
            self._shadow_obj = context
            object.__setattr__(self, "context", context.context)
            self._inner = context._inner
        else:
            object.__setattr__(self, "context", context)
            self._inner = context.new_socket(self, socket_type, options)

    # -- calls to the socket inside

    _inner: AsynchronousSocket
    _monitor: Socket | None

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self.context.parent:
            raise WrongOwner(msg=f"this socket is of process {self.context.parent}, which was forked; make one in the child")
        run = LOOP.receive if name.startswith("rec") else LOOP.run
        try:
            return run(getattr(self._inner, name), *arguments, **options)
        except ContextTerminated:
            if self.closed:
                raise SocketClosed from None
            raise

    if not TYPE_CHECKING:  # a type checker would take any name for an option

        def __getattr__(self, name: str) -> Any:
            """Return an option or property of the socket."""
            if name.startswith("_") or not hasattr(AsynchronousSocket, name):
                raise AttributeError(f"a socket has no option or method {name!r}", name=name, obj=self)
            if callable(getattr(AsynchronousSocket, name)):
                raise AttributeError(f"blocking sockets have no {name}; use core.Socket, which has", name=name, obj=self)
            return LOOP.run(getattr, self._inner, name) if not self.context.parent else getattr(self._inner, name)

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an option; other names only if the class of the socket has them. Raises AttributeError: no such option."""
            if name in _CALLS:
                self._call(name, value)
            elif name.startswith("_") or name not in dir(AsynchronousSocket):
                if not (name.startswith("_") or any(name in vars(kind) for kind in Socket.__mro__) or declares(type(self), Socket, name)):
                    raise AttributeError(f"a socket has no option {name!r}", name=name, obj=self)
                object.__setattr__(self, name, value)
            else:
                self._call("setsockopt", name, value)

    # -- endpoints

    def bind(self, addr: str | bytes) -> EndpointScope:
        """Bind to an endpoint; see `core.Socket.bind`."""
        self._call("bind", addr)
        return EndpointScope("bind", self.last_endpoint, self.unbind)

    def bind_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Bind to a free port and return it; see `core.Socket.bind_to_random_port`."""
        return int(self._call("bind_to_random_port", addr, min_port, max_port, max_tries))

    def connect(self, addr: str | bytes) -> EndpointScope:
        """Connect to an endpoint; see `core.Socket.connect`."""
        self._call("connect", addr)
        return EndpointScope("connect", endpoint_text(addr), self.disconnect)

    def unbind(self, addr: str | bytes) -> None:
        """Stop listening on an endpoint, resolved or with the host name given. Raises EndpointNotFound (ENOENT)."""
        self._call("unbind", addr)

    def disconnect(self, addr: str | bytes) -> None:
        """Disconnect from an endpoint. Raises EndpointNotFound (ENOENT)."""
        self._call("disconnect", addr)

    # -- messages

    def send(self, data: bytes, flags: int = 0, copy: bool = True, track: bool = False) -> None:
        """Send one frame; see `core.Socket.send`.

        Raises:
            Again: NOBLOCK and no peer can take it (EAGAIN), or SNDTIMEO has passed.
        """
        self._call("send", data, flags, copy, track)

    def send_multipart(self, msg_parts: Sequence[bytes], flags: int = 0, copy: bool = True, track: bool = False) -> None:
        """Send a message `[frame, …]`; see `core.Socket.send_multipart`."""
        self._call("send_multipart", msg_parts, flags, copy, track)

    def send_later(self, msg_parts: Sequence[bytes]) -> Future[None]:
        """Send a message in the background, in the order of all sends; for code that must not wait."""
        self._inner.check_open()
        return LOOP.start(self._inner.send_multipart, msg_parts)

    @overload
    def recv(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> bytes: ...
    @overload
    def recv(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> Frame: ...
    @overload
    def recv(self, flags: int, copy: Literal[False], track: bool = False) -> Frame: ...
    @overload
    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> bytes | Frame: ...

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Receive the next frame; `rcvmore` is true if its message goes on.

        Raises:
            Again: NOBLOCK and no message (EAGAIN), or RCVTIMEO has passed.
        """
        return self._call("recv", flags, copy, track)

    @overload
    def recv_multipart(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> list[bytes]: ...
    @overload
    def recv_multipart(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> list[Frame]: ...
    @overload
    def recv_multipart(self, flags: int, copy: Literal[False], track: bool = False) -> list[Frame]: ...
    @overload
    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[bytes] | list[Frame]: ...

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Receive one message `[frame, …]`; see `core.Socket.recv_multipart`."""
        return self._call("recv_multipart", flags, copy, track)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, copy: bool = True, track: bool = False, flags: int = 0) -> int:
        """Receive one frame into a buffer; see `core.Socket.recv_into`."""
        return int(self._call("recv_into", buffer, nbytes=nbytes, flags=flags))

    def receive_as(self, shape: Callable[[Message], Any], flags: int, single: bool) -> Any:
        """Receive a message, or its next frame, converted by a function."""
        return self._call("receive_as", shape, flags, single)

    def send_string(self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8") -> None:
        """Send text as one frame."""
        self._call("send_string", u, flags, copy, encoding)

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> str:
        """Receive one frame as text. Raises UnicodeDecodeError if it is not."""
        return str(self._call("recv_string", flags, encoding))

    send_unicode = send_string
    recv_unicode = recv_string

    def send_json(self, obj: Any, flags: int = 0, **kwargs: Any) -> None:
        """Send an object as one frame of JSON."""
        self._call("send_json", obj, flags, **kwargs)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Any:
        """Receive one frame of JSON."""
        return self._call("recv_json", flags, **kwargs)

    def send_serialized(
        self, msg: Any, serialize: Callable[[Any], Sequence[bytes]], flags: int = 0, copy: bool = True, **kwargs: Any
    ) -> None:
        """Send an object as the frames that `serialize` returns."""
        self.send_multipart(serialize(msg), flags, copy, **kwargs)

    def recv_serialized(self, deserialize: Callable[[Message], Any], flags: int = 0, copy: bool = True) -> Any:
        """Receive a message, converted by `deserialize`, which runs on the event loop and cannot use blocking sockets."""
        return self._call("recv_serialized", deserialize, flags, copy)

    # -- options

    def setsockopt(self, option: int | str, value: OptionValue | str) -> None:
        """Set an option; see `core.Socket.setsockopt`."""
        self._call("setsockopt", option, value)

    def getsockopt(self, option: int | str) -> Any:
        """Return an option; see `core.Socket.getsockopt`."""
        return self._call("getsockopt", option)

    set = setsockopt
    get = getsockopt

    def setsockopt_string(self, option: int, optval: str, encoding: str = "utf-8") -> None:
        """Set a bytes option from text."""
        self._call("setsockopt_string", option, optval, encoding)

    def getsockopt_string(self, option: int, encoding: str = "utf-8") -> str:
        """Return a bytes option as text."""
        return str(self._call("getsockopt_string", option, encoding))

    set_string = setsockopt_unicode = setsockopt_string
    get_string = getsockopt_unicode = getsockopt_string

    def set_hwm(self, value: int) -> None:
        """Set both high-water marks, in messages per peer."""
        self._call("set_hwm", value)

    def get_hwm(self) -> int:
        """Return the lower of both high-water marks."""
        return int(self._call("get_hwm"))

    def subscribe(self, topic: bytes | str) -> None:
        """Subscribe to messages whose first frame begins with `topic`."""
        self._call("subscribe", topic)

    def unsubscribe(self, topic: bytes | str) -> None:
        """End one subscription."""
        self._call("unsubscribe", topic)

    def poll(self, timeout: float | None = None, flags: int = POLLIN) -> int:
        """Wait until the socket is readable (POLLIN) or writable (POLLOUT); returns the events, or 0 after `timeout` ms."""
        return int(self._call("poll", timeout, flags))

    def poll_later(self, flags: int = POLLIN) -> Future[int]:
        """Wait for events in the background; a `core.Poller` of another event loop can watch the socket by it."""
        return LOOP.start(self._inner.poll, None, flags)

    # -- monitoring

    def monitor(self, addr: str | None, events: int = 0xFFFF) -> None:
        """Send the events as libzmq does, on a PAIR bound to an inproc name; see `core.Socket.monitor`."""
        self._call("monitor", addr, events)

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Socket:
        """Return a PAIR that receives the events, the same until it or the monitor ends."""
        inner = self._call("get_monitor_socket", events, addr)
        own = self.underlying
        if own._monitor is None or own._monitor._inner is not inner:
            own._monitor = _around(self.context, inner)
        return own._monitor

    def disable_monitor(self) -> None:
        """End the monitor that `monitor` or `get_monitor_socket` made."""
        self._call("disable_monitor")
        self.underlying._monitor = None

    # -- end

    @property
    def closed(self) -> bool:
        """Whether the socket was closed."""
        inner = getattr(self, "_inner", None)
        return inner is None or inner.closed

    def close(self, linger: int | None = None) -> None:
        """Close; queued messages are sent within `linger` ms, while the context lives. Does nothing the second time."""
        if not self.closed and not self.context.parent:
            LOOP.run(self._inner.close, linger)
        self.context.socket_closed(self.underlying)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if self._shadow_obj is None and not self.closed and not self.context.parent:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            LOOP.soon(self._inner.close)
            self.context.socket_closed(self)

    def __dir__(self) -> list[str]:
        options = [name for name in dir(AsynchronousSocket) if not callable(getattr(AsynchronousSocket, name))]
        return sorted({*super().__dir__(), *options})

    def __repr__(self) -> str:
        inner = getattr(self, "_inner", None)
        kind = "new" if inner is None else inner.type_name.decode()
        return f"<core.blocking.Socket {kind}{', closed' * self.closed}>"


def _around(context: SocketsContext, inner: AsynchronousSocket) -> Socket:
    made = Socket.__new__(Socket)
    object.__setattr__(made, "context", context)
    object.__setattr__(made, "_monitor", None)
    object.__setattr__(made, "_inner", inner)
    return made
