"""The worker: registers a handler at a broker and answers requests.

    async with mdp.Worker("tcp://broker:5555", "echo", handler=echo, concurrency=16) as worker:
        await worker.serve_forever()

The shell of `mdp.worker.session`; `mdp.worker.registration` handles connections, `mdp.worker.runners` the handlers.

When a handler fails, the client of an MDP/0.3 broker gets ERROR `HANDLER_ERROR` with the type of the error and an id, which leads to the
entry in this worker's log; it never gets a traceback or a payload. MDP/0.1 and 0.2 have no errors, and an invented reply would look like a
result: so the worker leaves the broker (DISCONNECT) and registers again at once, as after a crash, and the client's timeout and retries
decide. `error_reply` makes a reply instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, fields
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import core
from core.address import endpoints_to_connect
from core.errors import LocalProtocolError
from core.machine.value_copies import check_counts, check_not_negative, check_positive
from core.rpc.drained import Drained
from core.runtime import runtime
from core.runtime.event_loop import clock_of
from core.security.credentials import only_one
from mdp.session.broker_search import BrokerSearch, SearchTimes, chosen_dialect
from mdp.typed.handlers import with_arguments
from mdp.wire.commands import V03
from mdp.worker.handler import HandlerKind, kind_of, mark_of, reply_frames
from mdp.worker.loop_watchdog import Watchdog
from mdp.worker.registration import WorkerRegistration
from mdp.worker.replies.kept_replies import KeptReplies
from mdp.worker.runners import Runners
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import RunnerCounters, SessionCounters, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured
    from mdp.app.middleware import Middleware
    from mdp.request import Request
    from mdp.session.shared_connection import SharedConnections
    from mdp.wire.policies import Rate, Retry
    from mdp.worker.handler import Body, WorkerSettings

log = logging.getLogger("mdp.worker")

# Credit per runner: enough that the next request is present when a handler ends, and not so much that other workers are idle meanwhile.
_CREDIT_PER_RUNNER = 4
_CREDIT_MAX = 65535

# When the bodies of requests are logged.
LOG_PAYLOADS: Final = ("never", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker; each field is a keyword argument of `Worker` and of `mdp.service`.

    Attributes:
        concurrency: handlers that run at the same time.
        credit: requests in flight that the broker may give this worker (MDP/0.3); four per concurrent handler when left out. The broker
            moves those that wait here to other workers that are free.
        connections: registrations at a broker without MDP/0.3, each with one request in flight; the broker sees as many workers.
        dialect: "auto" asks the broker; "0.1", "0.2" or "0.3" is used without asking.
        heartbeat_ms: heartbeat interval in both directions; in MDP/0.1 and 0.2 it must be the same as the broker's.
        liveness: silent intervals after which the broker counts as dead.
        reconnect_ms: wait before connecting again after silence or DISCONNECT; doubles, with jitter, up to `reconnect_max_ms`.
        reconnect_max_ms: longest wait; while no broker can be reached, half of `heartbeat_ms` times `liveness` is, if that is shorter.
        drain_s: how long leaving the block waits for running handlers; requests without a handler go to other workers.
        cancel_s: how long a cancelled handler may take to end. Then it is logged; a worker that closes does not wait for it any longer.
        blocked_s: a handler that blocks the event loop for so long is logged, 0 for never.
        stuck_s: heartbeats stop while a handler runs longer than this, so that the broker gives the request to another worker
            (MDP-24); None for never.
        parts_max_bytes: limit, per request, of what a generator yields for a broker of MDP/0.1, where it is kept for one reply.
        results_max: maximum replies kept by idempotency key, so that a request that this worker has executed is not executed again when
            its broker was killed (IDM-07, MDP/0.3); 0 for none.
        results_max_bytes: maximum bytes of these replies.
        results_ms: how long a reply is kept by its key.
        log_payloads: "errors" logs the first 1,000 bytes of a request whose handler failed or that was refused; "never" logs none.
        error_reply: makes a reply from the error of a handler, for brokers without errors in their dialect.
        version: of the worker's program, shown by `mmi.workers`.
        metadata: any msgpack value, shown there too.
        rate: limit of the requests a second of the service, which the broker keeps (MDP/0.3); that of the worker that registered last with
            one counts.
        retry: how often, and when, the broker has a request executed again whose handler failed; likewise.
        seed: of jitter, for tests; random when left out.
    """

    concurrency: int = 16
    credit: int | None = None
    connections: int = 1
    dialect: str = "auto"
    heartbeat_ms: float = 2500
    liveness: int = 3
    reconnect_ms: float = 2500
    reconnect_max_ms: float = 32_000
    drain_s: float = 10.0
    cancel_s: float = 5.0
    blocked_s: float = 1.0
    stuck_s: float | None = None
    parts_max_bytes: int = 16 * 2**20
    results_max: int = 10_000
    results_max_bytes: int = 16 * 2**20
    results_ms: float = 600_000
    log_payloads: str = "never"
    error_reply: Callable[[BaseException], Body] | None = None
    version: str = ""
    metadata: Mapping[str, Any] | None = None
    rate: Rate | None = None
    retry: Retry | None = None
    seed: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_counts(
            concurrency=self.concurrency, connections=self.connections, liveness=self.liveness, parts_max_bytes=self.parts_max_bytes
        )
        if self.credit is not None:
            check_counts(credit=self.credit)
        check_positive(heartbeat_ms=self.heartbeat_ms, reconnect_ms=self.reconnect_ms, reconnect_max_ms=self.reconnect_max_ms)
        check_positive(inf, stuck_s=self.stuck_s)
        check_not_negative(results_max=self.results_max, results_max_bytes=self.results_max_bytes, results_ms=self.results_ms)
        check_not_negative(inf, drain_s=self.drain_s, blocked_s=self.blocked_s, cancel_s=self.cancel_s)
        if self.log_payloads not in LOG_PAYLOADS:
            raise ValueError(f"log_payloads is {self.log_payloads!r}; it must be one of {', '.join(LOG_PAYLOADS)}")

    def kept_replies(self, counters: SessionCounters) -> KeptReplies:
        """Return the memory of replies by key."""
        limits = {"results_max": self.results_max, "results_max_bytes": self.results_max_bytes}
        return KeptReplies(counters, **limits, results_s=self.results_ms / 1000)

    def session_options(self, *, inline: bool = False) -> SessionOptions:
        """Return the options of READY; inline handlers run one at a time, whatever the concurrency."""
        credit = min(_CREDIT_MAX, _CREDIT_PER_RUNNER * self.concurrency) if self.credit is None else self.credit
        return SessionOptions(
            credit=credit,
            heartbeat_s=self.heartbeat_ms / 1000,
            liveness=self.liveness,
            version=self.version,
            metadata=self.metadata,
            concurrency=1 if inline else min(_CREDIT_MAX, self.concurrency),
            rate=self.rate,
            retry=self.retry,
        )


