"""A paired broker whose pair serves when a test says so, and peers of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import core
import mdp
from bstar.errors import NotActive
from bstar.machine.ballot import Ballot
from bstar.machine.fsm import Verdict
from mdp.wire.commands import client_request, worker_final, worker_ready
from mdp.wire.events import Heartbeat, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import number
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    import bstar
    from mdp.wire.events import ClientEvent, WorkerEvent

__all__ = ["BALLOT", "PairedScene", "Peer", "ScriptedPair"]

BALLOT = Ballot(7, 1)


class ScriptedPair:
    """The pair of a broker; it serves when a test says so."""

    def __init__(self) -> None:
        self.may_answer = False
        self.says = Verdict.REJECT
        self.asked: list[Ballot] = []
        self.finished = True  # what `drain` returns
        self.machine = SimpleNamespace(settings=SimpleNamespace(heartbeat_s=2.5))

    def begin(self) -> None:
        """Begin a term."""
        self.may_answer = True
        self._begin()

    def end(self) -> None:
        """End a term."""
        self.may_answer = False
        self._end()

    def on_serving(self, callback: Callable[[], None]) -> None:
        self._begin = callback

    def on_passive(self, callback: Callable[[], Any]) -> None:
        self._end = callback

    def on_handover(self, finish: Callable[[float], Awaitable[bool]], resume: Callable[[], None]) -> None:
        self.finish, self.resume = finish, resume

    def serves(self) -> bool:
        return self.may_answer

    def ballot(self) -> Ballot:
        return BALLOT

    def known(self) -> Ballot:
        return BALLOT

    def vouches(self, seen: Ballot) -> bool:
        return False

    def verdict(self, seen: Ballot) -> Verdict:
        self.asked.append(seen)
        return self.says

    def refusal(self) -> NotActive:
        return NotActive(retry_s=0.5)

    def metrics(self) -> dict[str, float]:
        return {"bstar_serving": float(self.may_answer)}

    async def drain(self, drain_s: float) -> bool:
        return await self.finish(drain_s) and self.finished


class Peer:
    """A worker or a client."""

    def __init__(self, context: core.Context, endpoint: str, name: bytes, **options: int) -> None:
        self.socket = context.socket(core.DEALER, linger=0, **({"routing_id": name} if name else {}), **options)
        self.watch = Watch(self.socket)
        self.socket.connect(endpoint)

    async def offer(self, service: bytes = b"echo", credit: int = 1) -> None:
        await self.socket.send_multipart(worker_ready("0.3", service, options=encode_options({"credit": credit})))

    async def request(self, number_of: int, *body: bytes, service: bytes = b"echo", **options: Any) -> None:
        options = {"wait": True, **options}
        await self.socket.send_multipart(
            client_request("0.3", service, body or [b"x"], id=number(number_of), options=encode_options(options))
        )

    async def answer(self, work: WorkerEvent) -> None:
        assert isinstance(work, Work), work
        await self.socket.send_multipart(worker_final("0.3", work.id, work.body))

    async def work(self) -> WorkerEvent:
        """Return what a worker gets next, heartbeats left out."""
        while isinstance(event := parse_at_worker(await self.socket.recv_multipart()), Heartbeat):
            pass
        return event

    async def told(self) -> ClientEvent:
        """Return what a client gets next."""
        return parse_at_client(await self.socket.recv_multipart())


class PairedScene:
    """A paired broker, its scripted pair, and peers on demand."""

    def __init__(self, **options: Any) -> None:
        self.pair = ScriptedPair()
        self.options = options

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        self.context = await self.stack.enter_async_context(core.Context())
        pair = cast("bstar.Pair", self.pair)
        self.broker = await self.stack.enter_async_context(mdp.PairedBroker(pair, context=self.context, **self.options))
        self.endpoint = self.broker.bind("tcp://127.0.0.1:*")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stack.aclose()

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.broker.pair_counters)

    def peer(self, name: bytes = b"", endpoint: str = "", **options: int) -> Peer:
        return Peer(self.context, endpoint or self.endpoint, name, **options)

    async def worker(self, name: bytes = b"", credit: int = 1) -> Peer:
        """Return a worker that the broker knows."""
        worker, before = self.peer(name), self.broker.stats["workers"]
        await worker.offer(credit=credit)
        await eventually(lambda: self.broker.stats["workers"] == before + 1)
        return worker

    async def until(self, name: str, count: int = 1) -> None:
        """Wait until something of the pair has been counted so often."""
        await eventually(lambda: self.broker.pair_counters[name] >= count)
