"""A bound endpoint: accepts connections within the limits, and stops without touching those it accepted (TRN-07)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from errno import EADDRINUSE, EMFILE
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from core.address import source_of
from core.constants import Event
from core.errors import HandshakeError
from core.net.acceptor import Acceptor
from core.net.os_sockets import Listening, descriptor
from core.net.session import Session
from core.runtime import runtime
from core.runtime.supervision import Restart
from core.security.handshake_budget import HandshakeBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.net.socket_port import SocketPort
    from core.options import Options

log = logging.getLogger(__name__)

# One per iteration: a flood of connections must not delay those that are open (W8). With more, asyncio without file descriptors sets
# a timer per attempt, and each timer repeats all of them (P5).
ACCEPTS_PER_ITERATION: Final = 1
# Connections leave this part of the files that the process may open to its other work, such as a store or a ballot.
SPARE_FILES_PART: Final = 8
# A newcomer that finds no place gets that of a connection whose handshake takes longer.
SLOW_HANDSHAKE_S: Final = 1.0
SLOW_MAX: Final = 64  # slow handshakes that are looked at for each newcomer; some wait for our own work
# Without file descriptors accepting fails every second; this limits the log lines.
TELL_AGAIN_S: Final = 60.0
# A socket file may be removed, or bound over, while its socket listens, and the system says nothing. A look costs a microsecond.
LOOK_AT_FILE_S: Final = 10.0
# From Python 3.13 on event loops remove the file of a Unix socket, which stays here, as with libzmq (TRN-11).
KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
# Short, because closing waits for a restart.
START_AGAIN: Final = Restart(most_s=1.0)


class Listener:
    """One listening socket."""

    def __init__(self, owner: SocketPort, listening: Listening, options: Options, on_closed: Callable[[Session], None]) -> None:
        self.endpoint = listening.endpoint  # resolved, as unbind wants it (TRN-03)
        self.options = options  # as they were at bind() (SOCK-07)
        self.sessions: dict[Session, None] = {}  # accepted connections
        self._owner = owner
        self._on_closed = on_closed  # called when an accepted connection is gone
        self._listening = listening  # made by `core.net.os_sockets`
        self._server: asyncio.AbstractServer | Acceptor | None = None
        self._starting: asyncio.Task[None] | None = None
        self._begun = False  # the loop owns the listening socket and closes it
        self._handshakes = _Unfinished()
        self._pending: dict[str, _Unfinished] = {}  # the same by address
        self._budget: HandshakeBudget[AcceptedSession] = HandshakeBudget(options.max_key_agreements, options.max_key_agreements_per_ip)
        self._supervisor = owner.context.supervisor
        self._permit_clock = self._supervisor.timer("core handshake clock", self._permit)
        self._file = _file_at(listening.path) if listening.path else None
        self._file_clock = self._supervisor.timer("core socket file", self._look_at_file)
        self._told_at: float | None = None  # when the last line about accepting was written
        self._closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to accept; until then connections wait in the kernel's backlog."""
        self._starting = self._supervisor.task("core listener", partial(self._start, loop), restart=START_AGAIN)
        self._owner.emit(Event.LISTENING, self._listening.sock.fileno(), self.endpoint)
        if self._listening.path:
            self._file_clock.after(LOOK_AT_FILE_S)

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            if self._begun:  # and failed
                self._listening.sock.close()
            return
        self._begun = True
        sock = self._listening.sock
        backlog = max(1, self.options.backlog)
        if isinstance(loop, asyncio.SelectorEventLoop):
            self._server = Acceptor(loop, sock, self._accept, self._accept_failed)
        elif sock.family.name == "AF_UNIX":
            self._server = await loop.create_unix_server(self._accept, sock=sock, backlog=ACCEPTS_PER_ITERATION, **KEEP_FILE)
        else:
            self._server = await loop.create_server(self._accept, sock=sock, backlog=ACCEPTS_PER_ITERATION)
        if not self._closed:
            sock.listen(backlog)  # asyncio takes one number for accepts per iteration and for the kernel's queue
        if self._closed:
            self._server.close()

    def _accept(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", AcceptedSession(self._owner, self))

    def _accept_failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._owner.emit(Event.ACCEPT_FAILED, error.errno or 0, self.endpoint, reason)
        self._tell(reason)

    def _look_at_file(self) -> None:
        self._file_clock.after(LOOK_AT_FILE_S)
        try:
            found = _file_at(self._listening.path)
        except OSError as error:
            self._accept_failed(OSError(error.errno, f"its socket file is gone ({error.strerror}); bind again, or restart"))
        else:
            if found != self._file:
                self._accept_failed(OSError(EADDRINUSE, "another file has taken its path; bind again, or restart"))

    def _tell(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._told_at is None or now - self._told_at >= TELL_AGAIN_S:
            self._told_at = now
            log.warning("new connections cannot be accepted", extra={"endpoint": self.endpoint, "reason": reason})

    def admit(self, session: AcceptedSession, address: str, number: int) -> bool:
        """Count a new connection, unless that passes a limit and none makes way for it (ZMTP-75, W7, W8)."""
        options, now = self.options, asyncio.get_running_loop().time()
        handshakes = self._handshakes
        files = files_max()
        spare = 0 <= files <= number + files // SPARE_FILES_PART
        if spare:
            self._accept_failed(OSError(EMFILE, os.strerror(EMFILE)))
        if spare or len(self.sessions) >= options.max_connections:
            handshakes.one_makes_way(now)  # for a later one: its connection has to end first
            has_place = False
        else:
            neighbours = self._pending.get(address) if address else None
            has_place = (
                neighbours is None or len(neighbours) < options.max_pending_handshakes_per_ip or neighbours.one_makes_way(now)
            ) and (len(handshakes) < options.max_pending_handshakes or handshakes.one_makes_way(now))
        if self._closed or not has_place:
            self._owner.counters.refused_connections += 1
            return False
        self.sessions[session] = None
        handshakes.add(session, now)
        self._pending.setdefault(address, _Unfinished()).add(session, now)
        return True

    def queue(self, session: AcceptedSession, address: str, work: int) -> None:
        """Queue a step of a handshake until its key agreements may be computed (C3)."""
        loop = asyncio.get_running_loop()
        self._budget.ask(session, address, work, loop.time())
        due = self._permit_clock.when
        if due is None or due > loop.time():
            self._permit_clock.after(0)

    def _permit(self) -> None:
        now = asyncio.get_running_loop().time()
        self._supervisor.each("core handshake", _permit_all, iter(self._budget.take(now)))
        self._owner.counters.handshakes_deferred += self._budget.take_deferred()
        at = self._budget.deadline()
        if at is not None and self._permit_clock.when is None:
            self._permit_clock.at(max(at, now))

    def finished(self, session: AcceptedSession, address: str) -> None:
        """Stop counting a handshake that has succeeded or failed."""
        self._budget.withdraw(session, address)
        if not self._budget.waiting:
            self._permit_clock.cancel()
        self._handshakes.remove(session)
        neighbours = self._pending[address]
        neighbours.remove(session)
        if not neighbours:
            del self._pending[address]

    def session_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self._on_closed(session)

    def close(self) -> None:
        """Stop accepting; the socket file of a named ipc endpoint stays, as with libzmq (TRN-11)."""
        if self._closed:
            return
        self._closed = True
        self._file_clock.cancel()
        number = self._listening.sock.fileno()
        if self._server is not None:
            self._server.close()
        elif not self._begun:
            self._listening.sock.close()
        if self._listening.temporary:
            with suppress(FileNotFoundError):  # removed by a cleaner of temporary directories
                os.unlink(self._listening.path)
                os.rmdir(os.path.dirname(self._listening.path))
        self._owner.emit(Event.CLOSED, number, self.endpoint)

    def abandon(self) -> None:
        """Give the endpoint back when the event loop is closed, which can stop nothing."""
        self._closed = True
        self._listening.sock.close()

    @property
    def task(self) -> asyncio.Task[None] | None:
        server = self._server
        return (server.task if isinstance(server, Acceptor) else None) or self._starting


def _file_at(path: str) -> tuple[int, int]:
    """Return what a file is known again by."""
    status = runtime.current().files.stat(path)
    return status.st_dev, status.st_ino


def files_max() -> int:
    """Return how many files this process may have open, -1 for no limit."""
    try:
        import resource  # on Posix only
    except ImportError:
        return -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _permit_all(sessions: Iterator[AcceptedSession]) -> None:
    for session in sessions:
        session.permit()


class _Unfinished:
    """Unfinished handshakes, the oldest first."""

    __slots__ = ("_began", "_silent")

    def __init__(self) -> None:
        self._began: dict[AcceptedSession, float] = {}
        self._silent: dict[AcceptedSession, None] = {}  # with others that have spoken since

    def __len__(self) -> int:
        return len(self._began)

    def add(self, session: AcceptedSession, now: float) -> None:
        self._began[session] = now
        self._silent[session] = None

    def remove(self, session: AcceptedSession) -> None:
        del self._began[session]
        self._silent.pop(session, None)

    def one_makes_way(self, now: float) -> bool:
        """Disconnect the oldest peer that has said nothing, or else that is slow; return whether there was one."""
        session = self._oldest_silent() or self._oldest_slow(now)
        if session is not None:
            session.make_way()
        return session is not None

    def _oldest_silent(self) -> AcceptedSession | None:
        while self._silent:
            session = next(iter(self._silent))
            if session.is_silent:
                return session
            del self._silent[session]
        return None

    def _oldest_slow(self, now: float) -> AcceptedSession | None:
        for session, began in islice(self._began.items(), SLOW_MAX):
            if now - began < SLOW_HANDSHAKE_S:
                return None
            if not session.waits_here:
                return session
        return None


class AcceptedSession(Session):
    """Session that counts towards the limits of its listener."""

    __slots__ = ("_counted", "_counted_as", "_listener")

    def __init__(self, owner: SocketPort, listener: Listener) -> None:
        super().__init__(owner, None, listener.endpoint, listener.session_closed, listener.options)
        self._listener = listener
        self._counted = False
        self._counted_as = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it before it uses resources."""
        transport = cast("asyncio.Transport", transport)  # uvloop's are none of its children
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        number = descriptor(transport)
        self._counted_as = source_of(address)
        self._counted = self._listener.admit(self, self._counted_as, number)
        if not self._counted:
            transport.abort()
            return
        self.owner.session_opened(self)  # a callback of the event may close the socket
        self.owner.emit(Event.ACCEPTED, number, self.endpoint, peer=address)
        super().connection_made(transport)
        if self.connection is not None:
            self.connection.gated = True

    @property
    def is_silent(self) -> bool:
        return self.connection is not None and self.connection.is_silent

    @property
    def waits_here(self) -> bool:
        """Whether the handshake waits for the authenticator, or for key agreements."""
        return self._handshake is not None and self._handshake.waits

    def make_way(self) -> None:
        """Disconnect, before the handshake is complete, for the sake of others."""
        self._handshake_done()
        self.refuse(HandshakeError("handshake not complete when its place was needed"))

    def queue_key_agreements(self, number: int) -> bool:
        if self._counted:
            self._listener.queue(self, self._counted_as, number)
        return self._counted

    def permit(self) -> None:
        if self._handshake is not None:
            self._handshake.permit()

    def _start_traffic(self) -> None:
        self._handshake_done()
        super()._start_traffic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_done()
        super().connection_lost(exc)

    def _handshake_done(self) -> None:
        if self._counted:
            self._counted = False
            self._listener.finished(self, self._counted_as)
