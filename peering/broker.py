"""Broker among brokers: the sockets of the three flows and a timer around the machine of `task_router.py`.

The frontends are read alternately, task by task, while the machine wants one (PEER-04, PEER-14); everything else is always read.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

import core
from core.daemon.logs import RateLimitedLog
from core.rpc.drained import Drained
from core.rpc.service import Service, sent
from core.runtime import runtime, supervision
from core.zmtp.limits import less_by
from peering.control import Control
from peering.errors import BadName, DuplicateName, UnknownPeer
from peering.peer_connection import PeerConnection
from peering.task import Side
from peering.task_router import Complaint, Publish, RouterLimits, TaskRouter, ToBorrower, ToClient, ToPeer, ToWorker
from peering.wire import Endpoints

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from core.security.credentials import Secured
    from peering.task_router import Effect, RouterSettings

__all__ = ["Broker", "cloud_endpoints", "endpoint_of"]

log = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # time for written replies to leave when the broker closes


def endpoint_of(name: str, flow: str, directory: str = "") -> str:
    """Return the default endpoint of a broker's flow, e.g. `ipc://DC1-localfe.ipc`; the default directory is the working one.

    `flow` is "localfe", "localbe", "cloud", "state" or "control". Raises BadName if the name is not usable in a file name.
    """
    if not name.isprintable() or "/" in name:
        raise BadName(name.encode(), "no file can have this name; give its endpoints")
    path = f"{name}-{flow}.ipc"
    return f"ipc://{directory.rstrip('/')}/{path}" if directory else f"ipc://{path}"


def cloud_endpoints(name: str, directory: str = "") -> Endpoints:
    """Return the default endpoints of a peer."""
    return Endpoints(endpoint_of(name, "cloud", directory), endpoint_of(name, "state", directory))


class Broker(Service):
    """Broker that serves its clients with its workers, and with those of its peers when its own are busy.

    Args:
        name: of the broker, which identifies it to its peers (PEER-17).
        peers: endpoints by name: (cloud endpoint, state endpoint), or None for the defaults.
        localfe: endpoint for clients; None: the default, as for the others.
        localbe: endpoint for workers.
        cloudfe: endpoint for tasks of peers.
        statebe: endpoint the state is published on.
        control: endpoint for operators.
        directory: for the files of the default endpoints.
        context: to make the sockets in; None: the broker has its own.
        security: of its own context: `core.Curve` or `core.Plain`, for all connections.
        socket_options: of all sockets except the operators' one.
        limits: fields of `RouterLimits`, by name.

    Attributes:
        machine: with the workers, peers and tasks.

    Raises:
        BadName: not a valid name of a broker.
        DuplicateName: two brokers have one name.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[str, tuple[str, str] | None] | None = None,
        *,
        localfe: str | None = None,
        localbe: str | None = None,
        cloudfe: str | None = None,
        statebe: str | None = None,
        control: str | None = None,
        directory: str = "",
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        **limits: Unpack[RouterSettings],
    ) -> None:
        super().__init__(context, security, socket_options)
        self._timer = supervision.current().timer("peering clock", self._tick)
        self.name = name
        router_limits = RouterLimits(**limits)
        state_ms = router_limits.state_ms
        # A cloud connection that is silent as long as a peer may be without a state is probed; after three times that it is closed.
        self._probe = {"heartbeat_ivl": max(1, int(state_ms)), "heartbeat_timeout": max(1, int(3 * state_ms))}
        self.machine = TaskRouter(name.encode(), router_limits, first_number=runtime.current().random_bits(63))
        self._directory = directory
        given = {"localfe": localfe, "localbe": localbe, "cloud": cloudfe, "state": statebe, "control": control}
        self._binds = {flow: endpoint or endpoint_of(name, flow, directory) for flow, endpoint in given.items()}
        self._first_peers = dict(peers or {})
        if name in self._first_peers:
            raise DuplicateName(name.encode(), "this broker", "the list of its peers")
        self._readers: list[asyncio.Task[None]] = []
        self._connections: dict[bytes, PeerConnection] = {}
        self._closing: list[PeerConnection] = []
        self._next_side = Side.LOCAL  # side to read next when both have tasks
        self._state_to_publish: list[bytes] | None = None  # state to publish at the end of this event-loop iteration
        self._publishing: asyncio.Handle | None = None
        self._log = RateLimitedLog(log)

    async def _start(self) -> None:
        self._drained = Drained(lambda: not self.machine.open)
        self._wanted = {side: asyncio.Event() for side in Side}
        self._bind_all()
        for peer, endpoints in self._first_peers.items():
            self.add_peer(peer, endpoints)
        self._readers = [supervision.current().task("peering frontend", partial(self._read, side)) for side in Side]
        self._apply(self.machine.tick(self._loop.time()))

    async def _stop(self) -> None:
        ending = [*self._closing, *self._connections.values()]
        self._connections.clear()  # nothing is sent to a closed one while workers leave
        for connection in ending:
            connection.close()
        try:
            await supervision.cancel_all(self._readers)
            for connection in ending:
                await connection.wait_closed()
        finally:
            if self._publishing is not None:  # last, because workers that leave change the state
                self._publishing.cancel()

    # --- what a program calls -------------------------------------------------------------------------------------------------

    @property
    def localfe(self) -> str:
        """Endpoint for clients."""
        return self._localfe.last_endpoint

    @property
    def localbe(self) -> str:
        """Endpoint for workers."""
        return self._localbe.last_endpoint

    @property
    def cloudfe(self) -> str:
        """Endpoint for tasks of peers."""
        return self._cloudfe.last_endpoint

    @property
    def statebe(self) -> str:
        """Endpoint of the state."""
        return self._statebe.last_endpoint

    @property
    def control(self) -> str:
        """Endpoint for operators."""
        return self._control.endpoint

    @property
    def counters(self) -> Counter[str]:
        """Messages forwarded and dropped, by name."""
        return self.machine.counters

    def add_peer(self, peer: str, endpoints: tuple[str, str] | None = None) -> None:
        """Add a peer while the broker runs (BEY-15); `endpoints` are its cloud and state endpoint, None for the defaults.

        Raises BadName, DuplicateName if this broker or another peer has that name, core.InvalidEndpoint.
        """
        name = peer.encode()
        where = Endpoints(*endpoints) if endpoints else cloud_endpoints(peer, self._directory)
        self.machine.add_peer(name)
        try:
            self._connections[name] = PeerConnection(
                self._context,
                self.name.encode(),
                name,
                where,
                probe=self._probe,
                options=self._options,
                on_state=lambda peer, frames: self._apply(self.machine.peer_state(peer, frames, self._loop.time())),
                on_reply=lambda frames: self._apply(self.machine.peer_reply(frames, self._loop.time())),
                on_change=self._peer_changed,
                on_stranger=self._stranger_found,
            )
        except core.ZMQError:
            self.machine.remove_peer(name, self._loop.time())
            raise

    def remove_peer(self, peer: str) -> None:
        """Remove a peer while the broker runs; its tasks go elsewhere, and tasks it sent are still answered. Raises UnknownPeer."""
        connection = self._connections.pop(peer.encode(), None)
        if connection is None:
            raise UnknownPeer(peer.encode())
        connection.close()
        self._closing = [*self._closing[-64:], connection]
        self._apply(self.machine.remove_peer(peer.encode(), self._loop.time()))

    def status(self) -> dict[str, Any]:
        """Return the broker's status, as `peering status` shows it."""
        machine, now = self.machine, self._loop.time()
        peers = {
            peer.name.decode(errors="backslashreplace"): {
                "up": peer.up,
                "capacity": machine.router.capacity(peer.name, b"", now),
                "lent": machine.lent_to(peer.name),
            }
            for peer in machine.router
        }
        return {
            "name": self.name,
            "workers": len(machine.workers),
            "idle": machine.workers.idle,
            "open": machine.open,
            "lent": machine.lent,
            "waiting": machine.waiting,
            "draining": machine.draining,
            "peers": peers,
            "counters": dict(sorted(machine.counters.items())),
        }

    async def drain(self, timeout_s: float) -> bool:
        """Read no more tasks of clients and wait for outstanding replies; return whether all came in time."""
        self._apply(self.machine.drain(self._loop.time()))
        return await self._drained.wait(timeout_s)

    # --- sockets --------------------------------------------------------------------------------------------------------------

    def _bind_all(self) -> None:
        # A task has its sender's address in front, and an empty frame for a REQ worker; a lent one has the borrower's address and
        # possibly one more. So our clients know at once what is too large, and no task is read that cannot be given to any worker.
        self._localfe = self._at("localfe", core.ROUTER, router_mandatory=1, **less_by(5))
        # A worker or peer that reconnects with its name takes it over from a connection that may be dead.
        self._localbe = self._at("localbe", core.ROUTER, linger_ms=0, router_mandatory=1, router_handover=1)
        cloud: dict[str, Any] = {"identity": self.name.encode(), "router_mandatory": 1, "router_handover": 1, **less_by(2)}
        self._cloudfe = self._at("cloud", core.ROUTER, **cloud, **self._probe)
        self._statebe = self._at("state", core.PUB)
        self._control = Control(self._context, self._binds["control"], self.status)
        self._stack.push_async_callback(self._control.close)
        self._localfe.set_receiver(None, on_peer=lambda name, joined: self._sender_changed(Side.LOCAL, name, joined))
        self._cloudfe.set_receiver(None, on_peer=lambda name, joined: self._sender_changed(Side.CLOUD, name, joined))
        self.machine.workers.silences.in_transit = self._localbe.in_transit
        self._localbe.set_receiver(self._receive_from_worker, on_peer=self._worker_changed)

    def _at(self, flow: str, kind: int, *, linger_ms: int = LINGER_MS, **options: Any) -> core.Socket:
        return self._bound(kind, self._binds[flow], linger_ms=linger_ms, **{"tell_limits": 1, **options, **self._options})

    async def _read(self, side: Side) -> None:
        """Read a frontend while its tasks are wanted, alternating with the other one so that neither starves (PEER-14)."""
        wanted, socket, other = self._wanted[side], self._frontend(side), Side.LOCAL if side is Side.CLOUD else Side.CLOUD
        while True:
            await wanted.wait()
            try:
                await socket.poll()
                other_is_next = self._next_side is other and self._wanted[other].is_set() and self._frontend(other).readable()
                taken = wanted.is_set() and socket.readable() and not other_is_next
                frames: list[bytes] = await socket.recv_multipart() if taken else []
            except core.ZMQError as error:  # the socket is closed: `serve_forever` raises it
                self._failed(error)
                return
            if taken:
                self._next_side = other
                self._apply(self.machine.task(side, frames, self._loop.time()))
            await asyncio.sleep(0)

    def _frontend(self, side: Side) -> core.Socket:
        return self._localfe if side is Side.LOCAL else self._cloudfe

    def _receive_from_worker(self, batch: list[list[bytes]]) -> None:
        now = self._loop.time()
        for frames in batch:
            self._apply(self.machine.worker(frames, now))

    def _worker_changed(self, name: bytes, joined: bool) -> None:
        # Whether it has gone, or a new connection has its name.
        self._apply(self.machine.worker_gone(name, self._loop.time()))

    def _sender_changed(self, side: Side, name: bytes, joined: bool) -> None:
        self._apply(self.machine.sender_gone(side, name, self._loop.time()))

    def _peer_changed(self, peer: bytes, joined: bool) -> None:
        now = self._loop.time()
        self._apply(self.machine.peer_joined(peer, now) if joined else self.machine.peer_lost(peer, now))

    def _stranger_found(self, peer: bytes, name: bytes) -> None:
        """Log that another broker is at a peer's endpoint, possibly with our own name (fault N8)."""
        self.counters["peer_misnamed"] += 1
        connection = self._connections.get(peer)
        where = connection.endpoints.cloud if connection is not None else "?"
        self._log_complaint(Complaint(peer, f"{where} is {name.decode('ascii', 'backslashreplace')!r} and not the peer of that name"))

    # --- what the machine wants -------------------------------------------------------------------------------------------------

    def _apply(self, effects: Iterable[Effect]) -> None:
        now = self._loop.time()
        for effect in effects:
            match effect:
                case ToWorker() | ToPeer():
                    self._send_task(effect, now)
                case ToClient(frames):
                    self._send_reply(self._localfe, frames, self.counters)
                case ToBorrower(frames):
                    self._send_reply(self._cloudfe, frames, self.counters)
                case Publish(frames):
                    self._publish_soon(frames)
                case Complaint():
                    self._log_complaint(effect)
        for side, wanted in self._wanted.items():
            if self.machine.wants(side, now):
                wanted.set()
            else:
                wanted.clear()
        self._drained.look()
        self._wake_at(self.machine.deadline(now))

    def _send_task(self, effect: ToWorker | ToPeer, now: float) -> None:
        """Send a task; if it cannot be sent it goes elsewhere, if it is too large it is dropped."""
        try:
            if isinstance(effect, ToWorker):
                done = sent(self._localbe, effect.frames)
            else:
                connection = self._connections.get(effect.frames[0])
                done = connection is not None and connection.send(effect.frames)
        except core.MessageTooLarge as error:
            self._context.warnings.warning("task_too_large", "task dropped: %s", error)
            self._apply(self.machine.too_large(effect, now))
            return
        if not done:
            self._apply(self.machine.not_sent(effect, now))

    def _publish_soon(self, frames: list[bytes]) -> None:
        """Publish at the end of this event-loop iteration; only the newest state is needed."""
        self._state_to_publish = frames
        if self._publishing is None:
            self._publishing = self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = None
        if self._state_to_publish is not None:
            self._statebe.send_multipart(self._state_to_publish)
            self._state_to_publish = None

    def _log_complaint(self, complaint: Complaint) -> None:
        self._log.warning(complaint.reason, "%s", complaint.reason, about=complaint.about)

    def _tick(self) -> None:
        self._apply(self.machine.tick(self._loop.time()))
