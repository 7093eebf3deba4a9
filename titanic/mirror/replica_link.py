"""Connection of a store to its mirror: a DEALER socket, used from the writer thread (specs/titanic.md §10).

A session is one connection: hello, files, swap, then every call of the disk as it is made. Any error ends the session; the next one begins
with hello. Threads wait on one condition, the event loop never waits. In a pair, pulses renew the mirror's lease
(`titanic.mirror.succession`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import core
from bstar.net.boot_clock import boot_clock
from core.daemon.logs import RateLimitedLog
from core.machine.bounded_msgpack import unpack
from core.machine.liveness import Transit
from core.rpc.connect_times import with_connect_times
from core.runtime import runtime, supervision
from titanic.mirror.mirrored_disk import MirroredDisk
from titanic.mirror.succession import FailureDetector
from titanic.wire.mirror_frames import LINK_OPTIONS, NO, OK, BadCall, Call, pack_pair, unpack_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core.security.credentials import Secured
    from titanic.journal.disk import Disk
    from titanic.journal.group_commit import Journal
    from titanic.journal.segment_log import SegmentLog

log = logging.getLogger("titanic")

RETRY_S: Final = 0.5  # between two sessions
REFUSED_S: Final = 5.0  # after a mirror of a later epoch refused
# Maximum time of one sync of the mirror; slow disks take one or two seconds.
TIMEOUT_S: Final = 10.0

AWAY: Final = "away"
CATCHING_UP: Final = "catching up"
IN_STEP: Final = "in step"


@dataclass(frozen=True, slots=True)
class MirrorTerms:
    """Additional settings in a pair."""

    window_s: float  # how long the mirror may take over, and how long the store waits before it acknowledges alone
    pulse_s: float  # between two pulses
    alone: bool  # the mirror may not take over from the beginning
    serves: Callable[[], bool]  # whether this half is active at this moment. Called in the writer thread.


class MirrorLine:
    """Connection to a mirror (`titanic.mirror.mirrored_disk.ReplicaLink`); created, started and closed in the event loop.

    Args:
        endpoint: of the mirror.
        context: for the sockets; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`.
        timeout_s: maximum time of one call of the mirror.
        socket_options: further options of the socket, such as CURVE keys.
        terms: of a pair.

    Attributes:
        on_state: called in the event loop with "away", "catching up" or "in step", and the reason.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        context: core.Context | None = None,
        security: Secured | None = None,
        timeout_s: float = TIMEOUT_S,
        socket_options: Mapping[str, Any] | None = None,
        terms: MirrorTerms | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.terms = terms
        self._detector = FailureDetector(terms.window_s, -inf if terms.alone else None) if terms is not None else None
        self._pulse = 0  # number of the newest
        self._pulse_open = False  # it is not answered yet
        self._transit = Transit()
        self._moves: bool | None = None  # the answer of `_look`, None until it has come
        self._supervisor = supervision.current()
        self._pulse_clock = self._supervisor.timer("titanic pulse clock", self._send_pulse)
        self.timeout_s = timeout_s
        self.live = self.ending = self.stale = False
        self.ready = 0
        self.state = AWAY
        self.reason = "not reached yet"
        self.sessions = 0
        self.on_state: Callable[[str, str], None] | None = None
        self._lines = RateLimitedLog(log)
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._socket_options = dict(socket_options or {})
        self._changed = runtime.current().condition()
        self._number = self._done = 0
        self._begun = 0  # number of the last call before this session
        self._open = False  # a session is open
        self._unsent: list[list[bytes]] = []
        self._hello = b""  # the mirror's answer
        self._socket: core.Socket | None = None
        self._over = asyncio.Event()
        self._peer = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    # ---- in the event loop

    def start(self, disk: MirroredDisk, journal: Journal) -> None:
        """Start connecting; the disk must be attached."""
        self._loop = asyncio.get_running_loop()
        self._task = self._supervisor.task("titanic mirror line", partial(self._run, disk, journal))

    def end(self) -> None:
        """Stop waiting for an absent mirror; one that is in step still gets every call."""
        with self._changed:
            self.ending = True
            self._changed.notify_all()

    async def close(self) -> None:
        """Close; call it after the journal is closed."""
        self._pulse_clock.cancel()
        try:
            if self._task is not None:
                await supervision.cancel_all([self._task])
        finally:
            if self._own_context:
                await self._context.__aexit__(None, None, None)

    def _set_state(self, state: str, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            if state == IN_STEP:
                log.info("mirror %s is %s", self.endpoint, state)
                self._lines = RateLimitedLog(log)  # what comes next is news
            else:  # twice a second, as long as the disk of the mirror is full
                self._lines.warning((state, reason), "mirror %s is %s%s", self.endpoint, state, f": {reason}" if reason else "")
        if self.on_state is not None:
            self.on_state(state, reason)

    async def _run(self, disk: MirroredDisk, journal: Journal) -> None:
        while True:
            self._over.clear()
            self._peer.clear()
            socket = self._context.socket(core.DEALER, **{**LINK_OPTIONS, **with_connect_times(self._socket_options), "linger": 0})
            self._socket = socket
            socket.set_receiver(self._on_batch, on_peer=self._on_peer)
            try:
                socket.connect(self.endpoint)
                await self._peer.wait()
                if not self._over.is_set():
                    await self._session(disk, journal)
            finally:
                self._end_session("the store is closed")
                self._socket = None
                socket.close(linger=0)
            await asyncio.sleep(REFUSED_S if self.stale else RETRY_S)

    async def _session(self, disk: MirroredDisk, journal: Journal) -> None:
        with self._changed:
            self._open = True
            self.sessions += 1
            self._begun = self._number
        self._set_state(CATCHING_UP, "")
        if await self._loop.run_in_executor(None, self._handshake, disk):
            with self._changed:
                self.ready = self.sessions if self._open else 0
                self._changed.notify_all()
            journal.run(_join).add_done_callback(_log_error)
        await self._over.wait()
        self._set_state(AWAY, self.reason)

    def _handshake(self, disk: MirroredDisk) -> bool:
        """Send hello and copy files ahead; runs in a thread of its own."""
        if not self._greet(disk.hello()):
            return False
        try:
            there = {str(name): tuple(numbers) for name, numbers in unpack(self._hello).items()}
            return disk.copy_ahead(self.sessions, there)
        except (ValueError, TypeError, AttributeError, OSError) as error:
            self._fail(f"{type(error).__name__}: {error}")
            return False

    def _greet(self, hello: bytes) -> bool:
        """Wait for the answer, without a limit: the mirror may have to read all its files.

        The connection ends if its machine is lost.
        """
        number = self.post(Call.HELLO, hello)
        with self._changed:
            while not self._changed.wait_for(lambda: self._is_over(number), self.timeout_s):
                self._call_soon(self._set_state, CATCHING_UP, f"it reads its files; not answered within {self.timeout_s:g} s")
            return self._in_session(number)

    def _on_peer(self, _: bytes, joined: bool) -> None:
        if joined:
            self._peer.set()
        else:
            self._end_session("the connection ended")

    def _on_batch(self, batch: Sequence[Sequence[bytes]]) -> None:
        # Hot path: once per sync.
        for frames in batch:
            try:
                session, number = unpack_pair(frames)
            except BadCall as error:
                self._end_session(f"not a mirror: {error}")
                return
            if session != self.sessions:
                continue
            if frames[2] == Call.PULSE.value:
                self._on_pulse(number)
            elif frames[2] == OK:
                with self._changed:
                    if len(frames) > 3 and frames[3]:
                        self._hello = bytes(frames[3])
                    self._done = max(self._done, number)
                    self._changed.notify_all()
            elif frames[2] == NO:
                reason = b" ".join(frames[3:4]).decode(errors="replace")
                self.stale = self.stale or reason.startswith("STALE")
                self._end_session(reason or "refused")

    def _end_session(self, reason: str) -> None:
        with self._changed:
            if self._open:
                self.reason = reason
            self._open = self.live = False
            self.ready = 0
            self._unsent.clear()
            self._changed.notify_all()
        self._over.set()

    def _send(self) -> None:
        with self._changed:
            messages, self._unsent = self._unsent, []
        if messages and self._socket is not None:
            self._socket.send_many(messages)

    def _in_step(self) -> None:
        if self.live:
            self._set_state(IN_STEP, "")
            self._pulse_open = False
            self._send_pulse()

    def _send_pulse(self) -> None:
        """Send the next pulse once the previous one was answered: it confirms to the mirror that its answer arrived."""
        if self.terms is None or not self.live or self._socket is None:
            self._pulse_clock.cancel()
            return
        if not self._pulse_open:
            self._pulse += 1
            self._pulse_open = True
            window_ms = int(self.terms.window_s * 1000)
            self._socket.send_many([[*pack_pair(self.sessions, self._pulse), Call.PULSE.value, b"%d" % window_ms]])
        self._pulse_clock.after(self.terms.pulse_s)

    def _on_pulse(self, number: int) -> None:
        if number == self._pulse and self._pulse_open:
            self._pulse_open = False
            with self._changed:
                self._note_answer()

    def _note_answer(self) -> None:
        """Note an answer of the mirror: its lease may run for one window from now on. With the lock held."""
        if self._detector is not None:
            self._detector = self._detector.heard(boot_clock())

    # ---- in any thread

    def may_go_alone(self) -> bool:
        """Return whether the store may acknowledge records this mirror does not have; in a pair only."""
        detector, terms = self._detector, self.terms
        return detector is not None and terms is not None and detector.is_over(boot_clock()) and terms.serves()

    def post(self, call: Call, *arguments: bytes, session: int = 0) -> int:
        """Send a call; a write is sent together with the next call."""
        with self._changed:
            if session not in (0, self.sessions):
                return 0
            self._number += 1
            self._unsent.append([*pack_pair(self.sessions, self._number), call.value, *arguments])
            number = self._number
            if not self._open:
                self._unsent.clear()
                return number
        if call is not Call.WRITE:
            self._call_soon(self._send)
        return number

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _fail(self, reason: str) -> None:
        self._call_soon(self._end_session, reason)

    def wait(self, number: int) -> bool:
        """See `ReplicaLink`; a mirror that takes too long ends the session, unless octets to it or from it move (`Transit`)."""
        with self._changed:
            self._moves, self._transit = True, Transit()
            while self._moves and not self._changed.wait_for(lambda: self._is_over(number), self.timeout_s):
                self._moves = None
                self._call_soon(self._look)
                self._changed.wait_for(lambda: self._moves is not None or self._is_over(number), self.timeout_s)
            if self._is_over(number):
                return self._in_session(number)
            self.reason = f"no answer within {self.timeout_s:g} s"
            self._open = self.live = False
            self.ready = 0
        self._fail(self.reason)
        return False

    def _look(self) -> None:
        """Tell the thread that waits whether octets have moved since it last asked."""
        with self._changed:
            self._moves = self._socket is not None and self._transit.moves(self._socket.in_transit())
            self._changed.notify_all()

    def _in_session(self, number: int) -> bool:
        return self._open and number > self._begun

    def _is_over(self, number: int) -> bool:
        return self._done >= number or not self._in_session(number)

    def wait_change(self, timeout_s: float) -> None:
        """See `ReplicaLink`."""
        with self._changed:
            if not (self.ready or self.ending):
                self._changed.wait(timeout_s)

    def joined(self, session: int, live: bool) -> None:
        """See `ReplicaLink`."""
        with self._changed:
            if session != self.sessions:
                return  # another one has begun meanwhile
            if live:
                self._note_answer()
            self.ready = 0
            self.live = live and self._open
        if self.live:
            self._call_soon(self._in_step)
        else:
            self._fail("did not come in step")


class MirrorAttachment:
    """Mirror of one store, which refuses requests while it is away, unless the store may acknowledge alone."""

    def __init__(self, mirror: MirrorLine, disk: Disk, go_on: bool) -> None:
        # The journal writes to it: both copies.
        self.disk = MirroredDisk(disk, mirror, go_on, mirror.may_go_alone if mirror.terms is not None else None)
        self._mirror = mirror
        self._go_on = go_on  # acknowledge without the mirror while it is away
        self._in_step = asyncio.Event()
        self._journal: Journal

    async def start(self, journal: Journal) -> None:
        self._journal = journal
        self._mirror.on_state = self._on_state
        self._on_state(self._mirror.state, self._mirror.reason)
        disk = self.disk
        await journal.run(lambda opened: disk.attach(opened.store))  # in the writer thread, before its first batch
        self._mirror.start(disk, journal)

    def _on_state(self, state: str, reason: str) -> None:
        if state == IN_STEP:
            self._in_step.set()
            self._journal.stalled = None
        else:
            self._in_step.clear()
            if not self._go_on or self._mirror.stale:
                self._journal.stalled = f"the mirror is {state}{': ' + reason if reason else ''}"

    async def wait(self) -> None:
        if not self._go_on or (self._mirror.terms is not None and not self._mirror.terms.alone):
            await self._in_step.wait()


def _join(opened: SegmentLog) -> bool:
    """Join a mirror that is ready, in the writer thread, unless a sync has done so already."""
    join: Callable[[], bool] = opened.disk.join  # type: ignore[attr-defined]
    return join()


def _log_error(joined: asyncio.Future[bool]) -> None:
    """Log the error of `join`; the next commit reports it too."""
    if not joined.cancelled() and (error := joined.exception()) is not None:
        log.warning("mirror: %s", error)
