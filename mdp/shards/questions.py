"""A question of one peer to all shards: MMI that no shard can answer alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.frames import encode_message
from mdp.shards.merging import NOT_FOUND, body_of, merged, unanswered
from mdp.shards.routing import Kind
from mdp.wire.commands import CLIENT_HEARTBEAT_03, CLIENT_PARTIAL_03, CLIENT_PROGRESS_03, HEAD_BYTES, client_final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mdp.shards.routing import Route
    from mdp.shards.shard_connection import ShardConnection

_HEAD_AT: Final = 2  # after the header of a short frame
_MORE_FOLLOWS: Final = (CLIENT_PARTIAL_03, CLIENT_PROGRESS_03)  # more is sent for a request after these


class Question:
    """The question, the connections over which it was sent, and the answers so far.

    Args:
        limit: bytes of a list in the answer.
    """

    def __init__(
        self,
        route: Route,
        count: int,
        limit: int,
        more: Callable[[], Mapping[str, int]],
        send: Callable[[bytes], None],
        ended: Callable[[Question], None],
    ) -> None:
        self._route = route
        self._limit = limit
        self._more = more
        self._send = send
        self._ended = ended
        self._count = count
        self._missing = set(range(count))  # shards that are waited for
        self._executing: set[int] = set()  # shards that have read a retry, by the HEARTBEAT that answers the one behind it
        self._is_late = False
        self._bodies: dict[int, list[bytes]] = {}
        self.connections: list[ShardConnection] = []

    def received(self, shard: int, messages: list[bytes]) -> None:
        for message in messages:
            if self._route.kind is Kind.FIND:
                self._look_found(shard, message)
            elif (body := body_of(message)) is not None:
                self._bodies[shard] = body
                self._answered(shard)

    def lost(self, shard: int) -> None:
        self._answered(shard)

    def cancel(self, request: bytes, message: bytes) -> None:
        """Forward the CANCEL of a request; the shard that executes it answers."""
        if request == self._route.request:
            for connection in self.connections:
                connection.send([message])

    def expire(self) -> None:
        """Answer without the shards that are silent, but wait on for one that executes a retry."""
        self._is_late = True
        self._look_missing()

    def close(self) -> None:
        """Close the connections; nothing is answered any longer."""
        self._missing.clear()
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.close()
        self._ended(self)

    def _answered(self, shard: int) -> None:
        if shard in self._missing:
            self._missing.discard(shard)
            self._look_missing()

    def _look_missing(self) -> None:
        if not self._missing or (self._is_late and self._missing.isdisjoint(self._executing)):
            self._finish()

    def _finish(self) -> None:
        route = self._route
        if route.kind is Kind.FIND:  # a shard that has ended has lost its dead letters; one that is silent may have this one
            body = unanswered(sorted(self._missing)) if self._missing else NOT_FOUND
        else:
            bodies = [self._bodies[shard] for shard in sorted(self._bodies)]
            silent = [shard for shard in range(self._count) if shard not in self._bodies]
            body = merged(route.service, bodies, self._more(), self._limit, silent)
        self._send(encode_message(client_final(route.dialect, route.service, route.request, body)))
        self.close()

    def _look_found(self, shard: int, message: bytes) -> None:
        """Forward the answer of the shard that knows what is asked about."""
        head = message[_HEAD_AT : _HEAD_AT + HEAD_BYTES]
        if not self._missing:
            return
        if head == CLIENT_HEARTBEAT_03:
            self._executing.add(shard)
        elif body_of(message) == NOT_FOUND:
            self._answered(shard)
        elif head in _MORE_FOLLOWS:
            self._missing = {shard}
            self._executing.add(shard)
            self._send(message)
        else:
            self._send(message)
            self.close()
