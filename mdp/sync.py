"""The client for scripts, notebooks and threads: every call waits for its result, the event loop runs on a thread of its own.

    with mdp.SyncClient("tcp://127.0.0.1:5555") as client:
        client.request("echo", b"hello")

Any number of threads may use one client. A loop that already runs in the caller's thread (a notebook's) is not touched.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

from core.loop import loop_factory
from mdp.client import Client
from mdp.waiting import ClientClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
    from types import TracebackType

    from mdp.client import Body, Outcome, Reply
    from mdp.waiting import RequesterCounters

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
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()  # what is handed to the loop is handed over before it is told to stop, or refused
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._serve, name="mdp-client", daemon=True)
        self._thread.start()
        try:
            self._start(self._client.__aenter__()).result()
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

        self._call_soon(ask)
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
                    pieces.append(self._start(self._ask_piece(service, bodies, first, key, options)))
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
        parts = self._client.stream(service, *frames, **options)
        try:
            while True:
                part = self._start(_next(parts)).result()
                if part is None:
                    return
                yield part
        finally:
            with suppress(ClientClosed):  # which has ended the stream already
                self._start(_close(parts)).result()

    def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: Mapping[str, Any] | None = None, **named: Any
    ) -> Any:
        """Call a function that was made a service by its annotations; see `mdp.Client.call`."""
        return self._start(self._client.call(service, *arguments, result=result, options=options, **named)).result()

    def mmi(self, name: str, *body: str | bytes) -> str:
        """Ask the broker itself; see `mdp.Client.mmi`."""
        return self._start(self._client.mmi(name, *body)).result()

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
        if os.getpid() != self._pid:
            return  # a forked copy has no thread and must leave the connection to the original
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            # What other threads have handed over by now is ahead of this; what they try later is refused.
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------------- inside

    def _serve(self) -> None:
        """Run the loop until it is stopped, then end what is left on it."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"this client belongs to process {self._pid}: make another one after the fork")
        if self._closed:
            raise ClientClosed

    def _call_soon(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._check()
            self._loop.call_soon_threadsafe(call)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop's thread."""
        try:
            with self._lock:
                self._check()
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise

    def _take_back(self, reply: Reply, done: Future[list[bytes]]) -> None:
        if done.cancelled():
            with self._lock:
                if not self._closed:
                    self._loop.call_soon_threadsafe(reply.cancel)

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


async def _close(parts: AsyncGenerator[list[bytes], None]) -> None:
    await parts.aclose()


async def _next(parts: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
    return await anext(parts, None)
