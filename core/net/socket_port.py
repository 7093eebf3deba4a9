"""Protocols between a socket and its connections: what each side may ask of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from core.daemon.logs import RateLimitedLog
    from core.errors import HandshakeError, RemoteProtocolError
    from core.net.inproc import InprocNames
    from core.options import Options, SocketSettings
    from core.pattern.base import Counters
    from core.pattern.fair_queue import FairQueue
    from core.pattern.pipe import Pipe
    from core.runtime.supervision import Supervisor
    from core.runtime.write_scheduler import WriteScheduler
    from core.security.mechanisms import Credentials
    from core.zmtp.frames import Message
    from core.zmtp.mechanism import Mechanism
    from core.zmtp.scan import Batch
    from core.zmtp.zap import Judge, ZapReply, ZapRequest


class MessageSink(Protocol):
    """Receiver of decoded messages."""

    def received(self, pipe: Pipe, batch: Batch, octets: int) -> None:
        """Take the messages of one read."""


class SessionPort(Protocol):
    """A connection, as its socket sees it."""

    pipe: Pipe
    endpoint: str
    ready: bool
    failure: RemoteProtocolError | None
    peer_address: str

    def close(self, linger_s: float | None) -> None:
        """End the stream after what is queued."""


class SocketPort(MessageSink, Protocol):
    """A socket, as its connections see it."""

    context: SocketContext
    counters: Counters
    inbound: FairQueue
    type_name: bytes

    @property
    def scheduler(self) -> WriteScheduler:
        """The write scheduler of the running loop."""

    def new_mechanism(self, options: Options, peer_address: str) -> Mechanism:
        """Return our side of the security handshake for a new connection."""

    def new_pipe(self, endpoint: str, *, connecting: bool = False) -> Pipe:
        """Make the queues of a peer."""

    def session_opened(self, session: SessionPort) -> None:
        """Note that a transport is open."""

    def peer_ready(self, session: SessionPort) -> bool:
        """Attach the session's pipe; returns False to refuse the peer."""

    def peer_gone(self, session: SessionPort) -> None:
        """Detach the pipe of a ready session whose connection has ended."""

    def failed(self, session: SessionPort) -> None:
        """A peer that broke a rule is being disconnected."""

    def on_writable(self, pipe: Pipe) -> None:
        """Send what waits: the pipe's outbox was emptied."""

    def emit(self, event: int, value: int, endpoint: str, reason: str = "", *, peer: str = "", identity: bytes = b"") -> None:
        """Report an event to the monitors."""


class AuthenticationPort(Protocol):
    """Answers the question of a handshake; see `core.security.zap_client.Authentication`."""

    def ask(
        self,
        request: ZapRequest,
        *,
        enforce_domain: bool,
        answer: Callable[[ZapReply | HandshakeError], None],
        revoke: Callable[[str], None],
    ) -> Callable[[], None]:
        """Have credentials checked; returns a function to call when the connection is gone."""


class InnerSocket(Protocol):
    """A socket made by code that cannot import `Socket`: for ZAP, for a monitor."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def bind(self, addr: str) -> object:
        """See `Socket.bind`."""

    def connect(self, addr: str) -> object:
        """See `Socket.connect`."""

    def set_receiver(
        self,
        callback: Callable[[list[Message]], object] | None,
        on_peer: Callable[[bytes, bool], None] | None = None,
    ) -> None:
        """See `Socket.set_receiver`."""

    def send_multipart(self, msg_parts: Sequence[bytes], flags: int = 0) -> object:
        """See `Socket.send_multipart`."""

    def close(self, linger: int | None = None) -> None:
        """See `Socket.close`."""


class ContextSocket(Protocol):
    """A socket, as its context sees it."""

    def terminate(self) -> None:
        """Fail every pending and later call with ContextTerminated."""

    def end_in_child(self) -> None:
        """Refuse every call in a forked child."""

    def check_loop(self) -> None:
        """See `Owned.check_loop`."""

    def close(self, linger: int | None = None) -> None:
        """See `Socket.close`."""

    async def wait_closed(self) -> None:
        """Wait until nothing of a closed socket is left."""


class SocketFactory(Protocol):
    """A context, as seen by code that only makes sockets."""

    def socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> InnerSocket:
        """Make a socket."""

    def inner_socket(self, socket_type: int, **options: Unpack[SocketSettings]) -> InnerSocket:
        """Make a socket without the defaults of the context."""


class Deferred(Protocol):
    """Endpoints that were bound or connected before an event loop ran."""

    def start_on_loop(self) -> None: ...  # start them on the running loop


class SocketContext(SocketFactory, Protocol):
    """A context, as its sockets see it; see `core.sockets.context.Context`."""

    waiting_for_loop: dict[Deferred, None]
    on_end: dict[Callable[[], object], asyncio.AbstractEventLoop]

    random: Callable[[], float]
    inproc: InprocNames
    supervisor: Supervisor
    warnings: RateLimitedLog
    exclusive_ipc: bool
    security: Credentials | None
    authenticator: Judge | None
    closed: bool
    parent: int

    @property
    def authentication(self) -> AuthenticationPort:
        """Has credentials checked."""

    @property
    def scheduler(self) -> WriteScheduler:
        """The write scheduler of the running loop."""

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, if the sockets of the context may be used on it."""

    async def resolve(self, name: str) -> str:
        """Return the endpoint behind a `name://` name."""

    def bound_unprotected(self, endpoint: str, text: str) -> None:
        """Log once that an endpoint without protection can be reached by others."""

    def socket_closed(self, socket: ContextSocket) -> None:
        """Note that a socket was closed and may linger."""

    def socket_departed(self, socket: ContextSocket) -> None:
        """Forget a closed socket that has sent everything."""
