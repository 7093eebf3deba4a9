"""A mirror: the second Titanic, which holds and has synced every record before the first one says 200 (specs/titanic.md §10).

    async with Mirror(RealDisk(directory)) as mirror:
        mirror.bind("tcp://10.0.0.2:5565")
        await mirror.until_failed()

One thread does the disk's work; the loop takes calls and sends answers. The last store that said hello is the one that is followed.

The mirror of a pair (`titanic.paired_store`) also answers the other one's question whether to lead, and makes it a promise with each pulse
(`titanic.mirror.succession`).
"""

from __future__ import annotations

import asyncio
import logging
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Self

import core
from bstar.net.boot_clock import boot_clock
from core.runtime import supervision
from titanic.errors import Wounded
from titanic.mirror.replica_directory import Refused, Replica
from titanic.mirror.succession import Promise, Standing, judge
from titanic.wire.mirror_frames import NO, OK, BadCall, Call, Step, pack_pair, unpack_pair

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from threading import Thread
    from types import TracebackType

    from core.security.credentials import Secured
    from titanic.journal.disk import Disk

__all__ = ["NO_PROMISE", "Mirror"]

log = logging.getLogger("titanic")

HEARTBEAT_MS: Final = 1000
HWM: Final = 100_000
MESSAGE_BYTES_MAX: Final = 2**31  # a record may be as long as what the broker lets through; segments hold one at least
NO_PROMISE: Final = Promise()
WINDOW_MS_DIGITS: Final = 7  # a promise of more than three hours is none
ANSWERED: Final = frozenset({Call.HELLO.value, Call.COPY.value, Call.SWAP.value, Call.SYNC.value, Call.SYNC_DIRECTORY.value})


