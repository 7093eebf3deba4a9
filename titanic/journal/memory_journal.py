"""Journal without a disk, for `--memory`: records are kept in a dictionary until they are forgotten one by one.

States of a record: append -> KEPT --_acknowledge, next loop iteration--> ACKNOWLEDGED --forget--> gone. All of it ends with the process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.runtime import supervision
from titanic.journal.record import RecordKind, record_size
from titanic.journal.record_reader import call_tokens

if TYPE_CHECKING:
    from titanic.journal.record import Draft, Location
    from titanic.journal.record_reader import Token


class MemoryJournal:
    """`Journal` in memory; same methods as far as `Store` needs them."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.trouble: str | None = None
        self.stalled: str | None = None
        self.acknowledged = 0
        self._supervisor = supervision.current()
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()  # memory never fails
        self._bodies: dict[Location, bytes] = {}
        self._next = 0
        self._waiting: list[tuple[Token, Location, None]] = []

    def append(self, draft: Draft, token: Token) -> None:
        kind, _, body = draft
        place = (0, self._next, record_size(len(body)))
        self._next += 1
        if kind in (RecordKind.REQUEST, RecordKind.REPLY, RecordKind.DEAD):
            self._bodies[place] = body
        if not self._waiting:
            self._loop.call_soon(self._acknowledge)
        self._waiting.append((token, place, None))

    def after(self, token: Token) -> None:
        self._loop.call_soon(token[0], token[1], None, None)

    def _acknowledge(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.acknowledged += len(waiting)

        self._supervisor.each("titanic acknowledgement", call_tokens, iter(waiting))

    def read(self, place: Location, token: Token) -> None:
        self._loop.call_soon(token[0], token[1], self._bodies.get(place), None)

    def forget(self, place: Location) -> None:
        self._bodies.pop(place, None)

    async def close(self) -> None:
        self.failed.cancel()
        self._bodies.clear()
