"""Spark session as a Majordomo worker: SQL, and functions over a session, as services.

    async with SparkWorker(spark, "tcp://broker:5555", functions={"sales.by": by}) as worker:
        await worker.serve_forever()

`spark.sql` takes `[query]` or `[query][options]`, a msgpack map of `format` (arrow, msgpack), `session` and `args`; a function takes
`(session, frames)` and returns a DataFrame. The result is sent in parts, each readable by itself: an Arrow stream (IPC) with some of the
rows, or a msgpack array of maps; a result without rows is one part with the columns. A request runs in a thread under its own tag, and
Spark interrupts it when its client disconnects or its time is over; the loop with the heartbeats never waits.

A `session` name gives access to the temporary views and settings of that session only: `mdp.spark.ask_sql` draws names at random, known to
their client only. Without a name each request has a new session. The broker decides which clients may send queries, and a query may read
and write everything that the session may.
"""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgpack
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession as ClassicSession

from core.machine.bounded_msgpack import BadMsgpack, unpack
from core.runtime import supervision
from mdp.errors import HandlerError
from mdp.spark.named_sessions import NamedSessions
from mdp.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from pyspark.sql import DataFrame, SparkSession

    import core
    from core.security.credentials import Secured
    from mdp.request import Request
    from mdp.worker.handler import ServingSettings

    Function = Callable[[SparkSession, Sequence[bytes]], DataFrame]

__all__ = ["SQL", "SparkLimits", "SparkWorker"]

SQL = "spark.sql"
FORMATS = ("arrow", "msgpack")
_SESSION_CHARACTERS_MAX = 64
_INTERRUPT_EVERY_S = 0.1
# Of a part, in Arrow's memory, unless it is one row: well below what brokers pass on, and made without holding up the event loop.
_PIECE_BYTES = 4 * 1024 * 1024
# A map of options has three entries, plus a query's parameters.
_OPTIONS_BYTES_MAX = 64 * 1024
# Arrays, maps, and names in them: of the arguments, which a query has some dozens of.
_OPTIONS_ITEMS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLimits:
    """Limits of one request.

    Attributes:
        rows_max: rows of a result; more is an error, not a truncated result.
        bytes_max: bytes of a result in Arrow's memory; the driver has one for each running request.
        piece_rows: rows of one part; large rows, of together more than 4 MiB, are fewer.
        query_bytes_max: bytes of a query.
        run_s: seconds a request may run.
        concurrency: running requests; each has a thread, and Spark shares its cores among them.
        sessions_max: named sessions; beyond it the least recently used one is dropped, but none in which a request runs.
        session_idle_s: seconds after its last request has ended, after which a named session is dropped.
    """

    rows_max: int = 1_000_000
    bytes_max: int = 256 * 1024 * 1024
    piece_rows: int = 10_000
    query_bytes_max: int = 256 * 1024
    run_s: float = 600.0
    concurrency: int = 4
    sessions_max: int = 64
    session_idle_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be positive")


@dataclass(frozen=True, slots=True)
class SparkRequest:
    """One request: the function that makes the DataFrame, its session, and the format of its rows."""

    run: Callable[[SparkSession], DataFrame]
    session: str
    format: str


