"""Authentication of peers during the handshake (RFC 27; ZAP-01..12, PLAIN-06, CURVE-15).

A socket with a server-side mechanism (or with NULL and a ZAP domain) asks the `Authentication` of its context, which asks

1. the context's `authenticator`, a coroutine function from `ZapRequest` to `ZapReply`, such as an `Authenticator`;
2. else the socket bound to `inproc://zeromq.zap.01` in this context, a REP or ROUTER, as with every ZeroMQ library;
3. else `verdict_without_handler`, which depends on the mechanism.

If the authenticator can revoke verdicts, peers that it accepted are checked again when its rules change, and disconnected if they are
refused.
Peers accepted by a ZAP handler stay, because the protocol cannot revoke a verdict.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from core.constants import DEALER
from core.errors import HandshakeError, ZMQError
from core.runtime.supervision import ONCE, cancel_all
from core.zmtp.zap import STATUS_CODES, ZAP_ENDPOINT, Judge, ZapReply, ZapRequest, verdict_without_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.net.inproc import InprocNames
    from core.net.socket_port import InnerSocket
    from core.runtime.supervision import Supervisor
    from core.zmtp.frames import Message

    Verdict = ZapReply | HandshakeError

RECHECK_S: Final = 0.5  # a revoked peer is disconnected within a second
# Limit of a verdict; the handshake timer of the socket usually ends the wait earlier (ZAP-12).
VERDICT_S: Final = 60.0

_log = logging.getLogger(__name__)


@runtime_checkable
class Revoking(Protocol):
    """An authenticator that can revoke verdicts."""

    async def __call__(self, request: ZapRequest) -> ZapReply: ...  # check a peer
    async def generation(self) -> int: ...  # return a number that changes whenever an earlier verdict might be different now


class Authentication:
    """Answers the authentication questions of one context."""

    def __init__(self, new_socket: Callable[..., InnerSocket], inproc: InprocNames, supervisor: Supervisor) -> None:
        self.judge: Judge | None = None  # the in-process authenticator, or None
        self._new_socket = new_socket  # makes a socket of the context
        self._inproc = inproc  # names of the context
        self._supervisor = supervisor  # starts the questions
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: _Watch | None = None  # over the peers of the latest authenticator that can revoke

    def ask(
        self, request: ZapRequest, *, enforce_domain: bool, answer: Callable[[Verdict], None], revoke: Callable[[str], None]
    ) -> Callable[[], None]:
        """Have a peer authenticated; returns a function to call when the connection is gone, answered or not.

        `answer` is called once with the verdict or an error, at once if there is no authenticator or handler; `revoke` with a reason if
        the verdict is revoked later. `enforce_domain` is ZAP_ENFORCE_DOMAIN of the socket that asks.
        """
        if self.judge is not None:
            return self._ask_judge(self.judge, request, answer, revoke)
        handler = self._inproc.bound(ZAP_ENDPOINT.removeprefix("inproc://"))
        if handler is not None:
            try:
                socket = self._new_socket(DEALER, linger=0)
            except ZMQError as error:  # MAX_SOCKETS, or the context has ended
                answer(ZapReply(b"300", str(error).encode()))
                return lambda: None
            return _Question(socket, request, answer).withdraw
        answer(verdict_without_handler(request.mechanism, enforce_domain=enforce_domain))
        return lambda: None

    def _ask_judge(
        self, judge: Judge, request: ZapRequest, answer: Callable[[Verdict], None], revoke: Callable[[str], None]
    ) -> Callable[[], None]:
        key = object()
        watch = self._watch_of(judge) if isinstance(judge, Revoking) else None

        async def ask() -> None:
            # Read first, to notice a change during the verdict.
            generation = 0 if watch is None else await watch.judge.generation()
            reply = await verdict_of(judge, request)
            if reply.accepted and watch is not None:
                watch.peers[key] = _AcceptedPeer(replace(request, connected=True), revoke, generation)
                if watch.task is None:
                    watch.task = self._supervisor.task("core revocation", watch.run, among=self._tasks)
            answer(reply)

        def refuse(_: Exception) -> None:
            answer(ZapReply(b"500"))

        task = self._supervisor.task("core authentication", ask, restart=ONCE, failed=refuse, among=self._tasks)

        def forget() -> None:
            if watch is not None:
                watch.peers.pop(key, None)
            task.cancel()

        return forget

    def _watch_of(self, judge: Revoking) -> _Watch:
        if self._watch is None or self._watch.judge is not judge:
            self._watch = _Watch(judge)  # an earlier one goes on while it has peers
        return self._watch

    async def wait_closed(self) -> None:
        await cancel_all(self._tasks)


async def verdict_of(judge: Judge | Revoking, request: ZapRequest) -> ZapReply:
    """Return the authenticator's reply; status 500 if it fails, takes longer than `VERDICT_S` or gives no status (ZAP-05)."""
    task = asyncio.ensure_future(judge(request))
    try:
        done, _ = await asyncio.wait([task], timeout=VERDICT_S)
    finally:
        task.cancel()
    if not done:
        _log.error("the authenticator gave no verdict in time", extra={"timeout_s": VERDICT_S})
        return ZapReply(b"500")
    error = None if task.cancelled() else task.exception()
    if task.cancelled() or error is not None:
        _log.error("the authenticator failed", exc_info=error)
        return ZapReply(b"500")
    reply = task.result()
    if reply.status_code not in STATUS_CODES:
        _log.error("the authenticator gave no status", extra={"status_code": reply.status_code.hex()})
        return ZapReply(b"500")
    return reply


