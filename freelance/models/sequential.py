"""Client of model 1: one server after the other, a fresh REQ socket for each try (FRL-01, FRL-02).

The guide waits the whole timeout for a dead first server on every request. Here a server that did not answer is asked last for some
time (`freelance.models.server_list`), so that cost is paid once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import core
from freelance.errors import ClientClosed, NoServer, TooLarge
from freelance.models.server_list import Health, ServerList

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["TRIES_OF_A_LONE_SERVER", "Sequential"]

log = logging.getLogger(__name__)

TRIES_OF_A_LONE_SERVER: Final = 3  # FRL-01; with several servers each is tried once


class Sequential:
    """Asks servers one after the other.

    Args:
        endpoints: of the servers, most wanted first.
        context: to make sockets in.
        try_s: seconds for each try.
        timeout_s: seconds for all of them; None: the sum of the tries.
        options: of the sockets.

    Attributes:
        servers: see `ServerList`.
    """

    def __init__(
        self, endpoints: Iterable[str], context: core.Context, *, try_s: float, timeout_s: float | None, options: Mapping[str, Any]
    ) -> None:
        self.servers = ServerList(endpoints, Health())
        self._context = context
        self._try_s = try_s
        self._timeout_s = timeout_s
        self._options = options
        self._sockets: set[core.Socket] = set()  # of outstanding requests
        self._closed = False

    async def request(self, body: list[bytes], timeout_s: float | None = None) -> list[bytes]:
        """Ask the servers in order until one answers.

        Raises:
            NoServer: none answered.
            TooLarge: no server that answered takes a request so large.
            ClientClosed: `close` was called.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        whole = self._timeout_s if timeout_s is None else timeout_s
        ends_at = None if whole is None else began + whole
        attempts = 0
        refused: dict[bytes, TooLarge] = {}
        for name in self._order(began):
            if name not in self.servers or name in refused:
                continue  # removed in the meantime
            asked_at = loop.time()
            until = asked_at + self._try_s if ends_at is None else min(ends_at, asked_at + self._try_s)
            if until <= asked_at:
                break
            attempts += 1
            try:
                async with asyncio.timeout_at(until):
                    reply = await self._ask(name.decode(), body)
            except core.MessageTooLarge as error:
                attempts -= 1
                refused[name] = TooLarge.of(error, 1, 0)  # the delimiter
            except TimeoutError:
                log.warning("no response from %s", name.decode())
                if name in self.servers:
                    self.servers.failed(name, asked_at, loop.time())
            else:
                if name in self.servers:
                    self.servers.answered(name)
                return reply
        for beyond in refused.values():
            raise beyond
        raise NoServer(attempts=attempts, after_s=loop.time() - began)

    def _order(self, now: float) -> list[bytes]:
        """Return the servers in the order to ask them, recent failures last."""
        order: list[bytes] = []
        for name in self.servers.by_name:
            self.servers.joined(name, now)  # only an answer shows whether it is there
        while (server := self.servers.take(now, order)) is not None:
            order.append(server.name)
        return order if len(order) > 1 else order * TRIES_OF_A_LONE_SERVER

    async def _ask(self, endpoint: str, body: list[bytes]) -> list[bytes]:
        if self._closed:
            raise ClientClosed
        socket = self._context.socket(core.REQ, **{"tell_limits": 1, **self._options, "linger": 0})
        self._sockets.add(socket)
        try:
            socket.connect(endpoint)
            await socket.send_multipart(body)
            reply: list[bytes] = await socket.recv_multipart()
            return reply
        except core.ZMQError:
            if self._closed:
                raise ClientClosed from None
            raise
        finally:
            self._sockets.discard(socket)
            socket.close()

    def close(self) -> None:
        """End every request with ClientClosed."""
        self._closed = True
        for socket in [*self._sockets]:
            socket.close(linger=0)
