"""State of each client of a server, and its expiry (ENV-02).

A client that was silent for `ttl_s` is forgotten, whatever the state of its connection: clients come and go, and a server that keeps
all of them runs out of memory. Any message counts as a sign of life; clients with nothing to ask send one regularly.

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from core.machine.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S")


class ClientSessions(Generic[S]):
    """States by routing id."""

    def __init__(self, make: Callable[[bytes], S], ttl_s: float, clients_max: int) -> None:
        self._make = make
        self._ttl_s = ttl_s
        self._clients_max = clients_max  # beyond it, the one that was silent longest is forgotten
        self._states: dict[bytes, S] = {}  # in the order of their last messages
        self._ends: Deadlines[bytes] = Deadlines()

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, client: object) -> bool:
        return client in self._states

    def heard(self, client: bytes, now: float) -> S:
        state = self._states.pop(client, None)
        if state is None:
            if len(self._states) >= self._clients_max:
                self.gone(next(iter(self._states)))
            state = self._make(client)
        self._states[client] = state
        self._ends.set(client, now + self._ttl_s)
        return state

    def gone(self, client: bytes) -> None:
        self._states.pop(client, None)
        self._ends.discard(client)

    def tick(self, now: float) -> list[bytes]:
        """Forget clients that were silent too long; return their ids."""
        silent = self._ends.due(now)
        for client in silent:
            del self._states[client]
        return silent

    def deadline(self) -> float | None:
        return self._ends.deadline()
