"""Shells of the models: their sockets; see `core.rpc.client_engine`."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import core
from core.rpc.client_engine import ClientEngine
from core.runtime import supervision
from core.zmtp.frames import decode_frames
from freelance.errors import ClientClosed, TooLarge
from freelance.models.agent import Agent
from freelance.models.client_machine import ENCODED_MAX
from freelance.models.sequential import Close, Open, Sequential
from freelance.models.shotgun import Shotgun

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from core.security.credentials import Secured
    from core.zmtp.frames import Message

log = logging.getLogger(__name__)

Machine: TypeAlias = Agent | Shotgun


class FreelanceEngine(ClientEngine[Machine]):
    """Connections to all servers: one ROUTER in model 3, with `alias` their endpoints as names; DEALERs in model 2."""

    def __init__(
        self,
        machine: Machine,
        model: int,
        endpoints: Iterable[str],
        *,
        alias: bool,
        context: core.Context | None,
        security: Secured | None,
        socket_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(machine, "freelance", ClientClosed, context, security, socket_options)
        self._ticker = supervision.current().timer("freelance client clock", self._tick)
        self._model = model
        self._endpoints = [*endpoints]
        self._alias = alias
        self._sockets: dict[bytes, core.Socket] = {}  # by server; the same one for all in model 3
        self._router: core.Socket | None = None  # of model 3
        self._full: set[bytes] = set()  # servers of model 2 whose queue took no more
        self._copying: set[asyncio.Task[None]] = set()  # wait for these
        self._strict: set[bytes] = set()  # servers that may not take every message that the machine has encoded

    def connect(self, endpoint: str) -> None:
        """Connect to a server; raises core.ZMQError, and then nothing has changed."""
        name = endpoint.encode()
        if self._router is not None:
            if self._alias:
                self._router.connect_routing_id = name
            self._router.connect(endpoint)
            self._sockets[name] = self._router
        elif self._model == 2:
            # A single DEALER would distribute the copies instead of sending one to each. Nothing is queued for a connection, or beyond
            # SNDHWM: the machine sends what is open then (FRL-07).
            dealer = self.new_socket(core.DEALER, linger=0, immediate=1, sndtimeo=0)
            dealer.set_receiver(
                lambda batch: self._receive([[name, *frames] for frames in batch]),
                on_peer=lambda _, joined: self._peer_changed(name, joined),
            )
            try:
                dealer.connect(endpoint)
            except core.ZMQError:
                dealer.close()
                raise
            self._sockets[name] = dealer

    def disconnect(self, endpoint: str) -> None:
        socket = self._sockets.pop(endpoint.encode())
        if socket is self._router:
            with suppress(core.EndpointNotFound):  # it was given up, see RECONNECT_STOP
                socket.disconnect(endpoint)
        else:
            socket.close(linger=0)
        self.troubles.pop(endpoint, None)

    def flush(self) -> None:
        """Send the messages of the machine; those too large for their server go back to it."""
        machine = self.machine
        while machine.outgoing:
            outgoing, machine.outgoing = machine.outgoing, []
            encoded: dict[bytes, list[bytes]] = {}
            for name, message in outgoing:
                if type(message) is bytes and name not in self._strict:
                    if name in encoded:
                        encoded[name].append(message)
                    else:
                        encoded[name] = [message]
                elif name in self._sockets:  # a server that was removed in this iteration has lost its requests to others
                    self._send(name, decode_frames(message) if isinstance(message, bytes) else message)
            for name, octets in encoded.items():
                self._send_octets(name, octets)

    def _connect(self) -> None:
        if self._model == 3:
            router = self._router = self.new_socket(core.ROUTER, linger=0)
            if isinstance(self.machine, Agent):
                self.machine.servers.silences.in_transit = router.in_transit
            router.set_receiver(self._receive, on_peer=self._peer_changed)
        for endpoint in self._endpoints:
            self.connect(endpoint)

    def _open_sockets(self) -> Iterable[core.Socket]:
        return {*self._sockets.values(), *([self._router] if self._router is not None else [])}

    def _peer_changed(self, name: bytes, joined: bool) -> None:
        if not self.closed:
            limits = self._sockets[name].peer_limits(name) if joined and name in self._sockets else None
            if limits is not None and limits.small < 2 * ENCODED_MAX:
                self._strict.add(name)
            else:
                self._strict.discard(name)
            self.updated((self.machine.joined if joined else self.machine.lost)(name, self.clock()))

    def _receive(self, batch: list[Message]) -> None:
        # Hot path.
        machine = self.machine
        self._submitted = False
        self.notify(machine.receive(batch, self.clock()))
        if machine.outgoing or self._timer_at == inf:  # otherwise deadlines were only postponed
            self.flush_all()

    def _send_octets(self, name: bytes, octets: list[bytes]) -> None:
        socket = self._sockets.get(name)
        if socket is not None:
            try:
                socket.send_octets(name, octets)
            except core.Again as error:
                self._blocked(name, socket, [decode_frames(message) for message in octets[error.taken :]])

    def _send(self, name: bytes, frames: Message) -> None:
        """Send a request as frames; one that is too large for the server goes back to the machine."""
        socket = self._sockets[name]
        try:
            if self._router is None:
                socket.send_multipart(frames)
                return
            # A ROUTER never waits: beyond its capacity, and beyond the limits of the server, it drops and counts.
            limits = socket.peer_limits(name)
            error = None if limits is None or len(frames) == 1 else limits.judge(frames)
            if error is None:
                socket.send_multipart([name, *frames])
                return
        except core.Again:
            self._blocked(name, socket, [frames])
            return
        except core.MessageTooLarge as too_large:
            error = too_large
        parts, control = (1, frames[0]) if self._model == 3 else (2, frames[1])
        self.notify(self.machine.refused(name, control, TooLarge.of(error, parts, len(control)), self.clock()))

    def _blocked(self, name: bytes, socket: core.Socket, messages: list[Message]) -> None:
        """Forget messages that a full queue does not take; in model 2 the machine sends them when it does.

        In model 3 the time of the attempt ends, and another server is asked.
        """
        machine = self.machine
        if not isinstance(machine, Shotgun):
            machine.counters["send_blocked"] += len(messages)
            return
        machine.blocked(name, [frames[1] for frames in messages])
        if name not in self._full:
            self._full.add(name)
            work = partial(self._copy_when_writable, machine, name, socket)
            supervision.current().task("freelance full queue", work, among=self._copying)

    async def _copy_when_writable(self, machine: Shotgun, name: bytes, socket: core.Socket) -> None:
        try:
            await socket.poll(flags=core.POLLOUT)
        except core.ZMQError:
            return  # closed: the server was removed, or the client ends
        finally:
            self._full.discard(name)
        if not self.closed:
            self.updated(machine.writable(name))


class SequentialEngine(ClientEngine[Sequential]):
    """A REQ socket for each try of model 1."""

    def __init__(
        self,
        machine: Sequential,
        *,
        context: core.Context | None,
        security: Secured | None,
        socket_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(machine, "freelance", ClientClosed, context, security, socket_options)
        self._ticker = supervision.current().timer("freelance client clock", self._tick)
        self._sockets: dict[int, core.Socket] = {}  # by the number of the try

    def connect(self, endpoint: str) -> None:
        """Do nothing: each try connects."""

    def disconnect(self, endpoint: str) -> None:
        """Do nothing: a try that has begun goes on."""

    def flush(self) -> None:
        machine = self.machine
        while machine.outgoing:
            outgoing, machine.outgoing = machine.outgoing, []
            for order in outgoing:
                if isinstance(order, Open):
                    self._open(order)
                else:
                    self._end(order)

    def _open(self, order: Open) -> None:
        # IMMEDIATE: nothing is sent before the limits of the server are known.
        try:
            socket = self._sockets[order.number] = self.new_socket(core.REQ, linger=0, immediate=1)
            socket.set_receiver(partial(self._receive, order.number), on_peer=partial(self._peer_changed, order))
            socket.connect(order.endpoint)
        except core.ZMQError as error:
            self.notify(self.machine.failed(order.number, error, self.clock()))

    def _end(self, order: Close) -> None:
        if order.unanswered:
            log.warning("no response from %s", order.unanswered)
        socket = self._sockets.pop(order.number, None)
        if socket is not None and self.loop is not None:
            self.loop.call_soon(partial(socket.close, linger=0))  # this may be a call of the socket

    def _connect(self) -> None:
        """Do nothing: each try connects."""

    def _open_sockets(self) -> Iterable[core.Socket]:
        return self._sockets.values()

    def _peer_changed(self, order: Open, _: bytes, joined: bool) -> None:
        socket = self._sockets.get(order.number)
        if not joined or socket is None or self.closed:
            return
        self.machine.joined(order.number, self.clock())
        try:
            socket.send_multipart(order.body, core.NOBLOCK)
        except (core.Again, core.BadState):
            self.machine.counters["send_blocked"] += 1  # the connection is lost again, or took the request before; its time ends
        except core.MessageTooLarge as error:
            self.updated(self.machine.refused(order.number, TooLarge.of(error, 1, 0), self.clock()))

    def _receive(self, number: int, batch: list[Message]) -> None:
        if not self.closed:
            self.updated(self.machine.receive(number, batch[0], self.clock()))
