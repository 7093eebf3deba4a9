"""The socket: its public verbs. The pattern decides which message goes where (conformance 5).

A send or receive (`core.sockets.sending`, `core.sockets.receiving`) acts when it is called and returns an awaitable
(`core.sockets.results`). There are two ways to receive, with the same order and flow control: `await recv_multipart()`, and
`set_receiver` for brokers, which is called with every batch at once.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, Unpack

from core import constants as c
from core.address import endpoint_text
from core.errors import AddressInUse, BadState, ContextTerminated, OperationNotSupported, SocketClosed, WrongOwner, ZMQBindError, ZMQError
from core.net.socket_port import SocketContext
from core.pattern.reqrep import Router
from core.sockets.endpoints import EndpointScope
from core.sockets.monitor import SocketMonitoring
from core.sockets.option_access import SocketOptions
from core.sockets.receiving import TO_RECEIVER
from core.sockets.results.pending import fail_all
from core.sockets.serialization import Serialization
from core.sockets.socket_base import MARKS, BatchReceiver, PeerWatcher, Receiver, SocketBase
from core.sockets.waiters import events_of, poll_one

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from core.options import SocketSettings
    from core.pattern.pipe import Pipe
    from core.sockets.results.futures import Awaitable
    from core.zmtp.limits import PeerLimits


def _decoded(receiver: Receiver) -> BatchReceiver:
    """Return a receiver of batches that passes their messages on as frames."""
    return lambda batch: receiver(batch.messages())


class SocketsContext(SocketContext, Protocol):
    """The public verbs of `core.Context`, which imports this module."""

    def socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> Socket:
        """Make a socket."""

    def setsockopt(self, option: int | str, value: int | bytes | str) -> None:
        """Set a default for sockets made from now on."""

    def destroy(self, linger: int | None = None) -> None:
        """Close every socket."""

    def term(self) -> None:
        """End the context."""

    async def wait_closed(self) -> None:
        """Wait until all sockets have sent what they may."""

    async def aclose(self, linger: int | None = None) -> None:
        """Close every socket and wait."""


class Socket(SocketBase, SocketOptions, SocketMonitoring, Serialization):
    """A ZeroMQ socket, made by `Context.socket`.

    Options are attributes (`socket.rcvhwm = 10`), and available through `setsockopt` and `getsockopt`.

    Attributes:
        context: that made the socket.
        socket_type: `core.ROUTER` and so on.
        options: all values.
        counters: what was dropped, by reason.
        closed: after `close`.
    """

    context: SocketsContext

    __slots__ = ("__weakref__",)
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)  # pyzmq's are generic: `zmq.Socket[bytes]`

    # -- endpoints

    @property
    def last_endpoint(self) -> str:
        """The endpoint of the last bind, resolved, or of the last connect as given (TRN-03)."""
        return self._endpoints.last

    def bind(self, addr: str | bytes) -> EndpointScope:
        """Bind to an endpoint; `last_endpoint` has the port chosen for `*`.

        Returns:
            A block that unbinds at its end, for `with socket.bind(…):`; it may be ignored.

        Raises:
            AddressInUse: EADDRINUSE, with the endpoint.
            InvalidEndpoint: EINVAL, EPROTONOSUPPORT … (TRN-01, TRN-02).
            InvalidOption: EINVAL, keys are missing or do not fit together.
        """
        self._check_owner()
        self.security.check(self.options)
        self._endpoints.bind(endpoint_text(addr))
        return EndpointScope("bind", self.last_endpoint, self.unbind)

    def bind_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Bind to a free port and return it; `addr` is `tcp://HOST` without one.

        Raises:
            ZMQBindError: no free port found in the range after so many tries.
        """
        if min_port == 0 and max_port >= 65535:
            self.bind(f"{addr}:*")
            return int(self.last_endpoint.rpartition(":")[2])
        for _ in range(max_tries):
            port = min_port + int(self.context.random() * (max_port - min_port))
            try:
                self.bind(f"{addr}:{port}")
            except AddressInUse:
                continue
            return port
        raise ZMQBindError(msg=f"no free port from {min_port} to {max_port} in {max_tries} tries")

    def connect(self, addr: str | bytes) -> EndpointScope:
        """Connect to an endpoint; returns at once and retries in the background (TRN-09).

        Returns:
            A block that disconnects at its end, for `with socket.connect(…):`; it may be ignored.

        Raises:
            InvalidEndpoint: EINVAL, EPROTONOSUPPORT … (TRN-04).
            InvalidOption: EINVAL, keys are missing or do not fit together.
        """
        self._check_owner()
        self.security.check(self.options)
        endpoint = endpoint_text(addr)
        self._endpoints.connect(endpoint)
        return EndpointScope("connect", endpoint, self.disconnect)

    def unbind(self, addr: str | bytes) -> None:
        """Stop listening on an endpoint, resolved or with the host name given; connections stay. Raises EndpointNotFound (ENOENT)."""
        self._check_owner()
        self._endpoints.unbind(endpoint_text(addr))

    def disconnect(self, addr: str | bytes) -> None:
        """Disconnect from an endpoint; queued messages are sent within LINGER. Raises EndpointNotFound (ENOENT)."""
        self._check_owner()
        self._endpoints.disconnect(endpoint_text(addr))

    def cut(self, routing_id: bytes, reason: str = "cut") -> bool:
        """Close the connection of one peer of a ROUTER at once; it may reconnect.

        Its queued messages are dropped and counted.

        Args:
            routing_id: of the peer.
            reason: for the monitor.

        Returns:
            Whether there was such a peer.

        Raises:
            OperationNotSupported: only ROUTER knows its peers by name.
        """
        pipe = self._peer(routing_id)
        if pipe is None:
            return False
        pipe.engine.abort_with(reason)
        return True

    def peer_property(self, routing_id: bytes, name: str) -> bytes | None:
        """Return a property of a peer of a ROUTER; `User-Id` is its name from the authenticator, if that was asked.

        Raises:
            OperationNotSupported: only ROUTER knows its peers by name.
        """
        pipe = self._peer(routing_id)
        return None if pipe is None else pipe.metadata.get(name.lower().encode())

    def _peer(self, routing_id: bytes) -> Pipe | None:
        self.check_open()
        if not isinstance(self.pattern, Router):
            raise OperationNotSupported(msg=f"{self.socket_type.name} does not know its peers by routing id")
        return self.pattern.peer(routing_id)

    # -- batch receivers

    def set_receiver(
        self,
        callback: Receiver | None,
        on_peer: PeerWatcher | None = None,
    ) -> None:
        """Call `callback` with every batch of messages at once; None goes back to queueing.

        Receives that wait end with BadState, and so do those that would wait as long as there is a receiver.

        Args:
            callback: takes `[[frame, …], …]` and must not await; it answers with `send_many` or `send_multipart`. If it raises, the peer
                that sent the batch is disconnected.
            on_peer: called with (routing id, whether it is connected) when a handshake completes or a connection ends. If it raises, the
                new connection is closed.
        """
        self._receive_by(None if callback is None else _decoded(callback), on_peer)

    def set_batch_receiver(self, callback: BatchReceiver | None, on_peer: PeerWatcher | None = None) -> None:
        """As `set_receiver`, without decoding: for programs that forward messages.

        Args:
            callback: takes a `core.zmtp.scan.Batch`, the messages of one read of one peer, as bytes; it answers with `send_octets`.
            on_peer: as for `set_receiver`.
        """
        self._receive_by(callback, on_peer)

    def _receive_by(self, receiver: BatchReceiver | None, on_peer: PeerWatcher | None) -> None:
        self._check_owner()
        self._endpoints.start_deferred()
        self._receiver = receiver
        self._follow_receiver()
        if receiver is None:
            self._inproc_over()  # queue these before what comes from now on
        else:
            fail_all(self._receivers, BadState(msg=TO_RECEIVER))
            self._receivers.clear()
        self._on_peer = on_peer
        self._forget_dropped()
        if self._takes_batches() and self.inbound.active:
            asyncio.get_running_loop().call_soon(self._hand_over_queued)

    # -- options, polling, watching

    def options_changed(self, name: str) -> None:
        """See `SocketOptions`."""
        if name in MARKS:
            for pipe in self.pattern.pipes:
                self._set_marks(pipe)
                self.on_writable(pipe)
        else:
            self.pattern.follow_options()
            self._follow_receiver()

    def live_option(self, option: int) -> Any:
        """See `SocketOptions`."""
        answers: dict[int, Callable[[], Any]] = {
            c.EVENTS: lambda: int(events_of(self)),
            c.RCVMORE: lambda: int(bool(self._rests)),
            c.LAST_ENDPOINT: lambda: self.last_endpoint.encode(),
            c.TYPE: lambda: int(self.socket_type),
        }
        answer = answers.get(option)
        return None if answer is None else answer()

    @property
    def rcvmore(self) -> bool:
        """Whether the message of the last received frame goes on."""
        return bool(self._rests)

    def poll(self, timeout: float | None = None, flags: int = c.POLLIN) -> Awaitable[int]:
        """Wait until the socket is readable (POLLIN) or writable (POLLOUT); returns the events, or 0 after `timeout` ms."""
        self._check_owner()
        self._endpoints.start_deferred()
        return poll_one(self, timeout, flags)

    def readable(self) -> bool:
        """Whether a receive would return at once."""
        return bool(self._rests) or self.pattern.readable()

    def writable(self) -> bool:
        """Whether a send would complete at once."""
        return self.pattern.writable()

    def add_poller(self, waiter: asyncio.Future[None]) -> None:
        """Complete a future when readability or writability may have changed."""
        if len(self._pollers) >= self._sweep_at:
            self._sweep()
        self._pollers.append(waiter)

    def peer_metadata(self, routing_id: bytes) -> dict[bytes, bytes]:
        """Return the metadata of a connected peer: lower-case name to value; empty if there is no such peer.

        Properties that the peer announced (`socket-type`, `identity`, `x-…`) and proven ones: `user-id`, its name from the
        authenticator, and `curve-key`, the 32 bytes of its public key (ZAP-04).

        Args:
            routing_id: as in received messages of a ROUTER; for other sockets the identity the peer announced.
        """
        pipe = self.pattern.peer(routing_id)
        return {} if pipe is None else dict(pipe.metadata)

    def peer_limits(self, routing_id: bytes | None = None) -> PeerLimits | None:
        """Return the limits a peer has announced, None if none; without a routing id the lowest of all peers.

        Peers of this library may announce limits, see option `tell_limits`; those of libzmq do not.
        """
        if routing_id is None:
            return self.pattern.limits()
        pipe = self.pattern.peer(routing_id)
        return None if pipe is None else pipe.limits

    def in_transit(self, routing_id: bytes | None = None) -> int:
        """Return a number that grows while octets of a message move from or to a peer; 0 for none.

        A large message takes longer on a slow line than heartbeats behind it may: a peer that is silent lives as long as this grows. What
        this socket sends counts on Linux over tcp, while more than 4 KiB are on their way. Without a routing id for the only peer.
        """
        pipe = next(iter(self.pattern.pipes), None) if routing_id is None else self.pattern.peer(routing_id)
        return 0 if pipe is None else pipe.engine.in_transit()

    # -- end

    def check_open(self) -> None:
        if self._ended or self.context.parent:
            self._refuse()

    def _check_owner(self) -> None:
        self.check_open()
        if get_ident() != self._owner_thread:
            self.enter()

    def end_in_child(self) -> None:
        """Refuse every call in a forked child; closes nothing, because the connections are the parent's."""
        self.use_nothing()

    def _refuse(self, *_: Any) -> Any:
        """Raise the error of every call after the end (SOCK-16)."""
        if self.context.parent:
            raise WrongOwner(msg=f"this socket is of process {self.context.parent}, which was forked; make one in the child")
        raise ContextTerminated if self.context.closed else SocketClosed

    def terminate(self) -> None:
        """Fail every pending and later call with ContextTerminated (SOCK-16); from any thread."""
        loop = None if self.context.parent else self._loop
        if loop is not None and loop.is_running() and asyncio._get_running_loop() is not loop:
            loop.call_soon_threadsafe(self._end, ContextTerminated())  # what waits there is to be woken
        else:
            self._end(ContextTerminated())

    def _end(self, error: ZMQError) -> None:
        self.use_nothing()
        fail_all(self._receivers, error)
        fail_all(self._waiting_sends(), error)
        self._receivers.clear()
        self._senders.clear()
        self._delivered.outdate()
        self._wake_pollers()

    def close(self, linger: int | None = None) -> None:
        """Close; queued messages are sent within `linger` ms (default: option LINGER; -1 no limit, 0 drops them).

        Returns at once; `wait_closed`, or leaving the context, waits for the end.

        Raises:
            WrongOwner: another thread runs the event loop of this socket.
        """
        if self.closed or self.context.parent:
            return
        self.check_loop()
        self.closed = True
        self.counters.undelivered += sum(len(pending.messages) for pending in self._waiting_sends())
        self._end(SocketClosed())
        self._receiver = None
        self.context.socket_closed(self)
        if self._loop is not None and self._loop.is_closed():
            self._endpoints.abandon()
        else:
            self._endpoints.close(linger)
        self.monitors.end()

    def departed(self) -> None:
        self.context.socket_departed(self)

    async def wait_closed(self) -> None:
        """Wait until a closed socket has sent everything and no task is left."""
        await self._endpoints.wait_closed()

    # -- copies

    @classmethod
    def shadow(cls, address: Socket) -> Socket:
        """Return an asynchronous socket itself: it needs no second object, as it closes nothing when it is collected.

        Raises:
            TypeError: not a socket of `core`; those of `core.blocking` run on another event loop.
        """
        if isinstance(address, Socket):
            return address
        raise TypeError(f"{address!r} is not a socket of core, and cannot be shared with its event loop")

    @property
    def underlying(self) -> Socket:
        """The socket itself, see `shadow`."""
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        await self.wait_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<core.Socket {self.type_name.decode()} {self.last_endpoint or 'without endpoint'}>"
