"""The requests of one client: the open ones by key, and those in one queue in order.

A dictionary looks for a key at a random place. With a million requests that is memory that no cache has, twice for each request, and was
all that a request cost more than with a thousand. So there are parts: a request enters the newest, and those that leave in order leave
the oldest. Clients number their requests, so an id above all others needs no search in all parts. A client with other
ids has few, larger parts.

Pure. The parts are dictionaries of the interpreter: a request knows its part and is removed from there, without a search. Requests are of
type Any here: their records refer to this module.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# A part of so many stays in the caches of a processor.
PART: Final = 4096
# A client with more open requests than so many parts hold has larger ones: a key that may be open is asked for in each.
PARTS: Final = 64
# What is left of a part, if it is less than this share of a new one, moves there.
REST: Final = 4
# Requests in a piece of a queue: a step is shared by many, and the rest of a piece is moved quickly.
PIECE: Final = 256


class OpenRequests:
    """A client's requests that are accepted and not closed."""

    __slots__ = ("_newest", "_newest_max", "_sought", "highest", "parts")

    def __init__(self) -> None:
        self._newest: dict[Any, Any] = {}
        self.parts = [self._newest]  # oldest first, at least one
        self._newest_max = PART
        self._sought = 0  # ids since the newest part was begun that were not above all others
        self.highest = b""  # the highest id so far, b"" for none; only a lower one can be that of an open request

    def newest(self) -> dict[Any, Any]:
        """Return the part for new requests; each is put there under its key, and the part into the request."""
        if len(self._newest) >= self._newest_max:
            self._begin_part()
        return self._newest

    def _begin_part(self) -> None:
        """Begin a new part, with what is left of parts that are almost empty: there are never many."""
        open_now = len(self)
        size = max(PART, open_now // PARTS)
        newest: dict[Any, Any] = {}
        parts = []
        for part in self.parts:
            if len(part) * REST >= size:
                parts.append(part)
                continue
            for request in part.values():
                request.client_requests = newest
            newest.update(part)
        parts.append(newest)
        self.parts, self._newest = parts, newest
        self._newest_max = len(newest) + (size if self._sought * 2 < size else max(size, open_now))
        self._sought = 0

    def has(self, key: bytes) -> bool:
        """Whether a request is open whose id is not above all others."""
        self._sought += 1
        return self.get(key) is not None

    def __len__(self) -> int:
        count = 0
        for part in self.parts:
            count += len(part)
        return count

    def get(self, key: bytes | int) -> Any:
        for part in self.parts:
            request = part.get(key)
            if request is not None:
                return request
        return None

    def entries(self) -> list[tuple[dict[Any, Any], bytes | int]]:
        """Return where each request is: its part and its key. When a request ends, its record may become another one's."""
        return [(part, key) for part in self.parts for key in part]

    def values(self) -> list[Any]:
        return [request for part in self.parts for request in part.values()]


class ClientQueue:
    """The requests of one client in one queue, in order; entries of dropped requests may remain.

    In pieces, so that many are added or taken in one step.
    """

    __slots__ = ("pieces", "waiting")

    def __init__(self) -> None:
        self.pieces: deque[list[Any]] = deque()  # none is empty
        self.waiting = 0  # requests that were not dropped

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces:
            yield from piece

    def push(self, requests: list[Any]) -> None:
        pieces = self.pieces
        if pieces and len(pieces[-1]) < PIECE:
            pieces[-1].extend(requests)
        else:
            pieces.append(requests[:])
        self.waiting += len(requests)

    def take(self, most: int) -> list[Any]:
        """Remove and return the first entries, up to `most` and not all that there are: call it again."""
        first = self.pieces[0]
        if len(first) <= most:
            self.pieces.popleft()
            return first
        if most == 1:
            return [first.pop(0)]
        taken = first[:most]
        del first[:most]
        return taken

    def keep(self, live: list[Any]) -> None:
        self.pieces = deque(live[at : at + PIECE] for at in range(0, len(live), PIECE))
