"""Titanic on the wire: its services at a broker, and the dispatcher that gives stored requests to their workers.

    titanic.request  titanic.reply  titanic.close     RFC 9, each an mdp.Worker with many requests in flight
    titanic.wait     [uuid][ms]                       ours: as titanic.reply, but answered when there is something to say
    titanic.batch    see titanic.store.batches              ours: many requests at once, all or none
    titanic.look     see titanic.store.status               ours: state, figures and requests, for the operator

The dispatcher is an mdp.Client: `mmi.service` first, then the request (TSP-12). Neither a task nor a future is made per request:
the client calls back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self

import mdp
from core.runtime import supervision
from mdp.wire.size_limits import USUAL, too_large
from titanic.access.broker_permissions import ASK_TIMEOUT_S, QUESTIONS_MAX, Permissions, Question, Verdict
from titanic.access.verbs import LOOK, OWNERLESS, WAIT, Access, refusal, user_of
from titanic.store.batches import BATCH, INTERNAL, Batches
from titanic.store.deferred_worker import Desk
from titanic.store.delivery_queue import Dispatcher, DispatchOptions, Probe, Send
from titanic.store.index.stored_request import WAITING
from titanic.store.status import Glance
from titanic.wire import tsp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import core
    from core.daemon.metrics import MetricsPage
    from core.security.credentials import Secured
    from titanic.access.verbs import Done
    from titanic.store.index.stored_request import Entry
    from titanic.store.store import Store

    Take = Callable[[Sequence[bytes], str | None, Done], None]

__all__ = ["Service", "ServiceOptions"]

log = logging.getLogger("titanic")

# What says that nobody was there to take a request: not an attempt, the service is looked for.
ABSENT: Final = (mdp.NoService, mdp.Busy, mdp.Unreachable)
STALLED_S: Final = 0.2  # before a store that cannot acknowledge is looked at again
PROBE_TIMEOUT_S: Final = 1.0  # as in the guide
FETCHED_BYTES: Final = 18  # command frame and status, which go before a stored reply when it is fetched
WAIT_MS_MAX: Final = 60_000  # a client that went away is noticed after so long at the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What an operator may set.

    Attributes:
        concurrency: requests of each of our services in flight; a thousand clients with a few each.
        connections: seats of each service at a broker without MDP/0.3, one request at a time each.
        max_attempts: a request is given up after so many failed attempts, unless it says otherwise itself; 0 for never.
        timeout_s: how long a worker may take; generous, because an attempt that is cut short is done twice.
        permission_ms: how long an answer of the broker about what a user may do is believed; so late a change of its rules is felt.
        ownerless: whose are requests without an owner, stored before the broker told users: operators, everybody.
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
        if self.ownerless not in OWNERLESS:
            raise ValueError(f"ownerless is one of {', '.join(OWNERLESS)}, not {self.ownerless!r}")


class Service:
    """Serves one store at one broker.

    Args:
        broker: endpoint, or several in order of preference.
        store: opened, used and closed by the service.
        options: limits.
        context: to make sockets in; an own one when left out.
        security: of its own contexts: `core.Curve` with the broker's key, or `core.Plain`.
        seed: of jitter, for tests.
        guard: of one of a pair: whether it may say anything at this very moment; what it may not say is not said (BST-29).
        about: of one of a pair: what its status says besides.
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
        seed: int | None = None,
        guard: Callable[[], bool] | None = None,
        about: Callable[[], Mapping[str, Any]] = dict,
        progress: Callable[[int, int], None] | None = None,
        **worker_options: Any,
    ) -> None:
        self.store = store
        self.options = options or ServiceOptions()
        self.dispatcher = Dispatcher(self.options.dispatch, random.Random(seed).random)
        self._batches = Batches(store)
        self._glance = Glance(store, self.dispatcher, about)
        self._broker = broker
        self._where: dict[str, Any] = {"context": context, "security": security}
        self._progress = progress
        self._guard = guard
        self._worker_options = {"connections": self.options.connections, **worker_options}
        self._desks: list[Desk] = []
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[None]
        self._client: mdp.Client
        self._permissions: Permissions
        self._access: Access
        self._loop: asyncio.AbstractEventLoop
        self._pumping = False
        self._stopping = False
        self._closed = False
        self._landed: asyncio.Future[None] | None = None
        self._supervisor = supervision.current()
        self._clock = self._supervisor.timer("titanic dispatch clock", self._pump)
        self._acting: Probe | Send | None = None
        # What others call back with, for one request each.
        guarded = self._supervisor.guarded
        self._judged = guarded("titanic dispatch", self._send_judged, self._faulted)
        self._ask = guarded("titanic dispatch", self._send_read, self._faulted)
        self._asked = guarded("titanic dispatch", self._take_answer, self._faulted)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self.store.on_waiting = self._waiting
            self.store.on_gone = self._gone
            await self.store.open(self._progress)
            stack.push_async_callback(self.store.close)
            self._batches.start()
            stack.push_async_callback(self._batches.close)
            window = self.options.dispatch.window_total + self.options.dispatch.probes_max
            self._client = mdp.Client(self._broker, timeout=self.options.timeout_s, attempts=1, window=window, **self._where)
            await stack.enter_async_context(self._client)
            asker = mdp.Client(self._broker, timeout=ASK_TIMEOUT_S, attempts=1, window=QUESTIONS_MAX, **self._where)
            await stack.enter_async_context(asker)
            self._permissions = Permissions(asker, self.options.permission_ms / 1000, self._loop.time)
            self._access = Access(self.store, self._batches, self._glance, self._permissions, ownerless=self.options.ownerless)
            stack.callback(self._end_dispatch)
            self._stack = stack.pop_all()
        self._opening = self._supervisor.task("titanic services", self._open_desks, raises=True)
        if self.store.mirror is None:
            try:
                await self._opening
            except BaseException:
                await self._stack.aclose()
                raise
        return self

    async def _open_desks(self) -> None:
        """Take our names at the broker and begin to dispatch; with a mirror not before it is in step.

        A store whose mirror was promoted while it was away must not serve beside it.
        """
        store, access = self.store, self._access
        await store.wait_for_mirror()
        services = (
            (tsp.REQUEST, access.submit),
            (tsp.REPLY, self._reply),
            (tsp.CLOSE, access.close),
            (WAIT, self._wait),
            (BATCH, access.batch),
            (LOOK, access.look),
        )
        for name, take in services:
            await self._stack.enter_async_context(self._desk(name, take))
        store.start_dispatch()
        # A store that may not see users serves all of them alike: an operator who has given rules should hear of it.
        self._permissions.ask(Question(b"call", b"", tsp.REQUEST), lambda *_: None, None)

    def _desk(self, name: bytes, take: Take) -> Desk:
        credit = self.options.concurrency
        if self._guard is not None:
            take = _guarded(take, self._guard)
        desk = Desk(self._broker, name.decode(), take, credit=credit, **self._where, **self._worker_options)
        self._desks.append(desk)
        return desk

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opening.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._opening
        finally:
            self.store.end_waits()  # or leaving would wait for whoever waits
            await self._stack.aclose()

    @property
    def connected(self) -> bool:
        """Whether all our services are registered at the broker."""
        return self._opening.done() and all(desk.connected for desk in self._desks)

    @property
    def opening(self) -> asyncio.Task[None]:
        """Done when our services were taken to the broker; its error is what prevented that."""
        return self._opening

    async def until_failed(self) -> None:
        """Wait until the store can never be written again, or our services could not be taken to the broker, and raise why. Cancel-safe."""
        failed = asyncio.ensure_future(self.store.until_failed())
        try:
            await asyncio.wait([failed, self._opening], return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                await asyncio.shield(self._opening)
            await failed
        finally:
            failed.cancel()
            await asyncio.gather(failed, return_exceptions=True)

    def figures(self) -> dict[str, dict[str, float]]:
        """Return counters and gauges by name, for metrics; see `Glance.figures`."""
        return self._glance.figures()

    def page(self) -> MetricsPage:
        """Return what `--http` shows; see `core.daemon.http`."""
        return self._glance.page()

    async def drain(self, drain_s: float) -> None:
        """Take and dispatch nothing new, and wait for what is in hand: an answer that is lost now would be worked for twice.

        What clients wait for is answered 300.
        """
        self._stopping = True
        self.store.end_waits()
        self._landed = self._loop.create_future()
        self._look_landed()
        await asyncio.gather(asyncio.wait([self._landed], timeout=drain_s), *(desk.drain(drain_s) for desk in self._desks))

    def _look_landed(self) -> None:
        if self._landed is not None and not self.dispatcher.flying and not self._landed.done():
            self._landed.set_result(None)

    # ---- what clients ask

    def _reply(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        if tsp.is_question(frames):
            done([tsp.OK, tsp.EXTENSIONS_KNOWN])
        else:
            self._access.fetch(frames, user, done)

    def _wait(self, frames: Sequence[bytes], user: str | None, done: Done) -> None:
        if len(frames) != 2 or not frames[1].isdigit() or len(frames[1]) > 9:
            done([tsp.BAD, b"a wait is a UUID and milliseconds"])
        else:
            self._access.wait(frames[:1], min(int(frames[1]), WAIT_MS_MAX) / 1000, user, done)

    # ---- dispatch

    def _waiting(self, entry: Entry) -> None:
        # Hot path: once per accepted request.
        if entry.service in INTERNAL:
            self._batches.waiting(entry)
            return
        now = self._loop.time()
        at = now
        if entry.not_before_ms:
            at += (entry.not_before_ms - self.store.now_ms()) / 1000
        self.dispatcher.add(entry.uuid, entry.service, at, now)
        if not self._pumping:
            self._pump_soon()

    def _gone(self, uuid: bytes) -> None:
        self.dispatcher.remove(uuid)
        self._pump_soon()

    def _pump_soon(self) -> None:
        """Look at the queues once, at the end of this turn of the loop."""
        if not self._pumping and not self._stopping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._stopping or (self._guard is not None and not self._guard()):
            return
        now = self._loop.time()
        if self.store.stalled is not None:
            # What a worker answers now could not be stored: nothing more is given out until it can.
            self._rearm(now + STALLED_S)
            return
        # Hot path: once per request that is given out; told apart by type, which costs a fifth of a pattern.
        try:
            self._supervisor.each("titanic dispatch", self._act, iter(self.dispatcher.actions(now)), self._not_done)
        finally:
            self._arm(now)

    def _act(self, actions: Iterator[Probe | Send]) -> None:
        for action in actions:
            self._acting = action
            if type(action) is Send:
                self._send(action.uuid)
            else:
                service = action.service
                asked = self._client.request(b"mmi.service", service, timeout=PROBE_TIMEOUT_S, attempts=1)
                told = partial(self._supervisor.call, "titanic probe", self._probed, service, failed=partial(self._not_probed, service))
                asked.add_done_callback(told)
        self._acting = None

    def _not_done(self, error: Exception) -> None:
        """A fault of ours kept something from being done: the others are done all the same, and it is tried again."""
        action, self._acting = self._acting, None
        if type(action) is Send:
            self._send_again(action.uuid, error)
        elif type(action) is Probe:
            self._not_probed(action.service, error)

    def _faulted(self, error: Exception, entry: Entry, *_: object) -> None:
        self._send_again(entry.uuid, error)

    def _send_again(self, uuid: bytes, error: Exception) -> None:
        """A fault of ours came between a request and its worker, or its answer: it is tried again, ever later, or given up."""
        now, entry = self._loop.time(), self.store.ledger.entries.get(uuid)
        if uuid in self.dispatcher.flying:
            self.dispatcher.failed(uuid, now, attempts=entry.attempts + 1 if entry is not None else 1, absent=False)
        elif entry is not None and entry.state == WAITING and not (entry.ending or entry.closing):
            self.dispatcher.add(uuid, entry.service, now + self.options.dispatch.retry_s, now)
        self._pump_soon()
        if entry is not None and entry.state == WAITING:
            self.store.attempted(entry)
            self._give_up_late(entry, f"a fault of ours: {type(error).__name__}")

    def _arm(self, now: float) -> None:
        self._rearm(self.dispatcher.deadline(now))

    def _rearm(self, due: float) -> None:
        if due != inf:
            self._clock.at(due)
        else:
            self._clock.cancel()

    def _probed(self, service: bytes, asked: asyncio.Future[list[bytes]]) -> None:
        if asked.cancelled() or self._stopping:
            return
        available = asked.exception() is None and asked.result()[0] == b"200"
        self.dispatcher.probed(service, available, self._loop.time())
        self._pump_soon()

    def _not_probed(self, service: bytes, error: Exception) -> None:
        """Have the question asked again: a service that is being asked for gets nothing."""
        self.dispatcher.probed(service, False, self._loop.time())
        self._pump_soon()

    def _send(self, uuid: bytes) -> None:
        entry = self.store.ledger.entries.get(uuid)
        if entry is None or entry.state != WAITING or entry.closing:
            self.dispatcher.remove(uuid)
        elif entry.expires_ms and entry.expires_ms <= self.store.now_ms():
            self.dispatcher.remove(uuid)
            self.store.bury(entry, "EXPIRED")
        elif entry.owner:
            self._permissions.ask(Question(b"call", entry.owner, entry.service), self._judged, entry)
        else:
            self._send_body(entry)

    def _send_judged(self, entry: Entry, verdict: Verdict) -> None:
        """Go on with a request that is under way when the broker has said whether its user may still call the service."""
        if self._closed or entry.uuid not in self.dispatcher.flying:
            return  # closed meanwhile
        if self._guard is not None and not self._guard():
            verdict = Verdict.UNKNOWN  # of the broker's answer there is no use any more
        if verdict is Verdict.YES:
            self._send_body(entry)
        elif verdict is Verdict.NO:
            self.dispatcher.remove(entry.uuid)
            self.store.bury(entry, refusal(entry.owner, entry.service))
        else:
            self.dispatcher.failed(entry.uuid, self._loop.time(), attempts=entry.attempts, absent=True)
            self._pump_soon()

    def _send_body(self, entry: Entry) -> None:
        if (body := self.store.bodies.take(entry)) is not None:
            self._give(entry, body)
        else:
            self.store.bodies.request_of(entry, self._ask)

    def _send_read(self, entry: Entry, body: list[bytes] | None) -> None:
        if body is None:
            self.dispatcher.remove(entry.uuid)
            self.store.bury(entry, "DAMAGED")
        elif not self._closed:
            self._give(entry, body)

    def _give(self, entry: Entry, body: list[bytes]) -> None:
        try:
            self._client.ask(entry.service, body, self._asked, entry, user_of(entry))
        except mdp.RequestError as error:  # too large, and will be whenever it is tried again; or more wait than may
            self._asked(entry, None, error)

    def _take_answer(self, entry: Entry, reply: list[bytes] | None, error: mdp.RequestError | None) -> None:
        """A worker has answered, or an attempt has failed."""
        if self._closed:
            return
        now = self._loop.time()
        if reply is not None and (beyond := too_large("reply", reply, self._client.limits or USUAL, 2, FETCHED_BYTES)) is not None:
            self._attempt_failed(entry, beyond, now)  # stored, it could never be fetched
        elif reply is not None:
            self.dispatcher.finished(entry.uuid, now)
            self.store.answer(entry.uuid, reply)
        elif isinstance(error, ABSENT):
            self.dispatcher.failed(entry.uuid, now, attempts=entry.attempts, absent=True)
        else:
            self._attempt_failed(entry, error, now)
        if not self._pumping:
            self._pump_soon()
        if self._landed is not None:
            self._look_landed()

    def _attempt_failed(self, entry: Entry, error: mdp.RequestError | None, now: float) -> None:
        self.store.attempted(entry)
        # What is too large, request or reply, is so whenever it is tried again.
        if self._give_up_late(entry, str(error), at_once=isinstance(error, mdp.TooLarge)):
            return
        # A broker of MDP/0.1 has no word for an absent service but silence: ask for it before the next attempt.
        if isinstance(error, mdp.Timeout):
            self.dispatcher.doubt(entry.service, now)
        self.dispatcher.failed(entry.uuid, now, attempts=entry.attempts, absent=False)

    def _give_up_late(self, entry: Entry, reason: str, *, at_once: bool = False) -> bool:
        """Give a request up that has had its attempts; returns whether it was."""
        most = entry.attempts_max or self.options.max_attempts
        if not at_once and not (most and entry.attempts >= most):
            return False
        log.warning("request %s is given up: %s", entry.uuid.hex().upper(), reason)
        self.dispatcher.remove(entry.uuid)
        self.store.bury(entry, f"DEAD_LETTER after {entry.attempts} attempts: {reason}"[:1000])
        return True

    def _end_dispatch(self) -> None:
        self._stopping = self._closed = True
        self._clock.cancel()


def _guarded(take: Take, guard: Callable[[], bool]) -> Take:
    """Return what does the same while the guard agrees; a request without an answer goes to the other one when we let go of it."""

    def take_guarded(frames: Sequence[bytes], user: str | None, done: Done) -> None:
        def done_guarded(reply: list[bytes]) -> None:
            if guard():
                done(reply)

        if guard():
            take(frames, user, done_guarded)

    return take_guarded
