"""Lazy Pirate client: a request is sent again until it is answered or no attempt is left (LPP-01 to LPP-07).

    async with pirate.Client("tcp://127.0.0.1:5555", timeout=2.5, attempts=3) as client:
        reply = await client.request(b"hello")

The server is a REP socket or a Simple or Paranoid queue. A request may be executed once for each attempt, so handlers must be
idempotent.

`lazy.py` decides when and where to send.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Self

import core
from core.address import endpoints_to_connect
from core.machine.value_copies import check_counts, check_positive
from core.rpc.client_engine import ClientEngine
from core.runtime import supervision
from pirate.errors import ClientClosed
from pirate.lazy import Close, LazyLimits, LazyPirate, LazyRequest, NoResponse, Open, Policy, Send

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured
    from core.zmtp.frames import Message

__all__ = ["Client"]

log = logging.getLogger(__name__)


class Client:
    """Client of a server or a queue, with one request at a time.

    Args:
        endpoints: of the server, or of several equivalent ones, most wanted first.
        timeout: seconds for each attempt, and for the answer once the server is connected.
        attempts: in total.
        relaxed: keep the socket and number the requests (REQ_RELAXED, REQ_CORRELATE) instead of opening a fresh one for each
            attempt. The server sees one more address frame: fine with REP and queues that pass addresses on, not with workers
            that expect exactly one (BEY-02).
        policy: "ordered" asks the first server that answers, "round-robin" begins with the next one each time (BEY-01).
        check: takes the request's frames and the reply's, returns whether they match; a reply that does not match is counted, and
            the wait continues (LPP-03), or the request goes at once to a server that had it less often (BEY-01). If it raises an
            error, that is logged, and the reply does not match.
        context: to make sockets in; None: the client has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys.

    Raises:
        ValueError: no endpoint, or numbers that are not above zero.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        timeout: float = 2.5,
        attempts: int = 3,
        relaxed: bool = False,
        policy: Policy = "ordered",
        check: Callable[[list[bytes], list[bytes]], bool] | None = None,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        servers = tuple(endpoints_to_connect(endpoints))
        if not servers:
            raise ValueError("there is no endpoint")
        check_positive(inf, timeout=timeout)
        check_counts(attempts=attempts)
        if policy not in ("ordered", "round-robin"):
            raise ValueError(f"there is no policy {policy!r}")
        limits = LazyLimits(timeout_s=timeout, attempts=attempts, relaxed=relaxed, policy=policy)
        options = dict(socket_options or {})
        if relaxed:
            options |= {"req_relaxed": 1, "req_correlate": 1}
        self._engine = PirateEngine(
            LazyPirate(servers, limits, None if check is None else partial(_matches, check)), context, security, options
        )

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._engine.close()

    @property
    def counters(self) -> Counter[str]:
        """Requests sent, answered, refused and given up, by name."""
        return self._engine.machine.counters

    async def request(self, *frames: bytes) -> list[bytes]:
        """Send a request and return the reply's frames. Cancelling it forgets the request.

        Args:
            frames: of the body, at least one.

        Raises:
            NoReply: no attempt was answered.
            Busy: another request is outstanding.
            core.MessageTooLarge: the server takes no message so large.
            ClientClosed: the client is closed or not entered.
            ValueError: no frame.
        """
        engine = self._engine
        if engine.loop is None or engine.closed:
            raise ClientClosed
        if not frames:
            raise ValueError("a request has at least one frame")
        pending = LazyRequest(list(frames))
        reply = engine.ask(pending)
        try:
            return await reply
        except BaseException:
            engine.withdraw(pending)  # the caller was cancelled; no effect on a request that has ended
            raise


def _matches(check: Callable[[list[bytes], list[bytes]], bool], request: list[bytes], reply: list[bytes]) -> bool:
    found: list[bool] = []  # empty if it raises
    supervision.current().call("pirate client check", lambda: found.append(check(request, reply)))
    return any(found)


class PirateEngine(ClientEngine[LazyPirate]):
    """A REQ socket for each server that is asked; see `core.rpc.client_engine`."""

    def __init__(
        self, machine: LazyPirate, context: core.Context | None, security: Secured | None, socket_options: Mapping[str, Any]
    ) -> None:
        super().__init__(machine, "pirate", ClientClosed, context, security, socket_options)
        self._ticker = supervision.current().timer("pirate client clock", self._tick)
        self._sockets: dict[str, core.Socket] = {}  # by endpoint

    def flush(self) -> None:
        machine = self.machine
        while machine.outgoing:
            outgoing, machine.outgoing = machine.outgoing, []
            for order in outgoing:
                match order:
                    case Open(endpoint):
                        self._open(endpoint)
                    case Send(endpoint, body):
                        self._send(endpoint, body)
                    case NoResponse(endpoint):
                        log.warning("no response from server, retrying...", extra={"endpoint": endpoint})
                    case Close(endpoint):
                        self._close(endpoint)

    def _open(self, endpoint: str) -> None:
        log.info("connecting to server...", extra={"endpoint": endpoint})
        # IMMEDIATE: nothing is sent before the limits of the server are known.
        try:
            socket = self._sockets[endpoint] = self.new_socket(core.REQ, linger=0, immediate=1)
            socket.set_receiver(partial(self._receive, endpoint, socket), on_peer=partial(self._peer_changed, endpoint, socket))
            socket.connect(endpoint)
        except core.ZMQError as error:
            self._close(endpoint)
            self.notify(self.machine.unopened(endpoint, error, self.clock()))

    def _close(self, endpoint: str) -> None:
        socket = self._sockets.pop(endpoint, None)
        if socket is not None and self.loop is not None:
            # Later, because this may be a call of the socket; unsent messages are dropped (LPP-02).
            self.loop.call_soon(socket.close)

    def _send(self, endpoint: str, body: Sequence[bytes]) -> None:
        try:
            self._sockets[endpoint].send_multipart(body, core.NOBLOCK)
        except core.Again:
            self.machine.counters["send_blocked"] += 1  # the connection is lost again; the attempt's time ends
        except core.MessageTooLarge as error:
            self.notify(self.machine.failed(endpoint, error, self.clock()))

    def _connect(self) -> None:
        """Do nothing: each attempt connects."""

    def _open_sockets(self) -> Iterable[core.Socket]:
        return self._sockets.values()

    def _peer_changed(self, endpoint: str, socket: core.Socket, _: bytes, joined: bool) -> None:
        if not self.closed and self._sockets.get(endpoint) is socket:
            if joined:
                self.machine.joined(endpoint, self.clock())
            else:
                self.machine.lost(endpoint)
            self.flush_all()

    def _receive(self, endpoint: str, socket: core.Socket, batch: list[Message]) -> None:
        if self.closed or self._sockets.get(endpoint) is not socket:
            return
        for reply in batch:
            ended = self.machine.receive(endpoint, [*reply], self.clock())
            if not ended:
                log.warning("malformed reply from server", extra={"endpoint": endpoint})
            self.updated(ended)
