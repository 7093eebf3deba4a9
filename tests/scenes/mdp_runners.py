"""The runners of a worker with everything around them made up: what is answered is kept."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from mdp.request import Request
from mdp.worker.handler import HandlerKind
from mdp.worker.runners import Runners

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Session", "Stage"]


class Session:
    """Stands in for the session of a request: keeps what is answered."""

    def __init__(self) -> None:
        self.answers: list[Sequence[bytes]] = []
        self.refusals: list[str] = []
        self.outgoing: list[bytes] = []
        self.parts = 0
        self.can_refuse = True
        self.can_send_parts = True

    def answer(self, request: Request, body: Sequence[bytes]) -> None:
        self.answers.append(body)
        self.outgoing.append(b"an answer")

    def send_part(self, request: Request, body: Sequence[bytes]) -> None:
        self.parts += 1

    def end_cancelled(self, request: Request) -> bool:
        if held := self.holds(request):
            self.refuse(request, "CANCELLED", "")
        return held

    def refuse(self, request: Request, code: str, text: str) -> None:
        self.refusals.append(code)

    def holds(self, request: Request) -> bool:
        return True


class Stage:
    """Runners with one handler, given requests by the loop itself, as a socket's receiver is called."""

    def __init__(
        self,
        handler: Callable[[Request], Any],
        concurrency: int = 2,
        *,
        kind: HandlerKind = HandlerKind.COROUTINE,
        parts_max_bytes: int = 2**30,
        clock: Callable[[], float] = time.monotonic,
        cancel_s: float = 5,
    ) -> None:
        self.session = Session()
        self.flushes = 0
        self.room = asyncio.Event()
        self.room.set()
        self.fails_flushing = False
        self.idle = asyncio.Event()
        self.given_back: list[BaseException] = []
        self.runners = Runners(
            handler,
            kind,
            concurrency,
            parts_max_bytes=parts_max_bytes,
            cancel_s=cancel_s,
            clock=clock,
            on_answer=self._flush,
            on_give_back=lambda request, error: self.given_back.append(error),
            on_idle=self.idle.set,
            wait_for_capacity=self._room,
        )

    async def _room(self, request: Request) -> None:
        """There is, unless a test says otherwise."""
        await self.room.wait()

    def _flush(self) -> None:
        if self.fails_flushing:
            self.fails_flushing = False
            raise RuntimeError("a fault of ours")
        self.flushes += 1
        self.session.outgoing.clear()

    def request(self, body: bytes = b"x") -> Request:
        return Request("echo", [body], b"token", b"token", self.session)

    async def warm(self) -> None:
        """Let one request pass, so that there is a runner."""
        self.give(self.request(b"warm"))
        await self.done()
        self.session.answers.clear()

    def give(self, *requests: Request) -> None:
        asyncio.get_running_loop().call_soon(self.runners.put, list(requests))

    async def done(self) -> None:
        self.idle.clear()
        async with asyncio.timeout(100):
            await self.idle.wait()

    async def __aenter__(self) -> Stage:
        await self.warm()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runners.close()
