"""Endpoints of one socket: bind, connect and their opposites, and the staged close (SOCK-01..04, 11, 15; TRN-07..13)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol, Self

from core.address import InprocBind, InprocConnect, IpcBind, parse_bind, parse_connect
from core.constants import Event
from core.errors import ENOCOMPATPROTO, ContextTerminated, EndpointError, EndpointNotFound, InvalidEndpoint, SocketClosed
from core.net.connector import Connector
from core.net.inproc import InprocPipe, InprocSocket
from core.net.listener import Listener
from core.net.os_sockets import listen_ipc, listen_tcp
from core.net.socket_port import SocketPort
from core.pattern.pipe import DETACHED
from core.security.mechanisms import unprotected

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from core.net.session import Session
    from core.net.socket_port import SessionPort
    from core.options import Options
    from core.pattern.base import Pattern
    from core.pattern.pipe import Pipe


class EndpointScope:
    """Result of bind and connect: a block at whose end the endpoint is left. Most programs ignore it."""

    __slots__ = ("_call", "_endpoint", "_leave")

    def __init__(self, call: str, endpoint: str, leave: Callable[[str], object]) -> None:
        self._call = call
        self._endpoint = endpoint
        self._leave = leave

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(SocketClosed, ContextTerminated):  # the end of a socket leaves every endpoint
            self._leave(self._endpoint)

    def __repr__(self) -> str:
        return f"<core.EndpointScope {self._call}={self._endpoint!r}>"


class EndpointsSocket(SocketPort, InprocSocket, Protocol):
    """A socket, as its endpoints see it."""

    pattern: Pattern
    closed: bool

    def follow_loop(self, loop: asyncio.AbstractEventLoop) -> None: ...  # belong to this loop
    def adopt(self, pipe: Pipe, options: Options) -> None: ...  # give a new pipe its marks and name
    def options_for_listening(self) -> Options: ...  # return the options of a bound endpoint
    def options_for_connecting(self, endpoint: str) -> Options: ...  # return the options of a connected endpoint
    def detach(self, pipe: Pipe) -> None: ...  # remove a pipe for good, and serve what waits for its peer or for reports of its end
    def departed(self) -> None: ...  # note that a closed socket has sent everything


class Endpoints:
    """Listeners and connectors of a socket."""

    def __init__(self, owner: EndpointsSocket) -> None:
        self.last = ""  # for LAST_ENDPOINT (TRN-03)
        self.sessions: dict[SessionPort, None] = {}  # connections with a transport, ready or not
        self._owner = owner
        self._listeners: dict[str, Listener] = {}
        self._given: dict[str, str] = {}  # resolved endpoint -> as given to bind, with a host name
        self._connectors: dict[str, list[Connector]] = {}
        self._inproc_bound: list[str] = []
        self._inproc_pipes: dict[InprocPipe, None] = {}
        # Disconnected or closed, with messages for a name that is not bound yet -> what drops them.
        self._unbound: dict[InprocPipe, Callable[[], None]] = {}
        self.deferred: dict[Listener | Connector, Callable[[asyncio.AbstractEventLoop], None]] = {}  # starts when the loop runs
        self._leaving: dict[Connector, float] = {}  # disconnected or closed, with messages left to send -> until when
        self._ended: dict[Listener | Connector, None] = {}  # stopped, with a task that still runs
        self._empty: asyncio.Future[None] | None = None

    # -- start, possibly before the loop runs

    def _begin(self, begun: Listener | Connector, start: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.deferred[begun] = start
            self._owner.context.waiting_for_loop[self] = None
        else:
            start(self._own_loop())

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._owner.context.own_loop()
        self._owner.follow_loop(loop)
        return loop

    def start_deferred(self) -> bool:
        """Start what was bound and connected before the loop ran; returns whether there was any.

        The other sockets of the context start too: this one may wait for one of them, which is not used before.
        """
        if not self.deferred:
            return False
        self.start_on_loop()
        waiting = self._owner.context.waiting_for_loop
        while waiting:
            waiting.popitem()[0].start_on_loop()
        return True

    def start_on_loop(self) -> None:
        self._owner.context.waiting_for_loop.pop(self, None)
        loop = self._own_loop()
        deferred, self.deferred = self.deferred, {}
        for start in deferred.values():
            start(loop)

    # -- bind and unbind

    def bind(self, endpoint: str) -> str:
        """Bind; returns the resolved endpoint. Failures are events too (MON-01)."""
        try:
            return self._bind(endpoint)
        except EndpointError as error:
            self._owner.emit(Event.BIND_FAILED, error.errno or 0, endpoint, error.strerror)
            raise

    def _bind(self, endpoint: str) -> str:
        owner = self._owner
        parsed = parse_bind(endpoint, ipv6=bool(owner.options.ipv6))
        if isinstance(parsed, InprocBind):
            self._check_inproc(endpoint)
            owner.context.inproc.bind(parsed.name, parsed.endpoint, owner)
            self._inproc_bound.append(parsed.name)
            self.last = parsed.endpoint
            return self.last
        options = owner.options_for_listening()
        listen = listen_ipc(parsed, options, owner.context.exclusive_ipc) if isinstance(parsed, IpcBind) else listen_tcp(parsed, options)
        listener = Listener(owner, listen, options, self._session_closed)
        self._listeners[listener.endpoint] = listener
        if "*" not in endpoint and not endpoint.endswith(":0"):  # as with libzmq
            self._given[listener.endpoint] = endpoint
        if danger := unprotected(options, listener.endpoint):
            owner.context.bound_unprotected(listener.endpoint, danger)
        self.last = listener.endpoint
        self._begin(listener, listener.start)
        return self.last

    def _check_inproc(self, endpoint: str) -> None:
        if not self._owner.pattern.takes_inproc:
            kind = self._owner.type_name.decode()
            raise InvalidEndpoint(ENOCOMPATPROTO, f"a {kind} socket has no inproc endpoints: {endpoint}", endpoint=endpoint)

    def unbind(self, endpoint: str) -> None:
        """Stop listening on an endpoint, resolved or with the host name given; connections stay (TRN-07). Raises EndpointNotFound."""
        name = endpoint.removeprefix("inproc://")
        if endpoint.startswith("inproc://") and name in self._inproc_bound:
            self._inproc_bound.remove(name)
            self._owner.context.inproc.unbind(name)
            return
        resolved = next((each for each in self._listeners if endpoint in (each, self._given.get(each))), None)
        if resolved is None:
            raise EndpointNotFound(msg=f"not bound to {endpoint}", endpoint=endpoint)
        listener = self._listeners.pop(resolved)
        self._given.pop(resolved, None)
        self.deferred.pop(listener, None)
        listener.close()
        self._retire(listener)

    # -- connect and disconnect

    def connect(self, endpoint: str) -> None:
        """Connect; returns at once and retries in the background."""
        owner = self._owner
        parsed = parse_connect(endpoint)
        self.last = endpoint
        if isinstance(parsed, InprocConnect):
            self._check_inproc(endpoint)
            pipe = InprocPipe(owner, endpoint, connecting=True)
            # Those of this name whose other end has gone make way for it: `disconnect` is about the present one.
            self._inproc_pipes = {one: None for one in self._inproc_pipes if one.endpoint != endpoint or one.engine is not DETACHED}
            self._inproc_pipes[pipe] = None
            owner.adopt(pipe, owner.options)
            owner.options.connect_routing_id = b""
            owner.context.inproc.connect(parsed.name, pipe)
            return
        if owner.pattern.one_per_endpoint and self._connectors.get(endpoint):
            return  # SOCK-11
        options = owner.options_for_connecting(endpoint)
        owner.options.connect_routing_id = b""  # used up (RTR-10)
        pipe_out = owner.new_pipe(endpoint, connecting=True)
        connector = Connector(owner, parsed, pipe_out, options, self._session_closed, self._gave_up)
        self._connectors.setdefault(endpoint, []).append(connector)

        def start(loop: asyncio.AbstractEventLoop) -> None:
            owner.adopt(pipe_out, options)
            connector.start()

        self._begin(connector, start)

    def disconnect(self, endpoint: str) -> None:
        """Leave all connections to an endpoint; queued messages are sent within LINGER (TRN-08). Raises EndpointNotFound."""
        pipes = [pipe for pipe in self._inproc_pipes if pipe.endpoint == endpoint]
        connectors = self._connectors.pop(endpoint, [])
        if not pipes and not connectors:
            raise EndpointNotFound(msg=f"not connected to {endpoint}", endpoint=endpoint)
        for pipe in pipes:
            self._leave_inproc(pipe, self._linger_s(None))
        for connector in connectors:
            self.deferred.pop(connector, None)
            self._owner.detach(connector.pipe)
            self._leave(connector, self._linger_s(None))

    def _leave_inproc(self, pipe: InprocPipe, linger_s: float | None) -> None:
        """End a connection; what waits for the name to be bound does so within LINGER, while the context is open."""
        owner = self._owner
        self._inproc_pipes.pop(pipe, None)
        owner.detach(pipe)
        loop = asyncio._get_running_loop()
        if linger_s == 0 or not pipe.waits or owner.context.closed or loop is None:
            self._end_inproc(pipe)
            return
        pipe.left = True
        self._unbound[pipe] = over = partial(self._end_inproc, pipe)
        owner.context.on_end[over] = loop
        if linger_s is not None:
            owner.context.supervisor.later("core linger", linger_s, over, failed=lambda _: over())

    def _end_inproc(self, pipe: InprocPipe) -> None:
        self._owner.context.inproc.forget(pipe)
        pipe.abort_with("left")

    def inproc_ended(self, pipe: InprocPipe) -> None:
        """Note that a connection over inproc has ended."""
        over = self._unbound.pop(pipe, None)
        if over is not None:
            self._owner.context.on_end.pop(over, None)
            self._check_empty()

    def _gave_up(self, connector: Connector) -> None:
        """Detach the pipe of a connector that makes no further attempt (ZMTP-47, RECONNECT_IVL -1)."""
        self._owner.detach(connector.pipe)
        self._owner.counters.undelivered += connector.pipe.discard_outbox()
        for connectors in self._connectors.values():
            if connector in connectors:
                connectors.remove(connector)
        self._leaving.pop(connector, None)
        self._retire(connector)
        self._check_empty()

    # -- close

    def _linger_s(self, linger_ms: int | None) -> float | None:
        value = self._owner.options.linger if linger_ms is None else linger_ms
        return None if value < 0 else value / 1000

    def close(self, linger_ms: int | None) -> None:
        """Stop accepting, and end every connection after its queued messages, within LINGER (SOCK-15)."""
        linger_s = self._linger_s(linger_ms)
        self.deferred.clear()
        self._owner.context.waiting_for_loop.pop(self, None)
        for listener in self._listeners.values():
            listener.close()
            self._retire(listener)
        self._listeners.clear()
        connectors = [*self._leaving, *(connector for group in self._connectors.values() for connector in group)]
        self._connectors.clear()
        for connector in connectors:
            self._leave(connector, linger_s)
        busy = {connector.session for connector in self._leaving}  # their handshakes go on, and queued messages follow
        for session in list(self.sessions):
            if session not in busy:
                session.close(linger_s)
        self._close_inproc(linger_s)
        self._check_empty()

    def _close_inproc(self, linger_s: float | None) -> None:
        for name in self._inproc_bound:
            self._owner.context.inproc.unbind(name)
        self._inproc_bound.clear()
        for pipe in [*self._unbound, *self._inproc_pipes]:
            self._leave_inproc(pipe, linger_s)
        for accepted in list(self._owner.pattern.pipes):
            if isinstance(accepted, InprocPipe):  # TRN-13
                accepted.abort_with("closed")

    def abandon(self) -> None:
        """Forget all connections when their event loop is closed: it takes no orders, and the system's sockets end with it."""
        self.deferred.clear()
        self._owner.context.waiting_for_loop.pop(self, None)
        for connector in (*self._leaving, *(one for group in self._connectors.values() for one in group)):
            self._owner.counters.undelivered += connector.pipe.discard_outbox()
        for listener in self._listeners.values():
            listener.abandon()
        for ends in (self._listeners, self._connectors, self._leaving, self._ended, self.sessions):
            ends.clear()
        self._close_inproc(0)
        self._empty = None
        self._check_empty()

    def _leave(self, connector: Connector, linger_s: float | None) -> None:
        """Stop a connector after its queued messages, within a time that a second call can only shorten."""
        waits = linger_s != 0 and bool(connector.pipe.outbox)
        session = connector.session
        if waits and (session is None or not session.takes_messages):
            # Not connected, or no longer: retry within the time, and close when the queue is sent.
            earlier = self._leaving.setdefault(connector, inf)
            if linger_s is not None and (until := asyncio.get_running_loop().time() + linger_s) < earlier:
                self._leaving[connector] = until
                over = partial(self._linger_over, connector)
                self._owner.context.supervisor.later("core linger", linger_s, over, failed=lambda _: over())
            if session is not None and session.ready:
                session.close(linger_s)
            return
        self._leaving.pop(connector, None)
        connector.stop()
        if session is None or not session.ready:
            self._owner.counters.undelivered += connector.pipe.discard_outbox()
        if session is not None:
            session.close(linger_s)
        self._retire(connector)

    def _linger_over(self, connector: Connector) -> None:
        if connector not in self._leaving:
            return
        del self._leaving[connector]
        self._leave(connector, 0)
        self._check_empty()

    def session_ready(self, session: SessionPort) -> bool:
        """Close a new connection after its queued messages if its endpoint was disconnected or closed; return whether it was."""
        for connector in self._leaving:
            if connector.pipe is session.pipe:
                until = self._leaving.pop(connector)
                asyncio.get_running_loop().call_soon(self._finish_leaving, connector, session, until)
                return True
        return False

    def _finish_leaving(self, connector: Connector, session: SessionPort, until: float) -> None:
        connector.stop()
        session.close(None if until == inf else max(0.001, until - asyncio.get_running_loop().time()))
        self._retire(connector)
        self._check_empty()

    def _session_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self._check_empty()

    def _retire(self, ended: Listener | Connector) -> None:
        """Remember a stopped listener or connector until its task has ended."""
        task = ended.task
        if task is not None and not task.done():
            self._ended[ended] = None
            task.add_done_callback(lambda _: self._over(ended))

    def _over(self, ended: Listener | Connector) -> None:
        self._ended.pop(ended, None)
        self._check_empty()

    @property
    def gone(self) -> bool:
        """Whether a closed socket has sent everything and no task is left."""
        return not (self.sessions or self._leaving or self._ended or self._unbound)

    def _check_empty(self) -> None:
        if self._owner.closed and self.gone:
            if self._empty is not None and not self._empty.done():
                self._empty.set_result(None)
            self._owner.departed()

    async def wait_closed(self) -> None:
        if not self.gone:
            if self._empty is None:
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty])  # several callers may wait, and cancelling one must not cancel the others
