"""Name server: `freelance.names.registry` behind a Freelance server of model 3, and the exchange with the other servers of its pool.

    async with freelance.NameServer("tcp://10.0.0.7:5050", peers=["tcp://10.0.0.8:5050"]) as server:
        await server.serve_forever()

Each server of a pool names all the others as `peers`. Changes are sent to them at once, and are answered when the peers that are in touch
have them; those are also asked before a name is said to have no endpoint. Every `sync_s` each server compares its digest
with each peer's and fetches the records if they differ, so a server that was unreachable catches up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

from core.rpc.service import Service
from core.runtime import runtime, supervision
from freelance.client import Client
from freelance.errors import MalformedMessage, NoServer
from freelance.names.catalog import Key
from freelance.names.messages import OK, PAGE, Merge, decode_record
from freelance.names.registry import Registry, Wait
from freelance.server import Server

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    import core
    from core.security.credentials import Secured
    from freelance.names.catalog import CatalogLimits

UNSENT_MAX: Final = 20_000  # records queued for an unreachable peer; it fetches the rest when it is back
# A server that has just started and has no records of its peers yet would report that a name does not exist.
VERBS_AFTER_CATCHING_UP: Final = frozenset({b"GET", b"WATCH", b"LIST"})
POOL_S: Final = 1.0  # for peers to take a change before it is answered, and to be asked for a name that is not known here


class NameServer(Service):
    """Server of names and their endpoints.

    Args:
        bind: endpoint to listen at.
        peers: endpoints of the other servers of the pool.
        identity: the endpoint clients connect to, as for `freelance.Server`.
        sync_s: seconds between comparisons with each peer.
        limits: see `CatalogLimits`.
        watchers_max: WATCH requests that wait; more are answered at once, and their clients ask again.
        context: to make sockets in; None: the server has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys. Without keys, any peer that reaches a server can change its names.

    Attributes:
        registry: its records and answers.
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
        super().__init__(context, security, socket_options)
        self._timer = supervision.current().timer("freelance names clock", self._tick)
        self.registry = Registry(runtime.current().random_bytes(8).hex(), limits)
        self._watchers_max = watchers_max
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
        self._not_compared = len(self._peers)
        self._caught_up = asyncio.Event()
        self._new_s = 2 * sync_s  # by then every peer has asked for its records
        self._new_until = 0.0
        if not self._peers:
            self._caught_up.set()

    async def _start(self) -> None:
        self._new_until = self._loop.time() + self._new_s
        for peer in self._peers:
            await self._stack.enter_async_context(peer)
        await self._stack.enter_async_context(self._server)
        self._changed()

    async def _stop(self) -> None:
        await self._stack.aclose()

    @property
    def endpoint(self) -> str:
        """Endpoint it listens at."""
        return self._server.endpoint

    @property
    def identity(self) -> str:
        """Endpoint that clients must connect to, byte for byte."""
        return self._server.identity

    @property
    def counters(self) -> Counter[str]:
        """Requests, refusals and records sent, by name."""
        return self.registry.counters

    @property
    def figures(self) -> dict[str, int]:
        """Number of names, and the counters, for the metrics page."""
        return {"names": len(self.registry.catalog), **self.counters}

    def put(self, environment: str, name: str, *, bind: Iterable[str] = (), connect: Iterable[str] = ()) -> None:
        """Add endpoints of our own configuration, within the block; they stay until they are withdrawn.

        Raises:
            MalformedMessage: one is not valid.
            CatalogFull: a limit is reached.
        """
        for role, endpoints in (("bind", bind), ("connect", connect)):
            for endpoint in endpoints:
                key = Key(environment, name, role, endpoint)
                record = self.registry.put(key, 0, wall_ms=wall_ms(), now=self._loop.time())
                self._send_records([record])
        self._changed()

    def take(self, records: Sequence[bytes]) -> None:
        """Take records of a peer; raises MalformedMessage if it speaks another protocol."""
        self.registry.merge(Merge(tuple(map(decode_record, records))), wall_ms=wall_ms(), now=self._loop.time())
        self._changed()

    def peer_compared(self, answered: bool) -> None:
        """Record whether a peer sent its records: clients are served after one has, or after all failed."""
        self._not_compared -= 1
        if answered or self._not_compared <= 0:
            self._caught_up.set()

    async def _answer(self, body: list[bytes]) -> list[bytes]:
        if body[0] in VERBS_AFTER_CATCHING_UP:
            await self._caught_up.wait()
            # Peers that came up before this server may not have noticed it yet, and then do not send their changes to it.
            now = self._loop.time()
            if self._peers and (now < self._new_until or self.registry.lacks(body, now)):
                await asyncio.gather(*(peer.compare() for peer in self._peers if peer.in_touch))
        answer = self.registry.receive(body, wall_ms=wall_ms(), now=self._loop.time())
        self._changed()
        if isinstance(answer, Wait):
            await self._wait(answer)
            return self.registry.listing_reply(answer.where, self._loop.time())
        self._send_records(answer.tell)
        if answer.tell:
            await asyncio.gather(*(peer.taken(answer.tell) for peer in self._peers if peer.in_touch))
        return answer.reply

    async def _wait(self, wait: Wait) -> None:
        """Return when the listing has changed, or at the end of the time, or at once if too many wait."""
        if self._watching >= self._watchers_max:
            self.counters["watch_overflow"] += 1
            return
        self._watching += 1
        try:
            async with asyncio.timeout_at(wait.until):
                while self.registry.listing_reply(wait.where, self._loop.time())[1] == wait.digest:
                    await self._woken(wait.where)
        except TimeoutError:
            return
        finally:
            self._watching -= 1

    async def _woken(self, where: tuple[str, str]) -> None:
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
        """Wake the watchers of changed listings and set the timer for the next expiry."""
        for where in self.registry.changed:
            for future in self._watchers.pop(where, ()):
                if not future.done():
                    future.set_result(None)
        self.registry.changed.clear()
        self._wake_at(self.registry.deadline())

    def _tick(self) -> None:
        self.registry.tick(self._loop.time())
        self._changed()

    def _send_records(self, records: Iterable[bytes]) -> None:
        for peer in self._peers:
            for record in records:
                peer.queue(record)


