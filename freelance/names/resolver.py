"""Logical names in place of endpoints: client of the name servers, and the resolver behind `name://`.

    async with freelance.Names(["tcp://10.0.0.7:5050", "tcp://10.0.0.8:5050"], environment="test") as names:
        await names.set("shop", connect=["tcp://10.0.0.9:5555"])                # for ever
        async with names.lease("shop", connect=["tcp://10.0.0.10:5555"]): ...   # while this program runs
        async with core.Context(resolver=names.resolve) as context:
            context.socket(core.DEALER).connect("name://shop")

A name server that is unreachable does not delay names that are known already: an old listing is better than none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import core
from core.machine.peer_text import decimal
from core.rpc.shared_question import SharedQuestion
from freelance.client import Client
from freelance.errors import ClientClosed, FreelanceError, MalformedMessage, NamesRefused, NoServer
from freelance.names.messages import NONE, OK, PAGE, WAIT_MS_MAX, decode_entry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from core.security.credentials import Secured

FRESH_S: Final = 1.0  # `resolve` asks again after this, or when the listing expires: it is called when a connection is lost
RETRY_S: Final = 0.5  # pause of a watch or a lease when no server answered
REFRESHES: Final = 3  # of a lease within its time to live: two may fail
WATCH_TRY_S: Final = 2.0  # time beyond the requested wait before a watching server counts as failed
AWAY: Final = (NoServer, NamesRefused, ClientClosed)  # why a lease is not renewed
SOCKET_OPTIONS_OF_NAMES: Final = {"reconnect_ivl_max": 2000}


@dataclass(frozen=True, slots=True)
class Listing:
    """Endpoints of a name.

    Attributes:
        bind: for servers.
        connect: for clients.
        ttl_s: seconds until the first of them expires unless renewed; None: never.
        digest: of the endpoints; changes with them.
    """

    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    ttl_s: float | None = None
    digest: bytes = b""


class Connects(Protocol):
    """Object that connects, such as a socket."""

    def connect(self, endpoint: str) -> object: ...

    def disconnect(self, endpoint: str) -> object: ...


class Binds(Protocol):
    """Object that listens, such as a socket."""

    def bind(self, endpoint: str) -> object: ...


class Names:
    """Client of name servers.

    Args:
        servers: endpoints of the name servers, most wanted first.
        environment: to which the names belong, e.g. `test`.
        timeout: seconds for each question.
        wait: seconds a server keeps a `watch` open before it reports no change.
        context: to make sockets in; None: it has its own. It cannot be the context whose resolver this is, unless the servers are
            given as plain endpoints, as they should be.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys.

    Attributes:
        counters: results of `resolve`, by name.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        environment: str = "production",
        timeout: float = 3.0,
        wait: float = 10.0,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 < wait <= WAIT_MS_MAX / 1000:
            raise ValueError(f"a wait of {wait} s is not within 0 and {WAIT_MS_MAX / 1000}")
        self.environment = environment
        self.counters: Counter[str] = Counter()
        self._own_context = context is None
        self._context = core.context_for(context, security)
        options = {**SOCKET_OPTIONS_OF_NAMES, **(socket_options or {})}
        self._wait_s = wait
        self._client = Client(servers, timeout=timeout, context=self._context, socket_options=options)
        # A watch is silent for long by design and must not count as a failure, so it has a client with longer time-outs.
        try_s = wait + WATCH_TRY_S
        self._watcher = Client(servers, timeout=3 * try_s, try_timeout=try_s, hedge=None, context=self._context, socket_options=options)
        self._stack = AsyncExitStack()
        self._known: dict[str, CachedListing] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._own_context:
                await stack.enter_async_context(self._context)
            await stack.enter_async_context(self._client)
            await stack.enter_async_context(self._watcher)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    # --- questions and changes; each may raise NoServer (no answer) and NamesRefused (not valid, or the server is full)

    async def get(self, name: str) -> Listing:
        """Return the endpoints of a name; an empty listing if it is not known."""
        return _listing(await _ask(self._client, b"GET", *self._where(name)))

    async def names(self) -> list[str]:
        """Return all names of the environment that have endpoints."""
        found: list[str] = []
        while True:
            after = found[-1].encode() if found else b""
            _, *page = await _ask(self._client, b"LIST", self.environment.encode(), after)
            found += [name.decode("utf-8", "replace") for name in page]
            if len(page) < PAGE:
                return found

    async def set(self, name: str, *, bind: Iterable[str] = (), connect: Iterable[str] = (), ttl: float | None = None) -> None:
        """Add endpoints to a name, or renew them.

        Args:
            name: letters, digits and `. _ / -`.
            bind: for servers.
            connect: for clients.
            ttl: seconds until they expire; None: never.
        """
        ttl_ms = 0 if ttl is None else max(1, int(ttl * 1000))
        for role, endpoint in _ends(bind, connect):
            await _ask(self._client, b"SET", *self._where(name), role, b"%d" % ttl_ms, endpoint.encode())

    async def drop(self, name: str, *, bind: Iterable[str] = (), connect: Iterable[str] = ()) -> bool:
        """Withdraw endpoints of a name. Returns whether any was there."""
        replies = [
            await _ask(self._client, b"DROP", *self._where(name), role, endpoint.encode()) for role, endpoint in _ends(bind, connect)
        ]
        return any(reply[0] == OK for reply in replies)

    async def watch(self, name: str) -> AsyncGenerator[Listing, None]:
        """Yield the endpoints of a name, now and after each change. Waits for name servers that are unreachable.

        Raises:
            NamesRefused: the first question was not valid.
        """
        loop = asyncio.get_running_loop()
        seen = b""
        while True:
            asked_at = loop.time()
            try:
                listing = _listing(await _ask(self._watcher, b"WATCH", *self._where(name), seen, b"%d" % (self._wait_s * 1000)))
            except NoServer:
                self.counters["watch_away"] += 1
                await asyncio.sleep(RETRY_S)
                continue
            except NamesRefused:
                if not seen:
                    raise
                self.counters["watch_refused"] += 1
                await asyncio.sleep(RETRY_S)
                continue
            if listing.digest == seen:
                if loop.time() - asked_at < self._wait_s / 2:
                    await asyncio.sleep(RETRY_S)  # a server with too many watchers answers at once
                continue
            seen = listing.digest
            yield listing

    # --- ways to use a name

    async def resolve(self, name: str) -> str:
        """Return one endpoint to connect to, in rotation if there are several: the resolver for `core.Context`.

        Raises:
            core.EndpointNotFound: the name has none, or no name server answered and the name is not known from before. A socket
                tries again as with any endpoint that is unreachable.
        """
        known = self._known.setdefault(name, CachedListing())
        try:
            await known.question.ask(partial(self._look_up, name, known))
        except FreelanceError:
            self.counters["stale" if known.endpoints else "unresolved"] += 1
        if not known.endpoints:
            raise core.EndpointNotFound(msg=f"name://{name} has no endpoint in {self.environment}", endpoint=f"name://{name}")
        known.next_index += 1
        return known.endpoints[known.next_index % len(known.endpoints)]

    async def bind(self, socket: Binds, name: str) -> str:
        """Bind a socket to the first of the name's bind endpoints that is free. Returns that endpoint.

        Raises:
            core.AddressInUse: all are taken.
            core.EndpointNotFound: the name has none.
        """
        listing = await self.get(name)
        for number, endpoint in enumerate(listing.bind, 1):
            try:
                socket.bind(endpoint)
            except core.AddressInUse:
                if number == len(listing.bind):
                    raise
            else:
                return endpoint
        raise core.EndpointNotFound(msg=f"{name} has no bind endpoint in {self.environment}", endpoint=f"name://{name}")

    @asynccontextmanager
    async def lease(self, name: str, *, bind: Iterable[str] = (), connect: Iterable[str] = (), ttl: float = 30.0) -> AsyncIterator[None]:
        """List endpoints while the block runs.

        They are withdrawn when the block ends, and expire `ttl` seconds after a program has died.
        """
        binds, connects = list(bind), list(connect)
        await self.set(name, bind=binds, connect=connects, ttl=ttl)

        async def refresh() -> None:
            pause = ttl / REFRESHES
            while True:
                await asyncio.sleep(pause)
                try:
                    await self.set(name, bind=binds, connect=connects, ttl=ttl)
                    pause = ttl / REFRESHES
                except AWAY:
                    self.counters["lease_away"] += 1
                    pause = min(RETRY_S, ttl / REFRESHES)

        try:
            async with _beside(refresh()):
                yield
        finally:
            try:
                await self.drop(name, bind=binds, connect=connects)
            except AWAY:
                self.counters["lease_away"] += 1  # it expires

    @asynccontextmanager
    async def follow(self, target: Connects | Client, name: str) -> AsyncIterator[None]:
        """Keep a socket, or a `freelance.Client`, connected to all endpoints of a name while the block runs.

        The block begins when the endpoints known by then are connected. New ones are connected as they appear and removed ones are
        disconnected, except the last: an old listing is better than none. Nothing is disconnected at the end.
        """
        join: Callable[[str], object] = target.add_server if isinstance(target, Client) else target.connect
        leave: Callable[[str], object] = target.remove_server if isinstance(target, Client) else target.disconnect
        listings = self.watch(name)
        present = set(target.servers) if isinstance(target, Client) else set[str]()

        def change(listing: Listing) -> None:
            wanted = set(listing.connect) or present
            for act, endpoints in ((join, sorted(wanted - present)), (leave, sorted(present - wanted))):
                for endpoint in endpoints:
                    try:
                        act(endpoint)
                    except (core.ZMQError, ClientClosed):
                        self.counters["follow_failed"] += 1
            present.intersection_update(wanted)
            present.update(wanted)

        async def follow_on() -> None:
            with suppress(ClientClosed):  # or its context has ended: the target stays as it is
                async for listing in listings:
                    change(listing)

        change(await anext(listings))
        try:
            async with _beside(follow_on()):
                yield
        finally:
            await listings.aclose()

    def _where(self, name: str) -> tuple[bytes, bytes]:
        return self.environment.encode(), name.encode()

    async def _look_up(self, name: str, known: CachedListing) -> None:
        now = asyncio.get_running_loop().time()
        if now < known.fresh_until:
            return
        listing = await self.get(name)
        self.counters["looked_up"] += 1
        known.endpoints = listing.connect
        known.fresh_until = now + (min(FRESH_S, listing.ttl_s or FRESH_S) if listing.connect else 0.0)


