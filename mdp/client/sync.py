"""The client for scripts, notebooks and threads: every call waits for its result, the event loop runs on a thread of its own.

    with mdp.SyncClient("tcp://127.0.0.1:5555") as client:
        client.request("echo", b"hello")

Any number of threads may use one client. A loop that already runs in the caller's thread (a notebook's) is not touched.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from core.runtime.loop_thread import LoopThread
from mdp.client.client import Client
from mdp.client.pending import ClientClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
    from types import TracebackType

    from mdp.client.iterators import Body, Outcome
    from mdp.client.pending import RequesterCounters
    from mdp.client.replies import Reply

__all__ = ["SyncClient"]

T = TypeVar("T")

# Requests of `map` are handed to the loop's thread, and their outcomes back, in pieces of up to so many: a change of threads
# costs as much as dozens of requests.
_PIECE_MAX = 64


class SyncClient:
    """`mdp.Client` for code without an event loop.

    Args:
        broker: endpoint, or several in order of preference.
        options: as for `mdp.Client`.

    Raises:
        core.ZMQError: an endpoint or a socket option is not valid.
        ValueError: a number is out of range.
    """

    def __init__(self, broker: str | Sequence[str], **options: Any) -> None:
        self._client = Client(broker, **options)
        self._thread = LoopThread("mdp-client", ClientClosed, self._client.close)
        try:
            self._thread.run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------------------------- calls

    def request(self, service: str | bytes, *frames: bytes, **options: Any) -> list[bytes]:
        """Ask a service and return the reply `[body…]`; arguments and errors as for `mdp.Client.request`."""
        reply = self.submit(service, *frames, **options)
        try:
            return reply.result()
        except BaseException:
            reply.cancel()  # Ctrl-C while waiting takes the request back
            raise

    def submit(self, service: str | bytes, *frames: bytes, **options: Any) -> Future[list[bytes]]:
        """Ask a service and return a future that any thread can wait for; cancelling it takes the request back."""
        done: Future[list[bytes]] = Future()

        def ask() -> None:
            if done.cancelled():
                return
            try:
                reply = self._client.request(service, *frames, **options)
            except BaseException as error:
                if done.set_running_or_notify_cancel():
                    done.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                return
            reply.add_done_callback(lambda _: _pass_on(reply, done))
            done.add_done_callback(lambda _: self._take_back(reply, done))

        self._thread.call_soon(ask)
        return done

    def map(
        self,
        service: str | bytes,
        requests: Iterable[Body],
        *,
        window: int = 256,
        key: Callable[[int], str | bytes] | None = None,
        **options: Any,
    ) -> Generator[Outcome, None, None]:
        """Ask a service once for every body of an iterable and yield the outcomes in order; see `mdp.Client.map`.

        The iterable is read in the caller's thread, up to `window` ahead of what was yielded.
        """
        if window < 1:
            raise ValueError(f"window of {window}: there must be room for one request at least")
        source = iter(requests)
        size = max(1, min(_PIECE_MAX, window // 4))
        pieces: deque[Future[list[Outcome]]] = deque()
        first = 0
        try:
            while True:
                while (len(pieces) + 1) * size <= window and (bodies := list(islice(source, size))):
                    pieces.append(self._thread.start(self._ask_piece(service, bodies, first, key, options)))
                    first += len(bodies)
                if not pieces:
                    return
                yield from pieces[0].result()
                pieces.popleft()
        finally:
            for piece in pieces:
                piece.cancel()

    def stream(self, service: str | bytes, *frames: bytes, **options: Any) -> Generator[list[bytes], None, None]:
        """Ask a service and yield its reply part by part; see `mdp.Client.stream`."""
        yield from self._read(self._client.stream(service, *frames, **options))

    @overload
    def call(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: Mapping[str, Any] | None = None, **named: Any
    ) -> T: ...

    @overload
    def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Any: ...

    def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Any:
        """Call a function that was made a service by its annotations; see `mdp.Client.call`."""
        return self._thread.run(self._client.call(service, *arguments, result=result, options=options, **named))

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: Mapping[str, Any] | None = None, **named: Any
    ) -> Generator[T, None, None]: ...

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Generator[Any, None, None]: ...

    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Generator[Any, None, None]:
        """Call a generator that was made a service by its annotations and yield what it yields; see `mdp.Client.call_stream`."""
        yield from self._read(self._client.call_stream(service, *arguments, result=result, options=options, **named))

    def mmi(self, name: str, *body: str | bytes) -> str:
        """Ask the broker itself; see `mdp.Client.mmi`."""
        return self._thread.run(self._client.mmi(name, *body))

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a broker."""
        return self._client.connected

    @property
    def counters(self) -> RequesterCounters:
        """What happened."""
        return self._client.counters

    # ---------------------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Fail what is open with `ClientClosed` and end the thread; may be called from any thread and more than once."""
        self._thread.end(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------------- inside

    def _read(self, parts: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Read an asynchronous generator in the thread of the caller; leaving early ends it."""
        try:
            while True:
                try:
                    part = self._thread.run(_next(parts))
                except StopAsyncIteration:
                    return
                yield part
        finally:
            with suppress(ClientClosed):  # which has ended the stream already
                self._thread.run(_close(parts))

    def _take_back(self, reply: Reply, done: Future[list[bytes]]) -> None:
        if done.cancelled():
            with suppress(ClientClosed, RuntimeError):  # ended, which ends all requests; or left behind by a fork
                self._thread.call_soon(reply.cancel)

    async def _ask_piece(
        self,
        service: str | bytes,
        bodies: list[Body],
        first: int,
        key: Callable[[int], str | bytes] | None,
        options: dict[str, Any],
    ) -> list[Outcome]:
        keyed = None if key is None else lambda index: key(first + index)
        outcomes = [outcome async for outcome in self._client.map(service, bodies, window=len(bodies), key=keyed, **options)]
        for outcome in outcomes:
            outcome.index += first
        return outcomes


def _pass_on(reply: Reply, done: Future[list[bytes]]) -> None:
    """Hand the end of a request over to the thread that waits for it."""
    if not done.set_running_or_notify_cancel():
        return
    if reply.cancelled():
        done.set_exception(ClientClosed())
    elif (error := reply.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(reply.result())


async def _close(parts: AsyncGenerator[T, None]) -> None:
    await parts.aclose()


async def _next(parts: AsyncGenerator[T, None]) -> T:
    return await anext(parts)
