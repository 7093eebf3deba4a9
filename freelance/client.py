"""The client: several servers, no broker, one call (RFC 10 and the guide's models).

    async with freelance.Client(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"], timeout=3.0) as client:
        reply = await client.request(b"hello")

A request may be executed by more than one server, and more than once: what it does has to bear that.

What is asked where and when is decided in `agent.py` (model 3), `shotgun.py` (model 2) and `in_turn.py` (model 1).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import core
from freelance.agent import Agent, Limits
from freelance.effects import Finished, GaveUp, Send
from freelance.errors import ClientClosed, NoServer, Overrun
from freelance.in_turn import InTurn
from freelance.roster import Health
from freelance.shotgun import Shotgun

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from freelance.effects import Effect

__all__ = ["Client"]

TIMEOUT_S: Final = {3: 3.0, 2: 2.5}  # FLP-06, FRL-05; model 1 ends with its tries
TRIES_IN_TIMEOUT: Final = 3
TRY_S: Final = 1.0  # of model 1, FRL-01


class Client:
    """Asks any of several servers.

    Args:
        endpoints: of the servers, most wanted first.
        model: 3, 2 or 1 (see `freelance`); the servers have to speak the same.
        timeout: seconds after which a request ends with `NoServer`; None is the model's own: 3.0, 2.5, or the sum of the tries.
        try_timeout: seconds after which a server that did not answer is given up; None is a third of `timeout`, 1.0 in model 1.
        hedge: part of `try_timeout` after which a second server is asked as well; None never does (model 3).
        health: ping and back-off times (model 3).
        alias: call each server by the endpoint it was connected at, whatever it calls itself; without it a server that does not
            announce exactly that endpoint as its identity, as RFC 10 wants, is not recognised (model 3, FLP-13).
        outstanding_max: requests at once.
        context: to make sockets in; the client has its own when left out.
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
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(endpoints, str):
            raise ValueError("endpoints is a list, also for one server")
        if model not in (1, 2, 3):
            raise ValueError(f"there is no model {model}")
        if any(value is not None and value <= 0 for value in (timeout, try_timeout, hedge)):
            raise ValueError("timeout, try_timeout and hedge are above zero")
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self._model = model
        self._alias = alias
        self._outstanding_max = outstanding_max
        self._outstanding = 0
        self._own_context = context is None
        self._context = context or core.Context()
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()
        self._sockets: dict[bytes, core.Socket] = {}  # by server; the same one for all in model 3
        self._futures: dict[int, asyncio.Future[list[bytes]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        whole = timeout if timeout is not None else TIMEOUT_S.get(model, TRIES_IN_TIMEOUT * TRY_S)
        if try_timeout is None:
            try_timeout = TRY_S if model == 1 else whole / TRIES_IN_TIMEOUT
        self._in_turn = InTurn(self._endpoints, self._context, try_s=try_timeout, timeout_s=timeout, options=self._options)
        self._machine: Agent | Shotgun
        if model == 2:
            self._machine = Shotgun(self._endpoints, whole)
        else:
            hedge_s = None if hedge is None else hedge * try_timeout
            limits = Limits(timeout_s=whole, try_s=try_timeout, hedge_s=hedge_s, health=health or Health())
            self._machine = Agent(self._endpoints, limits)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        self._open = True
        try:
            if self._model == 3:
                self._connect_router()
            elif self._model == 2:
                self._connect_dealers()
        except core.ZMQError:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._close()

    async def _close(self) -> None:
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ClientClosed())
        for socket in set(self._sockets.values()):
            socket.close(linger=0)
            await socket.wait_closed()
        await self._stack.aclose()

    async def request(self, *frames: bytes, timeout: float | None = None) -> list[bytes]:
        """Ask and return the reply's body frames. Cancelling it forgets the request.

        Args:
            frames: of the body, at least one; exactly one in model 2.
            timeout: seconds in place of the client's.

        Raises:
            NoServer: nobody answered in time.
            Overrun: too many requests are outstanding.
            ClientClosed: the client's block was left meanwhile, or not entered.
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
                return await self._in_turn.request(list(frames), timeout)
            return await self._ask(list(frames), timeout)
        finally:
            self._outstanding -= 1

    @property
    def counters(self) -> Counter[str]:
        """What was sent, dropped, given up, by name (models 2 and 3)."""
        return self._machine.counters

    @property
    def live(self) -> list[str]:
        """Endpoints of the servers that may be asked now, in the order of their priority (model 3)."""
        if isinstance(self._machine, Shotgun):
            return []
        return [server.endpoint for server in self._machine.roster.servers.values() if server.live]

    # --- inside -------------------------------------------------------------------------------------------------------------

    async def _ask(self, body: list[bytes], timeout: float | None) -> list[bytes]:
        number, effects = self._machine.submit(body, self._loop.time(), timeout)
        future: asyncio.Future[list[bytes]] = self._loop.create_future()
        self._futures[number] = future
        try:
            self._do(effects)
            return await future
        finally:
            del self._futures[number]
            self._machine.withdraw(number)

    def _connect_router(self) -> None:
        router = self._context.socket(core.ROUTER, **{**self._options, "linger": 0})
        self._sockets = dict.fromkeys((endpoint.encode() for endpoint in self._endpoints), router)
        router.set_receiver(self._receive_routed, on_peer=self._line_changed)
        for endpoint in self._endpoints:
            if self._alias:
                router.connect_routing_id = endpoint.encode()
            router.connect(endpoint)

    def _connect_dealers(self) -> None:
        """One DEALER for each server: a single one for all would hand the copies out in turn, two to a server now and then."""
        for endpoint in self._endpoints:
            self._connect_dealer(endpoint, endpoint.encode())

    def _connect_dealer(self, endpoint: str, name: bytes) -> None:
        dealer = self._context.socket(core.DEALER, **{**self._options, "linger": 0, "immediate": 1})  # FRL-07
        self._sockets[name] = dealer
        dealer.set_receiver(
            lambda batch: self._receive([(name, frames) for frames in batch]),
            on_peer=lambda _, joined: self._line_changed(name, joined),
        )
        dealer.connect(endpoint)

    def _line_changed(self, name: bytes, joined: bool) -> None:
        if self._open:
            now = self._loop.time()
            self._do(self._machine.joined(name, now) if joined else self._machine.lost(name, now))

    def _receive_routed(self, batch: list[list[bytes]]) -> None:
        self._receive((message[0], message[1:]) for message in batch)

    def _receive(self, messages: Iterable[tuple[bytes, list[bytes]]]) -> None:
        now = self._loop.time()
        effects: list[Effect] = []
        for name, frames in messages:
            effects += self._machine.receive(name, frames, now)
        self._do(effects)

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(name, frames):
                    self._send(name, frames)
                case Finished(number, body):
                    self._settle(number, body)
                case GaveUp(number, attempts, after_s):
                    self._settle(number, NoServer(attempts=attempts, after_s=after_s))
        self._set_timer()

    def _send(self, name: bytes, frames: list[bytes]) -> None:
        socket = self._sockets[name]
        if self._model == 3:
            socket.send_multipart([name, *frames])  # a ROUTER never waits: what finds no room is dropped and counted there
            return
        try:
            socket.send_multipart(frames, core.NOBLOCK)
        except core.Again:
            self.counters["send_blocked"] += 1  # the other servers have their copies

    def _settle(self, number: int, result: list[bytes] | Exception) -> None:
        future = self._futures.get(number)
        if future is None or future.done():
            return  # its caller was cancelled a moment ago
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _set_timer(self) -> None:
        """Wake up for the earliest of all moments (FLP-07). A timer that comes too early costs less than setting one each time."""
        at = self._machine.deadline()
        if at is None or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._machine.tick(self._loop.time()))
