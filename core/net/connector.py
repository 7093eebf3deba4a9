"""A connected endpoint: connects, waits for the end of the connection, and reconnects with back-off (OPT-03..05, OPT-11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable  # noqa: TC003 - compiled: fields name it
from dataclasses import dataclass
from typing import cast

from core.address import Connect, HostKind, IpcConnect, NameConnect, TcpConnect, parse_connect
from core.constants import Event, ReconnectStop
from core.errors import EINPROGRESS, EndpointError
from core.machine.backoff import backoff_s
from core.machine.socks import REFUSED, SocksError
from core.net.os_sockets import descriptor, open_ipc, open_tcp
from core.net.session import Session
from core.net.socket_port import SocketPort  # noqa: TC001 - compiled: fields name it
from core.options import Options  # noqa: TC001 - compiled: fields name it
from core.pattern.pipe import Pipe  # noqa: TC001 - compiled: fields name it


class ReconnectDelay:
    """Delay before the next attempt to connect.

    With RECONNECT_IVL_MAX 0 each delay is IVL plus a random part of up to IVL; with a maximum the delays double up to it,
    each with jitter, and a maximum below IVL makes every delay the maximum (OPT-03, OPT-04).
    """

    __slots__ = ("_attempts", "_interval_s", "_maximum_s", "_random")

    def __init__(self, interval_s: float, maximum_s: float, random: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._maximum_s = maximum_s
        self._random = random
        self._attempts = 0  # since the last connection

    def reset(self) -> None:
        self._attempts = 0

    def next_s(self) -> float:
        if not self._maximum_s:
            return self._interval_s * (1 + self._random())
        self._attempts += 1
        return backoff_s(self._interval_s, self._maximum_s, self._attempts - 1, 0.25, 1 - self._random())


@dataclass(eq=False, repr=False)
class Connector:
    """One endpoint of connect()."""

    owner: SocketPort
    connect: Connect  # the parsed endpoint
    pipe: Pipe  # outlives the connections
    options: Options  # as they were at connect() (SOCK-07)
    on_closed: Callable[[Session], None]  # called when a connection is gone
    on_gave_up: Callable[[Connector], None]  # called when there will be no further attempt (OPT-11, RECONNECT_IVL -1)

    def __post_init__(self) -> None:
        options = self.options
        self.endpoint = self.connect.endpoint
        self.session: Session | None = None  # the present connection, if there is one
        self.task: asyncio.Task[None] | None = None  # None before `start`
        self._delay = ReconnectDelay(options.reconnect_ivl / 1000, options.reconnect_ivl_max / 1000, self.owner.context.random)
        self._lost = asyncio.Event()  # the session of the present attempt is gone
        self._stopped = False

    def start(self) -> None:
        self.task = self.owner.context.supervisor.task("core connector", self._run)

    async def _run(self) -> None:
        while True:
            self.owner.emit(Event.CONNECT_DELAYED, EINPROGRESS, self.endpoint)
            delay_s = await self._attempt()
            if self._stopped:
                return
            if delay_s is None:
                break
            self.owner.emit(Event.CONNECT_RETRIED, int(delay_s * 1000), self.endpoint)
            await asyncio.sleep(delay_s)
        self.on_gave_up(self)

    async def _attempt(self) -> float | None:
        """Connect once and wait for the end of the connection; returns the seconds before the next attempt, None for none."""
        self._lost.clear()
        try:
            session = await self._open()
        except BaseException as error:
            self._forget_half_open()
            if not isinstance(error, OSError | EndpointError):  # cancelled
                raise
            reason = self._slow() if isinstance(error, TimeoutError) and not str(error) else str(error)
            self.owner.emit(Event.CLOSED, -1, self.endpoint, reason)
            refused = isinstance(error, ConnectionRefusedError) or (isinstance(error, SocksError) and error.code == REFUSED)
            return None if refused and self._stops(ReconnectStop.CONN_REFUSED) else self._next_s()
        await self._lost.wait()
        self.session = None
        if session.finished or (self._stops(ReconnectStop.HANDSHAKE_FAILED) and not session.was_ready):
            return None
        return self._after_refusal_s() if session.refused else self._next_s()

    def _slow(self) -> str:
        """Return why an attempt has ended that took too long."""
        is_name = isinstance(self.connect, TcpConnect) and self.connect.kind is HostKind.NAME
        return f"no connection within {self.options.connect_timeout / 1000:g} s{', or its name is not resolved' if is_name else ''}"

    def _stops(self, reason: ReconnectStop) -> bool:
        return bool(self.options.reconnect_stop & reason)

    def _next_s(self) -> float | None:
        return self._delay.next_s() if self.options.reconnect_ivl > 0 else None

    def _after_refusal_s(self) -> float | None:
        interval_s = self.options.refused_ivl / 1000
        return interval_s * (1 + self.owner.context.random()) if interval_s and self.options.reconnect_ivl > 0 else None

    def _forget_half_open(self) -> None:
        """Close the session of a transport that was opened inside a failed `create_connection`: uvloop does not report its end."""
        session, self.session = self.session, None
        if session is not None:
            session.connection_lost(None)

    async def _open(self) -> Session:
        timeout_s = self.options.connect_timeout / 1000 if self.options.connect_timeout else None
        async with asyncio.timeout(timeout_s):
            connect = self.connect
            if isinstance(connect, NameConnect):
                connect = parse_connect(await self.owner.context.resolve(connect.name))
            if isinstance(connect, TcpConnect):
                return cast("Session", await open_tcp(connect, self.options, self._new_protocol))
            if isinstance(connect, IpcConnect):
                return cast("Session", await open_ipc(connect, self._new_protocol))
        raise EndpointError(msg=f"{connect.endpoint} is not reached over a connection", endpoint=connect.endpoint)

    def _new_protocol(self) -> asyncio.Protocol:
        session = ConnectedSession(self.owner, self.pipe, self.endpoint, self._session_closed, self.options, self._connected)
        return cast("asyncio.Protocol", session)

    def _connected(self, session: Session, transport: asyncio.Transport) -> None:
        self.session = session
        self._delay.reset()
        self.owner.emit(Event.CONNECTED, descriptor(transport), self.endpoint)

    def _session_closed(self, session: Session) -> None:
        self._lost.set()
        self.on_closed(session)

    def stop(self) -> None:
        """Make no further attempt; the owner closes a session that is open."""
        self._stopped = True
        self.pipe.connecting = False
        if self.task is not None and self.session is None:
            self.task.cancel()


class ConnectedSession(Session):
    """Session that reports to its connector when the transport is open."""

    __slots__ = ("_on_connected",)

    def __init__(
        self,
        owner: SocketPort,
        pipe: Pipe,
        endpoint: str,
        on_closed: Callable[[Session], None],
        options: Options,
        on_connected: Callable[[Session, asyncio.Transport], None],
    ) -> None:
        super().__init__(owner, pipe, endpoint, on_closed, options)
        self._on_connected = on_connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are none of its children
        self._on_connected(self, transport)
        super().connection_made(transport)
