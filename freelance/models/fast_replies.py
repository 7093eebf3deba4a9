"""The express lane of the client: requests nothing has happened to since they were sent, and their replies read from the octets that came.

Nearly every request is one small frame, waits for the client's own timeout, and has its reply before a hedge or a timeout is due. Such a
one is a tuple here, not a `Call` with its sets and moments; its octets are put together once, for however many servers, and its reply is
found before the message is decoded:

    model 3   request and reply   01 nn CCF | body …
    model 2   request and reply   01 00 | 01 nn sequence | body …

As soon as anything else befalls it (time, a server that leaves or comes, a reply in an uncommon form) its machine takes it over. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.decoder import LAST_HEADERS, MORE, MORE_HEADERS, encode_prefix
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

__all__ = ["POSTED_BYTES_MAX", "Lane", "Posted"]

POSTED_BYTES_MAX: Final = 255
"""Longest body of a request that is put together here: a short frame."""


class Posted(NamedTuple):
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


class Lane:
    """Requests of one client that take the short way.

    Args:
        envelope: frames before the control frame, of requests and replies.
        patience_s: seconds after which something is to be done about a request that has no reply.

    Attributes:
        posted: by control frame, oldest first.
        number: of the latest request.
        unknown: replies taken off that nobody waited for.
    """

    __slots__ = ("_head", "_patience_s", "_start", "number", "posted", "unknown")

    def __init__(self, envelope: Sequence[bytes], patience_s: float) -> None:
        self.posted: dict[bytes, Posted] = {}
        self.number = 0
        self.unknown = 0
        self._patience_s = patience_s
        self._head = encode_prefix(envelope)
        self._start = len(self._head)

    def __len__(self) -> int:
        return len(self.posted)

    def put(self, body: Sequence[bytes], asked: tuple[bytes, ...], now: float) -> int:
        """Number a request and keep it; returns the number."""
        self.number = number = self.number + 1
        self.posted[b"%d" % number] = Posted(number, body, asked, now)
        return number

    def post(self, body: tuple[bytes, ...], asked: tuple[bytes, ...], now: float) -> tuple[int, bytes]:
        """As `put`, of a body of one frame of up to 255 octets; returns (number, the request as it goes over the wire)."""
        # Hot path of every request.
        self.number = number = self.number + 1
        control = b"%d" % number
        self.posted[control] = Posted(number, body, asked, now)
        frame = body[0]
        return number, b"".join((self._head, MORE_HEADERS[len(control)], control, LAST_HEADERS[len(frame)], frame))

    def take(self, name: bytes, octets: bytes, longest: int, known: Container[bytes], finished: list[tuple[int, list[bytes]]]) -> int:
        """Take replies off the front of what a server sent; the first message that is none of ours, or in long frames, ends it.

        Args:
            name: of the server.
            octets: what came; a message begins at the first one.
            longest: messages of more octets than this are left.
            known: control frames of requests that are not in the lane; their replies are left.
            finished: gets (number, reply) of each.

        Returns:
            How many octets were taken.
        """
        # Hot path of every reply.
        posted = self.posted
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
                request = posted.get(control)
                if request is not None:
                    if name not in request.asked:
                        break
                    del posted[control]
                    finished.append((request.number, body))
                elif control in known:
                    break
                else:
                    self.unknown += 1  # late, or the answer of one more server
                at = stop
        except IndexError:
            pass  # the last message is not all there
        return at

    def settle(self, control: bytes, name: bytes) -> int:
        """Take a reply that was decoded. Returns the number of its request, which is here no longer; 0 if that server was not asked it."""
        request = self.posted.get(control)
        if request is None or name not in request.asked:
            return 0
        del self.posted[control]
        return request.number

    def pop(self, control: bytes) -> Posted | None:
        """Remove and return a request, None if it is not here."""
        return self.posted.pop(control, None)

    def remove(self, number: int) -> bool:
        """Forget a request. Returns whether it was here."""
        return self.posted.pop(control_frame(number), None) is not None

    def overdue(self, now: float) -> list[Posted]:
        """Remove and return the requests something is to be done about, oldest first."""
        due: list[Posted] = []
        for request in self.posted.values():
            if now < request.at + self._patience_s:
                break
            due.append(request)
        for request in due:
            del self.posted[control_frame(request.number)]
        return due

    def clear(self) -> list[Posted]:
        """Remove and return all requests, oldest first."""
        everything = [*self.posted.values()]
        self.posted.clear()
        return everything

    def deadline(self) -> float | None:
        """Return when the first of them is overdue."""
        for request in self.posted.values():
            return request.at + self._patience_s
        return None
