"""Runners whose session keeps how each request ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.scenes.mdp_runners import Session, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.request import Request


NOW = 1000.0


REFUSAL = b"a refusal"


class Ledger(Session):
    """Keeps what became of each request, and whether a request ended twice."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[Request, str] = {}
        self.held = True

    def answer(self, request: Request, body: Sequence[bytes]) -> None:
        super().answer(request, body)
        self._end(request, "answered")

    def refuse(self, request: Request, code: str, text: str) -> None:
        super().refuse(request, code, text)
        self._end(request, code)
        self.outgoing.append(REFUSAL)

    def holds(self, request: Request) -> bool:
        return self.held

    def _end(self, request: Request, end: str) -> None:
        assert request not in self.ends
        assert REFUSAL not in self.outgoing, "what was refused leaves at once"
        self.ends[request] = end


def staged(handler: Callable[[Request], Any], concurrency: int = 1, **options: Any) -> tuple[Stage, Ledger]:
    stage = Stage(handler, concurrency, **{"clock": lambda: NOW, **options})
    stage.session = ledger = Ledger()
    return stage, ledger


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0)
