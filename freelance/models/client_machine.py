"""Common part of the client machines of models 2 and 3: requests by number, servers that were asked, ends. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from core.machine.requests import SENT, KeyedRequest, KeyedRequests
from core.zmtp.frames import LAST_HEADERS, MORE_HEADERS, encode_prefix
from freelance.errors import ClientClosed, NoServer
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.zmtp.frames import Message
    from freelance.errors import TooLarge

ENCODED_MAX: Final = 255  # bytes of a body of one frame that is encoded once, for all servers
WAITING_MAX: Final = 2**63  # the client limits the outstanding requests, and none of them is refused here


class FreelanceRequest(KeyedRequest):
    """One request until its end; its key is its control frame.

    Args:
        timeout_s: for the whole request; None for that of the client.
    """

    __slots__ = ("asked", "message", "refused", "timeout_s")

    message: Message | bytes

    def __init__(self, body: Sequence[bytes], timeout_s: float | None = None) -> None:
        super().__init__(body)
        self.timeout_s = timeout_s
        self.asked: set[bytes] = set()  # every server it was sent to; a reply of another is not accepted
        self.refused: dict[bytes, TooLarge] = {}  # servers that do not take a request so large over their current connection


R = TypeVar("R", bound=FreelanceRequest)


class ClientMachine(KeyedRequests[R]):
    """Requests of one client."""

    __slots__ = ("_envelope", "_head", "_number", "_timeout_s", "outgoing")

    def __init__(self, envelope: Sequence[bytes], timeout_s: float) -> None:
        super().__init__(WAITING_MAX, ClientClosed, NoServer)
        self.outgoing: list[tuple[bytes, Message | bytes]] = []  # (server, frames, or the encoded message) to send, in order
        self._envelope = [*envelope]
        self._head = encode_prefix(envelope)
        self._timeout_s = timeout_s
        self._number = 0

    def _begin(self, pending: R, now: float, step_s: float) -> None:
        """Number a request, and begin its time: `step_s` to its first event, which its end may precede."""
        # Hot path.
        self._number = number = self._number + 1
        pending.key = control = control_frame(number)
        pending.stage = SENT
        self._open[control] = pending
        body = pending.body
        if len(body) == 1 and (size := len(frame := body[0])) <= ENCODED_MAX:
            pending.message = b"".join((self._head, MORE_HEADERS[len(control)], control, LAST_HEADERS[size], frame))
        else:
            pending.message = [*self._envelope, control, *body]
        self.timeouts.start(pending, now, step_s, self._timeout_s if pending.timeout_s is None else pending.timeout_s)

    def _refuse(self, pending: R, now: float) -> None:
        """Fail a request that no connected server takes."""
        self.counters["too_large"] += 1
        self._fail(pending, now, next(iter(pending.refused.values())))

    def _unsent(self, name: bytes, control: bytes, error: TooLarge) -> R | None:
        """Record that a copy was too large for its server; return its request, None if it has ended."""
        pending = self._open.get(control)
        if pending is not None:
            self.counters["send_refused"] += 1
            self.counters["sent"] -= 1
            pending.sent -= 1
            pending.asked.discard(name)
            pending.refused[name] = error
        return pending

    def _answered(self, name: bytes, control: bytes, reply: list[bytes], now: float) -> bool:
        """Settle the request of a reply; False if there is none, or its server was not asked."""
        # Hot path.
        pending = self._open.get(control)
        if pending is None:
            self.counters["reply_unknown"] += 1
            return False
        if name not in pending.asked:
            self.counters["reply_unasked"] += 1
            return False
        self._finish(pending, now, reply)
        return True
