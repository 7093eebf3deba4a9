"""Voting socket of a server: requests in, handler, replies out (BST-03, BST-04, BST-29).

A request of `bstar.Client` has a header and is always answered, if only with NOT_ACTIVE. A request of a stock client that is not accepted
is dropped without reply, as in the guide. `VotePolicy`, which the pair implements, decides whether a request is accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from bstar.errors import MalformedMessage, NotActive
from bstar.machine.ballot import NO_BALLOT
from bstar.machine.fsm import Verdict
from bstar.machine.wire import CLIENT_TOPIC, ReplyHeader, ReplyKind, RequestKind, decode_request_header, encode_reply_header
from core.daemon.logs import RateLimitedLog
from core.rpc.running_handlers import RunningHandlers, call, reply_frames
from core.rpc.service import sent

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    import core
    from bstar.machine.ballot import Ballot
    from bstar.machine.fsm import State
    from bstar.machine.wire import RequestHeader

log = logging.getLogger(__name__)

# A vote is decided after the state channel was read (BST-18): the first loop iteration processes what the selector has found already, the
# second selects again, the third is behind what that brought.
ITERATIONS_BEFORE_VERDICT: Final = 3


class VotePolicy(Protocol):
    """Decisions a voter needs of its pair."""

    def serves(self) -> bool: ...  # whether an answer may leave now

    def verdict(self, seen: Ballot) -> Verdict: ...  # about one request

    def vouches(self, seen: Ballot) -> bool: ...  # it knows that no server is active under a higher ballot named by a client

    def ballot(self) -> Ballot: ...  # under which this server is active

    def refusal(self) -> NotActive: ...  # its reason, the active server and when to ask again

    def known(self) -> Ballot: ...  # the highest one, for refused clients

    def active_role(self) -> State | None: ...  # of the active server, if known


class Request:
    """One request of a client.

    Attributes:
        envelope: routing frames up to and with the empty one.
        body: frames of the client, without the header.
        header: None for a stock client.
        ballot: under which it was accepted.
    """

    __slots__ = ("ballot", "body", "envelope", "header")

    def __init__(self, envelope: list[bytes], header: RequestHeader | None, body: list[bytes]) -> None:
        self.envelope = envelope
        self.header = header
        self.body = body
        self.ballot = NO_BALLOT

    @property
    def key(self) -> bytes | None:
        """Idempotency key (BST-24, IDM-01): the same for each resend of a request, None for a stock client."""
        if self.header is None:
            return None
        return self.header.client.to_bytes(8, "big") + self.header.sequence.to_bytes(8, "big")


class Voter:
    """ROUTER whose requests are votes."""

    def __init__(
        self,
        socket: core.Socket,  # bound; owned by the voter from now on
        # takes a `Request`, returns the reply's body frames, one frame, or None for no reply; may be a coroutine function. It
        # must be quick or asynchronous: it blocks heartbeats while it computes
        handler: Callable[[Request], Any],
        policy: VotePolicy,
        *,
        held_max: int,  # requests that may wait for a claim
        running_max: int,  # requests that may be with the handler
        counters: Counter[str],
    ) -> None:
        self.socket = socket
        self.draining = False  # accept nothing, finish running requests
        self._handler = handler
        self._policy = policy
        self._held_max = held_max
        self._counters = counters
        self._log = RateLimitedLog(log)
        self._undecided: deque[Request] = deque()
        self._held: deque[Request] = deque()
        self._running = RunningHandlers(running_max)
        self._handle: asyncio.Handle | None = None
        socket.set_receiver(self._receive)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def held(self) -> int:
        """Number of requests that wait for a verdict or a claim."""
        return len(self._held) + len(self._undecided)

    def release_held(self) -> None:
        """Serve waiting requests: the claim was won."""
        held, self._held = self._held, deque()
        self._undecided.extendleft(reversed(held))
        self._decide()

    def refuse_held(self) -> None:
        """Refuse waiting requests: the claim was dropped."""
        while self._held:
            self._refuse(self._held.popleft())

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more and wait for the handlers; return whether all finished in time."""
        self.draining = True
        return await self._running.drain(timeout_s)

    async def close(self) -> None:
        self.draining = True
        self._held.extend(self._undecided)
        self._undecided.clear()
        self.refuse_held()
        try:
            await self._running.cancel()
        finally:
            self.socket.close(linger=200)
            await self.socket.wait_closed()

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            request = self._parse(frames)
            if request is None:
                continue
            if self.held >= self._held_max:
                self._counters["held_overflow"] += 1
                self._refuse(request)
            else:
                self._undecided.append(request)
        if self._policy.serves() and not self._held:
            self._decide()  # an active server need not read the state channel first: the request is no vote
        elif self._undecided and self._handle is None:
            self._wait_iterations(ITERATIONS_BEFORE_VERDICT)

    def _wait_iterations(self, iterations: int) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_soon(self._wait_iterations, iterations - 1) if iterations else None
        if not iterations:
            self._decide()

    def _parse(self, frames: list[bytes]) -> Request | None:
        """Split `[routing id, b"", header?, body…]`; also takes `[routing id, body…]` of a DEALER that leaves the empty frame out."""
        end = next((number for number, frame in enumerate(frames[1:], 1) if not frame), 0) + 1
        envelope, body = frames[:end], frames[end:]
        header = None
        if body and body[0].startswith(CLIENT_TOPIC):
            try:
                header = decode_request_header(body[0])
                if header.kind is not RequestKind.REQUEST:
                    raise MalformedMessage(f"{header.kind.name} on a voting socket")
            except MalformedMessage:
                self._counters["request_malformed"] += 1
                return None
            body = body[1:]
        return Request(envelope, header, body)

    def _decide(self) -> None:
        while self._undecided:
            request = self._undecided.popleft()
            verdict = self._policy.verdict(request.header.seen if request.header else NO_BALLOT)
            if self.draining or verdict is Verdict.REJECT:
                self._refuse(request)
            elif verdict is Verdict.HOLD:
                self._held.append(request)
            elif self._running.full:
                self._counters["running_overflow"] += 1
                self._refuse(request)
            else:
                self._accept(request)
        if self._held and self._policy.serves():
            self.release_held()  # the claim of one of them was won at once

    def _accept(self, request: Request) -> None:
        self._counters["accepted"] += 1
        request.ballot = self._policy.ballot()
        self._running.start(self._handle_request(request), ended=partial(self._handled, request))

    async def _handle_request(self, request: Request) -> None:
        reply = await call(self._handler, request)
        if reply is not None:
            self._answer(request, ReplyKind.REPLY, reply_frames(reply))

    def _handled(self, request: Request, task: asyncio.Future[None], error: BaseException | None) -> None:
        """Process the end of a handler. Its error is the answer to the request, not a failure of the pair."""
        if error is None and task.cancelled():
            self._refuse(request)
        if error is not None:
            self._counters["handler_failed"] += 1
            self._log.error(type(error).__name__, "handler failed", cause=error)
            self._answer(request, ReplyKind.FAILED, [type(error).__name__.encode()])

    # --- replies --------------------------------------------------------------------------------------------------------------

    def _answer(self, request: Request, kind: ReplyKind, body: list[bytes]) -> None:
        """Send a reply, if this server may still answer under the ballot of the request."""
        if not self._policy.serves() or self._policy.ballot() != request.ballot:
            self._counters["reply_withheld"] += 1
            self._refuse(request)
            return
        self._counters["replied"] += 1
        if request.header is not None:
            vouches = request.header.seen > request.ballot and self._policy.vouches(request.header.seen)
            header = encode_reply_header(
                ReplyHeader(kind, request.header.sequence, request.ballot, self._policy.active_role() if vouches else None)
            )
            sent(self.socket, [*request.envelope, header, *body])
        elif kind is ReplyKind.REPLY:
            sent(self.socket, [*request.envelope, *body])

    def _refuse(self, request: Request) -> None:
        self._counters["refused"] += 1
        if request.header is None or self.socket.closed:
            return
        refusal = self._policy.refusal()
        header = ReplyHeader(
            ReplyKind.NOT_ACTIVE,
            request.header.sequence,
            self._policy.known(),
            self._policy.active_role(),
            max(1, round(refusal.retry_s * 1000)),
        )
        sent(self.socket, [*request.envelope, encode_reply_header(header)])
