"""Synchronous client for scripts, notebooks and threads; the event loop runs on its own thread.

    with freelance.SyncClient(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"]) as client:
        client.request(b"hello")

Any number of threads may use one client. A loop that already runs in the caller's thread (as in a notebook) is not touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from core.rpc.sync_facade import SyncFacade
from freelance.client import Client
from freelance.errors import ClientClosed

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from concurrent.futures import Future

    from freelance.client import ClientSettings

__all__ = ["SyncClient"]


class SyncClient(SyncFacade[Client]):
    """`freelance.Client` for code without an event loop.

    Args:
        endpoints: of the servers, most wanted first.
        options: as for `freelance.Client`.

    Raises:
        core.ZMQError: an endpoint or a socket option is not valid.
        ValueError: as `freelance.Client`.
    """

    def __init__(self, endpoints: Sequence[str], **options: Unpack[ClientSettings]) -> None:
        super().__init__(Client(endpoints, **options), "freelance-client", ClientClosed)

    def request(self, *frames: bytes, timeout: float | None = None) -> list[bytes]:
        """Send a request and return the reply's body frames; arguments and errors as for `freelance.Client.request`."""
        return self._run(self._client.request(*frames, timeout=timeout))

    def submit(self, *frames: bytes, timeout: float | None = None) -> Future[list[bytes]]:
        """Send a request and return a future that any thread can wait for; cancelling it forgets the request."""
        return self._thread.start(self._client.request(*frames, timeout=timeout))

    def add_server(self, endpoint: str) -> None:
        """See `freelance.Client.add_server`."""
        self._call(self._client.add_server, endpoint)

    def remove_server(self, endpoint: str) -> None:
        """See `freelance.Client.remove_server`."""
        self._call(self._client.remove_server, endpoint)

    @property
    def live(self) -> list[str]:
        """Endpoints of the servers that may be asked now, in order of priority (model 3)."""
        return self._call(lambda: self._client.live)

    @property
    def counters(self) -> Counter[str]:
        """Requests sent, dropped and given up, by name (models 2 and 3)."""
        return self._client.counters
