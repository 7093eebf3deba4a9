"""Client of a Titanic: submit, keep the ticket, fetch the reply, close (TSP-18, BEY-09).

    async with titanic.Client("tcp://127.0.0.1:5555") as store:
        ticket = await store.submit("echo", b"hello", key="order-17")      # on disk when this returns
        reply = await ticket.result(timeout=60)
        await ticket.close()

A ticket is its UUID: keep it, and `store.ticket(uuid)` continues where another process stopped; with `book=PATH` the client records its
tickets in a file, and `store.tickets()` returns those that are not closed. A submit that is tried again has the same key, given or
generated, so it is stored once even if an answer is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, Unpack

import mdp
from core.machine.backoff import backoff_s
from core.machine.peer_text import BadJson, read_json
from core.machine.value_copies import check_counts
from core.rpc.shared_question import SharedQuestion
from core.runtime import runtime
from core.runtime.supervision import cancel_all
from mdp.wire.options import checked_headers
from titanic.errors import (
    BadRequest,
    DeadLettered,
    Expired,
    Forbidden,
    OptionsNotSupported,
    Pending,
    StoreFull,
    TitanicError,
    Unavailable,
    UnknownRequest,
    Wounded,
)
from titanic.tickets import TicketFile
from titanic.wire import tsp

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    import core
    from core.security.credentials import Secured

__all__ = ["Client", "Outcome", "Ticket"]

WAIT_S: Final = 20.0  # of one titanic.wait; shorter than the idle timeout of middle boxes
POLL_S: Final = 0.1  # polling interval at a store without titanic.wait: first as in the guide, then doubled
POLL_MAX_S: Final = 5.0  # as in the guide
RETRY_S: Final = 0.2  # first wait after a temporary failure
# Temporary while waiting for a result: the store or the broker restarts.
PASSING: Final = (Unavailable, mdp.Timeout, mdp.Unreachable, mdp.Busy, mdp.WorkerLost, mdp.NoService)


class Ticket:
    """One stored request.

    Attributes:
        uuid: 32 upper-case hexadecimal characters.
    """

    __slots__ = ("_client", "_closed", "uuid")

    def __init__(self, client: Client, uuid: str) -> None:
        self.uuid = uuid
        self._client = client
        self._closed = False

    def __repr__(self) -> str:
        return f"<Ticket {self.uuid}>"

    async def fetch(self) -> list[bytes] | None:
        """Return the reply `[body...]`, None if there is none yet.

        Raises:
            UnknownRequest: never stored, closed, or of another user.
            DeadLettered, Expired: there will be no reply.
            Unavailable: the store cannot answer now.
            mdp.RequestError: the store cannot be reached.
        """
        return self._reply_in(await self._client.ask(tsp.REPLY, self.uuid.encode()))

    def _reply_in(self, frames: Sequence[bytes]) -> list[bytes] | None:
        code, reason = _status_of(frames)
        if code == 200:
            return list(frames[1:])
        if code == 300:
            return None
        if code == 400:
            raise UnknownRequest(self.uuid)
        if reason.startswith("DEAD_LETTER"):
            raise DeadLettered(self.uuid, reason.removeprefix("DEAD_LETTER").strip())
        if reason.startswith("FORBIDDEN"):
            raise DeadLettered(self.uuid, reason)
        if reason == "EXPIRED":
            raise Expired(self.uuid)
        raise _unavailable(reason)

    async def result(self, timeout: float | None = None) -> list[bytes]:
        """Wait for the reply `[body...]`; it can be fetched until `close`.

        Args:
            timeout: seconds to wait, None for no limit.

        Raises:
            Pending: no reply in time; the request is still stored, wait again.
            UnknownRequest, DeadLettered, Expired: there will be no reply.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends = began + timeout if timeout is not None else None
        faults = polls = 0
        while True:
            left = WAIT_S if ends is None else min(WAIT_S, ends - loop.time())
            if left <= 0:
                raise Pending(self.uuid, loop.time() - began)
            try:
                reply = self._reply_in(await self._look(left))
            except PASSING:
                await asyncio.sleep(min(backoff_s(RETRY_S, POLL_MAX_S, faults), left))
                faults += 1
                continue
            if reply is not None:
                return reply
            if not self._client.store_waits:
                await asyncio.sleep(min(backoff_s(POLL_S, POLL_MAX_S, polls), left))
                polls += 1

    async def _look(self, wait_s: float) -> Sequence[bytes]:
        """Wait at the store, or fetch where it has no titanic.wait."""
        client = self._client
        uuid = self.uuid.encode()
        if client.store_waits:
            try:
                wait_ms = b"%d" % max(1, round(wait_s * 1000))
                return await client.ask(tsp.WAIT, uuid, wait_ms, timeout=wait_s + client.timeout_s, attempts=1)
            except mdp.NoService:
                # A store that takes options has titanic.wait too: it is registering its services.
                if await client.mmi("service", tsp.REPLY.decode()) != "200" or await client._ask_what_it_takes(refuse=False):
                    raise
                client.store_waits = False
        return await client.ask(tsp.REPLY, uuid)

    async def close(self) -> None:
        """Close the request: the store forgets it and its reply. Closing again does nothing.

        Raises:
            Unavailable: the store cannot close it now.
            mdp.RequestError: the store cannot be reached.
        """
        if not self._closed:
            code, reason = _status_of(await self._client.ask(tsp.CLOSE, self.uuid.encode()))
            if code != 200:
                raise _unavailable(reason)
            self._closed = True
        if self._client.book is not None:
            await self._client.book.remove(self.uuid)


