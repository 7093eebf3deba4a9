"""Frontend of a passive broker: redirects peers to the active one and counts each request as a fail-over vote.

Only a client votes (BST-10): with a request, or with `mmi.pair`, which our clients send when they were refused. A query of the dialect is
no vote, because workers send it too. READY of a worker is answered with DISCONNECT.

    refused   mmi.protocol, mmi.pair   300, highest ballot known, time after which to retry
              other requests           no reply (BST-03); the connection is closed, and a client that knows both brokers goes to the other
    held      during a claim; if it is won, the broker answers as if the request had arrived then
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.machine.ballot import NO_BALLOT
from bstar.machine.fsm import Verdict
from bstar.net.voter import ITERATIONS_BEFORE_VERDICT
from core.runtime import supervision
from mdp.wire.commands import CLIENT_REQUEST_03, EMPTY, HEAD_BYTES, MDPC01, MDPC02, MDPW01, MDPW02, MDPW03, V01, V02, V03, worker_disconnect
from mdp.wire.failover import PAIR_SERVICE, parse_ballot, refusal
from mdp.wire.options import BadOptions, decode_request_options
from mdp.wire.variants import in_rfc_frames

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from bstar.machine.ballot import Ballot
    from bstar.pair import Pair
    from core.zmtp.frames import Message
    from core.zmtp.scan import Batch
from mdp.wire.commands import Dialect

REQUEST_02: Final = b"\x01"  # command frame of a request in MDP/0.2
PROTOCOL_SERVICE: Final = b"mmi.protocol"
# A claim takes a write to disk and a query to the witness. A client without an answer for a second assumes a broker of MDP/0.1.
HOLD_S: Final = 0.5
# Limits of requests that wait for a claim; further ones are refused, and sent again by their clients.
HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 16 * 2**20


class StandbyFrontend:
    """The frontend of a passive broker."""

    def __init__(
        self,
        pair: Pair,
        counters: Counter[str],
        *,
        reply: Callable[[Message], None],
        disconnect: Callable[[bytes], None],
    ) -> None:
        self._pair = pair
        self._counters = counters
        self._reply = reply
        self._disconnect = disconnect
        self._undecided: list[HeldRequest] = []
        self._held: deque[HeldRequest] = deque()
        self._held_bytes = 0
        self._handle: asyncio.Handle | None = None
        self._hold_clock = supervision.current().timer("mdp pair clock", self._refuse_held)

    def receive(self, batch: Batch) -> None:
        for message in batch:
            variant, frames = in_rfc_frames(message[1:])
            dialect = _dialect_of_worker(frames)
            service = _service_asked(frames)
            if dialect is not None:
                self._counters["workers_sent_away"] += 1
                away = worker_disconnect(dialect)
                self._reply([message[0], *(away if variant is None else variant.frames_from_rfc(away))])
            elif service is not None:
                self._take_request(message, service)
            else:
                self._counters["gate_ignored"] += 1
        if self._undecided and self._handle is None:
            self._wait_iterations(ITERATIONS_BEFORE_VERDICT)

    def peer_changed(self, peer: bytes, joined: bool) -> None:
        if not joined:
            self._undecided = [request for request in self._undecided if request.message[0] != peer]
            self._held = deque(request for request in self._held if request.message[0] != peer)
            self._held_bytes = sum(request.size for request in (*self._held, *self._undecided))

    def release_held(self) -> list[Message]:
        """Remove and return all held requests, for the broker, which serves now."""
        held = [request.message for request in (*self._held, *self._undecided)]
        self._forget()
        self._counters["served_after_a_claim"] += len(held)
        return held

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._hold_clock.cancel()
        self._held, self._held_bytes, self._undecided = deque(), 0, []

    def _take_request(self, message: Message, service: bytes) -> None:
        seen = (parse_ballot(message[-1]) or NO_BALLOT) if service == PAIR_SERVICE else NO_BALLOT
        request = HeldRequest(message, service, seen, sum(map(len, message)))
        if service == PROTOCOL_SERVICE:
            self._refuse(request)
        elif len(self._undecided) + len(self._held) >= HELD_MAX or self._held_bytes + request.size > HELD_BYTES_MAX:
            self._counters["held_overflow"] += 1
            self._refuse(request)
        else:
            self._held_bytes += request.size
            self._undecided.append(request)

    def _wait_iterations(self, iterations: int) -> None:
        """Decide after the state channel was read: a peer whose messages wait is not silent (BST-18)."""
        self._handle = asyncio.get_running_loop().call_soon(self._wait_iterations, iterations - 1) if iterations else None
        if not iterations:
            self._decide()

    def _decide(self) -> None:
        undecided, self._undecided = self._undecided, []
        for request in undecided:
            if self._pair.verdict(request.seen) is Verdict.REJECT:
                self._held_bytes -= request.size
                self._refuse(request)
            else:
                self._held.append(request)
        if self._held and self._hold_clock.when is None:
            self._hold_clock.after(HOLD_S)

    def _refuse_held(self) -> None:
        """Refuse the requests that waited long enough; after a fault with one of them the timer refuses the others."""
        while self._held:
            request = self._held.popleft()
            self._held_bytes -= request.size
            self._refuse(request)

    def _refuse(self, request: HeldRequest) -> None:
        self._counters["refused"] += 1
        peer, head = request.message[0], request.message[1]
        if not head and request.service in (PROTOCOL_SERVICE, PAIR_SERVICE):
            self._reply([peer, EMPTY, MDPC01, request.service, *refusal(self._pair.known(), self._pair.refusal().retry_s)])
        else:
            self._disconnect(peer)


class HeldRequest(NamedTuple):
    """A request at a passive broker: its message and service, the ballot its client has seen, its size in bytes."""

    message: Message
    service: bytes
    seen: Ballot
    size: int


def is_postponable(message: Message) -> bool:
    """Return whether a message is a request that its client sends again after a lost connection; at-most-once requests are not."""
    _, frames = in_rfc_frames(message[1:])
    if len(frames) < 3:
        return False
    if frames[0][:HEAD_BYTES] != CLIENT_REQUEST_03:
        return (not frames[0] and frames[1] == MDPC01) or (frames[0] == MDPC02 and frames[1] == REQUEST_02)
    try:
        return not decode_request_options(frames[2]).once
    except BadOptions:
        return True


def _dialect_of_worker(frames: Sequence[bytes]) -> Dialect | None:
    if frames[0][: len(MDPW03)] == MDPW03:
        return V03
    if frames[0] == MDPW02:
        return V02
    return V01 if len(frames) > 1 and not frames[0] and frames[1] == MDPW01 else None


def _service_asked(frames: Sequence[bytes]) -> bytes | None:
    """Return the service of a request, b"" where it does not matter; None for other messages."""
    if len(frames) < 3:
        return None
    head, second = frames[0], frames[1]
    if head[:HEAD_BYTES] == CLIENT_REQUEST_03:
        return second
    if head == MDPC02:
        return b"" if second == REQUEST_02 else None
    return frames[2] if not head and second == MDPC01 else None
