"""Lazy Pirate client: a request is sent again until it is answered or no attempt is left (LPP-01 to LPP-07).

    async with pirate.Client("tcp://127.0.0.1:5555", timeout=2.5, attempts=3) as client:
        reply = await client.request(b"hello")

The server is a REP socket or a Simple or Paranoid queue. A request may be executed once for each attempt, so handlers must be
idempotent.

`lazy.py` decides when and where to send.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import core
from pirate.errors import Busy, ClientClosed, NoReply
from pirate.lazy import Close, Finished, GaveUp, LazyLimits, LazyPirate, Open, Policy, Send

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured
    from pirate.lazy import Effect

__all__ = ["Client"]

log = logging.getLogger(__name__)


class Client:
    """Client of a server or a queue, with one request at a time.

    Args:
        endpoints: of the server, or of several equivalent ones, most wanted first.
        timeout: seconds for each attempt.
        attempts: in total.
        relaxed: keep the socket and number the requests (REQ_RELAXED, REQ_CORRELATE) instead of opening a fresh one for each
            attempt. The server sees one more address frame: fine with REP and queues that pass addresses on, not with workers
            that expect exactly one (BEY-02).
        policy: "ordered" asks the first server that answers, "round-robin" begins with the next one each time (BEY-01).
        check: takes the request's frames and the reply's, returns whether they match; a reply that does not match is counted, and
            the wait continues (LPP-03).
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
        servers = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        if not servers:
            raise ValueError("there is no endpoint")
        if not timeout > 0 or attempts < 1:
            raise ValueError("timeout and attempts are above zero")
        if policy not in ("ordered", "round-robin"):
            raise ValueError(f"there is no policy {policy!r}")
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._relaxed = relaxed
        self._options = dict(socket_options or {})
        self._machine = LazyPirate(servers, LazyLimits(timeout_s=timeout, attempts=attempts, relaxed=relaxed, policy=policy), check)
        self._sockets: dict[str, core.Socket] = {}
        self._sending: Awaitable[None] | None = None  # of the current attempt, while its socket has no capacity
        self._asked: str | None = None  # the server whose socket may deliver a reply, None after it did
        self._stack = AsyncExitStack()
        self._is_open = False

    async def __aenter__(self) -> Self:
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        self._is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_open = False
        for socket in tuple(self._sockets.values()):  # callers that are woken remove their sockets
            socket.close(linger=0)
            await socket.wait_closed()
        await self._stack.aclose()

    @property
    def counters(self) -> Counter[str]:
        """Requests sent, answered, refused and given up, by name."""
        return self._machine.counters

    async def request(self, *frames: bytes) -> list[bytes]:
        """Send a request and return the reply's frames. Cancelling it forgets the request.

        Args:
            frames: of the body, at least one.

        Raises:
            NoReply: no attempt was answered.
            Busy: another request is outstanding.
            ClientClosed: the client is closed or not entered.
            ValueError: no frame.
        """
        if not self._is_open:
            raise ClientClosed
        if self._machine.busy:
            raise Busy
        if not frames:
            raise ValueError("a request has at least one frame")
        loop = asyncio.get_running_loop()
        effects = self._machine.begin(list(frames), loop.time())
        try:
            while True:
                reply = self._apply(effects)
                if reply is not None:
                    return reply
                effects = await self._next(loop)
                if not self._is_open:
                    raise ClientClosed
        except core.ZMQError:
            if self._is_open:
                raise
            raise ClientClosed from None
        finally:
            self._apply(self._machine.withdraw())

    # --- inside -------------------------------------------------------------------------------------------------------------

    async def _next(self, loop: asyncio.AbstractEventLoop) -> list[Effect]:
        """Wait for the reply or the end of the attempt."""
        until = self._machine.deadline()
        assert until is not None
        asked, sending = self._asked, self._sending
        self._sending = None
        if asked is None:  # this attempt had a reply that did not match; a REQ socket delivers no second one
            await asyncio.sleep(until - loop.time())
            return self._machine.tick(loop.time())
        try:
            async with asyncio.timeout_at(until):
                if sending is not None:
                    await sending
                reply: list[bytes] = await self._sockets[asked].recv_multipart()
        except TimeoutError:
            log.warning("no response from server, retrying...", extra={"endpoint": asked})
            return self._machine.tick(max(until, loop.time()))  # a loop may wake up a clock tick early
        self._asked = None
        effects = self._machine.receive(asked, reply, loop.time())
        if not effects:
            log.warning("malformed reply from server", extra={"endpoint": asked})
        return effects

    def _apply(self, effects: Iterable[Effect]) -> list[bytes] | None:
        """Perform effects; return the reply if there is one.

        Raises:
            NoReply: the machine gave up.
        """
        for effect in effects:
            match effect:
                case Open(endpoint):
                    self._connect(endpoint)
                case Close(endpoint):
                    self._sending = self._asked = None
                    self._sockets.pop(endpoint).close(linger=0)  # unsent messages are dropped (LPP-02)
                case Send(endpoint, frames):
                    self._asked = endpoint
                    self._sending = self._sockets[endpoint].send_multipart(frames)
                case Finished(body):
                    return body
                case GaveUp(attempts, after_s):
                    raise NoReply(attempts=attempts, after_s=after_s)
        return None

    def _connect(self, endpoint: str) -> None:
        log.info("connecting to server...", extra={"endpoint": endpoint})
        # A relaxed client keeps its socket, so nothing may queue in it for an absent server: it would arrive in a burst.
        relaxed = {"req_relaxed": 1, "req_correlate": 1, "immediate": 1} if self._relaxed else {}
        socket = self._context.socket(core.REQ, **{"tell_limits": 1, **self._options, **relaxed, "linger": 0})
        self._sockets[endpoint] = socket
        socket.connect(endpoint)