class CachedListing:
    """Listing of a name as `resolve` remembers it."""

    def __init__(self) -> None:
        self.endpoints: tuple[str, ...] = ()
        self.fresh_until = float("-inf")
        self.next_index = -1
        self.question = SharedQuestion()  # of a hundred sockets that reconnect together


@asynccontextmanager
async def _beside(coroutine: Any) -> AsyncIterator[None]:
    """Run a coroutine beside the block and end it with the block."""
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _ends(bind: Iterable[str], connect: Iterable[str]) -> list[tuple[bytes, str]]:
    return [*((b"bind", endpoint) for endpoint in bind), *((b"connect", endpoint) for endpoint in connect)]


async def _ask(client: Client, *frames: bytes) -> list[bytes]:
    """Ask and return `[code][…]` with code 200 or 404; raises NamesRefused for any other code."""
    reply = await client.request(*frames)
    code = reply[0]
    if code not in (OK, NONE):
        raise NamesRefused(decimal(code, len(OK)) or 0, b" ".join(reply[1:])[:200].decode("utf-8", "replace"))
    return reply


def _listing(reply: list[bytes]) -> Listing:
    """Decode `[code][digest][ENTRY…]`; raises NamesRefused if it is not from a name server."""
    try:
        entries = [decode_entry(frame) for frame in reply[2:]]
    except MalformedMessage as error:
        raise NamesRefused(0, error.reason) from None
    found: dict[str, list[str]] = {"bind": [], "connect": []}
    for role, _, endpoint in entries:
        found[role].append(endpoint)
    ttl_ms = min((ttl for _, ttl, _ in entries if ttl), default=0)
    return Listing(tuple(found["bind"]), tuple(found["connect"]), ttl_ms / 1000 if ttl_ms else None, reply[1] if len(reply) > 1 else b"")