class Peer:
    """One other server of the pool: its queued records, and the comparison with it."""

    def __init__(self, server: NameServer, endpoint: str, sync_s: float, context: core.Context, options: Mapping[str, Any] | None) -> None:
        self._server = server
        self._client = Client([endpoint], hedge=None, context=context, socket_options=options)
        self._sync_s = sync_s
        self._asked = False
        self.in_touch = False  # it has answered last time
        self._comparing: asyncio.Future[None] | None = None  # done when the comparison ends that `compare` has begun
        self._unsent: dict[bytes, asyncio.Future[None]] = {}  # with what is done when it has them
        self._queued = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._task = supervision.current().task("freelance names peer", self._run)
        return self

    async def __aexit__(self, *error: Any) -> None:
        try:
            if self._task is not None:
                await supervision.cancel_all([self._task])
        finally:
            await self._client.__aexit__(*error)

    def queue(self, record: bytes) -> None:
        """Queue a record for it; beyond the limit it fetches records instead."""
        if len(self._unsent) >= UNSENT_MAX:
            self._server.counters["untold_overflow"] += 1
            return
        if record not in self._unsent:
            self._unsent[record] = asyncio.get_running_loop().create_future()
        self._queued.set()

    async def taken(self, records: Sequence[bytes]) -> None:
        """Return when it has taken queued records, or after `POOL_S`."""
        unsent = [self._unsent[record] for record in records if record in self._unsent]
        if unsent and (await asyncio.wait(unsent, timeout=POOL_S))[1]:
            self.in_touch = False

    async def compare(self) -> None:
        """Fetch its records if they differ, for up to `POOL_S`.

        One comparison at a time, however many clients ask: those that come while one runs share the next.
        """
        if self._comparing is not None:
            await asyncio.wait([self._comparing])  # it may have begun before a change that the caller knows of
        if self._comparing is not None:
            await asyncio.wait([self._comparing])
            return
        done = self._comparing = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(POOL_S):
                await self._fetch()
        except (NoServer, MalformedMessage, TimeoutError):
            self.in_touch = False
        finally:
            self._comparing = None
            done.set_result(None)

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch()
                self.in_touch = True
                self._compared(True)
                await self._send_records_until_due()
            except NoServer:
                self.in_touch = False
                self._server.counters["peer_away"] += 1
                self._compared(False)
            except MalformedMessage:
                self.in_touch = False
                self._server.counters["peer_malformed"] += 1
                self._compared(False)
                await asyncio.sleep(self._sync_s)

    def _compared(self, answered: bool) -> None:
        if not self._asked:
            self._asked = True
            self._server.peer_compared(answered)

    async def _send_records_until_due(self) -> None:
        """Send records as they come, until the next comparison is due."""
        try:
            async with asyncio.timeout(self._sync_s):
                while True:
                    await self._queued.wait()
                    records = list(self._unsent)[:PAGE]
                    if records:
                        await self._ask(b"MERGE", *records)
                    for record in records:
                        self._unsent.pop(record).set_result(None)
                    if not self._unsent:
                        self._queued.clear()
        except NoServer:
            raise
        except TimeoutError:
            return

    async def _fetch(self) -> None:
        """Compare, and fetch the peer's records if they differ."""
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
            raise MalformedMessage("the peer refuses messages between servers")
        return rest


def wall_ms() -> int:
    """Return the time of day; used for stamps only."""
    return runtime.current().wall_ns() // 1_000_000
