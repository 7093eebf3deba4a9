"""The client: any number of requests at once over one connection, each answered, failed with a typed error, or cancelled.

What callers see: futures, iterators, options. How requests get to the broker and back is the business of `mdp.client.engine`.
"""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from core.address import parse_connect
from core.security.credentials import only_one
from mdp.client.calls import Call, body_frames
from mdp.client.engine import ClientEngine
from mdp.client.iterators import Outcome, map_outcomes, stream_parts
from mdp.client.pending import ClientClosed, Overrun, RequesterLimits, Unreachable
from mdp.client.replies import PendingCallback, PendingFuture, Reply
from mdp.session.broker_search import BrokerSearch, SearchTimes, chosen_dialect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import core
    from core.security.credentials import Secured
    from core.zmtp.limits import PeerLimits
    from mdp.client.iterators import Body
    from mdp.errors import RequestError
    from mdp.typed.schemas import Schema, SchemaRegistry
    from mdp.wire.commands import Dialect

__all__ = ["Client", "ClientClosed", "Outcome", "Overrun", "Unreachable"]

# Prepared calls are kept for so many services; a program that asks more of them prepares some anew.
_CALLS_MAX = 1024

T = TypeVar("T")


class Client:
    """Asks services of a Majordomo broker.

    Everything is done on the running event loop. Use it as `async with mdp.Client(…) as client`, or call `close` at the end.

    Args:
        broker: endpoint, or several in order of preference: when one cannot be reached or falls silent the next is used (BEY-03).
        timeout: seconds one attempt may take.
        attempts: how many attempts a request has; the caller gets `Timeout` after attempts x timeout seconds. It is sent so often at the
            most, and once more after a lost connection if it has one attempt.
        dialect: "auto" asks the broker and speaks MDP/0.3 or 0.1; "0.1", "0.2" or "0.3" is spoken without asking.
        window: requests in flight at once; see `RequesterLimits`.
        waiting_max: requests that may wait for the window or a connection before `Busy` is raised.
        connections_max: connections to a broker without MDP/0.3, each with one request in flight.
        heartbeat_ms: silence of the broker after which it is asked for a sign of life, while requests are in flight (MDP/0.3).
        liveness: signs of life it may fail to give.
        reconnect_ms: wait before connecting anew to a broker that fell silent; grows up to `reconnect_max_ms`.
        reconnect_max_ms: longest wait.
        context: to make sockets in; the client has its own when left out.
        security: of its own context: `core.Curve` with the broker's key, or `core.Plain` with a name and password.
        socket_options: further options of the client's sockets, e.g. CURVE keys.
        seed: of request numbers and jitter, for tests; random when left out.

    Attributes:
        counters: what happened.

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
        brokers = [broker] if isinstance(broker, str) else [*broker]
        for endpoint in brokers:
            parse_connect(endpoint)
        chance = random.Random(seed)
        self._default = Call("any", timeout_s=timeout, attempts=attempts)  # which also judges the numbers
        self._calls: dict[str | bytes | tuple[str | bytes, str], Call] = {}
        self._schemas: SchemaRegistry | None = None  # of results of `call`
        limits = RequesterLimits(
            window=window,
            waiting_max=waiting_max,
            connections_max=connections_max,
            heartbeat_s=heartbeat_ms / 1000,
            liveness=liveness,
        )
        times = SearchTimes(reconnect_s=reconnect_ms / 1000, reconnect_max_s=max(reconnect_ms, reconnect_max_ms) / 1000)
        search = BrokerSearch(brokers, chosen_dialect(dialect), times, chance.random)
        self._engine = ClientEngine(search, chance.getrandbits(32), limits, context, socket_options or {}, only_one(context, security))
        self.counters = self._engine.counters

    # --------------------------------------------------------------------------------------------------------------- requests

    def request(
        self,
        service: str | bytes,
        *frames: bytes,
        timeout: float | None = None,
        attempts: int | None = None,
        key: str | bytes | None = None,
        deadline: float | None = None,
        once: bool = False,
        wait: bool = False,
        trace: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Ask a service; acts at the call and returns a future of the reply's body frames `[body…]`.

        Args:
            service: name of the service.
            frames: body frames; none are sent as one empty frame.
            timeout: seconds one attempt may take, in place of the client's.
            attempts: in place of the client's.
            key: idempotency key, passed to the worker: requests with one key are one request.
            deadline: seconds the whole may take; broker and worker know it and do not begin what is too late.
            once: at most once: never sent again, never given to a second worker.
            wait: wait for a service that has no worker yet, instead of failing with NoService.
            trace: trace context, passed to the worker.

        Raises:
            Busy: more requests wait than `waiting_max`.
            TooLarge: the broker has told that it takes no request so large (where that is not known yet, the future fails with it).
            core.LocalProtocolError: the name is not one a service can have.
            TypeError: a frame is not bytes.
            ClientClosed: the client was closed.

        The future fails with `NoService`, `Busy`, `Timeout`, `Unreachable`, `DeadlineExceeded`, `WorkerLost`, `DeadLetter`,
        `HandlerError`, `BadRequest` or `TooLarge`. Of the options, a broker without MDP/0.3 sees none; `timeout`, `attempts`, `deadline`
        and `once` are kept by the client alone then.
        """
        if timeout is None and attempts is None and deadline is None and not (once or wait or trace):
            call = self._calls.get(service) or self._prepare(service)
            if key is not None:
                call = call.with_key(key)
        else:
            call = self._call(service, timeout, attempts, deadline, once=once, key=key, wait=wait, trace=trace)
        for frame in frames:
            if type(frame) is not bytes:
                frames = body_frames(frames)
                break
        pending = PendingFuture(call, frames or (b"",))
        engine = self._engine
        engine.submit(pending)  # first, because it may refuse it: a future that is never returned must not be made
        pending.caller = reply = Reply(loop=engine.loop)
        reply.engine, reply.request = engine, pending
        return reply

    def ask(
        self,
        service: str | bytes,
        frames: Sequence[bytes],
        done: Callable[[T, list[bytes] | None, RequestError | None], None],
        about: T,
        user: str | None = None,
    ) -> None:
        """As `request` without options, for who has thousands under way and wants no future for each.

        Args:
            service: name of the service.
            frames: body frames `[body…]`, one or more, `bytes` each.
            done: called once as `done(about, reply, error)`, one of the two None, in the turn of the loop in which it is settled:
                at the reply, when the attempts are used up, or when the client is closed. It must not raise.
            about: whatever the caller wants to know it by.
            user: on whose behalf; the broker believes it of those its rules let pass users on (`pass_users`), and drops it of others.

        Raises:
            Busy, TooLarge, core.LocalProtocolError, ClientClosed: as `request`; `done` is not called then.
        """
        pending = PendingCallback(self._calls.get(service if user is None else (service, user)) or self._prepare(service, user), frames)
        pending.caller, pending.context = done, about
        self._engine.submit(pending)

    def map(
        self,
        service: str | bytes,
        requests: Iterable[Body],
        *,
        window: int = 256,
        timeout: float | None = None,
        attempts: int | None = None,
        key: Callable[[int], str | bytes] | None = None,
        deadline: float | None = None,
        once: bool = False,
        wait: bool = False,
        trace: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Outcome, None]:
        """Ask a service once for every body of an iterable; yield an `Outcome` for each, in the order of the iterable.

        A failed request is an outcome with an error and does not end the iteration. No more than `window` requests are sent and not
        yielded, so a slow reader slows the asking down; the iterable is not read further ahead. Leaving the loop early takes
        back what is under way; where that must have happened at a certain point, `aclose` the iterator.

        Args:
            service: name of the service.
            requests: bodies: `bytes` for one frame, a sequence of `bytes` for several.
            window: requests sent and not yielded.
            key: returns the idempotency key of the request with this index.
            timeout: this and the following as for `request`.
            attempts: see there.
            deadline: see there.
            once: see there.
            wait: see there.
            trace: see there.
        """
        return map_outcomes(
            self._engine,
            lambda: self._call(service, timeout, attempts, deadline, once=once, wait=wait, trace=trace),
            requests,
            window,
            key,
        )

    def stream(
        self,
        service: str | bytes,
        *frames: bytes,
        timeout: float | None = None,
        attempts: int | None = None,
        key: str | bytes | None = None,
        deadline: float | None = None,
        once: bool = False,
        wait: bool = False,
        trace: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """Ask a service and yield its reply part by part, `[body…]` each; a reply in one piece is one part.

        Arguments are those of `request`; `timeout` is the longest silence between two parts. Half a reply is never begun again: when the
        connection or worker is lost after the first part, the iteration fails. Leaving the loop early takes the request back.

        Raises:
            RequestError: as the future of `request`; `Overrun` when parts come much faster than they are taken.
        """
        return stream_parts(
            self._engine,
            lambda: self._call(service, timeout, attempts, deadline, once=once, key=key, wait=wait, trace=trace, streaming=True),
            frames,
        )

    @overload
    async def call(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: Mapping[str, Any] | None = None, **named: Any
    ) -> T: ...

    @overload
    async def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Any: ...

    async def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Any:
        """Call a function that was made a service by its annotations; return its result. See `mdp.typed.calls`.

        Args:
            service: name of the service.
            arguments: of the function, by place.
            result: type the result must have and is given: `float`, `list[str]`, a dataclass, …; whatever came when left out.
            options: of `request`, by name: `{"deadline": 5.0}`.
            named: arguments of the function, by name.

        Raises:
            BadArguments: they are not those of the function, which was not called.
            HandlerError: the function failed.
            BadResult: it returned something of another type than it says, or than `result`.
            TypeError: an argument, or values of the type `result`, cannot be sent.
            RequestError: as the future of `request`.
        """
        from mdp.typed import calls  # a client that sends bytes does not pay for it

        schema = self._schema_of(result)
        body = await self.request(service, calls.pack_call(arguments, named), **options or {})
        return calls.unpack_result(body, schema, service)

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: Mapping[str, Any] | None = None, **named: Any
    ) -> AsyncGenerator[T, None]: ...

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> AsyncGenerator[Any, None]: ...

    async def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: Mapping[str, Any] | None = None, **named: Any
    ) -> AsyncGenerator[Any, None]:
        """Call a generator that was made a service by its annotations; yield what it yields. Arguments and errors as for `call`.

        Leaving the loop early ends the generator; where that must have happened at a certain point, `aclose` the iterator.
        """
        from mdp.typed import calls

        schema = self._schema_of(result)
        async with aclosing(self.stream(service, calls.pack_call(arguments, named), **options or {})) as parts:
            async for part in parts:
                if part != [b""]:  # which no value packs to: there were none
                    yield calls.unpack_result(part, schema, service)

    def _schema_of(self, result: Any) -> Schema:
        from mdp.typed import schemas

        if self._schemas is None:
            self._schemas = schemas.SchemaRegistry()
        return self._schemas.of(result)

    async def mmi(self, name: str, *body: str | bytes) -> str:
        """Ask the broker itself (RFC 8): `mmi("service", "echo")` is "200" or "404".

        Args:
            name: with or without the `mmi.` before it.
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
        """What is spoken on the present connection, None while there is none."""
        return self._engine.search.dialect if self._engine.machine.connected else None

    @property
    def endpoint(self) -> str:
        """The broker that is used or tried."""
        return self._engine.search.endpoint

    @property
    def connections(self) -> int:
        """How often a broker was connected to; what was learnt of a service over one connection may not hold for the next."""
        return self._engine.connections

    @property
    def limits(self) -> PeerLimits | None:
        """What the broker takes, as far as it has told; None while there is no connection."""
        return self._engine.limits

    @property
    def in_flight(self) -> int:
        """Requests sent and not settled."""
        return self._engine.machine.in_flight

    async def close(self) -> None:
        """Fail what is open with `ClientClosed`, and close the connection."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------------------------ inside

    def _prepare(self, service: str | bytes, user: str | None = None) -> Call:
        """Make the call of a service without options of its own but for the user, and keep it."""
        if len(self._calls) >= _CALLS_MAX:
            self._calls.clear()
        call = self._calls[service if user is None else (service, user)] = self._call(service, user=user)
        return call

    def _call(
        self,
        service: str | bytes,
        timeout: float | None = None,
        attempts: int | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> Call:
        return Call(
            service,
            timeout_s=self._default.timeout_s if timeout is None else timeout,
            attempts=self._default.attempts if attempts is None else attempts,
            deadline_s=deadline,
            **options,
        )
