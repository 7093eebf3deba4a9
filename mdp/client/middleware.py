"""Middleware of clients: functions around each request, its reply and its error.

@client.middleware
async def tenant(call, call_next):
    call.headers["tenant"] = "zh"            # before
    try:
        reply = await call_next(call)        # of a stream: an asynchronous iterator of its parts
    except mdp.HandlerError:                 # an error; those of a stream come out of its iterator
        raise
    return reply                             # after
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from core.rpc.middleware import chained
from mdp.client.calls import CallDefaults, body_frames
from mdp.client.iterators import stream_parts
from mdp.client.replies import Outcome, request_with_future
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from mdp.client.calls import Call, CallOptions
    from mdp.client.engine import MdpEngine
    from mdp.client.replies import Body


@dataclass(slots=True)
class ClientCall:
    """A request as a client's middleware sees it; what is changed is sent.

    Attributes:
        service: name of the service.
        frames: body frames.
        headers: of the request.
        options: all others of the request, those of its client included.
        streaming: whether the reply is taken part by part: then the next call returns an asynchronous iterator.
    """

    service: str | bytes
    frames: tuple[bytes, ...]
    headers: dict[str, str]
    options: CallOptions
    streaming: bool = False

    @classmethod
    def of(cls, service: str | bytes, frames: Sequence[bytes], options: CallDefaults, *, streaming: bool = False) -> ClientCall:
        """Return a request with these options.

        Raises:
            TypeError: a frame is not bytes.
        """
        given = {one.name: getattr(options, one.name) for one in fields(options) if one.name != "headers"}
        return cls(service, body_frames(frames), dict(options.headers or {}), cast("CallOptions", given), streaming)

    def prepared(self) -> Call:
        """Return the request's service and options.

        Raises:
            LocalProtocolError, TypeError, ValueError: they are not valid.
        """
        given: dict[str, Any] = {**self.options, "headers": self.headers}
        return CallDefaults(**given).call(self.service, streaming=self.streaming)


ClientCallNext: TypeAlias = "Callable[[ClientCall], Awaitable[Any]]"
ClientMiddleware: TypeAlias = "Callable[[ClientCall, ClientCallNext], Awaitable[Any]]"


class ClientChain:
    """The middleware of one client.

    Args:
        engine_for: returns the engine that sends the requests to a service.
    """

    def __init__(self, engine_for: Callable[[bytes], MdpEngine], engine: MdpEngine) -> None:
        self._engine_for = engine_for
        self._engine = engine
        self.functions: list[ClientMiddleware] = []

    def request(self, call: ClientCall) -> asyncio.Future[list[bytes]]:
        return asyncio.get_running_loop().create_task(self._request(call), name="mdp client middleware")

    async def _request(self, call: ClientCall) -> list[bytes]:
        reply: list[bytes] = await chained(self.functions, self._send)(call)
        return reply

    async def _send(self, call: ClientCall) -> list[bytes]:
        prepared = call.prepared()
        return await request_with_future(self._engine_for(prepared.service), prepared, body_frames(call.frames))

    async def stream(self, prepare: Callable[[], ClientCall]) -> AsyncGenerator[list[bytes], None]:
        """Send a request through the middleware and yield the parts of its reply."""
        async with aclosing(await chained(self.functions, self._open)(prepare())) as parts:
            async for part in parts:
                yield part

    async def _open(self, call: ClientCall) -> AsyncGenerator[list[bytes], None]:
        return stream_parts(self._engine_for, call.prepared, call.frames)

    async def map(self, prepare: Callable[[int, Body], ClientCall], requests: Iterable[Body], window: int) -> AsyncGenerator[Outcome, None]:
        """Send requests through the middleware and yield their outcomes in order; see `mdp.Client.map`."""
        if window < 1:
            raise ValueError(f"window of {window}: it must be positive")
        bodies = enumerate(requests)
        clock = self._engine.clock
        sent: deque[tuple[int, float, asyncio.Future[list[bytes]], list[float]]] = deque()
        try:
            while True:
                for index, body in islice(bodies, window - len(sent)):
                    future, ends = self.request(prepare(index, body)), list[float]()
                    future.add_done_callback(partial(_note_end, ends, clock))
                    sent.append((index, clock(), future, ends))
                if not sent:
                    return
                index, begun, future, ends = sent[0]
                await asyncio.wait((future,))
                sent.popleft()
                after_s = (ends[0] if ends else clock()) - begun
                error = None if future.cancelled() else future.exception()
                if isinstance(error, RequestError):
                    yield Outcome(index, None, error, error.attempts, after_s)
                else:
                    yield Outcome(index, future.result(), None, 1, after_s)
        finally:
            for *_, future, _ in sent:
                future.cancel()


def _note_end(ends: list[float], clock: Callable[[], float], _: object) -> None:
    ends.append(clock())
