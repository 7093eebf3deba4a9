"""Freelance client: several servers, no broker, one call (RFC 10 and the guide's models).

    async with freelance.Client(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"], timeout=3.0) as client:
        reply = await client.request(b"hello")

A request may be executed by more than one server and more than once, so handlers must be idempotent.

The decisions are made in `freelance/models/agent.py` (model 3), `freelance/models/shotgun.py` (model 2) and
`freelance/models/sequential.py` (model 1).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import core
from core.address import parse_connect
from core.machine.deadlines import TIMER_S_MIN
from core.runtime import supervision
from freelance.errors import ClientClosed, NoServer, Overrun, TooLarge
from freelance.models.agent import Agent, AgentLimits
from freelance.models.effects import Finished, GaveUp, Refused, Send
from freelance.models.fast_replies import FAST_BODY_BYTES_MAX
from freelance.models.sequential import Sequential
from freelance.models.server_list import Health
from freelance.models.shotgun import Shotgun

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured
    from freelance.models.effects import Effect

__all__ = ["Client"]

TIMEOUT_S: Final = {3: 3.0, 2: 2.5}  # FLP-06, FRL-05; model 1 ends after its tries
TRIES_IN_TIMEOUT: Final = 3
TRY_S: Final = 1.0  # of model 1, FRL-01
NEVER: Final = float("inf")
SMALL_LIMIT_BYTES: Final = 2 * FAST_BODY_BYTES_MAX


class Client:
    """Client of several servers.

    Args:
        endpoints: of the servers, most wanted first.
        model: 3, 2 or 1 (see `freelance`); the servers must use the same model.
        timeout: seconds after which a request ends with `NoServer`; None: 3.0 (model 3), 2.5 (model 2), the sum of the tries (model 1).
        try_timeout: seconds after which a server that did not answer is given up; None: a third of `timeout`, 1.0 in model 1.
        hedge: part of `try_timeout` after which a second server is asked as well; None never does (model 3).
        health: ping and back-off times (model 3).
        alias: identify each server by the endpoint it was connected at, whatever identity it announces; without it a server that does
            not announce exactly that endpoint, as RFC 10 requires, is not recognised (model 3, FLP-13).
        outstanding_max: outstanding requests.
        context: to make sockets in; None: the client has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys.

    Raises:
        ValueError: no endpoint, no such model, or times that are not above zero.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        model: Literal[1, 2, 3] = 3,
        timeout: float | None = None,
        try_timeout: float | None = None,
        hedge: float | None = 0.5,
        health: Health | None = None,
        alias: bool = True,
        outstanding_max: int = 10_000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(endpoints, str):
            raise ValueError("endpoints is a list, also for one server")
        if model not in (1, 2, 3):
            raise ValueError(f"there is no model {model}")
        if any(value is not None and value <= 0 for value in (timeout, try_timeout, hedge)):
            raise ValueError("timeout, try_timeout and hedge are above zero")
        self._endpoints = list(dict.fromkeys(endpoints))
        self._model = model
        self._alias = alias
        self._outstanding_max = outstanding_max
        self._outstanding = 0
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()
        self._sockets: dict[bytes, core.Socket] = {}  # by server; the same one for all in model 3
        self._router: core.Socket | None = None  # of model 3
        self._small_limit: set[bytes] = set()  # servers whose limits may be below a fast request
        self._futures: dict[int, asyncio.Future[list[bytes]]] = {}
        self._clock = supervision.current().timer("freelance client clock", self._tick)
        self._wakes_at = NEVER  # when the timer fires, or slightly later
        self._open = False
        whole = timeout if timeout is not None else TIMEOUT_S.get(model, TRIES_IN_TIMEOUT * TRY_S)
        if try_timeout is None:
            try_timeout = TRY_S if model == 1 else whole / TRIES_IN_TIMEOUT
        self._sequential = Sequential(self._endpoints, self._context, try_s=try_timeout, timeout_s=timeout, options=self._options)
        self._machine: Agent | Shotgun
        if model == 2:
            self._machine = Shotgun(self._endpoints, whole)
        else:
            hedge_s = None if hedge is None else hedge * try_timeout
            limits = AgentLimits(timeout_s=whole, try_s=try_timeout, hedge_s=hedge_s, health=health or Health())
            self._machine = Agent(self._endpoints, limits)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        self._open = True
        try:
            if self._model == 3:
                self._make_router()
            for endpoint in self._endpoints:
                self._connect(endpoint)
        except core.ZMQError:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._close()

    async def _close(self) -> None:
        self._open = False
        self._sequential.close()
        self._clock.cancel()
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ClientClosed())
        sockets = set(self._sockets.values()) | ({self._router} if self._router is not None else set())
        for socket in sockets:
            socket.close(linger=0)
            await socket.wait_closed()
        await self._stack.aclose()

    async def request(self, *frames: bytes, timeout: float | None = None) -> list[bytes]:
        """Send a request and return the reply's body frames. Cancelling it forgets the request.

        Args:
            frames: of the body, at least one; exactly one in model 2.
            timeout: seconds; replaces the client's.

        Raises:
            NoServer: no server answered in time.
            TooLarge: no connected server takes a request so large.
            Overrun: too many requests are outstanding.
            ClientClosed: the client is closed or not entered.
            ValueError: the model takes another number of frames.
        """
        if not self._open:
            raise ClientClosed
        if self._outstanding >= self._outstanding_max:
            raise Overrun(self._outstanding_max)
        if not frames:
            raise ValueError("a request has at least one frame")
        self._outstanding += 1
        try:
            if self._model == 1:
                return await self._sequential.request(list(frames), timeout)
            future: asyncio.Future[list[bytes]] = self._loop.create_future()
            number = self._ask(frames, timeout, future)
            try:
                return await future
            except BaseException:
                self._machine.withdraw(number)  # the caller was cancelled; no effect on a request that has ended
                raise
            finally:
                del self._futures[number]
        finally:
            self._outstanding -= 1

    def add_server(self, endpoint: str) -> None:
        """Add a server at the end of the list; does nothing if it is there already.

        Raises:
            core.InvalidEndpoint: the endpoint is not valid.
            ClientClosed: the client is closed or not entered.
        """
        if not self._open:
            raise ClientClosed
        if endpoint in self._endpoints:
            return
        parse_connect(endpoint)  # before any change
        self._endpoints.append(endpoint)
        self._sequential.servers.add(endpoint)
        self._machine.add(endpoint)
        self._connect(endpoint)

    def remove_server(self, endpoint: str) -> None:
        """Remove a server, also the last one; its requests go to others and its replies are ignored.

        Raises:
            core.EndpointNotFound: not a server of this client.
            ClientClosed: the client is closed or not entered.
        """
        if not self._open:
            raise ClientClosed
        if endpoint not in self._endpoints:
            raise core.EndpointNotFound(msg=f"{endpoint} is no server of this client", endpoint=endpoint)
        self._endpoints.remove(endpoint)
        self._sequential.servers.remove(endpoint.encode())
        effects = self._machine.remove(endpoint.encode(), self._time())
        self._disconnect(endpoint)
        self._apply(effects)

    @property
    def servers(self) -> list[str]:
        """Endpoints of all servers, reachable or not."""
        return list(self._endpoints)

    @property
    def counters(self) -> Counter[str]:
        """Requests sent, dropped and given up, by name (models 2 and 3)."""
        return self._machine.counters

    @property
    def live(self) -> list[str]:
        """Endpoints of the servers that may be asked now, in order of priority (model 3)."""
        if isinstance(self._machine, Shotgun):
            return []
        return [server.endpoint for server in self._machine.servers.by_name.values() if server.live]

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _ask(self, frames: tuple[bytes, ...], timeout: float | None, future: asyncio.Future[list[bytes]]) -> int:
        """Send a request; return its number. No reply is processed before this event-loop iteration ends."""
        # Hot path.
        machine = self._machine
        now = self._time()
        frame = frames[0]
        if timeout is None and len(frames) == 1 and type(frame) is bytes and len(frame) <= FAST_BODY_BYTES_MAX and not self._small_limit:
            fast = machine.submit_fast(frames, now)
            if fast is not None:
                number, names, octets = fast
                self._futures[number] = future
                self._send_encoded(names, octets)
                step_s = machine.first_step_s
                if now + step_s < self._wakes_at:
                    self._wake(now + step_s)
                return number
        number, effects = machine.submit(list(frames), now, timeout)
        self._futures[number] = future
        self._perform(effects)
        step_s = machine.first_step_s
        self._wake(now + (step_s if timeout is None or timeout > step_s else timeout))
        return number

    def _send_encoded(self, names: tuple[bytes, ...], octets: bytes) -> None:
        pieces = [octets]
        if self._router is not None:
            self._router.send_octets(names[0], pieces)
            return
        for name in names:
            try:
                self._sockets[name].send_octets(name, pieces)
            except core.Again:
                self.counters["send_blocked"] += 1  # the other servers have their copies

    def _make_router(self) -> None:
        self._router = self._context.socket(core.ROUTER, **{"tell_limits": 1, **self._options, "linger": 0})
        self._router.set_receiver(self._receive_routed, on_peer=self._on_peer_changed, express=self._take_fast_replies)

    def _connect(self, endpoint: str) -> None:
        """Start connecting to a server; model 1 connects for each try instead."""
        if self._router is not None:
            self._sockets[endpoint.encode()] = self._router
            if self._alias:
                self._router.connect_routing_id = endpoint.encode()
            self._router.connect(endpoint)
        elif self._model == 2:
            self._connect_dealer(endpoint, endpoint.encode())

    def _disconnect(self, endpoint: str) -> None:
        socket = self._sockets.pop(endpoint.encode(), None)
        if socket is None:
            return
        if socket is self._router:
            socket.disconnect(endpoint)
        else:
            socket.close(linger=0)

    def _connect_dealer(self, endpoint: str, name: bytes) -> None:
        """Make a DEALER for each server; a single one would distribute the copies instead of sending one to each."""
        # FRL-07: nothing waits for a connection or for capacity.
        dealer = self._context.socket(core.DEALER, **{"tell_limits": 1, **self._options, "linger": 0, "immediate": 1, "sndtimeo": 0})
        self._sockets[name] = dealer
        dealer.set_receiver(
            lambda batch: self._receive([(name, frames) for frames in batch]),
            on_peer=lambda _, joined: self._on_peer_changed(name, joined),
            express=lambda _, octets, longest: self._take_fast_replies(name, octets, longest),
        )
        dealer.connect(endpoint)

    def _on_peer_changed(self, name: bytes, joined: bool) -> None:
        if self._open:
            now = self._time()
            limits = self._sockets[name].peer_limits(name) if joined and name in self._sockets else None
            if limits is not None and limits.small < SMALL_LIMIT_BYTES:
                self._small_limit.add(name)
            else:
                self._small_limit.discard(name)
            self._apply(self._machine.joined(name, now) if joined else self._machine.lost(name, now))

    def _take_fast_replies(self, name: bytes, octets: bytes, longest: int) -> int:
        """Take plain replies off the front of a server's bytes; they only postpone deadlines, so the timer may stay."""
        # Hot path.
        finished: list[tuple[int, list[bytes]]] = []
        taken = self._machine.take_fast_replies(name, octets, longest, self._time(), finished)
        for number, body in finished:
            future = self._futures.get(number)
            if future is not None and not future.done():
                future.set_result(body)
        return taken

    def _receive_routed(self, batch: list[list[bytes]]) -> None:
        self._receive((message[0], message[1:]) for message in batch)

    def _receive(self, messages: Iterable[tuple[bytes, list[bytes]]]) -> None:
        now = self._time()
        effects: list[Effect] = []
        for name, frames in messages:
            effects += self._machine.receive(name, frames, now)
        if self._perform(effects) or self._clock.when is None:  # replies only postpone deadlines, unless something was sent
            self._set_timer()

    def _apply(self, effects: Iterable[Effect]) -> None:
        self._perform(effects)
        self._set_timer()

    def _perform(self, effects: Iterable[Effect]) -> bool:
        """Perform effects; return whether anything was sent."""
        sent = False
        wanted = [*effects]
        for effect in wanted:  # may grow meanwhile
            match effect:
                case Send(name, frames):
                    beyond = self._send(name, frames)
                    if beyond is not None:
                        parts, control = (1, frames[0]) if self._model == 3 else (2, frames[1])
                        wanted += self._machine.refused(name, control, TooLarge.of(beyond, parts, len(control)), self._time())
                    sent = True
                case Finished(number, body):
                    self._settle(number, body)
                case Refused(number, error):
                    self._settle(number, error)
                case GaveUp(number, attempts, after_s):
                    self._settle(number, NoServer(attempts=attempts, after_s=after_s))
        return sent

    def _send(self, name: bytes, frames: list[bytes]) -> core.MessageTooLarge | None:
        """Send frames to a server; return the error if they are too large for it."""
        socket = self._sockets[name]
        if self._model == 3:
            limits = socket.peer_limits(name)
            beyond = None if limits is None or len(frames) == 1 else limits.judge(frames)
            if beyond is None:
                socket.send_multipart([name, *frames])  # a ROUTER never waits: beyond its capacity it drops and counts
            return beyond
        try:
            socket.send_multipart(frames)
        except core.Again:
            self.counters["send_blocked"] += 1  # the other servers have their copies
        except core.MessageTooLarge as error:
            return error
        return None

    def _settle(self, number: int, result: list[bytes] | Exception) -> None:
        future = self._futures.get(number)
        if future is None or future.done():
            return  # the caller was cancelled
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _set_timer(self) -> None:
        """Set the timer to the earliest deadline (FLP-07)."""
        at = self._machine.deadline()
        if at is not None:
            self._wake(at)

    def _wake(self, at: float) -> None:
        """Set the timer unless it fires earlier; an early timer costs less than one timer per request."""
        if self._wakes_at <= at:
            return
        self._wakes_at = at
        self._clock.at(max(at, self._time() + TIMER_S_MIN))

    def _tick(self) -> None:
        self._wakes_at = NEVER
        self._apply(self._machine.tick(self._time()))
