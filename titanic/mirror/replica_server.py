"""Mirror: a second Titanic that has synced every record before the store acknowledges it (specs/titanic.md §10).

    async with Mirror(RealDisk(directory)) as mirror:
        mirror.bind("tcp://10.0.0.2:5565")
        await mirror.until_failed()

One thread does the disk work; the event loop receives calls and sends answers. The store that sent the last hello is followed.

In a pair (`titanic.paired_store`) the mirror also answers whether the other half may lead, and extends its own lease with each pulse
(`titanic.mirror.succession`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import core
from bstar.net.boot_clock import boot_clock
from core.daemon.logs import RateLimitedLog
from core.machine.peer_text import decimal
from core.rpc.service import Service
from core.runtime import runtime, supervision
from titanic.errors import Wounded
from titanic.journal.group_commit import fail_future
from titanic.journal.ownership import Step
from titanic.mirror.replica_directory import Refused, Replica
from titanic.mirror.succession import LeaseEstimate, Lineage, judge
from titanic.wire.mirror_frames import LINK_OPTIONS, NO, OK, BadCall, Call, pack_pair, unpack_pair

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from queue import SimpleQueue
    from threading import Thread

    from core.security.credentials import Secured
    from titanic.journal.disk import Disk

log = logging.getLogger("titanic")

MESSAGE_BYTES_MAX: Final = 2**31  # a record may be as long as the largest message of the broker
NO_LEASE: Final = LeaseEstimate()
WINDOW_MS_DIGITS: Final = 7  # windows of up to three hours
REASON_BYTES_MAX: Final = 1000
ANSWERED: Final = frozenset({Call.HELLO.value, Call.COPY.value, Call.SWAP.value, Call.SYNC.value, Call.SYNC_DIRECTORY.value})


class Mirror(Service):
    """Follows one store at a time.

    Args:
        disk: directory of the mirror; locked while it is open.
        take_over, paired: see `Replica`.
        lease: of the previous mirror on this directory, not used yet.
        context: for the socket; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`.
        socket_options: further options of the socket, such as CURVE keys.

    Attributes:
        replica: the directory; used by the thread.
        lease: in a pair: until when it may take over.
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
        lease: LeaseEstimate = NO_LEASE,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context, security, socket_options)
        self.calls = 0
        self.octets = 0
        self.sessions = 0
        self.refused = 0
        self.failed = 0
        self._log = RateLimitedLog(log)
        self._call_log = RateLimitedLog(log)  # of the thread
        self.replica: Replica
        self._disk = disk
        self.lease = lease
        self._take_over = take_over
        self._paired = paired
        self._queue: SimpleQueue[list[tuple[bytes, Sequence[bytes]]] | None] = runtime.current().queue()
        self._store = b""  # routing id of the store that is followed
        self._socket: core.Socket
        self._thread: Thread

    async def _start(self) -> None:
        self._disk.lock()
        try:
            self.replica = Replica(self._disk, self._take_over, self._paired)
        except BaseException:
            self._disk.unlock()
            raise
        self._socket = self._context.socket(
            core.ROUTER,
            **{**LINK_OPTIONS, "maxmsgsize": MESSAGE_BYTES_MAX, "max_message_bytes": MESSAGE_BYTES_MAX, **self._options, "linger": 0},
        )
        self._sockets.append((self._socket, 0))
        self._socket.set_receiver(self._on_batch, on_peer=self._on_peer)
        self._thread = supervision.current().thread("titanic mirror", self._follow, failed=self._on_failure)
        self._stack.push_async_callback(self._end_thread)

    async def _stop(self) -> None: ...

    @supervision.to_the_end
    async def _end_thread(self) -> None:
        """End the thread after the socket, when no more calls can come; then the directory is free."""
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self._disk.unlock()

    def bind(self, endpoint: str) -> str:
        """Bind; return the endpoint with its port. Raises core.ZMQError."""
        self._socket.bind(endpoint)
        return self._socket.last_endpoint

    async def until_failed(self) -> None:
        """Wait until the thread ends with an unexpected error, and raise `Wounded`. Cancel-safe."""
        await self.serve_forever()

    @property
    def connected(self) -> bool:
        """Whether a store is followed."""
        return bool(self._store)

    @property
    def status(self) -> dict[str, Any]:
        """State for operators."""
        mark = self.replica.mark
        return {"step": mark.step.value, "epoch": mark.epoch, "store": mark.store.hex(), "connected": self.connected}

    @property
    def figures(self) -> dict[str, Any]:
        """Status and counters."""
        return {
            **self.status,
            "calls": self.calls,
            "octets": self.octets,
            "sessions": self.sessions,
            "refused": self.refused,
            "failed": self.failed,
        }

    def lacks(self) -> str:
        """Return why no second copy is being kept, "" if one is."""
        return "" if self.connected else "no store"

    # ---- in the event loop

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        if not joined and peer == self._store:
            self._store = b""
            self._log.warning("gone", "the store is gone; this mirror is %s", self.replica.mark.step.value)

    def _on_batch(self, batch: Sequence[Sequence[bytes]]) -> None:
        """Pass calls of the followed store to the thread."""
        # Hot path: once per sync of the store.
        calls: list[tuple[bytes, Sequence[bytes]]] = []
        for peer, *frames in batch:
            call = frames[2] if len(frames) > 2 else b""
            if call == Call.HELLO.value:
                if not self._believes(peer, frames):
                    continue
                self._store = peer
                self.sessions += 1
                self.lease = NO_LEASE
            if self._paired and call in (Call.PULSE.value, Call.CONSULT.value):
                self._answer_pair(peer, frames)
            elif peer == self._store:
                calls.append((peer, frames))
                self.octets += sum(map(len, frames))
            else:
                self.refused += 1
        self.calls += len(calls)
        if calls:
            self._queue.put(calls)

    def _believes(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Return whether a hello is of a store to follow; refuse another one, at no cost to the present store."""
        session = number = 0
        try:
            session, number = unpack_pair(frames)
            self.replica.check_hello(frames[3:])
        except (BadCall, Refused) as error:
            self.refused += 1
            self._log.warning("hello", "mirror: %s", error)
            self._answer([[peer, *pack_pair(session, number), NO, str(error).encode()[:REASON_BYTES_MAX]]])
            return False
        return True

    def _answer_pair(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Answer pulses and questions at once, in the event loop: they do not depend on calls in the thread."""
        try:
            session, number = unpack_pair(frames)
            match frames[2:]:
                case [Call.CONSULT.value, lineage]:
                    said = judge(self.replica.lineage, Lineage.decode(lineage))
                    self._answer([[peer, *pack_pair(session, number), OK, said.value.encode(), self.replica.lineage.encode()]])
                case [Call.PULSE.value, window] if (window_ms := decimal(window, WINDOW_MS_DIGITS)) is not None:
                    if peer == self._store and self.replica.mark.step is Step.IN_STEP:
                        self.lease = self.lease.pulse(window_ms / 1000, boot_clock())
                        self._answer([[peer, *pack_pair(session, number), Call.PULSE.value]])
                case _:
                    raise BadCall("neither a pulse nor a question")
        except BadCall:
            self.refused += 1

    def _answer(self, messages: list[list[bytes]]) -> None:
        if not self._socket.closed:
            self._socket.send_many(messages)

    # ---- the thread

    def _on_failure(self, error: Exception) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(
                fail_future, self._ended, Wounded(f"the mirror's thread has ended: {type(error).__name__}: {error}")
            )

    def _follow(self) -> None:
        try:
            self._follow_stores()
        finally:
            self.replica.end()

    def _follow_stores(self) -> None:
        followed = b""
        while (calls := self._queue.get()) is not None:
            answers = []
            for peer, frames in calls:
                hello = len(frames) > 2 and frames[2] == Call.HELLO.value
                if hello:
                    followed = peer
                elif peer != followed:
                    continue  # after a failed call, or of an earlier session
                answer = self._carry_out(frames)
                if answer:
                    answers.append([peer, *answer])
                    if answer[2] == NO:
                        followed = b""
            if answers and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._answer, answers)

    def _carry_out(self, frames: Sequence[bytes]) -> list[bytes]:
        """Do one call; return the frames of its answer, none if it needs none."""
        session = number = 0
        try:
            session, number = unpack_pair(frames)
            before = self.replica.mark.step
            detail = self.replica.do(frames[2], frames[3:])
        except (BadCall, Refused, OSError) as error:
            self.failed += 1
            self._call_log.error(type(error).__name__, "mirror: %s", error)
            return [*pack_pair(session, number), NO, str(error).encode()[:REASON_BYTES_MAX]]
        if self.replica.mark.step is not before:
            log.info("mirror: %s", self.replica.mark.step.value)
        return [*pack_pair(session, number), OK, detail] if frames[2] in ANSWERED else []
