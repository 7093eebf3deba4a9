"""The synchronous client, for scripts, notebooks and threads; its event loop runs in its own thread.

    with mdp.SyncClient("tcp://127.0.0.1:5555") as client:
        client.request("echo", b"hello")

Any number of threads may use one client. A loop that runs in the caller's thread (a notebook's) is not affected.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from core.rpc.sync_facade import SyncFacade
from mdp.client.client import Client
from mdp.errors import ClientClosed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
    from types import ModuleType

    import pyarrow

    from mdp.client.calls import CallOptions, MapOptions
    from mdp.client.client import ClientSettings
    from mdp.client.middleware import ClientMiddleware
    from mdp.client.pending import RequesterCounters
    from mdp.client.replies import Body, Outcome
    from mdp.request import Request

M = TypeVar("M", bound="ClientMiddleware")
P = ParamSpec("P")
T = TypeVar("T")

# `map` passes requests to the loop's thread, and outcomes back, in groups: a change of threads costs as much as dozens of requests.
_GROUP_MAX = 64


class SyncClient(SyncFacade[Client]):
    """`mdp.Client` for code without an event loop.

    Args:
        broker: endpoint, or several in order of preference.
        options: as for `mdp.Client`.

    Raises:
        core.ZMQError: an endpoint or a socket option is not valid.
        ValueError: a number is out of range.
    """

    def __init__(self, broker: str | Sequence[str], **options: Unpack[ClientSettings]) -> None:
        super().__init__(Client(broker, **options), "mdp-client", ClientClosed)

    # -------------------------------------------------------------------------------------------------------------- calls

    def with_options(self, **options: Unpack[CallOptions]) -> Self:
        """Return this client with other options; see `mdp.Client.with_options`."""
        view = copy(self)
        view._client = self._client.with_options(**options)
        return view

    def middleware(self, function: M) -> M:
        """Add middleware, a coroutine function that runs in the thread of this client; see `mdp.Client.middleware`."""
        return self._client.middleware(function)

    def request(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> list[bytes]:
        """Send a request and return the reply `[body…]`; arguments and errors as for `mdp.Client.request`."""
        return self._thread.wait(self.submit(service, *frames, **options))

    def submit(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> Future[list[bytes]]:
        """Send a request and return a future that any thread can wait for; cancelling it cancels the request."""
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
            reply.add_done_callback(lambda _: _settle(reply, done))
            done.add_done_callback(lambda _: self._cancel_with(reply, done))

        self._thread.call_soon(ask)
        return done

    def map(
        self,
        service: str | bytes,
        requests: Iterable[Body],
        *,
        window: int = 256,
        key: Callable[[int], str | bytes] | None = None,
        **options: Unpack[MapOptions],
    ) -> Generator[Outcome, None, None]:
        """Send one request per body of an iterable and yield the outcomes in order; see `mdp.Client.map`.

        The iterable is read in the caller's thread, up to `window` ahead of what was yielded.
        """
        if window < 1:
            raise ValueError(f"window of {window}: it must be positive")
        key = key or self._client.defaults.key_of
        source = iter(requests)
        size = max(1, min(_GROUP_MAX, window // 4))
        groups: deque[Future[list[Outcome]]] = deque()
        first = 0
        try:
            while True:
                while (len(groups) + 1) * size <= window and (bodies := list(islice(source, size))):
                    groups.append(self._thread.start(self._map_group(service, bodies, first, key, options)))
                    first += len(bodies)
                if not groups:
                    return
                yield from self._thread.wait(groups[0])
                groups.popleft()
        finally:
            for group in groups:
                group.cancel()

    def stream(self, service: str | bytes, *frames: bytes, **options: Unpack[CallOptions]) -> Generator[list[bytes], None, None]:
        """Send a request and yield its reply part by part; see `mdp.Client.stream`."""
        yield from self._iterate(self._client.stream(service, *frames, **options))

    def request_batch(
        self, service: str | bytes, table: pyarrow.Table | pyarrow.RecordBatch, **options: Unpack[CallOptions]
    ) -> pyarrow.Table:
        """Ask a batch service about the rows of a table; see `mdp.Client.request_batch`."""
        return self._run(self._client.request_batch(service, table, **options))

    @overload
    def call(self, service: str | bytes, /, *arguments: Any, result: type[T], options: CallOptions | None = None, **named: Any) -> T: ...

    @overload
    def call(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: CallOptions | None = None, **named: Any
    ) -> Any: ...

    def call(self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: CallOptions | None = None, **named: Any) -> Any:
        """Call a typed function; see `mdp.Client.call`."""
        return self._run(self._client.call(service, *arguments, result=result, options=options, **named))

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: type[T], options: CallOptions | None = None, **named: Any
    ) -> Generator[T, None, None]: ...

    @overload
    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = None, options: CallOptions | None = None, **named: Any
    ) -> Generator[Any, None, None]: ...

    def call_stream(
        self, service: str | bytes, /, *arguments: Any, result: Any = Any, options: CallOptions | None = None, **named: Any
    ) -> Generator[Any, None, None]:
        """Call a typed generator and yield its values; see `mdp.Client.call_stream`."""
        yield from self._iterate(self._client.call_stream(service, *arguments, result=result, options=options, **named))

    @overload
    def stub(
        self, functions: Callable[Concatenate[Request, P], AsyncIterator[T]], *, options: CallOptions | None = None
    ) -> Callable[P, Generator[T, None, None]]: ...

    @overload
    def stub(
        self, functions: Callable[Concatenate[Request, P], Coroutine[Any, Any, T]], *, options: CallOptions | None = None
    ) -> Callable[P, T]: ...

    @overload
    def stub(
        self, functions: Callable[P, AsyncIterator[T]], *, options: CallOptions | None = None
    ) -> Callable[P, Generator[T, None, None]]: ...

    @overload
    def stub(self, functions: Callable[P, Coroutine[Any, Any, T]], *, options: CallOptions | None = None) -> Callable[P, T]: ...

    @overload
    def stub(self, functions: ModuleType, *, options: CallOptions | None = None) -> Any: ...

    @overload
    def stub(self, functions: Callable[P, T], *, options: CallOptions | None = None) -> Callable[P, T]: ...

    def stub(self, functions: Any, *, options: CallOptions | None = None) -> Any:
        """Return a plain function, or generator, that calls a typed service; see `mdp.Client.stub`."""
        from mdp.typed import stubs  # late: not every client needs it

        return stubs.plain_stub_of(self._client.stub(functions, options=options), self._run, self._iterate)

    def mmi(self, name: str, *body: str | bytes) -> str:
        """Query the broker; see `mdp.Client.mmi`."""
        return self._run(self._client.mmi(name, *body))

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a broker."""
        return self._client.connected

    @property
    def counters(self) -> RequesterCounters:
        """Counters of the client."""
        return self._client.counters

    def _cancel_with(self, reply: asyncio.Future[list[bytes]], done: Future[list[bytes]]) -> None:
        if done.cancelled():
            with suppress(ClientClosed, RuntimeError):  # closed, which ends all requests; or a copy in a forked process
                self._thread.call_soon(reply.cancel)

    async def _map_group(
        self,
        service: str | bytes,
        bodies: list[Body],
        first: int,
        key: Callable[[int], str | bytes] | None,
        options: MapOptions,
    ) -> list[Outcome]:
        keyed = None if key is None else lambda index: key(first + index)
        outcomes = [outcome async for outcome in self._client.map(service, bodies, window=len(bodies), key=keyed, **options)]
        for outcome in outcomes:
            outcome.index += first
        return outcomes


def _settle(reply: asyncio.Future[list[bytes]], done: Future[list[bytes]]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    if reply.cancelled():
        done.set_exception(ClientClosed())
    elif (error := reply.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(reply.result())
