"""The front of a sharded broker: one ROUTER at the public endpoint, and connections to the shards.

Our clients and workers of MDP/0.3 get the number of shards with the answer to `mmi.protocol` and connect to the shards. Messages of all
other peers are forwarded, in both directions, as the bytes they are: each peer has a connection of its own to each shard it uses, so that a
shard sees the same peers as a broker without shards does, with their heartbeats and their ends. Only the service is read.

A sender whose messages do not leave is not read from (`mdp.shards.backpressure`). A shard does not see octets on their way between a peer
and the front, nor does a client behind a tunnel: while they move, the front sends both a sign of life (HB-02).
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING, Final, Self

import core
from core.machine.liveness import Transit
from core.runtime import supervision
from core.zmtp.frames import encode_frame, encode_message
from mdp.broker.limits import BrokerOptions
from mdp.broker.mmi import PREFIX, RETRY
from mdp.shards.backpressure import Backpressure, Queue
from mdp.shards.identity import USER_BYTES_MAX, connection_name
from mdp.shards.questions import Question
from mdp.shards.routing import Kind, Route, route_of
from mdp.shards.shard_connection import ShardConnection
from mdp.wire.commands import DIALECTS, V03, client_final, client_heartbeat, front_heartbeat, worker_disconnect
from mdp.wire.message_runs import AT_BROKER, Verb, cut
from mdp.wire.shards import greeting, shard_endpoint
from mdp.wire.variants import variant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from core.option_table import OptionValue
    from core.pattern.pipe import Pipe
    from core.security.credentials import Secured
    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch
    from mdp.wire.commands import Dialect
    from mdp.wire.variants import Variant

# Time for the last messages of the shards to be sent when the front closes.
LINGER_MS: Final = 1000
# A shard that is being started answers no questions; operators get what the others say, before their own time is over.
ANSWER_S: Final = 1.0
# Also behind `mmi.dlq.retry`, which is answered when a worker has answered: a shard that answers this at once has read that.
_HEARTBEAT: Final = encode_message(client_heartbeat())
# Questions to all shards at the same time, each with a connection to each shard. Beyond either limit, the oldest of the same peer is
# closed, or of all; some are possible with any number of shards.
QUESTIONS_MAX: Final = 64
QUESTION_CONNECTIONS_MAX: Final = 256
QUESTIONS_MIN: Final = 8
# Messages of the shards that wait for one peer: few, so that a shard notices a peer that does not read as early as a broker does.
TO_PEER_BYTES: Final = 2**20
# Services whose shard is remembered; names come from peers.
REMEMBERED_MAX: Final = 4096
_OK: Final = [b"200"]
_MALFORMED: Final = [b"400"]
_NOT_FOUND: Final = [b"404"]
# In the place of a worker's shard.
_NONE: Final = -1
_DISCONNECTED: Final = -2  # it was sent DISCONNECT, and has not registered again
_REQUEST, _FINAL, _PARTIAL = Verb.REQUEST, Verb.FINAL, Verb.PARTIAL


class _Peer:
    """A peer whose messages are forwarded."""

    __slots__ = ("connections", "dialect", "id", "questions", "shard", "to_peer", "to_shards", "transit", "user", "variant")

    def __init__(self, id: bytes, user: bytes, to_peer: Queue) -> None:
        self.id = id
        self.user = user
        self.to_peer = to_peer
        self.connections: dict[int, ShardConnection] = {}
        self.to_shards: dict[int, Queue] = {}
        self.shard = _NONE  # of its service, if it is a worker
        self.dialect: Dialect | None = None  # of the worker, or 0.3 of a client that sent requests of it
        self.questions: dict[Question, None] = {}
        # None if its frames are those of the RFCs; else it is translated here, and the shards see RFC 18
        self.variant: Variant | None = None
        self.transit: Transit | None = None  # of a worker, or of a client that has sent HEARTBEAT


class Front:
    """The front of a broker of `count` shards, which it connects to when they are needed."""

    def __init__(
        self,
        count: int,
        limits: BrokerOptions | None = None,
        *,
        security: Secured | None = None,
        shard_security: Secured | None = None,
        socket_options: Mapping[str, OptionValue | str] | None = None,
        more: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.count = count
        self.counters: Counter[str] = Counter()
        self._limits = limits or BrokerOptions()
        self._more = more
        self._context = core.context_for(None, security)
        self._shard_context = core.context_for(None, shard_security)
        unread = self._limits.unread_max_bytes
        own = {"sndhwm": 0, "sndhwm_bytes": unread, "linger": LINGER_MS, "tell_limits": 1}
        self._socket = self._context.socket(core.ROUTER, **{**own, **(socket_options or {})})
        self._endpoints: list[str] = []
        self._peers: dict[bytes, _Peer] = {}
        self._questions: dict[Question, None] = {}
        self._serials = numbers(1)
        self._known: dict[bytes, Route] = {}  # of requests that are forwarded, by the encoded name of their service
        self._connection_count = 0
        self._pressure = Backpressure(self._limits.unread_total_max_bytes, lambda: len(self._peers) + self._connection_count)
        self._questions_max = min(QUESTIONS_MAX, max(QUESTIONS_MIN, QUESTION_CONNECTIONS_MAX // count))
        self._full = 0
        self._beat_s = self._limits.heartbeat_ms / 2000  # half an interval: a worker's own heartbeat comes soon after one of these
        self._supervisor = supervision.current()
        self._beat_clock = self._supervisor.timer("mdp front heartbeat", self._beat)

    def bind(self, endpoint: str) -> str:
        """Listen on one more endpoint; return it. Raises core.InvalidEndpoint or core.AddressInUse."""
        if shard_endpoint(endpoint, self.count - 1) is None:
            raise core.InvalidEndpoint(f"{endpoint}: shards need tcp ports after a given one, or an ipc path")
        self._socket.bind(endpoint)
        self._endpoints.append(self._socket.last_endpoint)
        return self._socket.last_endpoint

    @property
    def endpoints(self) -> list[str]:
        return [*self._endpoints]

    def stats(self) -> dict[str, int]:
        """Return counters and gauges, named as they are shown."""
        gauges = {
            "peers": len(self._peers),
            "links": self._connection_count,
            "held": len(self._pressure.held),
            "holds": self._pressure.times,
        }
        return {f"front_{name}": value for name, value in {**self.counters, **gauges}.items()} | {"shards": self.count} | dict(self._more())

    def refuse_connections(self) -> None:
        """Accept no new connections; those that are up stay."""
        for endpoint in self._endpoints:
            self._socket.unbind(endpoint)

    async def __aenter__(self) -> Self:
        self._socket.set_batch_receiver(self._on_batch, on_peer=self._on_peer)
        self._beat_clock.after(self._beat_s)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._beat_clock.cancel()
        self._socket.close()
        for question in [*self._questions]:
            question.close()
        self._pressure.close()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._context.aclose)
            await self._shard_context.aclose(0)  # the shards have ended: nothing can be sent to them

    # From peers.

    def _on_peer(self, id: bytes, joined: bool) -> None:
        # One that joins may have taken over the routing id of another.
        if (peer := self._peers.get(id)) is not None:
            self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        self._peers.pop(peer.id, None)
        self._pressure.forget(peer.to_peer)
        for shard, connection in [*peer.connections.items()]:
            self._remove_connection(peer, shard)
            connection.close(LINGER_MS)  # a worker's last DISCONNECT
        for question in [*peer.questions]:
            question.close()

    def _on_batch(self, batch: Batch) -> None:
        batch = batch.encode()
        peer = self._peers.get(batch.peer)
        if peer is None:
            peer = self._new_peer(batch.peer)
            if len(peer.user) > USER_BYTES_MAX:
                self._disconnect(peer, "its user name is too long to be passed on")
                return
        octets, starts, ends = batch.octets, batch.starts, batch.ends
        to_shards: dict[int, list[bytes]] = {}
        shards: Sequence[int]
        for run in cut(batch, AT_BROKER):
            verb = Verb.EVENT if run.layout is None else run.layout.verb
            for index in range(len(run.tails) or 1):
                at = run.first + index
                message = octets[starts[at] : ends[at]]
                if verb is _FINAL or verb is _PARTIAL:
                    shards = self._shard_of_worker(peer)
                elif verb is _REQUEST and (known := self._known.get(run.names[index])) is not None:
                    shards = (known.shard,)
                    if known.dialect == V03:
                        peer.dialect = V03
                else:
                    if (variant := variant_of(message)) is not None:
                        peer.variant = variant
                        message = variant.to_rfc(message)
                    route = route_of(message, 0, len(message), self.count)
                    if verb is _REQUEST:
                        self._remember(run.names[index], route)
                    shards = self._shards_for(peer, route, message, to_shards)
                    if peer.id not in self._peers:  # it was disconnected
                        return
                for shard in shards:
                    to_shards.setdefault(shard, []).append(message)
        for shard, messages in to_shards.items():
            if peer.id in self._peers:
                self._to_shard(peer, shard, messages)

    def _remember(self, name: bytes, route: Route) -> None:
        """Remember the route of requests by the encoded name of their service; that of MMI depends on the body."""
        head = encode_frame(route.service, more=True)
        if route.service and not route.service.startswith(PREFIX) and name[: len(head)] == head:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[name] = route

    def _new_peer(self, id: bytes) -> _Peer:
        def hold() -> None:
            for connection in peer.connections.values():
                connection.hold()

        def release() -> None:
            for connection in peer.connections.values():
                connection.release()

        def unread() -> int:
            pipe = self._pipe_of(peer)
            return 0 if pipe is None else pipe.waiting_bytes()

        to_peer = Queue(unread, hold, release, min(TO_PEER_BYTES, self._limits.unread_max_bytes // 2))
        peer = self._peers[id] = _Peer(id, self._socket.peer_property(id, "User-Id") or b"", to_peer)
        return peer

    def _pipe_of(self, peer: _Peer) -> Pipe | None:
        return self._socket.pattern.peer(peer.id)

    def _shards_for(self, peer: _Peer, route: Route, message: bytes, before: Iterable[int]) -> Sequence[int]:
        """Return the shards a message is forwarded to; answer it where that is none.

        `before` are the shards of the messages before it in the same read, which may not be connected yet.
        """
        kind = route.kind
        if kind is Kind.WORKER:
            peer.shard, peer.dialect, peer.transit = route.shard, route.dialect, peer.transit or Transit()
            return (route.shard,)
        if kind is Kind.SHARD:
            if route.service:
                if route.dialect == V03:
                    peer.dialect = V03
                return (route.shard,)
            return self._shard_of_worker(peer)
        if kind is Kind.EVERYWHERE:
            peer.transit = peer.transit or Transit()
            for question in peer.questions:
                question.cancel(route.request, message)
            return [*{**peer.connections, **dict.fromkeys(before)}] or (0,)
        if kind is Kind.HELLO:
            self._answer_hello(peer, route)
        else:
            self._ask_all(peer, route, message)
        return ()

    def _shard_of_worker(self, peer: _Peer) -> Sequence[int]:
        """Return the shard of a message that names no service: that of the worker, or the first, which refuses it.

        What a worker sent before our DISCONNECT has come is dropped: the refusal would end its next registration.
        """
        if peer.shard == _DISCONNECTED:
            self.counters["dropped_late"] += 1
            return ()
        return (max(peer.shard, 0),)

    def _answer_hello(self, peer: _Peer, route: Route) -> None:
        if len(route.body) != 1:
            body = _MALFORMED
        elif route.body[0] == V03.encode():
            body = greeting(self.count)
        else:
            body = _OK if route.body[0].decode("latin-1") in DIALECTS else _NOT_FOUND
        self.counters["hellos"] += 1
        self._to_peer(peer, [encode_message(client_final(route.dialect, route.service, route.request, body))])

    def _beat(self) -> None:
        """Send a sign of life for each worker, and to each client, of which octets move."""
        self._beat_clock.after(self._beat_s)
        for peer in [*self._peers.values()]:
            if peer.transit is None or not peer.transit.moves(self._socket.in_transit(peer.id)):
                continue
            if peer.shard == _NONE:
                self._to_peer(peer, [_HEARTBEAT])
            elif peer.shard != _DISCONNECTED and peer.dialect is not None:
                self._to_shard(peer, peer.shard, [encode_message(front_heartbeat(peer.dialect))])

    def _to_shard(self, peer: _Peer, shard: int, messages: list[bytes]) -> None:
        connection = peer.connections.get(shard) or self._add_connection(peer, shard)
        if connection.send(messages):
            self.counters["to_shards"] += len(messages)
            self._pressure.sent(peer.to_shards[shard], sum(map(len, messages)))
        else:
            self.counters["dropped_full"] += len(messages)
            self._disconnect(peer, "its shard does not read")

    def _add_connection(self, peer: _Peer, shard: int) -> ShardConnection:
        def hold() -> None:
            pipe = self._pipe_of(peer)
            if pipe is not None:
                pipe.engine.throttle()

        def release() -> None:
            pipe = self._pipe_of(peer)
            if pipe is not None and pipe.throttled and self._pressure.held.keys().isdisjoint(peer.to_shards.values()):
                pipe.engine.resume()

        connection = peer.connections[shard] = self._new_connection(
            peer, shard, partial(self._to_peer, peer), partial(self._shard_lost, peer, shard), self._socket.peer_limits(peer.id)
        )
        peer.to_shards[shard] = Queue(connection.unread, hold, release, self._limits.unread_max_bytes // 2)
        self._connection_count += 1
        return connection

    def _remove_connection(self, peer: _Peer, shard: int) -> None:
        del peer.connections[shard]
        self._connection_count -= 1
        self._pressure.forget(peer.to_shards.pop(shard))

    # From shards.

    def _to_peer(self, peer: _Peer, messages: list[bytes]) -> None:
        if peer.variant is not None:
            messages = [peer.variant.from_rfc(message) for message in messages]
        self._socket.send_octets(peer.id, messages)
        self.counters["to_peers"] += len(messages)
        self._pressure.sent(peer.to_peer, sum(map(len, messages)))
        if self._socket.counters.peer_full != self._full:
            self._full = self._socket.counters.peer_full
            self._disconnect(peer, "it does not read what it is sent")

    def _shard_lost(self, peer: _Peer, shard: int) -> None:
        """Disconnect a peer from a shard that has ended: it registers or sends again."""
        self._remove_connection(peer, shard)
        self.counters["links_lost"] += 1
        if peer.shard == shard and peer.dialect is not None:
            peer.shard = _DISCONNECTED
            self._to_peer(peer, [encode_message(worker_disconnect(peer.dialect))])
        elif peer.dialect == V03:
            self._disconnect(peer, "the shard of its requests has ended")

    def _disconnect(self, peer: _Peer, why: str) -> None:
        self.counters["cut"] += 1
        self._forget(peer)
        self._socket.cut(peer.id, why)

    def _new_connection(
        self,
        peer: _Peer,
        shard: int,
        on_messages: Callable[[list[bytes]], None],
        on_lost: Callable[[], None],
        limits: PeerLimits | None = None,
    ) -> ShardConnection:
        endpoint = shard_endpoint(_local(self._endpoints[0]), shard)
        assert endpoint is not None  # `bind` has checked it
        name = connection_name(next(self._serials), peer.user)
        self.counters["links_opened"] += 1
        unsent, context = self._limits.unread_max_bytes, self._shard_context
        return ShardConnection(context, endpoint, name, unsent, on_messages=on_messages, on_lost=on_lost, limits=limits)

    # Questions to all shards.

    def _ask_all(self, peer: _Peer, route: Route, message: bytes) -> None:
        while len(self._questions) >= self._questions_max:
            self.counters["questions_dropped"] += 1
            next(iter(peer.questions or self._questions)).close()  # a peer with many displaces its own

        def ended(question: Question) -> None:
            timer.cancel()
            self._questions.pop(question, None)
            peer.questions.pop(question, None)

        question = Question(route, self.count, self._limits.mmi_max_bytes, self.stats, lambda octets: self._to_peer(peer, [octets]), ended)
        self._questions[question] = None
        peer.questions[question] = None
        self.counters["questions"] += 1
        messages = [message, _HEARTBEAT] if route.service == RETRY and route.dialect == V03 else [message]
        timer = self._supervisor.later("mdp front question", ANSWER_S, question.expire, failed=lambda _: question.close())
        for shard in range(self.count):
            received, lost = partial(question.received, shard), partial(question.lost, shard)
            connection = self._new_connection(peer, shard, received, lost)
            question.connections.append(connection)
            connection.send(messages)


def _local(endpoint: str) -> str:
    """Return the endpoint at which this machine reaches one on which it listens on all addresses."""
    return (
        endpoint.replace("tcp://0.0.0.0:", "tcp://127.0.0.1:")
        .replace("tcp://[::]:", "tcp://[::1]:")
        .replace("tcp://*:", "tcp://127.0.0.1:")
    )
