"""A world in which a programme runs.

Sockets of libzmq, of `core`, or one side of each, behind the same few verbs.

Every verb acts at once and never waits; `World.settle` then waits until nothing changes. For `core` that is some
iterations of the event loop. For libzmq it is the moment in which its threads sleep: what was sent over the loopback interface
is with the receiver when the sender's system call returns, so a thread that has nothing to do has done everything.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import zmq

import core
from tests.interop.differential.ends import CoreEnd, End
from tests.interop.differential.libzmq import Libzmq, ZmqEnd

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ERRORS", "World", "name_of"]

ERRORS = (zmq.ZMQError, core.ZMQError)
RECONNECT_MS = 1
LOOP_ITERATIONS = 8  # from a send to the inbox of the peer it takes three


def name_of(error: Exception) -> str:
    """Name of an error number, the same for both libraries."""
    number = int(getattr(error, "errno", None) or 0)
    with suppress(ValueError):
        return zmq.Errno(number).name
    return f"errno {number}"


class World:
    """Sockets by name.

    Args:
        library: libzmq, for the sides that are its.
        context: ours, for the others.
        sides: which sides are ours, "", "A", "B" or "AB".
        endpoint: endpoint of a number.
        patience: how much longer than usual to wait.
    """

    def __init__(self, library: Libzmq, context: core.Context, sides: str, endpoint: Callable[[int], str], patience: int) -> None:
        self.ends: dict[str, End] = {}
        self.routes: dict[tuple[str, str], tuple[bytes, list[bytes]]] = {}  # (ROUTER, its peer) → routing id, last envelope
        self.sides = sides
        self.endpoint = endpoint
        self._library = library
        self._context = context
        self._patience = patience
        self._ups: Counter[str] = Counter()
        self._downs: Counter[str] = Counter()

    def open(self, who: str, kind: str, options: dict[str, Any]) -> None:
        """Make a socket."""
        options = {"linger": 2000, "reconnect_ivl": RECONNECT_MS, **options}
        self.ends[who] = CoreEnd(self._context, kind, options) if who[0] in self.sides else ZmqEnd(self._library, kind, options)
        self._ups[who] = self._downs[who] = 0

    def close(self, who: str, linger: int | None) -> None:
        """Close a socket."""
        self.ends.pop(who).close(linger)

    async def settle(self, up: Counter[str], down: Counter[str], limit_s: float = 0.0) -> bool:
        """Wait until nothing moves, and until as many connections as were expected have come about and ended.

        False if they do not.
        """
        self._ups += up
        self._downs += down
        started = time.monotonic()
        while True:
            await self._rest()
            if all(end.ups >= self._ups[who] and end.downs >= self._downs[who] for who, end in self.ends.items()):
                return True
            if time.monotonic() - started > limit_s:
                for who, end in self.ends.items():
                    self._ups[who], self._downs[who] = end.ups, end.downs
                return False
            await asyncio.sleep(0.0005)

    async def _rest(self) -> None:
        theirs = [end for end in self.ends.values() if isinstance(end, ZmqEnd)]
        for _ in range(1 if len(self.sides) != 1 else 3):
            if self.sides:
                for _ in range(LOOP_ITERATIONS * self._patience):
                    await asyncio.sleep(0)
            if self.sides != "AB":
                self._library.rest(theirs)

    def end(self, pending: list[int]) -> None:
        """Close everything; join waiting inproc names first, or libzmq 4.3.5 fails an assertion at the end of its context."""
        for number in pending:
            if self.sides != "AB":
                self._library.join(self.endpoint(number))
        for who in list(self.ends):
            self.close(who, 0)
