"""Freelance client: several servers, no broker, one call (RFC 10 and the guide's models).

    async with freelance.Client(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"], timeout=3.0) as client:
        reply = await client.request(b"hello")

A request may be executed by more than one server and more than once, so handlers must be idempotent.

The decisions are made in `freelance/models/agent.py` (model 3), `freelance/models/shotgun.py` (model 2) and
`freelance/models/sequential.py` (model 1).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict

import core
from core.address import endpoints_to_connect, parse_connect
from core.machine.value_copies import check_counts, check_positive
from core.zmtp.frames import octets_of
from freelance.engine import FreelanceEngine, SequentialEngine
from freelance.errors import ClientClosed, Overrun
from freelance.models.agent import Agent, AgentLimits, AgentRequest
from freelance.models.client_machine import FreelanceRequest
from freelance.models.sequential import Sequential, SequentialRequest
from freelance.models.server_list import Health
from freelance.models.shotgun import Shotgun

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured

__all__ = ["Client", "ClientSettings"]

TIMEOUT_S: Final = {3: 3.0, 2: 2.5}  # FLP-06, FRL-05; model 1 ends after its tries
TRIES_IN_TIMEOUT: Final = 3
TRY_S: Final = 1.0  # of model 1, FRL-01
REQUESTS: Final[dict[int, type[FreelanceRequest]]] = {1: SequentialRequest, 2: FreelanceRequest, 3: AgentRequest}


class ClientSettings(TypedDict, total=False):
    """Keyword arguments of `Client`."""

    model: Literal[1, 2, 3]
    timeout: float | None
    try_timeout: float | None
    hedge: float | None
    health: Health | None
    alias: bool
    outstanding_max: int
    context: core.Context | None
    security: Secured | None
    socket_options: Mapping[str, Any] | None


class Client:
    """Client of several servers.

    Args:
        endpoints: of the servers, most wanted first.
        model: 3, 2 or 1 (see `freelance`); the servers must use the same model.
        timeout: seconds after which a request ends with `NoServer`; None: 3.0 (model 3), 2.5 (model 2), the sum of the tries (model 1).
        try_timeout: seconds after which a server that did not answer is given up; None: a third of `timeout`, 1.0 in model 1, whose
            tries have as long to connect.
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
        check_positive(inf, timeout=timeout, try_timeout=try_timeout, hedge=hedge)
        check_counts(outstanding_max=outstanding_max)
        self._endpoints = list(dict.fromkeys(endpoints_to_connect(endpoints)))
        self._model = model
        self._outstanding_max = outstanding_max
        self._outstanding = 0
        own: dict[str, Any] = {"context": context, "security": security, "socket_options": socket_options}
        self._engine: FreelanceEngine | SequentialEngine
        if model == 1:
            self._engine = SequentialEngine(Sequential(self._endpoints, TRY_S if try_timeout is None else try_timeout, timeout), **own)
            return
        whole = TIMEOUT_S[model] if timeout is None else timeout
        if model == 2:
            machine: Agent | Shotgun = Shotgun(self._endpoints, whole)
        else:
            try_s = whole / TRIES_IN_TIMEOUT if try_timeout is None else try_timeout
            hedge_s = None if hedge is None else hedge * try_s
            limits = AgentLimits(timeout_s=whole, try_s=try_s, hedge_s=hedge_s, health=health or Health())
            machine = Agent(self._endpoints, limits)
        self._engine = FreelanceEngine(machine, model, self._endpoints, alias=alias, **own)

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._engine.close()

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
        engine = self._engine
        if engine.loop is None or engine.closed:
            raise ClientClosed
        if self._outstanding >= self._outstanding_max:
            raise Overrun(self._outstanding_max)
        if not frames:
            raise ValueError("a request has at least one frame")
        body = [frame if type(frame) is bytes else octets_of(frame) for frame in frames]
        self._outstanding += 1
        try:
            pending = REQUESTS[self._model](body, timeout)
            reply = engine.ask(pending)
            try:
                return await reply
            except BaseException:
                engine.withdraw(pending)  # the caller was cancelled; no effect on a request that has ended
                raise
        finally:
            self._outstanding -= 1

    def add_server(self, endpoint: str) -> None:
        """Add a server at the end of the list; does nothing if it is there already.

        Raises:
            core.InvalidEndpoint: the endpoint is not valid.
            core.ZMQError: it cannot be connected to, because its key is not known for example.
            ClientClosed: the client is closed or not entered.
        """
        self._check_open()
        if endpoint in self._endpoints:
            return
        parse_connect(endpoint)  # model 1 connects later
        self._engine.connect(endpoint)
        self._endpoints.append(endpoint)
        self._engine.machine.add(endpoint)

    def remove_server(self, endpoint: str) -> None:
        """Remove a server, also the last one; its requests go to others and its replies are ignored.

        Raises:
            core.EndpointNotFound: not a server of this client.
            ClientClosed: the client is closed or not entered.
        """
        self._check_open()
        if endpoint not in self._endpoints:
            raise core.EndpointNotFound(msg=f"{endpoint} is no server of this client", endpoint=endpoint)
        self._endpoints.remove(endpoint)
        name = endpoint.encode()
        updates = self._engine.machine.remove(name, self._engine.clock())
        self._engine.disconnect(endpoint)
        self._engine.updated(updates)

    @property
    def servers(self) -> list[str]:
        """Endpoints of all servers, reachable or not."""
        return list(self._endpoints)

    @property
    def counters(self) -> Counter[str]:
        """Requests sent, dropped and given up, by name."""
        return self._engine.machine.counters

    @property
    def live(self) -> list[str]:
        """Endpoints of the servers that may be asked now, in order of priority (model 3)."""
        machine = self._engine.machine
        if not isinstance(machine, Agent):
            return []
        return [server.endpoint for server in machine.servers.by_name.values() if server.live]

    def _check_open(self) -> None:
        if self._engine.loop is None or self._engine.closed:
            raise ClientClosed