class Worker:
    """A worker of one service.

    Args:
        broker: endpoint, or several in order of preference (BEY-03).
        service: its name, or a handler decorated with `mdp.service`.
        handler: answers a request; see `mdp.worker.handler`.
        inline: call a plain function on the event loop instead of a thread.
        context: of the sockets; the worker has its own when left out.
        security: of its own context: `core.Curve` with the broker's key, or `core.Plain` with a name and password.
        socket_options: further options of the worker's sockets, e.g. CURVE keys.
        around: takes the handler, whose arguments and result are bytes, and returns the one to call.
        middleware: `async (request, call_next) -> reply`, the first one outermost; see `mdp.App.middleware`.
        shared: connections that it shares with other workers of the same context (MDP/0.3), as those of an `mdp.App`.
        options: fields of `WorkerOptions`, by name; they override those of the decorator.

    Attributes:
        service: name of the service.
        options: all of them.
        session_counters: of the traffic between worker and broker.

    Raises:
        core.ZMQError: an endpoint is not valid.
        core.LocalProtocolError: the service name is not valid, or reserved for the broker.
        TypeError: no handler, or an unknown option.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        broker: str | Sequence[str],
        service: str | Callable[..., Any],
        *,
        handler: Callable[..., Any] | None = None,
        inline: bool = False,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        middleware: Sequence[Middleware] = (),
        shared: SharedConnections | None = None,
        **options: Unpack[WorkerSettings],
    ) -> None:
        mark = mark_of(handler if isinstance(service, str) else service)
        if not isinstance(service, str):
            handler, service = service, mark.name if mark is not None else ""
        if handler is None:
            raise TypeError(f"worker of {service!r}: a handler is missing")
        if not service:
            raise TypeError("a handler without a service: give the name, or decorate the handler with mdp.service")
        if mark is not None:
            options = {**mark.options, **options}
            inline = inline or mark.inline
            handler, options["metadata"] = with_arguments(handler, mark, service, options)
        if around is not None:
            handler = around(handler)
        self._kind = kind_of(handler, inline=inline)
        self._handler = handler
        self._middleware = tuple(middleware)
        self._shared = shared
        self._brokers = endpoints_to_connect(broker)
        known = {field.name for field in fields(WorkerOptions)}
        if not known.issuperset(options):
            raise TypeError(f"no such option of a worker: {', '.join(sorted(set(options) - known))}")
        self.options = WorkerOptions(**options)
        if service.startswith("mmi."):
            raise LocalProtocolError(f"service name {service[:300]!r}: names that begin with mmi. are reserved for the broker (MMI-02)")
        self.service = service
        self.session_counters = SessionCounters()
        self._kept = self.options.kept_replies(self.session_counters)
        self._chance = runtime.current().chance(self.options.seed)
        self._now = runtime.current().monotonic
        self._context = context
        self._owns_context = context is None
        self._security = only_one(context, security)
        self._socket_options: Mapping[str, Any] = socket_options or {}
        self._session = self._new_session()  # which checks service and options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runners: Runners | None = None
        self._watchdog: Watchdog | None = None
        self._registrations: list[WorkerRegistration] = []
        self._former: deque[WorkerRegistration] = deque(maxlen=self.options.connections + 8)  # closed ones
        self._flushing = False
        self._stopped: asyncio.Future[None] | None = None
        self._idle = Drained(self._is_drained)
        self._drained = False  # `drain` has waited for running handlers

    # ------------------------------------------------------------------------------------------------- API

    @property
    def runner_counters(self) -> RunnerCounters:
        """Counters of the handler."""
        return RunnerCounters() if self._runners is None else self._runners.counters

    @property
    def connected(self) -> bool:
        """Whether the worker is registered."""
        return any(registration.registered for registration in self._registrations)

    @property
    def running(self) -> int:
        """Number of requests whose handler runs."""
        return 0 if self._runners is None else len(self._runners.running)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a handler."""
        return 0 if self._runners is None else self._runners.waiting

    @property
    def stuck(self) -> str:
        """Why the worker makes no progress, for people; empty while it does."""
        if (for_s := self._overrun_s()) is not None:
            return f"a handler has run for {for_s:.0f} s, more than stuck_s, {self.options.stuck_s:g}"
        return "" if self._runners is None else self._runners.stuck()

    async def serve_forever(self) -> None:
        """Wait until `stop` is called; the worker serves as soon as its block is entered, with or without this.

        Raises:
            core.ContextTerminated: the program has ended the context.
        """
        if self._stopped is not None:
            await asyncio.shield(self._stopped)

    def stop(self) -> None:
        """Accept no new requests and end `serve_forever`; leaving the block then waits for running handlers."""
        if self._runners is not None:
            self._runners.forget_waiting()
        for registration in self._registrations:
            registration.drain()
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    async def drain(self, drain_s: float | None = None) -> bool:
        """Accept no new requests and wait up to `drain_s` seconds (the option when left out) for running handlers.

        Returns:
            Whether all requests were answered.
        """
        self.stop()
        if not self._is_drained():
            await self._idle.wait(self.options.drain_s if drain_s is None else drain_s)
            self._drained = True
        return self._runners is None or self._runners.idle

    async def abort(self, *, silent: bool = False) -> None:
        """End as a process does that is killed: handlers are cancelled, and the broker gets no message. For tests.

        Args:
            silent: as a machine without power: the broker does not see the connection end either.
        """
        for registration in self._registrations:
            registration.vanish(silent=silent)
        if self._runners is not None:
            await self._runners.close()

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("a worker serves once; make another one")
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        if self._context is None:
            self._context = core.Context(security=self._security)
        self._runners = Runners(
            self._handler,
            self._kind,
            self.options.concurrency,
            parts_max_bytes=self.options.parts_max_bytes,
            cancel_s=self.options.cancel_s,
            clock=clock_of(self._loop),
            on_answer=self._flush_soon,
            on_give_back=self._answer_without_errors,
            on_idle=self._on_idle,
            wait_for_capacity=self._wait_for_capacity,
            wrap=self._wrap if self._middleware else None,
            log_payloads=self.options.log_payloads == "errors",
        )
        if self.options.blocked_s and (self._middleware or self._kind is not HandlerKind.THREAD):
            self._watchdog = Watchdog(self._loop, self.options.blocked_s, self.service)
        self._context.on_end[self._context_ended] = self._loop
        try:
            self._register(self._session)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            # Do not delay an error, above all a cancellation, nor a program that has waited in `drain` already.
            await self.drain(self.options.drain_s if error is None and not self._drained else 0)
        finally:
            await self._close()

    def _context_ended(self) -> None:
        """Give up: the program has ended the context, and nothing can be sent any longer."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(core.ContextTerminated())
            self._stopped.exception()  # `serve_forever` need not be awaited
        self.stop()
        for registration in self._registrations:
            registration.leave_soon()

    async def _close(self) -> None:
        if self._context is not None:
            self._context.on_end.pop(self._context_ended, None)
        if self._watchdog is not None:
            self._watchdog.close()
        try:
            if self._runners is not None:
                await self._runners.close()
        finally:
            for registration in self._registrations:
                registration.leave()
            try:
                for registration in (*self._registrations, *self._former):
                    await registration.wait_closed()
            finally:
                if self._owns_context and self._context is not None:
                    await self._context.aclose()

    def _wrap(self, call: Callable[[Request], Any]) -> Callable[[Request], Any]:
        from mdp.app.middleware import wrapped  # late: few workers have some

        return wrapped(self._middleware, call, parts=self._kind is HandlerKind.GENERATOR)

    # -------------------------------------------------------------------------------------------------------------- registrations

    def _new_session(self) -> WorkerSession:
        options = self.options
        times = SearchTimes(
            reconnect_s=options.reconnect_ms / 1000,
            reconnect_max_s=max(options.reconnect_ms, options.reconnect_max_ms) / 1000,
            away_max_s=options.heartbeat_ms * options.liveness / 2000,  # half of the time in which a broker that starts waits for us
        )
        search = BrokerSearch(self._brokers, chosen_dialect(options.dialect), times, self._chance.random)
        inline = self._kind is HandlerKind.INLINE and not self._middleware
        return WorkerSession(self.service, search, options.session_options(inline=inline), self.session_counters, self._kept)

    def _register(self, session: WorkerSession) -> None:
        if self._context is None:
            return
        registration = WorkerRegistration(
            session,
            self._context,
            self._socket_options,
            on_requests=self._on_requests,
            on_unwanted=self._on_unwanted,
            on_recalled=self._on_recalled,
            on_joined=self._on_joined,
            is_stuck=lambda: self._overrun_s() is not None,
            why_stuck=lambda: self.stuck,
            shared=self._shared,
        )
        self._registrations.append(registration)
        registration.start()

    def _on_joined(self, registration: WorkerRegistration) -> None:
        """Open or close registrations: their number depends on the dialect."""
        first, *others = self._registrations
        if registration.session.search.dialect == V03:
            for surplus in others if registration is first else [registration]:
                self._registrations.remove(surplus)
                self._former.append(surplus)
                surplus.leave_soon()
        elif registration is first:
            if self.options.concurrency > self.options.connections:
                text = "%s: %s gives each connection one request at a time; this worker has %d connections for its concurrency of %d"
                log.info(text, self.service, registration.session.search.endpoint, self.options.connections, self.options.concurrency)
            while len(self._registrations) < self.options.connections:
                self._register(self._new_session())

    def _registration_of(self, request: Request) -> WorkerRegistration | None:
        return next((registration for registration in self._registrations if registration.session is request._owner), None)

    def _overrun_s(self) -> float | None:
        """Return how long the oldest handler has run, None if no longer than `stuck_s` (MDP-24)."""
        limit_s, runners = self.options.stuck_s, self._runners
        if limit_s is None or runners is None or not runners.running:
            return None
        for_s = self._now() - next(iter(runners.running.values()))
        return for_s if for_s > limit_s else None

    # ----------------------------------------------------------------------------------------------------------- requests

    def _on_requests(self, requests: list[Request]) -> None:
        if self._runners is not None:
            self._runners.put(requests)

    def _on_unwanted(self, requests: list[Request]) -> None:
        if self._runners is None:
            return
        for request in requests:
            if request._execution is not None and not request._owner.holds(request) and self._overrun_s() is None:
                # Its connection has ended. A handler that was called goes on: its reply is kept for the broker that asks again (IDM-07).
                if self._runners.release(request):
                    request._owner.forget(request)
            elif self._runners.drop(request):
                request._owner.end_cancelled(request)
        self._flush_soon()

    def _on_recalled(self, requests: list[Request]) -> None:
        for request in requests:
            if self._runners is not None and self._runners.release(request):
                request._owner.return_one(request)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send the answers of this loop iteration in one write at its end."""
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if successors := self._kept.take_successors():
            self._on_requests(successors)
        for registration in self._registrations:
            registration.flush()
        self._idle.look()

    def _is_drained(self) -> bool:
        runners, recalls = self._runners, self._kind is not HandlerKind.INLINE  # others may answer later, and return nothing
        return runners is None or (runners.idle and not (recalls and any(one.awaits_recall for one in self._registrations)))

    def _on_idle(self) -> None:
        """Send answers at once when no handler runs."""
        for registration in self._registrations:
            registration.flush()
        self._idle.look()

    async def _wait_for_capacity(self, request: Request) -> None:
        if (registration := self._registration_of(request)) is not None and (leaving := registration.flush()) is not None:
            await leaving

    def _answer_without_errors(self, request: Request, error: BaseException) -> None:
        if (make := self.options.error_reply) is not None:
            try:
                request._owner.answer(request, reply_frames(make(error)))
            except Exception:
                log.exception("%s: error_reply failed too", self.service)
            else:
                self._flush_soon()
                return
        if (registration := self._registration_of(request)) is not None:
            registration.give_back()
