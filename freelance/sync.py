"""The client for scripts, notebooks and threads: every call waits for its reply, the event loop runs on a thread of its own.

    with freelance.SyncClient(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"]) as client:
        client.request(b"hello")

Any number of threads may use one client. A loop that already runs in the caller's thread (a notebook's) is not touched.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from core.loop import loop_factory
from freelance.client import Client
from freelance.errors import ClientClosed

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import Future
    from types import TracebackType

__all__ = ["SyncClient"]

T = TypeVar("T")


class SyncClient:
    """`freelance.Client` for code without an event loop.

    Args:
        endpoints: of the servers, most wanted first.
        options: as for `freelance.Client`.

    Raises:
        core.ZMQError: an endpoint or a socket option is not valid.
        ValueError: as `freelance.Client`.
    """

    def __init__(self, endpoints: Sequence[str], **options: Any) -> None:
        self._client = Client(endpoints, **options)
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()  # what is handed to the loop is handed over before it is told to stop, or refused
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._serve, name="freelance-client", daemon=True)
        self._thread.start()
        try:
            self._start(self._client.__aenter__()).result()
        except BaseException:
            self.close()
            raise

    def request(self, *frames: bytes, timeout: float | None = None) -> list[bytes]:
        """Ask and return the reply's body frames; arguments and errors as for `freelance.Client.request`."""
        reply = self.submit(*frames, timeout=timeout)
        try:
            return reply.result()
        except BaseException:
            reply.cancel()  # Ctrl-C while waiting takes the request back
            raise

    def submit(self, *frames: bytes, timeout: float | None = None) -> Future[list[bytes]]:
        """Ask and return a future that any thread can wait for; cancelling it forgets the request."""
        return self._start(self._client.request(*frames, timeout=timeout))

    def add_server(self, endpoint: str) -> None:
        """See `freelance.Client.add_server`."""
        self._start(_call(self._client.add_server, endpoint)).result()

    def remove_server(self, endpoint: str) -> None:
        """See `freelance.Client.remove_server`."""
        self._start(_call(self._client.remove_server, endpoint)).result()

    @property
    def live(self) -> list[str]:
        """Endpoints of the servers that may be asked now, in the order of their priority (model 3)."""
        return self._start(_call(lambda: self._client.live)).result()

    @property
    def counters(self) -> Counter[str]:
        """What was sent, dropped, given up, by name (models 2 and 3)."""
        return self._client.counters

    def close(self) -> None:
        """Fail what is open with `ClientClosed` and end the thread; may be called from any thread and more than once."""
        if os.getpid() != self._pid:
            return  # a forked copy has no thread and must leave the connections to the original
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            asyncio.run_coroutine_threadsafe(self._client.__aexit__(None, None, None), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------------------

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

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop's thread.

        Raises:
            ClientClosed: there is no such thread any more.
            RuntimeError: the client belongs to the process this one was forked from.
        """
        with self._lock:
            if os.getpid() == self._pid and not self._closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        if os.getpid() != self._pid:
            raise RuntimeError(f"this client belongs to process {self._pid}: make another one after the fork")
        raise ClientClosed


async def _call(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
