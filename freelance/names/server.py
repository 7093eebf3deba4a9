"""A name server: `freelance.names.registry` behind a Freelance server of model 3, and its conversation with the other ones of its pool.

    async with freelance.NameServer("tcp://10.0.0.7:5050", peers=["tcp://10.0.0.8:5050"]) as server:
        await server.serve_forever()

Each server of a pool names all the others as `peers`. A change is told to them at once; and now and then each asks every other
whether they know the same, and fetches what the other has if not, so that one that was away catches up.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import core
from core.machine.deadlines import TIMER_S_MIN
from core.runtime import supervision
from freelance.client import Client
from freelance.errors import MalformedMessage, NoServer
from freelance.names.catalog import Key
from freelance.names.messages import OK, PAGE, Merge, decode_record
from freelance.names.registry import Registry, Wait
from freelance.server import Server

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured
    from freelance.names.catalog import CatalogLimits

__all__ = ["NameServer"]

UNTOLD_MAX: Final = 20_000  # records a peer that is away has still to be told; it fetches the rest when it is back
TOLD_AT_ONCE: Final = PAGE
# A server that has just started and has not heard what its peers know would say that there is no such name.
ANSWERED_WHEN_CAUGHT_UP: Final = frozenset({b"GET", b"WATCH", b"LIST"})


class NameServer:
    """Tells which endpoints belong to a name.

    Args:
        bind: endpoint to listen at.
        peers: endpoints of the other servers of the pool.
        identity: the endpoint clients connect to, as for `freelance.Server`.
        sync_s: how often each peer is asked whether it knows the same.
        limits: how much is kept.
        watchers_max: WATCH requests that wait at once; more are answered at once, and their clients come back.
        context: to make sockets in; the server has its own when left out.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys. Who can reach a server without them can change what it tells.

    Attributes:
        registry: what it knows.
    """

    def __init__(
        self,
        bind: str,
        *,
        peers: Sequence[str] = (),
        identity: str | None = None,
        sync_s: float = 5.0,
        limits: CatalogLimits | None = None,
        watchers_max: int = 500,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.registry = Registry(secrets.token_hex(8), limits)
        self._watchers_max = watchers_max
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._server = Server(
            bind,
            self._answer,
            identity=identity,
            running_max=watchers_max + 1000,
            context=self._context,
            socket_options=socket_options,
        )
        self._peers = [Peer(self, endpoint, sync_s, self._context, socket_options) for endpoint in dict.fromkeys(peers)]
        self._watchers: dict[tuple[str, str], set[asyncio.Future[None]]] = {}
        self._watching = 0
        self._unasked = len(self._peers)
        self._caught_up = asyncio.Event()
        if not self._peers:
            self._caught_up.set()
        self._clock = supervision.current().timer("freelance names clock", self._tick)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            if self._own_context:
                await stack.enter_async_context(self._context)
            for peer in self._peers:
                await stack.enter_async_context(peer)
            await stack.enter_async_context(self._server)
            self._stack = stack.pop_all()
        self._changed()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clock.cancel()
        await self._stack.aclose()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._server.endpoint

    @property
    def identity(self) -> str:
        """What clients have to connect to, octet for octet."""
        return self._server.identity

    @property
    def counters(self) -> Counter[str]:
        """What was asked, refused and told, by name."""
        return self.registry.counters

    @property
    def figures(self) -> dict[str, int]:
        """How many names there are, and the counters, for those who watch."""
        return {"names": len(self.registry.catalog), **self.counters}

    async def serve_forever(self) -> None:
        """Wait for the end of the block; requests are answered with or without somebody waiting here."""
        await self._server.serve_forever()

    def put(self, environment: str, name: str, *, bind: Iterable[str] = (), connect: Iterable[str] = ()) -> None:
        """Take endpoints of our own configuration, within the block; they stay until somebody withdraws them.

        Raises:
            MalformedMessage: one is not valid.
            CatalogFull: there is no room.
        """
        for role, endpoints in (("bind", bind), ("connect", connect)):
            for endpoint in endpoints:
                key = Key(environment, name, role, endpoint)
                record = self.registry.put(key, 0, wall_ms=wall_ms(), now=self._loop.time())
                self._tell([record])
        self._changed()

    def take(self, records: Sequence[bytes]) -> None:
        """Take what a peer knows.

        Raises:
            MalformedMessage: it does not speak our language.
        """
        self.registry.merge(Merge(tuple(map(decode_record, records))), wall_ms=wall_ms(), now=self._loop.time())
        self._changed()

    # --- inside -------------------------------------------------------------------------------------------------------------

    def peer_was_asked(self, answered: bool) -> None:
        """A peer has told what it knows, or did not answer: we serve when one has, or none does."""
        self._unasked -= 1
        if answered or self._unasked <= 0:
            self._caught_up.set()

    async def _answer(self, body: list[bytes]) -> list[bytes]:
        if body[0] in ANSWERED_WHEN_CAUGHT_UP:
            await self._caught_up.wait()
        answer = self.registry.receive(body, wall_ms=wall_ms(), now=self._loop.time())
        self._changed()
        if isinstance(answer, Wait):
            await self._wait(answer)
            return self.registry.look(answer.where, self._loop.time())
        self._tell(answer.tell)
        return answer.reply

    async def _wait(self, wait: Wait) -> None:
        """Return when the listing is another one, or the time is over, or too many wait already."""
        if self._watching >= self._watchers_max:
            self.counters["watch_overflow"] += 1
            return
        self._watching += 1
        try:
            async with asyncio.timeout_at(wait.until):
                while self.registry.look(wait.where, self._loop.time())[1] == wait.digest:
                    await self._woken(wait.where)
        except TimeoutError:
            return
        finally:
            self._watching -= 1

    async def _woken(self, where: tuple[str, str]) -> None:
        """Return when a listing may have changed."""
        future: asyncio.Future[None] = self._loop.create_future()
        waiting = self._watchers.setdefault(where, set())
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting and self._watchers.get(where) is waiting:
                del self._watchers[where]

    def _changed(self) -> None:
        """Wake those whose listing may be another one, and come back when the next endpoint ends."""
        for where in self.registry.changed:
            for future in self._watchers.pop(where, ()):
                if not future.done():
                    future.set_result(None)
        self.registry.changed.clear()
        at = self.registry.deadline()
        due = self._clock.when
        if at is not None and (due is None or due > at):
            self._clock.at(max(at, self._loop.time() + TIMER_S_MIN))

    def _tick(self) -> None:
        self.registry.tick(self._loop.time())
        self._changed()

    def _tell(self, records: Iterable[bytes]) -> None:
        for peer in self._peers:
            for record in records:
                peer.tell(record)


class Peer:
    """One other server of the pool: what it has to be told, and what it is asked."""

    def __init__(self, server: NameServer, endpoint: str, sync_s: float, context: core.Context, options: Mapping[str, Any] | None) -> None:
        self._server = server
        self._client = Client([endpoint], hedge=None, context=context, socket_options=options)
        self._sync_s = sync_s
        self._asked = False
        self._untold: dict[bytes, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._task = supervision.current().task("freelance names peer", self._run)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.__aexit__(kind, error, trace)

    def tell(self, record: bytes) -> None:
        """Have it told; when too much is waiting it will fetch it instead."""
        if len(self._untold) >= UNTOLD_MAX:
            self._server.counters["untold_overflow"] += 1
            return
        self._untold[record] = None
        self._news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch()
                self._was_asked(True)
                await self._tell_until_due()
            except NoServer:
                self._server.counters["peer_away"] += 1
                self._was_asked(False)
            except MalformedMessage:
                self._server.counters["peer_malformed"] += 1
                self._was_asked(False)
                await asyncio.sleep(self._sync_s)

    def _was_asked(self, answered: bool) -> None:
        if not self._asked:
            self._asked = True
            self._server.peer_was_asked(answered)

    async def _tell_until_due(self) -> None:
        """Tell news as they come, until it is time to compare again."""
        try:
            async with asyncio.timeout(self._sync_s):
                while True:
                    await self._news.wait()
                    records = list(self._untold)[:TOLD_AT_ONCE]
                    if records:
                        await self._ask(b"MERGE", *records)
                    for record in records:
                        self._untold.pop(record, None)
                    if not self._untold:
                        self._news.clear()
        except NoServer:
            raise
        except TimeoutError:
            return

    async def _fetch(self) -> None:
        """Compare, and take what the other one knows."""
        if await self._ask(b"STATE") == [self._server.registry.catalog.state()]:
            return
        after = b""
        while records := await self._ask(b"DUMP", after):
            self._server.take(records)
            after = records[-1]
        self._server.counters["fetched"] += 1

    async def _ask(self, *frames: bytes) -> list[bytes]:
        code, *rest = await self._client.request(*frames)
        if code != OK:
            raise MalformedMessage("a peer that refuses what servers say to each other")
        return rest


def wall_ms() -> int:
    """Return the time of day; only stamps are made of it."""
    return time.time_ns() // 1_000_000
