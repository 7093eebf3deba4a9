"""Titanic at a broker: its services, and the delivery of stored requests to their workers.

    titanic.request  titanic.reply  titanic.close     RFC 9, each an mdp.Worker with many requests in flight
    titanic.wait     [uuid][ms]                       extension: as titanic.reply, but answered when the request ends
    titanic.batch    see titanic.store.batches        extension: many requests at once, all or none
    titanic.look     see titanic.store.status         extension: state, metrics and requests, for the operator

Delivery uses an mdp.Client: `mmi.service` first, then the request (TSP-12). There is neither a task nor a future per request: the client
calls back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import mdp
from core.machine.value_copies import check_counts, check_not_negative, check_positive
from core.rpc.drained import Drained
from core.runtime import runtime, supervision
from mdp.wire.size_limits import USUAL, too_large
from titanic.access.broker_permissions import ASK_TIMEOUT_S, QUESTIONS_MAX, Permissions, Question, Verdict
from titanic.access.verbs import OWNERLESS, Access, refusal, user_of
from titanic.store.batches import INTERNAL, Batches
from titanic.store.deferred_worker import DeferredWorker
from titanic.store.delivery_queue import Arrivals, DeliveryQueue, Probe, Send
from titanic.store.index.limits import DispatchOptions
from titanic.store.index.stored_request import WAITING
from titanic.store.other_stores import OtherStores
from titanic.store.status import StoreStatus
from titanic.wire import tsp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import core
    from core.daemon.metrics import MetricsPage
    from core.security.credentials import Secured
    from mdp.worker.handler import ServingSettings
    from titanic.store.index.stored_request import Entry
    from titanic.store.store import Store
    from titanic.wire.tsp import Done

    Take = Callable[[Sequence[bytes], str | None, Done], None]

__all__ = ["Service", "ServiceOptions"]

log = logging.getLogger("titanic")

# There was no worker: not an attempt, the service is probed.
ABSENT: Final = (mdp.NoService, mdp.Busy, mdp.Unreachable)
STALLED_S: Final = 0.2  # between two checks of a store that cannot acknowledge, or of half of a pair that may not answer
FETCHED_BYTES: Final = 18  # command frame and status in front of a fetched reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of a service.

    Attributes:
        concurrency: requests of each titanic.* service in flight; a thousand clients with a few each.
        connections: per service at a broker without MDP/0.3, one request at a time each.
        max_attempts: failed attempts after which a request is dead-lettered, unless it has its own limit; 0 for never.
        timeout_s: maximum time of a worker; generous, because a request that times out is executed again.
        permission_ms: how long permissions are cached; a change of the broker's rules takes effect after this time.
        ownerless: who may access requests without an owner (stored before the broker had users): operators, everybody.
        dispatch: windows and back-off.
    """

    concurrency: int = 4096
    connections: int = 8
    max_attempts: int = 0
    timeout_s: float = 30.0
    permission_ms: int = 1000
    ownerless: str = OWNERLESS[0]
    dispatch: DispatchOptions = field(default_factory=DispatchOptions)

    def __post_init__(self) -> None:
        check_counts(concurrency=self.concurrency, connections=self.connections)
        check_positive(timeout_s=self.timeout_s)
        check_not_negative(max_attempts=self.max_attempts, permission_ms=self.permission_ms)
        if self.ownerless not in OWNERLESS:
            raise ValueError(f"ownerless is one of {', '.join(OWNERLESS)}, not {self.ownerless!r}")