class SparkWorker:
    """Worker of `spark.sql` and functions over one Spark session.

    Args:
        spark: each request gets its own session made from this one.
        broker: endpoint, or several in order of preference.
        functions: services by name.
        sql: name of the service for queries, None for none.
        limits: what one request may take.
        context: of the sockets; each worker has its own when left out.
        security: of its own context.
        options: of `mdp.Worker`: `heartbeat_ms`, `drain_s`, …

    Attributes:
        sessions: names of the current named sessions.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: str | Sequence[str],
        *,
        functions: Mapping[str, Function] | None = None,
        sql: str | None = SQL,
        limits: SparkLimits | None = None,
        context: core.Context | None = None,
        security: Secured | None = None,
        **options: Unpack[ServingSettings],
    ) -> None:
        self.limits = limits or SparkLimits()
        self.sessions = NamedSessions(spark.newSession, self.limits.sessions_max, self.limits.session_idle_s)
        self._stack = AsyncExitStack()
        # Twice as many as may run: an interrupted one may still run when the next request comes.
        self._threads = ThreadPoolExecutor(2 * self.limits.concurrency, thread_name_prefix="mdp-spark")
        options.setdefault("concurrency", self.limits.concurrency)
        options.setdefault("credit", self.limits.concurrency)
        where: dict[str, Any] = {"context": context, "security": security}
        self._workers: list[Worker] = []
        if sql is not None:
            self._workers.append(Worker(broker, sql, handler=partial(self._handle, self._query), **where, **options))
        for name, function in (functions or {}).items():
            self._workers.append(Worker(broker, name, handler=partial(self._handle, partial(_call, function)), **where, **options))
        if not self._workers:
            raise ValueError("a worker needs at least one service")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
            for worker in self._workers:
                await stack.enter_async_context(worker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def serve_forever(self) -> None:
        """Return when `stop` is called. Raises `core.ContextTerminated` when the program has ended the context."""
        await self._workers[0].serve_forever()

    def stop(self) -> None:
        """Take no new requests and end `serve_forever`; leaving the block then waits for running ones."""
        for worker in self._workers:
            worker.stop()

    @property
    def connected(self) -> bool:
        """Whether every service is registered."""
        return all(worker.connected for worker in self._workers)

    # ---- one request

    async def _handle(self, parse: Callable[[Sequence[bytes]], SparkRequest], request: Request) -> AsyncIterator[bytes]:
        asked = parse(request.body)
        table = await self._run(asked)
        if asked.format == "msgpack":
            _check_names(table.column_names)
        for piece in _pieces(table, self.limits.piece_rows):
            yield _arrow(piece) if asked.format == "arrow" else msgpack.packb(piece.to_pylist(), default=str)

    async def _run(self, asked: SparkRequest) -> pa.Table:
        """Run in a thread; cancelling this interrupts it in Spark."""
        tag = f"mdp-{uuid.uuid4().hex}"
        sessions: list[SparkSession] = []  # of this request, once it has one
        running = self._threads.submit(self._collect, asked, tag, sessions)
        try:
            async with asyncio.timeout(self.limits.run_s):
                return await asyncio.wrap_future(running)  # cancelled with this, if it has not started
        except TimeoutError:
            raise HandlerError(text=f"TIME_LIMIT: not done after {self.limits.run_s:g} s") from None
        finally:
            if not running.done():
                # In a separate thread: all threads of requests may be busy with requests to interrupt.
                pause = partial(wait, [running])
                supervision.current().thread(
                    "mdp spark interrupt", partial(_interrupt, sessions, tag, running), restart=supervision.RESTART, pause=pause
                )

    def _collect(self, asked: SparkRequest, tag: str, sessions: list[SparkSession]) -> pa.Table:
        limits = self.limits
        try:
            with self.sessions.use(asked.session) as session:
                sessions.append(session)
                _mark(session, tag)
                try:
                    table = asked.run(session).limit(limits.rows_max + 1).toArrow()
                finally:
                    _unmark(session, tag)
        except PySparkException as error:
            raise HandlerError(text=_one_line(error)) from None
        except Py4JError as error:
            raise HandlerError(text=f"SPARK: {_one_line(error)}") from None
        if table.num_rows > limits.rows_max:
            raise HandlerError(text=f"TOO_MANY_ROWS: the result has more than {limits.rows_max}")
        if table.nbytes > limits.bytes_max:
            raise HandlerError(text=f"TOO_MANY_BYTES: the result has {table.nbytes}, at most {limits.bytes_max}")
        return table

    def _query(self, frames: Sequence[bytes]) -> SparkRequest:
        if not 1 <= len(frames) <= 2:
            raise HandlerError(text="BAD_REQUEST: a query and, if need be, options are expected")
        if len(frames[0]) > self.limits.query_bytes_max:
            raise HandlerError(text=f"BAD_REQUEST: a query has up to {self.limits.query_bytes_max} bytes")
        options = _options(frames[1] if len(frames) == 2 else b"")
        try:
            query = frames[0].decode()
        except UnicodeDecodeError:
            raise HandlerError(text="BAD_REQUEST: a query is UTF-8") from None
        args = options.get("args")
        return SparkRequest(lambda session: session.sql(query, args=args), options.get("session", ""), options.get("format", "arrow"))


def _call(function: Function, frames: Sequence[bytes]) -> SparkRequest:
    return SparkRequest(lambda session: function(session, frames), "", "arrow")


def _options(octets: bytes) -> dict[str, Any]:
    if not octets:
        return {}
    if len(octets) > _OPTIONS_BYTES_MAX:
        raise HandlerError(text=f"BAD_REQUEST: options have up to {_OPTIONS_BYTES_MAX} bytes")
    try:
        options = unpack(octets, containers_max=_OPTIONS_ITEMS_MAX, names_max=_OPTIONS_ITEMS_MAX)
    except BadMsgpack:
        raise HandlerError(text="BAD_REQUEST: options are a msgpack map") from None
    if not isinstance(options, dict) or not options.keys() <= {"format", "session", "args"}:
        raise HandlerError(text="BAD_REQUEST: options are a map of format, session and args")
    session = options.get("session", "")
    if not isinstance(session, str) or len(session) > _SESSION_CHARACTERS_MAX:
        raise HandlerError(text=f"BAD_REQUEST: a session's name has up to {_SESSION_CHARACTERS_MAX} characters")
    if options.get("format", "arrow") not in FORMATS:
        raise HandlerError(text=f"BAD_REQUEST: the format is one of {', '.join(FORMATS)}")
    if not isinstance(options.get("args"), dict | list | None):
        raise HandlerError(text="BAD_REQUEST: args are a map or an array")
    return options


def _is_classic(session: SparkSession) -> bool:
    return isinstance(session, ClassicSession)


def _mark(session: SparkSession, tag: str) -> None:
    """Tag this thread's jobs; the thread that sends rows as Arrow sees the context's tags only."""
    session.addTag(tag)
    if _is_classic(session):
        session.sparkContext.addJobTag(tag)


def _unmark(session: SparkSession, tag: str) -> None:
    session.removeTag(tag)
    if _is_classic(session):
        session.sparkContext.removeJobTag(tag)


def _interrupt(sessions: list[SparkSession], tag: str, running: Future[pa.Table]) -> None:
    """Have Spark interrupt a tag's jobs, repeatedly, because a job may begin later.

    It waits for the thread of the request without an event loop, which may have ended by then.
    """
    while not running.done():
        with suppress(Py4JError, PySparkException):  # Spark was stopped, and its jobs with it
            for session in sessions:
                session.interruptTag(tag)
                if _is_classic(session):
                    session.sparkContext.cancelJobsWithTag(tag)
        wait([running], _INTERRUPT_EVERY_S)


def _check_names(names: Sequence[str]) -> None:
    """Raise HandlerError for columns of one name, of which a map has the last."""
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise HandlerError(text=f"DUPLICATE_COLUMNS: {', '.join(again)}: give each a name of its own, or ask for arrow")


def _pieces(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Cut a table into pieces of so many rows, fewer if they are large."""
    for start in range(0, max(table.num_rows, 1), rows):
        yield from _halves(table.slice(start, rows))


def _halves(piece: pa.Table) -> Iterator[pa.Table]:
    if piece.num_rows < 2 or piece.nbytes <= _PIECE_BYTES:
        yield piece
        return
    middle = piece.num_rows // 2
    yield from _halves(piece.slice(0, middle))
    yield from _halves(piece.slice(middle))


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
