"""The shell of one handshake: its time limit, and steps that wait for the authenticator or for key agreements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from core.errors import HandshakeError
from core.zmtp.connection import State

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from core.net.socket_port import SocketPort
    from core.options import Options
    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.connection import Connection
    from core.zmtp.scan import Batch
    from core.zmtp.zap import ZapReply


class HandshakingSession(Protocol):
    """A session, as its handshake sees it."""

    owner: SocketPort
    options: Options
    transport: asyncio.Transport | None

    def suspend_handshake(self) -> None: ...  # keep what is received until the handshake goes on
    def resume_handshake(self, step: Callable[[], Batch]) -> None: ...  # go on, with this step first
    def refuse(self, error: HandshakeError) -> None: ...  # close the connection, because of the peer or of the authenticator
    # call `Handshake.permit` when they may be computed; returns False when nothing limits them
    def queue_key_agreements(self, number: int) -> bool: ...
    def abort_with(self, reason: str) -> None: ...  # close at once because of the peer


class Handshake:
    """See the module."""

    __slots__ = ("_connection", "_forget_question", "_session", "_timer", "waits")

    def __init__(self, session: HandshakingSession, connection: Connection, scheduler: WriteScheduler) -> None:
        self._session = session
        self._connection = connection  # of the handshake
        self.waits = False  # for the authenticator, or for key agreements
        self._forget_question: Callable[[], None] | None = None
        limit_ms = session.options.handshake_ivl
        self._timer = scheduler.later(session, limit_ms / 1000, self._time_over) if limit_ms else None

    def proceed(self) -> None:
        connection, session = self._connection, self._session
        request = connection.mechanism.zap_request
        if self.waits or connection.state is not State.HANDSHAKE:
            return
        if request is not None:
            self.waits = True
            session.suspend_handshake()
            self._forget_question = session.owner.context.authentication.ask(
                request, enforce_domain=bool(session.options.zap_enforce_domain), answer=self._answered, revoke=session.abort_with
            )
        elif connection.work and session.queue_key_agreements(connection.work):
            self.waits = True
            session.suspend_handshake()

    def permit(self) -> None:
        """Go on with the step that waited for key agreements."""
        self.waits = False
        self._session.resume_handshake(self._connection.permit)

    def _answered(self, verdict: ZapReply | HandshakeError) -> None:
        self.waits = False
        if isinstance(verdict, HandshakeError):  # the handler's fault, but it is the peer that goes (ZAP-02, ZAP-03)
            self._session.refuse(verdict)
        else:
            self._session.resume_handshake(partial(self._connection.resume, verdict))

    def _time_over(self) -> None:
        self._session.refuse(HandshakeError(f"handshake not complete after {self._session.options.handshake_ivl} ms"))

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """The connection is gone: no answer is of use, and no verdict can be revoked."""
        self.stop_timer()
        if self._forget_question is not None:
            self._forget_question()
            self._forget_question = None
