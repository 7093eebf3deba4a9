"""Requests in flight whose outcomes say whether the broker had the reply before (`dispatch(…, replayed=True)`).

The broker is asked about the keys of requests that are sent together, and they are sent when it has answered (`mmi.keys`).
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Protocol

import msgpack

from core.runtime import supervision
from mdp.errors import RequestError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence

    from mdp.client.client import Outcome

_QUESTION: Final = "mmi.keys"
_OK: Final = b"200"
_KEPT: Final = b"k"

log = logging.getLogger("mdp.spark")


class AskingClient(Protocol):
    """The client operation that is needed here."""

    def request(self, service: str, *frames: bytes, attempts: int) -> Awaitable[list[bytes]]: ...  # the reply's body frames


class Requests(Protocol):
    """Requests in flight; see `mdp.client.iterators.RequestWindow`."""

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int: ...

    def take(self) -> Sequence[Outcome]: ...

    async def withdraw(self) -> None: ...


class ReplayedWindow:
    """Requests whose outcomes say whether they were replayed; with the methods of `Requests`."""

    def __init__(self, client: AskingClient, service: str, requests: Requests) -> None:
        self._client = client
        self._service = service
        self._requests = requests
        self._count = 0
        self._sent: dict[int, tuple[int, bool]] = {}  # by the index in `requests`: index here, whether it was replayed
        self._asking: set[asyncio.Task[None]] = set()

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        """Ask about the keys, then send the requests; return the index of the first."""
        first = self._count
        self._count += len(bodies)
        ask = partial(self._ask, first, bodies, keys)
        supervision.current().task(
            "mdp dispatch keys", ask, restart=supervision.ONCE, failed=partial(self._unknown, first, bodies, keys), among=self._asking
        )
        return first

    def take(self) -> Sequence[Outcome]:
        """Return the outcomes of the requests that have ended since the last call."""
        ended = []
        for outcome in self._requests.take():
            found = self._sent.pop(outcome.index, None)
            if found is not None:
                outcome.index, outcome.replayed = found
                ended.append(outcome)
        return ended

    async def withdraw(self) -> None:
        for task in [*self._asking]:
            task.cancel()
        self._sent.clear()
        await self._requests.withdraw()

    async def _ask(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> None:
        question = bytes(msgpack.packb([key.encode() for key in keys]))
        try:
            code, *answer = await self._client.request(_QUESTION, question, self._service.encode(), attempts=1)
        except RequestError:  # the requests will show what it is
            code, answer = b"", []
        states = answer[0] if code == _OK and answer and len(answer[0]) == len(keys) else b""
        if code not in (_OK, b""):
            _say_once(code.decode(errors="replace"))
        self._pass_on(first, bodies, keys, states)

    def _unknown(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str], error: Exception) -> None:
        self._pass_on(first, bodies, keys, b"")

    def _pass_on(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str], states: bytes) -> None:
        at = self._requests.send(bodies, keys)
        for number in range(len(bodies)):
            self._sent[at + number] = (first + number, states[number : number + 1] == _KEPT)


@cache
def _say_once(code: str) -> None:
    log.warning("the broker does not tell which replies it keeps (mmi.keys: %s): _replayed is false", code)
