"""Requests without events since they were sent; their replies are read from the received bytes.

Nearly every request is one small frame with the client's own timeout, answered before a hedge or timeout is due. It is stored here as a
tuple instead of a `PendingRequest` with sets and deadlines. Its bytes are encoded once for all servers, and its reply is matched before
the message is decoded:

    model 3   request and reply   01 nn CCF | body …
    model 2   request and reply   01 00 | 01 nn sequence | body …

On any other event (time, a server that leaves or joins, a reply in an unusual form) the client machine takes the request over. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.decoder import LAST_HEADERS, MORE, MORE_HEADERS, encode_prefix
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Container, Sequence

__all__ = ["FAST_BODY_BYTES_MAX", "FastReplies", "FastRequest"]

FAST_BODY_BYTES_MAX: Final = 255
"""Longest body of a request that is encoded here: a short frame."""


class FastRequest(NamedTuple):
    """A request that was sent once.

    Attributes:
        number: of the request, which is also its control frame.
        body: frames.
        asked: names of the servers that have it.
        at: monotonic seconds when it was sent.
    """

    number: int
    body: Sequence[bytes]
    asked: tuple[bytes, ...]
    at: float


class FastReplies:
    """Requests of one client without events since they were sent.

    Args:
        envelope: frames before the control frame, of requests and replies.
        takeover_s: age at which a request without a reply is overdue.
        counters: `reply_unknown` goes up for replies that match no request.

    Attributes:
        requests: by control frame, oldest first.
        number: of the latest request.
    """

    __slots__ = ("_counters", "_head", "_start", "_takeover_s", "number", "requests")

    def __init__(self, envelope: Sequence[bytes], takeover_s: float, counters: Counter[str]) -> None:
        self.requests: dict[bytes, FastRequest] = {}
        self.number = 0
        self._counters = counters
        self._takeover_s = takeover_s
        self._head = encode_prefix(envelope)
        self._start = len(self._head)

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, body: Sequence[bytes], asked: tuple[bytes, ...], now: float) -> int:
        """Number and store a request; return its number."""
        self.number = number = self.number + 1
        self.requests[b"%d" % number] = FastRequest(number, body, asked, now)
        return number

    def add_encoded(self, body: tuple[bytes, ...], asked: tuple[bytes, ...], now: float) -> tuple[int, bytes]:
        """Add a request of one frame of up to 255 bytes; return (number, encoded request)."""
        # Hot path of every request.
        self.number = number = self.number + 1
        control = b"%d" % number
        self.requests[control] = FastRequest(number, body, asked, now)
        frame = body[0]
        return number, b"".join((self._head, MORE_HEADERS[len(control)], control, LAST_HEADERS[len(frame)], frame))

    def take(self, name: bytes, octets: bytes, longest: int, known: Container[bytes], finished: list[tuple[int, list[bytes]]]) -> int:
        """Take plain replies off the front of a server's bytes; stop at any other message or a long frame.

        Args:
            name: of the server.
            octets: bytes received; they begin with a message.
            longest: longer messages are left.
            known: control frames of requests that are not stored here; their replies are left.
            finished: gets (number, reply) of each.

        Returns:
            Number of bytes taken.
        """
        # Hot path of every reply.
        requests = self.requests
        head = self._head
        skip = self._start
        end = len(octets)
        at = 0
        try:
            while at < end:
                start = at + skip
                if octets[start] != MORE or (skip and octets[at:start] != head):
                    break
                stop = start + 2 + octets[start + 1]
                control = octets[start + 2 : stop]
                body = []
                flags = MORE
                while flags == MORE:
                    flags = octets[stop]
                    start = stop + 2
                    stop = start + octets[stop + 1]
                    body.append(octets[start:stop])
                if flags or stop > end or stop - at > longest:
                    break
                request = requests.get(control)
                if request is not None:
                    if name not in request.asked:
                        break
                    del requests[control]
                    finished.append((request.number, body))
                elif control in known:
                    break
                else:
                    self._counters["reply_unknown"] += 1  # late, or a second server's answer
                at = stop
        except IndexError:
            pass  # the last message is incomplete
        return at

    def settle(self, control: bytes, name: bytes) -> int:
        """Remove the request of a decoded reply and return its number; 0 if that server was not asked."""
        request = self.requests.get(control)
        if request is None or name not in request.asked:
            return 0
        del self.requests[control]
        return request.number

    def pop(self, control: bytes) -> FastRequest | None:
        """Remove and return a request; None if it is not here."""
        return self.requests.pop(control, None)

    def remove(self, number: int) -> bool:
        """Forget a request; return whether it was here."""
        return self.requests.pop(control_frame(number), None) is not None

    def overdue(self, now: float) -> list[FastRequest]:
        """Remove and return overdue requests, oldest first."""
        due: list[FastRequest] = []
        for request in self.requests.values():
            if now < request.at + self._takeover_s:
                break
            due.append(request)
        for request in due:
            del self.requests[control_frame(request.number)]
        return due

    def take_all(self) -> list[FastRequest]:
        """Remove and return all requests, oldest first."""
        everything = [*self.requests.values()]
        self.requests.clear()
        return everything

    def deadline(self) -> float | None:
        """Return when the first request is overdue."""
        for request in self.requests.values():
            return request.at + self._takeover_s
        return None