class Mirror:
    """Follows one store at a time.

    Args:
        disk: a directory of its own; locked while the mirror is open.
        take_over, paired: see `Replica`.
        promise: made before, by the same mirror of a pair, and not used.
        context: to make the socket in; an own one when left out.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: further options of the socket, such as CURVE keys.

    Attributes:
        replica: what is done to the directory; of the thread.
        promise: of the mirror of a pair: until when it may take over.
        calls, octets, sessions, refused: counters.

    Raises:
        StoreLocked, JournalError, OSError: on entering, as `Replica`.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        take_over: bool = False,
        paired: bool = False,
        promise: Promise = NO_PROMISE,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.calls = 0
        self.octets = 0
        self.sessions = 0
        self.refused = 0
        self.replica: Replica
        self._disk = disk
        self.promise = promise
        self._take_over = take_over
        self._paired = paired
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._socket_options = dict(socket_options or {})
        self._queue: SimpleQueue[list[tuple[bytes, Sequence[bytes]]] | None] = SimpleQueue()
        self._store = b""  # routing id of the store that is followed
        self._socket: core.Socket
        self._loop: asyncio.AbstractEventLoop
        self._thread: Thread
        self._failed: asyncio.Future[None]

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._disk.lock()
        try:
            self.replica = Replica(self._disk, self._take_over, self._paired)
        except BaseException:
            self._disk.unlock()
            raise
        self._socket = self._context.socket(
            core.ROUTER, linger=0, sndhwm=HWM, rcvhwm=HWM, maxmsgsize=MESSAGE_BYTES_MAX, max_message_bytes=MESSAGE_BYTES_MAX,
            heartbeat_ivl=HEARTBEAT_MS, heartbeat_timeout=3 * HEARTBEAT_MS, **self._socket_options,
        )  # fmt: skip
        self._socket.set_receiver(self._on_batch, on_peer=self._on_peer)
        self._thread = supervision.current().thread("titanic mirror", self._follow, failed=self._ended)
        return self

    def bind(self, endpoint: str) -> str:
        """Listen; returns the endpoint with its port. Raises core.ZMQError."""
        self._socket.bind(endpoint)
        return self._socket.last_endpoint

    async def until_failed(self) -> None:
        """Wait for ever, unless the thread ends with an error that was not foreseen: raises `Wounded` then. Cancel-safe."""
        await asyncio.shield(self._failed)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close(linger=0)
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self._failed.cancel()
        self._disk.unlock()
        await self._socket.wait_closed()  # its endpoint is free for the next mirror of the same context
        if self._own_context:
            await self._context.__aexit__(None, None, None)

    @property
    def connected(self) -> bool:
        """Whether a store is followed."""
        return bool(self._store)

    @property
    def status(self) -> dict[str, Any]:
        """What an operator wants to see."""
        mark = self.replica.mark
        return {"step": mark.step.value, "epoch": mark.epoch, "store": mark.store.hex(), "connected": self.connected}

    @property
    def figures(self) -> dict[str, Any]:
        """Status and counters, for those who watch."""
        return {**self.status, "calls": self.calls, "octets": self.octets, "sessions": self.sessions, "refused": self.refused}

    def lacks(self) -> str:
        """Return what is missing for a second copy to be kept, "" for nothing."""
        return "" if self.connected else "no store"

    # ---- in the loop

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        if not joined and peer == self._store:
            self._store = b""
            log.warning("the store is gone; this mirror is %s", self.replica.mark.step.value)

    def _on_batch(self, batch: Sequence[Sequence[bytes]]) -> None:
        """Hand calls to the thread; only of the store that said hello last."""
        # Hot path: once per sync of the store.
        calls: list[tuple[bytes, Sequence[bytes]]] = []
        for peer, *frames in batch:
            call = frames[2] if len(frames) > 2 else b""
            if call == Call.HELLO.value:
                self._store = peer
                self.sessions += 1
                self.promise = NO_PROMISE
            if self._paired and call in (Call.PULSE.value, Call.CONSULT.value):
                self._take_of_pair(peer, frames)
            elif peer == self._store:
                calls.append((peer, frames))
                self.octets += sum(map(len, frames))
            else:
                self.refused += 1
        self.calls += len(calls)
        if calls:
            self._queue.put(calls)

    def _take_of_pair(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Answer at once, in the loop: what the thread is at takes its time, and a pulse says nothing of it."""
        try:
            session, number = unpack_pair(frames)
            match frames[2:]:
                case [Call.CONSULT.value, standing]:
                    said = judge(self.replica.standing, Standing.decode(standing))
                    self._answer([[peer, *pack_pair(session, number), OK, said.value.encode(), self.replica.standing.encode()]])
                case [Call.PULSE.value, window] if window.isdigit() and len(window) <= WINDOW_MS_DIGITS:
                    if peer == self._store and self.replica.mark.step is Step.IN_STEP:
                        self.promise = self.promise.pulse(int(window) / 1000, boot_clock())
                        self._answer([[peer, *pack_pair(session, number), Call.PULSE.value]])
                case _:
                    raise BadCall("neither a pulse nor a question")
        except BadCall:
            self.refused += 1

    def _answer(self, messages: list[list[bytes]]) -> None:
        if not self._socket.closed:
            self._socket.send_many(messages)

    # ---- the thread

    def _ended(self, error: Exception) -> None:
        """Tell `until_failed` of an end that was not foreseen."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_fail, self._failed, Wounded(f"the mirror's thread has ended: {type(error).__name__}: {error}"))

    def _follow(self) -> None:
        followed = b""
        while (calls := self._queue.get()) is not None:
            answers = []
            for peer, frames in calls:
                hello = len(frames) > 2 and frames[2] == Call.HELLO.value
                if hello:
                    followed = peer
                elif peer != followed:
                    continue  # behind a call that failed, or of a session before
                answer = self._do(frames)
                if answer:
                    answers.append([peer, *answer])
                    if answer[2] == NO:
                        followed = b""
            if answers:
                self._tell(answers)
        self.replica.end()

    def _do(self, frames: Sequence[bytes]) -> list[bytes]:
        """Do one call; returns what to say about it."""
        session = number = 0
        try:
            session, number = unpack_pair(frames)
            before = self.replica.mark.step
            detail = self.replica.do(frames[2], frames[3:])
        except (BadCall, Refused, OSError) as error:
            log.error("mirror: %s", error)
            return [*pack_pair(session, number), NO, str(error).encode()[:1000]]
        if self.replica.mark.step is not before:
            log.info("mirror: %s", self.replica.mark.step.value)
        return [*pack_pair(session, number), OK, detail] if frames[2] in ANSWERED else []

    def _tell(self, answers: list[list[bytes]]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._answer, answers)


def _fail(failed: asyncio.Future[None], error: Wounded) -> None:
    if not failed.done():
        failed.set_exception(error)
        failed.exception()  # an owner may look at it, and need not