class Service:
    """Service of one store at one broker.

    Args:
        broker: endpoint, or several in order of preference.
        store: opened and closed by the service.
        options: limits.
        context: for the sockets; by default a new one.
        security: of the new contexts: `core.Curve` with the broker's key, or `core.Plain`.
        seed: of jitter, for tests.
        guard: in a pair: whether an answer may leave at this moment (BST-29); otherwise it is held until it may.
        about: in a pair: further fields of the status.
        progress: called with (segments read, segments to read) while the store is opened.
        worker_options: further options of the `mdp.Worker`s.
    """

    def __init__(
        self,
        broker: str | Sequence[str],
        store: Store,
        options: ServiceOptions | None = None,
        *,
        context: core.Context | None = None,
        security: Secured | None = None,
        guard: Callable[[], bool] | None = None,
        about: Callable[[], Mapping[str, Any]] = dict,
        progress: Callable[[int, int], None] | None = None,
        **worker_options: Unpack[ServingSettings],
    ) -> None:
        self.store = store
        self.options = options or ServiceOptions()
        self.delivery = DeliveryQueue(self.options.dispatch, runtime.current().chance(worker_options.pop("seed", None)).random)
        self._batches = Batches(store)
        self._others = OtherStores()
        self._store_status = StoreStatus(store, self.delivery, self._others, about, self._lacks)
        self._broker = broker
        self._where: dict[str, Any] = {"context": context, "security": security}
        self._progress = progress
        self._guard = guard
        worker_options.setdefault("credit", self.options.concurrency)
        worker_options.setdefault("connections", self.options.connections)
        self._worker_options = worker_options
        self._workers: list[DeferredWorker] = []
        self._stack: AsyncExitStack
        self.opening: asyncio.Task[None]  # registers the services; its error is the reason of a failure
        self._client: mdp.Client
        self._permissions: Permissions
        self._access: Access
        self._loop: asyncio.AbstractEventLoop
        self._arrivals: Arrivals
        self._stopping = False
        self._closed = False
        self._drained = Drained(lambda: not self.delivery.in_flight)
        self._supervisor = supervision.current()
        self._clock = self._supervisor.timer("titanic dispatch clock", self._pump)
        self._acting: Probe | Send | None = None
        # Callbacks, each for one request.
        guarded = self._supervisor.guarded
        self._permitted = guarded("titanic dispatch", self._send_permitted, self._send_faulted)
        self._ask = guarded("titanic dispatch", self._send_read, self._send_faulted)
        self._asked = guarded("titanic dispatch", self._take_answer, self._send_faulted)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals(
            self.delivery,
            INTERNAL,
            self._batches.waiting,
            clock=self._loop.time,
            now_ms=self.store.now_ms,
            pump_soon=self._pump_soon,
        )
        async with AsyncExitStack() as stack:
            self.store.on_waiting = self._arrivals.add
            self.store.on_backlog = self._on_backlog
            self.store.on_closed = self._on_closed
            stack.push_async_callback(self.store.close)
            await self.store.open(self._progress)
            self._batches.start()
            stack.push_async_callback(self._batches.close)
            if (context := self._where["context"]) is not None:
                context.on_end[self._end_dispatch] = self._loop  # before the clients end, whose requests would count as failed
                stack.callback(context.on_end.pop, self._end_dispatch, None)
            window = self.options.dispatch.window_total + self.options.dispatch.probes_max
            self._client = mdp.Client(self._broker, timeout=self.options.timeout_s, attempts=1, window=window, **self._where)
            await stack.enter_async_context(self._client)
            asker = mdp.Client(self._broker, timeout=ASK_TIMEOUT_S, attempts=1, window=QUESTIONS_MAX, **self._where)
            await stack.enter_async_context(asker)
            self._permissions = Permissions(asker, self.options.permission_ms / 1000, self._loop.time)
            self._access = Access(
                self.store, self._batches.take, self._store_status.take, self._permissions, ownerless=self.options.ownerless
            )
            stack.callback(self._end_dispatch)
            self._stack = stack.pop_all()
        self.opening = self._supervisor.task("titanic services", self._register, raises=True)
        if self.store.mirror is None:
            try:
                await self.opening
            except BaseException:
                await self._stack.aclose()
                raise
        return self

    async def _register(self) -> None:
        """Register at the broker and start delivery; with a mirror not before it is in step.

        A store whose mirror was promoted meanwhile must not serve next to it.
        """
        store, access = self.store, self._access
        await store.wait_for_mirror()
        services = (
            (tsp.REQUEST, access.submit),
            (tsp.REPLY, access.fetch),
            (tsp.CLOSE, access.close),
            (tsp.WAIT, access.wait),
            (tsp.BATCH, access.batch),
            (tsp.LOOK, access.look),
        )
        for name, take in services:
            worker = DeferredWorker(self._broker, name.decode(), take, self._guard, **self._where, **self._worker_options)
            self._workers.append(worker)
            await self._stack.enter_async_context(worker)
        store.start_dispatch()
        await self._stack.enter_async_context(self._others.watched(self._client))
        # A store that may not see users treats all alike: warn an operator who has configured rules.
        self._permissions.ask(Question(b"call", b"", tsp.REQUEST), lambda *_: None, None)

    async def __aexit__(self, *_: object) -> None:
        self.opening.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self.opening
        finally:
            self._end_waits()  # or leaving would wait for waiting clients
            await self._stack.aclose()

    @property
    def connected(self) -> bool:
        """Whether all titanic.* services are registered at the broker."""
        return self.opening.done() and all(worker.connected for worker in self._workers)

    def _lacks(self) -> str:
        """Return why no requests reach the store, "" if they do."""
        if self._stopping:
            return "the store is being stopped"
        if not self._workers:
            return "its services are not registered yet"
        away = [worker.service for worker in self._workers if not worker.connected]
        return f"no broker knows {', '.join(away)}" if away else ""

    async def until_failed(self) -> None:
        """Wait until the store cannot be written, registration fails or the context ends, and raise the reason. Cancel-safe."""
        failed, served = asyncio.ensure_future(self.store.until_failed()), asyncio.ensure_future(self._until_served())
        try:
            await asyncio.wait([failed, served], return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                await served
            await failed
        finally:
            failed.cancel()
            served.cancel()

    async def _until_served(self) -> None:
        await asyncio.shield(self.opening)
        await self._workers[0].serve_forever()  # all of them have one context

    def figures(self) -> dict[str, dict[str, float]]:
        """Return counters and gauges by name; see `StoreStatus.figures`."""
        return self._store_status.figures()

    def page(self) -> MetricsPage:
        """Return what `--http` shows; see `core.daemon.http`."""
        return self._store_status.page()

    async def drain(self, drain_s: float) -> None:
        """Accept and deliver nothing new, and wait for requests in flight: a lost reply means a second execution.

        Waiting clients are answered 300.
        """
        self._stopping = True
        self._end_waits()
        await asyncio.gather(self._drained.wait(drain_s), *(worker.drain(drain_s) for worker in self._workers))

    def _end_waits(self) -> None:
        self.store.end_waits()
        self._batches.end_waits()

    # ---- delivery

    def _on_backlog(self, service: bytes, uuids: Iterator[bytes], count: int) -> None:
        if service not in INTERNAL:  # these are found when the batches are started
            self.delivery.add_backlog(service, uuids, count)
            self._pump_soon()

    def _on_closed(self, uuid: bytes) -> None:
        self.delivery.remove(uuid)
        self._pump_soon()

    def _pump_soon(self) -> None:
        """Call `_pump` once, at the end of this loop iteration."""
        if self._stopping:
            self._drained.look()  # whatever ended a request that was in flight
        elif not self._arrivals.pumping:
            self._arrivals.pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._arrivals.pumping = False
        if self._stopping:
            return
        now = self._loop.time()
        if not self.store.takes_replies or (self._guard is not None and not self._guard()):
            # A reply could not be stored now, so deliver nothing. Half of a pair that was paused may answer again soon, under its ballot.
            self._set_clock(now + STALLED_S)
            return
        # Hot path: once per delivered request; a type check costs a fifth of a pattern.
        try:
            self._supervisor.each("titanic dispatch", self._act, iter(self.delivery.actions(now)), self._action_failed)
        finally:
            self._set_clock(self.delivery.deadline(now))

    def _act(self, actions: Iterator[Probe | Send]) -> None:
        for action in actions:
            self._acting = action
            if type(action) is Send:
                self._send(action.uuid)
            else:
                service = action.service
                asked = self._client.request(b"mmi.service", service, timeout=ASK_TIMEOUT_S, attempts=1)
                failed = partial(self._note_probe, service, False)
                asked.add_done_callback(partial(self._supervisor.call, "titanic probe", self._probed, service, failed=failed))
        self._acting = None

    def _action_failed(self, error: Exception) -> None:
        """Try an action again that failed with an internal fault; the others are done nevertheless."""
        action, self._acting = self._acting, None
        if type(action) is Send:
            self._send_again(action.uuid, error)
        elif type(action) is Probe:
            self._note_probe(action.service, False)

    def _send_faulted(self, error: Exception, entry: Entry, *_: object) -> None:
        self._send_again(entry.uuid, error)

    def _send_again(self, uuid: bytes, error: Exception) -> None:
        """Send a request again after an internal fault, with back-off, or dead-letter it."""
        now, entry = self._loop.time(), self.store.index.entries.find(uuid)
        if entry is None or entry.state != WAITING or entry.ending or entry.closing:
            self.delivery.remove(uuid)
        else:
            self.delivery.failed(uuid, now, attempts=entry.attempts + 1, absent=False)
            self.delivery.add(uuid, entry.service, now + self.options.dispatch.retry_s, now)  # if it was not in flight any more
            self.store.attempted(entry)
            self._give_up(entry, f"internal fault: {type(error).__name__}")
        self._pump_soon()

    def _set_clock(self, due: float) -> None:
        if due != inf:
            self._clock.at(due)
        else:
            self._clock.cancel()

    def _probed(self, service: bytes, asked: asyncio.Future[list[bytes]]) -> None:
        self._note_probe(service, asked.exception() is None and asked.result()[:1] == [b"200"])

    def _note_probe(self, service: bytes, available: bool, _: Exception | None = None) -> None:
        """Note the answer of a probe; a service whose probe failed is probed again."""
        self.delivery.probed(service, available, self._loop.time())
        self._pump_soon()

    def _send(self, uuid: bytes) -> None:
        entry = self.store.index.entries[uuid]
        if not self._is_wanted(entry):
            return
        if entry.expires_ms and entry.expires_ms <= self.store.now_ms():
            self._end(entry, "EXPIRED")
        elif entry.owner:
            self._permissions.ask(Question(b"call", entry.owner, entry.service), self._permitted, entry)
        else:
            self._send_body(entry)

    def _is_wanted(self, entry: Entry) -> bool:
        """Tell whether a request in flight is to be sent: nothing that ends it was written, or is being."""
        if self._closed or entry.uuid not in self.delivery.in_flight:
            return False
        if self._stopping or entry.state != WAITING or entry.ending or entry.closing:
            self.delivery.remove(entry.uuid)  # if its CLOSE is refused, it is added again
            self._pump_soon()
            return False
        return True

    def _send_permitted(self, entry: Entry, verdict: Verdict) -> None:
        """Continue with a request when the broker has said whether its user may still call the service."""
        if not self._is_wanted(entry):
            return
        if self._guard is not None and not self._guard():
            verdict = Verdict.UNKNOWN  # the answer of the broker is of no use now
        if verdict is Verdict.YES:
            self._send_body(entry)
        elif verdict is Verdict.NO:
            self._end(entry, refusal(entry.owner, entry.service))
        else:
            self.delivery.failed(entry.uuid, self._loop.time(), attempts=entry.attempts, absent=True)
            self._pump_soon()

    def _send_body(self, entry: Entry) -> None:
        if (body := self.store.bodies.take(entry)) is not None:
            self._send_frames(entry, body, b"")
        else:
            self.store.bodies.request_of(entry, self._ask)

    def _send_read(self, entry: Entry, body: list[bytes] | None, headers: bytes) -> None:
        if not self._is_wanted(entry):
            return
        if body is None:
            self._end(entry, "DAMAGED")
        else:
            self._send_frames(entry, body, headers)

    def _send_frames(self, entry: Entry, body: list[bytes], headers: bytes) -> None:
        try:
            # With a key the broker recognises a request that is sent again after a restart of the store, and it is not executed twice.
            key = tsp.format_uuid(entry.uuid) if entry.key else None
            client = self._client.with_options(headers=tsp.unpack_headers(headers)) if headers else self._client
            client.ask(entry.service, body, self._asked, entry, user_of(entry), key)
        except mdp.RequestError as error:  # too large, now and later; or too many requests are waiting
            self._asked(entry, None, error)

    def _take_answer(self, entry: Entry, reply: list[bytes] | None, error: mdp.RequestError | None) -> None:
        """Process the reply of a worker, or a failed attempt."""
        if self._closed:
            return
        now = self._loop.time()
        beyond = None if reply is None else too_large("reply", reply, self._client.limits or USUAL, 2, FETCHED_BYTES)
        if reply is not None and beyond is None:
            self.delivery.finished(entry.uuid, now)
            self.store.answer(entry.uuid, reply)
        elif entry.uuid not in self.delivery.in_flight:
            return  # it has ended meanwhile
        elif beyond is not None:
            self._attempt_failed(entry, beyond, now)  # too large to be fetched
        elif isinstance(error, ABSENT):
            self.delivery.failed(entry.uuid, now, attempts=entry.attempts, absent=True)
        else:
            self._attempt_failed(entry, error, now)
        self._pump_soon()

    def _attempt_failed(self, entry: Entry, error: mdp.RequestError | None, now: float) -> None:
        self.store.attempted(entry)
        # A broker of MDP/0.1 is silent about an absent service: probe it before the next attempt, also one of another request.
        if isinstance(error, mdp.Timeout):
            self.delivery.doubt(entry.service, now)
        # A message that is too large stays so.
        if not self._give_up(entry, str(error), at_once=isinstance(error, mdp.TooLarge)):
            self.delivery.failed(entry.uuid, now, attempts=entry.attempts, absent=False)

    def _give_up(self, entry: Entry, reason: str, *, at_once: bool = False) -> bool:
        """Dead-letter a request without attempts left; return whether it was."""
        most = entry.attempts_max or self.options.max_attempts
        if not at_once and not (most and entry.attempts >= most):
            return False
        log.warning("request %s is given up: %s", entry.uuid.hex().upper(), reason)
        self._end(entry, f"DEAD_LETTER after {entry.attempts} attempts: {reason}"[:1000])
        return True

    def _end(self, entry: Entry, reason: str) -> None:
        """Dead-letter a request; if its DEAD is refused, the store writes it again."""
        self.delivery.remove(entry.uuid)
        self.store.dead_letter(entry, reason)

    def _end_dispatch(self) -> None:
        self._stopping = self._closed = True
        self._clock.cancel()