@dataclass(slots=True)
class _AcceptedPeer:
    """An accepted peer: its request, how to disconnect it, and the authenticator's generation at the verdict."""

    request: ZapRequest
    revoke: Callable[[str], None]
    generation: int


class _Watch:
    """Checks the peers that one authenticator has accepted again whenever it changes, while there are any."""

    def __init__(self, judge: Revoking) -> None:
        self.judge = judge
        self.peers: dict[object, _AcceptedPeer] = {}
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        while self.peers:
            await asyncio.sleep(RECHECK_S)
            generation = await self.judge.generation()
            for key, peer in list(self.peers.items()):
                if peer.generation != generation:
                    await self._check(key, peer, generation)
        self.task = None

    async def _check(self, key: object, peer: _AcceptedPeer, generation: int) -> None:
        reply = await verdict_of(self.judge, peer.request)
        if reply.status_code == b"300":
            return  # it cannot say now, and is asked again at the next look
        peer.generation = generation
        if not reply.accepted and key in self.peers:
            del self.peers[key]
            peer.revoke("authentication was revoked")


class _Question:
    """One question to a ZAP handler, on its own DEALER, so that it cannot get the reply to another."""

    def __init__(self, socket: InnerSocket, request: ZapRequest, answer: Callable[[Verdict], None]) -> None:
        self._request = request
        self._answer = answer
        self._socket = socket
        self._socket.connect(ZAP_ENDPOINT)
        self._socket.set_receiver(self._received, on_peer=self._peer)
        self._socket.send_multipart(request.encode())

    def withdraw(self) -> None:
        """Close the question without an answer (ZAP-12)."""
        if not self._socket.closed:
            self._socket.close(linger=0)

    def _received(self, messages: list[Message]) -> None:
        verdict: Verdict
        try:
            verdict = ZapReply.decode(messages[0], self._request)
        except HandshakeError as error:
            verdict = error
        self._finish(verdict)

    def _peer(self, routing_id: bytes, joined: bool) -> None:
        """Answer with 300 when the handler disconnects: the peer may try again."""
        if not joined:
            self._finish(ZapReply(b"300", b"the authentication handler has gone"))

    def _finish(self, verdict: Verdict) -> None:
        if not self._socket.closed:
            self._socket.close(linger=0)
            self._answer(verdict)