class Outcome(NamedTuple):
    """Result of one ticket of `Client.results`.

    Attributes:
        ticket: of the request.
        reply: body frames, None without a reply.
        error: reason why there is no reply, else None.
    """

    ticket: Ticket
    reply: list[bytes] | None
    error: TitanicError | mdp.RequestError | None


class StoreConnectionSettings(TypedDict, total=False):
    """Keyword arguments of `mdp.Client` that `Client` passes on to it."""

    dialect: str
    window: int
    waiting_max: int
    connections_max: int
    heartbeat_ms: float
    liveness: int
    reconnect_ms: float
    reconnect_max_ms: float
    context: core.Context | None
    security: Secured | None
    socket_options: Mapping[str, Any] | None
    seed: int | None


class TitanicSettings(StoreConnectionSettings, total=False):
    """Keyword arguments of `Client`."""

    timeout: float
    attempts: int
    plain: bool
    book: str | os.PathLike[str] | None


class Client:
    """Stores requests at a Titanic, through a broker.

    Args:
        broker: endpoint, or several in order of preference.
        timeout: seconds of one attempt to reach the store.
        attempts: maximum attempts.
        plain: treat the store as a stock Titanic without asking it. There are no keys, delays or limits then, and after a lost answer a
            submit may be stored twice.
        book: file of the open tickets; used by one client at a time, and read when the block of the client is entered.
        options: further arguments of `mdp.Client`.

    Attributes:
        book: open tickets, None without a file.
        store_waits: the store has `titanic.wait`, as far as known.
    """

    def __init__(
        self,
        broker: str | Sequence[str],
        *,
        timeout: float = 2.5,
        attempts: int = 3,
        plain: bool = False,
        book: str | os.PathLike[str] | None = None,
        **options: Unpack[StoreConnectionSettings],
    ) -> None:
        self.timeout_s = timeout
        self.store_waits = not plain
        self._plain = plain
        self.book = TicketFile(book) if book is not None else None
        self._client = mdp.Client(broker, timeout=timeout, attempts=attempts, **options)
        # Generated keys: unique over clients and restarts (IDM-01).
        self._origin = runtime.current().random_bytes(8)
        self._count = 0
        self._takes_options: bool | None = None  # whether the store does; None if unknown
        self._takes_headers = False  # whether it said so when it was asked
        self._asked_over = 0  # number of the connection it was asked over
        self._question = SharedQuestion()  # of concurrent submits

    async def __aenter__(self) -> Self:
        if self.book is not None:
            await self.book.load()
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def submit(
        self,
        service: str | bytes,
        *frames: bytes,
        key: str | bytes | None = None,
        delay: float = 0.0,
        ttl: float = 0.0,
        attempts: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Ticket:
        """Store a request; return when it is as durable as the policy of the store demands.

        Args:
            service: that answers it.
            frames: body frames; without any, one empty frame is sent.
            key: idempotency key: a submit with the same key and request returns the same ticket.
            delay: seconds before it may be given to a worker.
            ttl: seconds after which it expires, 0 for no limit.
            attempts: failed attempts after which it is dead-lettered, 0 for the default of the store.
            headers: texts by name, for the handler (`request.headers`); stored with the request.

        Raises:
            TypeError, ValueError: the headers are not a map of text to text, or beyond the limits of `mdp.Client.request`.
            Forbidden: this user may not call the service.
            BadRequest: the store refuses it; for example, the key was used for another request.
            OptionsNotSupported: the store knows RFC 9 only, which has no key, delay, ttl, attempts or headers, or is too old for headers.
            StoreFull, Wounded, Unavailable: the store cannot accept it now.
            mdp.RequestError: the store could not be reached, or did not answer in time: it is unknown whether the request is stored, and
                submitting it again with the same key is safe.
        """
        target = service.encode() if isinstance(service, str) else service
        octets = key.encode() if isinstance(key, str) else key
        texts = checked_headers(headers) if headers else {}
        head: list[bytes] = []
        # Hot path: once per submit; the store is asked for its extensions once per connection.
        takes = self._takes_options and self._asked_over == self._client.connections and self._client.connected
        if not takes or (texts and not self._takes_headers):
            asked = {"key": octets, "delay": delay, "ttl": ttl, "attempts": attempts, "headers": texts}
            wanted = tuple(name for name, value in asked.items() if value)
            takes = await self._ask_what_it_takes(refuse=bool(wanted))
            if wanted and not takes:
                raise OptionsNotSupported(wanted)
            if texts and not self._takes_headers:
                raise OptionsNotSupported(("headers",))
        if takes:
            if octets is None:
                self._count += 1
                octets = b"%s-%d" % (self._origin, self._count)
            head = tsp.encode_options(tsp.Options(octets, _whole_ms(delay), _whole_ms(ttl), attempts, texts))
        reply = await self.ask(tsp.REQUEST, *head, target, *(frames or (b"",)))
        code, reason = _status_of(reply)
        if code == 200 and len(reply) == 2 and tsp.parse_uuid(reply[1], hyphens=True) is not None:
            ticket = Ticket(self, reply[1].decode())
            if self.book is not None:
                given = key.decode(errors="replace") if isinstance(key, bytes) else key
                await self.book.add(ticket.uuid, target.decode(errors="replace"), given)
            return ticket
        if code == 400:
            raise Forbidden(reason) if reason.startswith("FORBIDDEN") else BadRequest(reason or "the store refused the request")
        raise _unavailable(reason)

    async def _ask_what_it_takes(self, *, refuse: bool) -> bool:
        """Return whether the store accepts options; to a stock store their frame would be a service name.

        Asked once per connection, and again before a request is refused for it.
        """
        if self._plain:
            return False
        return await self._question.ask(partial(self._ask_now, refuse))

    async def _ask_now(self, refuse: bool) -> bool:
        takes = self._takes_options
        same = self._asked_over == self._client.connections and self._client.connected
        if takes is None or not same or (refuse and not takes):
            try:
                answer = await self._ask_by_reply()
            except mdp.Forbidden:
                answer = await self._ask_by_request()
            code, takes = _takes(answer, tsp.EXTENSIONS_KNOWN[0])
            self._takes_headers = _takes(answer, tsp.EXTENSIONS_KNOWN[1])[1]
            if code not in (200, 400):
                raise Unavailable("the store cannot tell which options it knows")
            self._takes_options, self._asked_over = takes, self._client.connections
        return takes

    async def _ask_by_reply(self) -> Sequence[bytes]:
        """Ask titanic.reply; a store with titanic.request and without it is a stock store."""
        if await self._lacks_replies():
            await asyncio.sleep(RETRY_S)  # ours may be registering its services
            if await self._lacks_replies():
                return [tsp.BAD]
        return await self.ask(tsp.REPLY, tsp.EXTENSIONS)

    async def _lacks_replies(self) -> bool:
        """Return whether the broker knows titanic.request and not titanic.reply."""
        with suppress(mdp.RequestError):  # a broker without MMI
            for name, code in ((tsp.REPLY, b"404"), (tsp.REQUEST, b"200")):
                if (await self._client.request(b"mmi.service", name, timeout=self.timeout_s, attempts=1))[0] != code:
                    return False
            return True
        return False

    async def _ask_by_request(self) -> Sequence[bytes]:
        """Ask titanic.request, the only service this user may call. A stock store stores the question as a request: close it."""
        reply = await self.ask(tsp.REQUEST, tsp.EXTENSIONS)
        code, takes = _takes(reply, tsp.EXTENSIONS_KNOWN[0])
        if code == 200 and not takes and len(reply) == 2:
            with suppress(mdp.RequestError):
                await self.ask(tsp.CLOSE, reply[1])
        return reply

    def ticket(self, uuid: str) -> Ticket:
        """Return the ticket of a stored request; raises UnknownRequest if `uuid` is malformed."""
        raw = tsp.parse_uuid(uuid.encode(), hyphens=True)
        if raw is None:
            raise UnknownRequest(uuid)
        return Ticket(self, tsp.format_uuid(raw).decode())

    def tickets(self) -> list[Ticket]:
        """Return the open tickets in the file."""
        return [Ticket(self, uuid) for uuid in self.book.load_now()] if self.book is not None else []

    async def results(self, tickets: Iterable[Ticket], *, timeout: float | None = None, window: int = 256) -> AsyncGenerator[Outcome, None]:
        """Yield the outcome of many tickets, each as soon as it is known.

        Args:
            tickets: consumed as far as the window allows.
            timeout: seconds to wait for each, None for no limit.
            window: tickets waited for at once.

        Raises:
            TypeError, ValueError: (when the iteration begins) `window` is no positive integer.
        """
        check_counts(window=window)
        left = iter(tickets)
        waiting: set[asyncio.Task[Outcome]] = set()
        try:
            while True:
                while len(waiting) < window and (ticket := next(left, None)) is not None:
                    waiting.add(asyncio.ensure_future(self._outcome(ticket, timeout)))
                if not waiting:
                    return
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            await cancel_all(waiting)

    async def _outcome(self, ticket: Ticket, timeout: float | None) -> Outcome:
        try:
            return Outcome(ticket, await ticket.result(timeout), None)
        except (TitanicError, mdp.RequestError) as error:
            return Outcome(ticket, None, error)

    async def ask(self, service: bytes, *frames: bytes, timeout: float | None = None, attempts: int | None = None) -> Sequence[bytes]:
        """Call a service of the store and return `[status][...]`; wait for a store that is restarting."""
        wait = service not in (tsp.WAIT, tsp.LOOK)  # absent at a stock store
        try:
            return await self._client.request(service, *frames, timeout=timeout, attempts=attempts, wait=wait)
        except mdp.RequestError:
            self._takes_options = None  # it may be another store now
            raise

    async def look(self, verb: str, *arguments: str | int) -> Any:
        """Query the store as an operator: `look("status")`, `look("requests", service, start, count)`.

        Raises:
            Unavailable: the store cannot answer.
            mdp.RequestError: the store cannot be reached, or is a stock store (NoService).
        """
        frames = await self.ask(tsp.LOOK, verb.encode(), *(str(argument).encode() for argument in arguments))
        code, reason = _status_of(frames)
        if code != 200 or len(frames) < 2:
            raise _unavailable(reason)
        try:
            return read_json(frames[1])
        except BadJson:
            raise _unavailable("the store's answer is not JSON") from None

    async def mmi(self, name: str, *body: str) -> str:
        """Query the broker; see `mdp.Client.mmi`."""
        return await self._client.mmi(name, *body)


def _whole_ms(seconds: float) -> int:
    """Return milliseconds, 0 for 0 only, which is no limit."""
    return round(seconds * 1000) or (seconds > 0) - (seconds < 0)


def _takes(frames: Sequence[bytes], extension: bytes) -> tuple[int, bool]:
    """Return (code, whether the store has an extension) from its answer to `tsp.EXTENSIONS`."""
    code, _ = _status_of(frames)
    return code, code == 200 and extension in frames[1:]


def _status_of(frames: Sequence[bytes]) -> tuple[int, str]:
    """Return (code, reason); a malformed reply counts as 500, which may be tried again."""
    code = tsp.parse_status(frames[0]) if frames else None
    if code is None:
        return 500, "the store's answer has no status"
    return code, frames[1].decode(errors="replace") if len(frames) > 1 else ""


def _unavailable(reason: str) -> TitanicError:
    if reason.startswith("store is full: "):
        return StoreFull(reason.removeprefix("store is full: "))
    if reason.startswith(Wounded.BEGINS):
        return Wounded(reason.removeprefix(Wounded.BEGINS).removesuffix(Wounded.ENDS))
    return Unavailable(reason or "the store answered 500")
