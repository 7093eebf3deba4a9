"""Two Titanics of a pair in this process, at a broker, on loopback; and what is done to them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import bstar
import mdp
import titanic
from tests.scenes.bstar_sockets import until
from tests.scenes.mdp_handlers import echo
from titanic.journal.disk import HeldDisk
from titanic.paired_store import PairedOptions, PairedTitanic
from titanic.store.index.limits import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import core

JOURNAL = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))
FAST = titanic.ServiceOptions(dispatch=DispatchOptions(retry_s=0.02, retry_max_s=0.2, probe_s=0.02, probe_max_s=0.1))
HEARTBEAT_MS = 400
ROLES = (bstar.PRIMARY, bstar.BACKUP)
# Where nobody is to go on alone, or to be late to take over.
LONG_S = 120.0


class Two:
    """A broker and two Titanics that are started and stopped one by one.

    Args:
        folder: for their directories and sockets.
        witness: run one.
        secured: makes the security of everybody, None for none.
        heartbeat_ms: of the pair; after a pause of two of them a server gives up its term.
        options: of both, see `PairedOptions`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        witness: bool = False,
        secured: Callable[[], core.Curve] | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.heartbeat_ms = heartbeat_ms
        self._security = (lambda: None) if secured is None else secured
        self.options = {"window_s": LONG_S, "go_on": True, **options}
        self.running: list[PairedTitanic | None] = [None, None]
        self._witness = witness
        self._stacks = [AsyncExitStack(), AsyncExitStack()]
        self._stack = AsyncExitStack()
        self.broker: mdp.Broker
        self.endpoint: str
        self.client: titanic.Client

    async def __aenter__(self) -> Self:
        self.broker = await self._stack.enter_async_context(mdp.Broker(security=self._security()))
        self.endpoint = self.broker.bind(f"ipc://{self.folder}/broker")
        if self._witness:
            await self._stack.enter_async_context(
                bstar.Witness(f"ipc://{self.folder}/witness", heartbeat_ms=self.heartbeat_ms, security=self._security())
            )
        self.client = await self._stack.enter_async_context(
            titanic.Client(self.endpoint, timeout=2.0, attempts=30, security=self._security())
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for n in (0, 1):
            await self.stop(n)
        await self._stack.aclose()

    def where(self, what: str, n: int) -> str:
        return f"ipc://{self.folder}/{what}{n}"

    def store(self, n: int) -> Path:
        return self.folder / f"store{n}"

    async def start(self, n: int, **more: Any) -> PairedTitanic:
        stack = self._stacks[n] = AsyncExitStack()
        pair = bstar.Pair(
            ROLES[n],
            local=self.where("state", n),
            remote=self.where("state", 1 - n),
            witness=f"ipc://{self.folder}/witness" if self._witness else None,
            heartbeat_ms=self.heartbeat_ms,
            security=self._security(),
            store=self.folder / f"ballot{n}",
            lone_backup=True,  # which of them is active, and how often that changes, is no matter of these tests
        )
        await stack.enter_async_context(pair)
        options = PairedOptions(
            brokers=[self.endpoint],
            mirror=self.where("mirror", 1 - n),
            mirror_bind=self.where("mirror", n),
            journal=JOURNAL,
            service=FAST,
            security=self._security(),
            **{**self.options, **more},
        )
        one = PairedTitanic(pair, HeldDisk(self.store(n)), options)
        await stack.enter_async_context(one)
        self.running[n] = one
        return one

    async def stop(self, n: int) -> None:
        """Stop one without a word: nothing is handed over."""
        self.running[n] = None
        await self._stacks[n].aclose()

    def serving(self, n: int) -> bool:
        one = self.running[n]
        return one is not None and one.service is not None and one.service.connected and one.pair.serves()

    def in_step(self, n: int) -> bool:
        """Tell whether this one serves, and its mirror holds everything and may take over."""
        one, other = self.running[n], self.running[1 - n]
        if one is None or other is None or not self.serving(n):
            return False
        return bool(one.status()["mirror"] == "in step" and other.status().get("may_take_over_s"))

    async def settled(self) -> int:
        """Return the serving half, once the other one is in step."""
        await until(lambda: self.in_step(0) or self.in_step(1), "one serves and the other is in step")
        return 0 if self.in_step(0) else 1

    async def submit(self, *bodies: str, service: str = "echo") -> list[titanic.Ticket]:
        return list(await asyncio.gather(*(self.client.submit(service, body.encode()) for body in bodies)))

    async def answered(self, tickets: list[titanic.Ticket]) -> list[str]:
        """Return what a worker that comes now answers."""
        async with mdp.Worker(self.endpoint, "echo", handler=echo, security=self._security()):
            return [(await ticket.result(60))[0].decode() for ticket in tickets]
