"""Titanic on the wire: its services at a broker, and the dispatcher that gives stored requests to their workers.

    titanic.request  titanic.reply  titanic.close     RFC 9, each an mdp.Worker with many requests in flight
    titanic.wait     [uuid][ms]                       ours: as titanic.reply, but answered when there is something to say
    titanic.batch    see titanic.batches              ours: many requests at once, all or none
    titanic.look     see titanic.glance               ours: state, figures and requests, for the operator

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
from titanic import tsp
from titanic.batches import BATCH, INTERNAL, Batches
from titanic.desk import Desk
from titanic.dispatch import Dispatcher, DispatchOptions, Send
from titanic.glance import LOOK, Glance
from titanic.ledger import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import core
    from core.metrics import Face
    from core.secured import Secured
    from titanic.ledger import Entry
    from titanic.store import Store

__all__ = ["Service", "ServiceOptions"]

log = logging.getLogger("titanic")

# What says that nobody was there to take a request: not an attempt, the service is looked for.
ABSENT: Final = (mdp.NoService, mdp.Busy, mdp.Unreachable)
STALLED_S: Final = 0.2  # before a store that cannot acknowledge is looked at again
PROBE_TIMEOUT_S: Final = 1.0  # as in the guide
WAIT: Final = b"titanic.wait"
WAIT_MS_MAX: Final = 60_000  # a client that went away is noticed after so long at the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What an operator may set.

    Attributes:
        concurrency: requests of each of our services in flight; a thousand clients with a few each.
        connections: seats of each service at a broker without MDP/0.3, one request at a time each.
        max_attempts: a request is given up after so many failed attempts, unless it says otherwise itself; 0 for never.
        timeout_s: how long a worker may take; generous, because an attempt that is cut short is done twice.
        dispatch: windows and back-off.
    """

    concurrency: int = 4096
    connections: int = 8
    max_attempts: int = 0
    timeout_s: float = 30.0
    dispatch: DispatchOptions = field(default_factory=DispatchOptions)


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
        self._loop: asyncio.AbstractEventLoop
        self._pumping = False
        self._stopping = False
        self._closed = False
        self._landed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

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
            stack.callback(self._end_dispatch)
            self._stack = stack.pop_all()
        self._opening = self._loop.create_task(self._open_desks(), name="titanic desks")
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
        store = self.store
        await store.wait_for_mirror()
        services = (
            (tsp.REQUEST, store.submit),
            (tsp.REPLY, store.fetch),
            (tsp.CLOSE, store.close_request),
            (WAIT, self._wait),
            (BATCH, self._batches.take),
            (LOOK, self._glance.take),
        )
        for name, take in services:
            await self._stack.enter_async_context(self._desk(name, take))
        store.start_dispatch()

    def _desk(self, name: bytes, take: Callable[[Sequence[bytes], Callable[[list[bytes]], None]], None]) -> Desk:
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

    def figures(self) -> dict[str, dict[str, float]]:
        """Return counters and gauges by name, for metrics; see `Glance.figures`."""
        return self._glance.figures()

    def face(self) -> Face:
        """Return what `--http` shows; see `core.web`."""
        return self._glance.face()

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

    def _wait(self, frames: Sequence[bytes], done: Callable[[list[bytes]], None]) -> None:
        if len(frames) != 2 or not frames[1].isdigit() or len(frames[1]) > 9:
            done([tsp.BAD, b"a wait is a UUID and milliseconds"])
        else:
            self.store.wait(frames[:1], min(int(frames[1]), WAIT_MS_MAX) / 1000, done)

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
        for action in self.dispatcher.actions(now):
            if type(action) is Send:
                self._send(action.uuid)
            else:
                service = action.service
                asked = self._client.request(b"mmi.service", service, timeout=PROBE_TIMEOUT_S, attempts=1)
                asked.add_done_callback(partial(self._probed, service))
        self._arm(now)

    def _arm(self, now: float) -> None:
        self._rearm(self.dispatcher.deadline(now))

    def _rearm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due != inf:
            self._timer = self._loop.call_at(due, self._pump)

    def _probed(self, service: bytes, asked: asyncio.Future[list[bytes]]) -> None:
        if asked.cancelled() or self._stopping:
            return
        available = asked.exception() is None and asked.result()[0] == b"200"
        self.dispatcher.probed(service, available, self._loop.time())
        self._pump_soon()

    def _send(self, uuid: bytes) -> None:
        entry = self.store.ledger.entries.get(uuid)
        if entry is None or entry.state != WAITING or entry.closing:
            self.dispatcher.remove(uuid)
        elif entry.expires_ms and entry.expires_ms <= self.store.now_ms():
            self.dispatcher.remove(uuid)
            self.store.bury(entry, "EXPIRED")
        elif (body := self.store.take_body(entry)) is not None:
            self._client.ask(entry.service, body, self._asked, entry)
        else:
            self.store.body_of(entry, self._ask)

    def _ask(self, entry: Entry, body: list[bytes] | None) -> None:
        if body is None:
            self.dispatcher.remove(entry.uuid)
            self.store.bury(entry, "DAMAGED")
        elif not self._closed:
            self._client.ask(entry.service, body, self._asked, entry)

    def _asked(self, entry: Entry, reply: list[bytes] | None, error: mdp.RequestError | None) -> None:
        """A worker has answered, or an attempt has failed."""
        if self._closed:
            return
        now = self._loop.time()
        if reply is not None:
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
        most = entry.attempts_max or self.options.max_attempts
        if most and entry.attempts >= most:
            log.warning("request %s is given up: %s", entry.uuid.hex().upper(), error)
            self.dispatcher.remove(entry.uuid)
            self.store.bury(entry, f"DEAD_LETTER after {entry.attempts} attempts: {error}"[:1000])
            return
        # A broker of MDP/0.1 has no word for an absent service but silence: ask for it before the next attempt.
        if isinstance(error, mdp.Timeout):
            self.dispatcher.doubt(entry.service, now)
        self.dispatcher.failed(entry.uuid, now, attempts=entry.attempts, absent=False)

    def _end_dispatch(self) -> None:
        self._stopping = self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def _guarded(
    take: Callable[[Sequence[bytes], Callable[[list[bytes]], None]], None], guard: Callable[[], bool]
) -> Callable[[Sequence[bytes], Callable[[list[bytes]], None]], None]:
    """Return what does the same while the guard agrees; a request without an answer goes to the other one when we let go of it."""

    def take_guarded(frames: Sequence[bytes], done: Callable[[list[bytes]], None]) -> None:
        def done_guarded(reply: list[bytes]) -> None:
            if guard():
                done(reply)

        if guard():
            take(frames, done_guarded)

    return take_guarded
