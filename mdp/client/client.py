"""The client: sends any number of requests at once; each gets a reply, a typed error, or is cancelled.

This is the API: futures, iterators, options. `mdp.client.engine` carries the requests to the broker and back.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from core.address import endpoints_to_connect
from core.runtime import runtime
from mdp.client.calls import CallDefaults, body_frames
from mdp.client.engine import MdpEngine
from mdp.client.iterators import map_outcomes, stream_parts
from mdp.client.middleware import ClientCall, ClientChain, ClientMiddleware
from mdp.client.pending import RequesterLimits
from mdp.client.replies import Outcome, PendingCallback, RequestWindow, frames_of, request_with_future
from mdp.errors import ClientClosed, NotSupported, Overrun, Unreachable
from mdp.session.broker_search import BrokerSearch, SearchTimes, chosen_dialect
from mdp.shards.direct_connections import ShardEngines
from mdp.typed.client_calls import TypedCalls
from mdp.wire.commands import V03

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import pyarrow

    import core
    from core.security.credentials import Secured
    from core.zmtp.limits import PeerLimits
    from mdp.client.calls import Call, CallOptions, MapOptions
    from mdp.client.replies import Body
    from mdp.errors import RequestError
    from mdp.wire.commands import Dialect

__all__ = ["Client", "ClientClosed", "ClientSettings", "NotSupported", "Outcome", "Overrun", "Unreachable"]

# Services whose prepared calls are kept.
_CALLS_MAX = 1024

M = TypeVar("M", bound=ClientMiddleware)
T = TypeVar("T")


class ConnectionSettings(TypedDict, total=False):
    """Keyword arguments of `Client` without a context."""

    timeout: float
    attempts: int
    dialect: Dialect | str
    window: int
    waiting_max: int
    connections_max: int
    heartbeat_ms: float
    liveness: int
    reconnect_ms: float
    reconnect_max_ms: float
    security: Secured | None
    socket_options: Mapping[str, Any] | None
    seed: int | None


class ClientSettings(ConnectionSettings, total=False):
    """Keyword arguments of `Client`."""

    context: core.Context | None


class Client(TypedCalls):
    """A client of a Majordomo broker.

    It works on the running event loop. Use it as `async with mdp.Client(…) as client`, or call `close` at the end.

    Args:
        broker: endpoint, or several in order of preference: when one cannot be reached or is silent, the next is used (BEY-03).
        timeout: seconds one attempt may take.
        attempts: attempts of a request; the caller gets `Timeout` after attempts x timeout seconds. It is sent at most that many times,
            or twice if it has one attempt and its connection was lost.
        dialect: "auto" asks the broker and uses MDP/0.3 or 0.1; "0.1", "0.2" or "0.3" is used without asking.
        window: requests in flight at once, to a broker of several shards so many to each; see `RequesterLimits`.
        waiting_max: requests that may wait for the window or a connection before `Busy` is raised.
        connections_max: connections to a broker without MDP/0.3, each with one request in flight.
        heartbeat_ms: silence of the broker, while requests are in flight, after which it is sent a heartbeat (MDP/0.3).
        liveness: heartbeats without an answer after which the connection counts as dead.
        reconnect_ms: wait before connecting again to a silent broker; grows up to `reconnect_max_ms`.
        reconnect_max_ms: longest wait.
        context: of the sockets; the client has its own when left out.
        security: of its own context: `core.Curve` with the broker's key, or `core.Plain` with a name and password.
        socket_options: further options of the client's sockets, e.g. CURVE keys.
        seed: of request numbers and jitter, for tests; random when left out.

    Attributes:
        counters: see `RequesterCounters`.
        defaults: options of requests that do not set them.

    Raises:
        core.ZMQError: an endpoint is not valid.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        broker: str | Sequence[str],
        *,
        timeout: float = 2.5,
        attempts: int = 3,
        dialect: Dialect | str = "auto",
        window: int = 1000,
        waiting_max: int = 1_000_000,
        connections_max: int = 64,
        heartbeat_ms: float = 2500,
        liveness: int = 3,
        reconnect_ms: float = 2500,
        reconnect_max_ms: float = 32_000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        brokers = endpoints_to_connect(broker)
        chance = runtime.current().chance(seed)
        self.defaults = CallDefaults(timeout, attempts)
        self.defaults.call("any")  # which checks the numbers
        self._calls: dict[str | bytes | tuple[str | bytes, str], Call] = {}
        limits = RequesterLimits(
            window=window,
            waiting_max=waiting_max,
            connections_max=connections_max,
            heartbeat_s=heartbeat_ms / 1000,
            liveness=liveness,
        )
        times = SearchTimes(reconnect_s=reconnect_ms / 1000, reconnect_max_s=max(reconnect_ms, reconnect_max_ms) / 1000)
        search = BrokerSearch(brokers, chosen_dialect(dialect), times, chance.random)
        self._engine = broker_engine = MdpEngine(search, chance.getrandbits(32), limits, context, socket_options or {}, security)
        self.counters = counters = broker_engine.counters

        def new_engine(endpoint: str) -> MdpEngine:
            of_shard = BrokerSearch([endpoint], V03, times, chance.random)
            return MdpEngine(of_shard, chance.getrandbits(32), limits, broker_engine.context, socket_options or {}, None, counters)

        self._shards = ShardEngines(broker_engine, new_engine)
        self._chain = ClientChain(self._shards.engine_for, broker_engine)

    # --------------------------------------------------------------------------------------------------------------- requests

    def with_options(self, **options: Unpack[CallOptions]) -> Self:
        """Return this client with other options: its requests, calls, streams and maps have them unless they set their own.

        It uses the connection, limits and counters of this client; closing one closes both. Options are those of `request`, None leaves
        the client's; headers are added to the client's.

        Raises:
            TypeError, ValueError: as for `request`.
        """
        view = copy(self)
        view.defaults = self.defaults.merged(options)
        view.defaults.call("any")  # which checks them
        view._calls = {}
        return view

    def middleware(self, function: M) -> M:
        """Add middleware, `async (call, call_next) -> reply`, for all requests of this client; the first one is the outermost.

        `call` is a `ClientCall`. Clients made by `with_options` have the same middleware; `ask` and `open_window` pass by it. With
        middleware, errors of `request` come from its future, and `map` sends its requests one by one.
        """
        self._chain.functions.append(function)
        return function

    def request(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> asyncio.Future[list[bytes]]:
        """Send a request and return a future of the reply's body frames `[body…]`.

        Args:
            service: name of the service.
            frames: body frames; without any, one empty frame is sent.
            timeout: seconds one attempt may take, in place of the client's.
            attempts: in place of the client's.
            key: idempotency key, passed to the worker: requests with the same key are one request.
            deadline: seconds all attempts together may take; broker and worker do not start the request later.
            once: execute at most once: never send again, never give to a second worker.
            wait: wait for a service without workers, instead of failing with NoService.
            trace: trace context, passed to the worker.
            headers: small texts by name, for the handler (`request.headers`): up to 32, up to 4096 bytes.
            priority: "high", "normal" or "low": among the requests that wait at the broker, higher ones are given first. Of ten, at least
                one is of each class that waits.
            progress: called with each `mdp.Progress` that the handler reports (`request.progress`), on the event loop, before the reply.
                While there are reports, the timeout of the attempt starts again. With a key the first request decides.

        Raises:
            Busy: more than `waiting_max` requests are waiting.
            TooLarge: it is beyond the broker's limits (the future fails with it when those are not known yet).
            NotSupported: it has headers, and the broker has no MDP/0.3 (likewise). Nothing was sent.
            core.LocalProtocolError: the service name is not valid.
            TypeError: a frame is not bytes.
            ClientClosed: the client was closed, or its context ended.

        The future fails with `NoService`, `Busy`, `Timeout`, `Unreachable`, `DeadlineExceeded`, `WorkerLost`, `DeadLetter`,
        `HandlerError`, `BadRequest`, `TooLarge` or `NotSupported`. A broker without MDP/0.3 gets none of the options; the client itself
        then keeps `timeout`, `attempts`, `deadline` and `once`.
        """
        if self._chain.functions:
            return self._chain.request(ClientCall.of(service, frames, self.defaults.merged(options)))
        # Hot path: nearly all requests have no option, or a key alone.
        if not options:
            call = self._calls.get(service) or self._prepare(service)
        elif len(options) == 1 and options.get("key") is not None:
            call = (self._calls.get(service) or self._prepare(service)).with_key(options["key"])
        else:
            call = self.defaults.merged(options).call(service)
        engine = self._engine if not self._shards.engines else self._shards.engine_for(call.service)
        return request_with_future(engine, call, frames)

    def ask(
        self,
        service: str | bytes,
        frames: Sequence[bytes],
        done: Callable[[T, list[bytes] | None, RequestError | None], None],
        about: T,
        user: str | None = None,
        key: str | bytes | None = None,
    ) -> None:
        """Send a request with the client's options and call a function at its end; cheaper than a future per request.

        Args:
            service: name of the service.
            frames: body frames `[body…]`, one or more, `bytes` each.
            done: called once as `done(about, reply, error)`, reply or error being None: at the reply, when no attempt is left, or
                when the client is closed. An error that it raises is logged and counted.
            about: passed to `done`.
            user: on whose behalf; the broker accepts it from clients whose rules have `pass_users`, and drops it from others.
            key: idempotency key, as for `request`.

        Raises:
            TypeError: a frame is not a buffer.
            Busy, TooLarge, NotSupported, core.LocalProtocolError, ClientClosed: as `request`; `done` is not called then.
        """
        # Hot path: one frame of bytes. The length of an array or a view is not that of its bytes, which the peer would wait for.
        frames = frames if len(frames) == 1 and type(frames[0]) is bytes else body_frames(frames)
        call = self._calls.get(service if user is None else (service, user)) or self._prepare(service, user)
        pending = PendingCallback(call if key is None else call.with_key(key), frames)
        pending.caller, pending.context = done, about
        engine = self._engine if not self._shards.engines else self._shards.engine_for(pending.call.service)
        engine.submit(pending)

    def map(
        self,
        service: str | bytes,
        requests: Iterable[Body],
        *,
        window: int = 256,
        key: Callable[[int], str | bytes] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Outcome, None]:
        """Send one request per body of an iterable; yield an `Outcome` for each, in the order of the iterable.

        A failed request is an outcome with an error and does not end the iteration. At most `window` requests are sent and not yielded,
        and the iterable is not read further ahead, so a slow reader slows the sending down. Leaving the loop early cancels what is in
        flight; call `aclose` on the iterator where that must have happened.

        Args:
            service: name of the service.
            requests: bodies: `bytes` for one frame, a sequence of `bytes` for several.
            window: requests sent and not yielded.
            key: returns the idempotency key of the request with this index. A client with a key (`with_options`) appends "-" and the index.
            options: as for `request`, by name: `timeout=5.0`.
        """
        key_of = key or self.defaults.key_of

        if self._chain.functions:

            def call(index: int, body: Body) -> ClientCall:
                merged = self.defaults.merged_for_many(options)
                return ClientCall.of(service, frames_of(body), merged if key_of is None else replace(merged, key=key_of(index)))

            return self._chain.map(call, requests, window)
        return map_outcomes(self._shards.engine_for, lambda: self.defaults.merged_for_many(options).call(service), requests, window, key_of)

    def open_window(self, service: str | bytes, on_end: Callable[[], None], **options: Unpack[MapOptions]) -> RequestWindow:
        """Return a `RequestWindow`: requests whose outcomes are taken as they end, not in their order.

        For callers that bound what is in flight themselves: it sends what it is given, as far as the client's `window` allows. Its requests
        have the keys that they are sent with, and not that of a client with a key (`with_options`).

        Args:
            service: name of the service.
            on_end: called on the event loop when there are outcomes to take, and there were none before. Its errors are logged and counted.
            options: as for `request`, by name: `timeout=5.0`.
        """
        return RequestWindow(self._shards.engine_for, self.defaults.merged_for_many(options).call(service), on_end)

    def stream(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> AsyncGenerator[list[bytes], None]:
        """Send a request and yield its reply part by part, `[body…]` each; a reply in one piece is one part.

        Arguments are those of `request`; `timeout` is the longest silence between two parts. When the connection or worker is lost after
        the first part, the iteration fails, because a reply is not restarted. Leaving the loop early cancels the request.

        Raises:
            RequestError: as the future of `request`; `Overrun` when too many parts are not taken.
        """
        if self._chain.functions:
            return self._chain.stream(lambda: ClientCall.of(service, frames, self.defaults.merged(options), streaming=True))
        return stream_parts(self._shards.engine_for, lambda: self.defaults.merged(options).call(service, streaming=True), frames)

    async def request_batch(
        self, service: str | bytes, table: pyarrow.Table | pyarrow.RecordBatch, **options: Unpack[CallOptions]
    ) -> pyarrow.Table:
        """Ask a batch service about the rows of a table, with one request.

        Args:
            service: name of the service, whose function is marked `mdp.service(…, batch="arrow")`.
            table: the rows, as a table or a record batch; a column `_key` has their keys, for the service.
            options: of `request`, by name: `key="…"`, `timeout=5.0`.

        Returns:
            A table of as many rows; where a column `_error` is not null, the service refused the row.

        Raises:
            BadResult: the reply is no table of as many rows.
            HandlerError: the service failed for all rows.
            BadRequest: the service does not take this table.
            RequestError: as the future of `request`.
            ImportError: pyarrow is not installed (the extra `spark`).
        """
        from mdp.batch.requests import request_batch  # late: it needs pyarrow

        return await request_batch(self.request, service if isinstance(service, str) else service.decode(), table, options)

    async def mmi(self, name: str, *body: str | bytes) -> str:
        """Query the broker (RFC 8): `mmi("service", "echo")` is "200" or "404".

        Args:
            name: with or without the prefix `mmi.`.
            body: frames; text is encoded as UTF-8.

        Returns:
            The first frame of the reply as text.
        """
        frames = [frame.encode() if isinstance(frame, str) else frame for frame in body]
        reply = await self.request(name if name.startswith("mmi.") else f"mmi.{name}", *frames)
        return reply[0].decode(errors="replace")

    # ------------------------------------------------------------------------------------------------------------------- state

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a broker."""
        return self._engine.machine.connected

    @property
    def dialect(self) -> Dialect | None:
        """Dialect of the present connection, None while there is none."""
        return self._engine.search.dialect if self._engine.machine.connected else None

    @property
    def endpoint(self) -> str:
        """Endpoint of the broker that is used or tried."""
        return self._engine.search.endpoint

    @property
    def connections(self) -> int:
        """Number of connections so far; knowledge about a service may be outdated after a new one."""
        return self._engine.connections

    @property
    def limits(self) -> PeerLimits | None:
        """Limits the broker has announced; None while there is no connection."""
        return self._engine.limits

    @property
    def in_flight(self) -> int:
        """Requests sent and not settled."""
        return self._engine.machine.in_flight + self._shards.in_flight

    async def close(self) -> None:
        """Fail open requests with `ClientClosed` and close the connection."""
        try:
            await self._shards.close()
        finally:
            await self._engine.close()

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _prepare(self, service: str | bytes, user: str | None = None) -> Call:
        if len(self._calls) >= _CALLS_MAX:
            self._calls.clear()
        call = self._calls[service if user is None else (service, user)] = self.defaults.call(service, user=user)
        return call
