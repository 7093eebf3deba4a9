"""CPU time of the worker per request and answer, without sockets: `python -m benchmarks.micro_worker`.

The machine alone, and the machine with a runner that calls `async def echo`.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import TYPE_CHECKING

from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_message
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V03, WORKER_REQUEST_03
from mdp.worker.handler import HandlerKind
from mdp.worker.runners import Runners
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions

if TYPE_CHECKING:
    from mdp.request import Request

BATCH = 200
ROUNDS = 500
REPEATS = 7


def registered() -> WorkerSession:
    """Return a session that waits for requests."""
    search = BrokerSearch(["tcp://127.0.0.1:1"], V03, SearchTimes(), lambda: 0.0)
    session = WorkerSession("echo", search, SessionOptions(credit=BATCH))
    search.start(0.0)
    session.joined(0.0)
    session.take_outgoing(0.0)
    return session


def batch_of(number: int) -> bytes:
    """Return requests as they are received."""
    return b"".join(encode_message([WORKER_REQUEST_03 + (number + n).to_bytes(8, "big"), b"", b"x" * 16]) for n in range(BATCH))


def taken(session: WorkerSession, octets: bytes) -> list[Request]:
    """Deliver the bytes of a batch to the session."""
    return session.receive(Decoder(on_command=lambda _: None).feed(octets), 0.0)


def machine_alone() -> float:
    """Return seconds per request and answer."""
    session = registered()
    spent = 0.0
    for turn in range(ROUNDS):
        batch = batch_of(turn * BATCH)
        began = time.thread_time()
        for request in taken(session, batch):
            session.answer(request, request.body)
        outgoing = session.take_outgoing(0.0)
        spent += time.thread_time() - began
        if len(outgoing) != BATCH:
            raise SystemExit("answers were lost")
    return spent / (ROUNDS * BATCH)


async def echo(request: Request) -> bytes:
    """Answer with the body."""
    return request.body[0]


async def with_runner() -> float:
    """Return seconds per request and answer."""
    session = registered()
    idle = asyncio.Event()

    async def room(request: Request) -> None:
        raise SystemExit("echo sends no parts")

    def nothing(*_: object) -> None:
        pass

    runners = Runners(
        echo,
        HandlerKind.COROUTINE,
        16,
        clock=time.monotonic,
        on_answer=nothing,
        on_give_back=nothing,
        on_idle=idle.set,
        parts_max_bytes=0,
        cancel_s=1.0,
        wait_for_capacity=room,
    )
    spent = 0.0
    for turn in range(ROUNDS):
        batch = batch_of(turn * BATCH)
        idle.clear()
        began = time.thread_time()
        runners.put(taken(session, batch))
        await idle.wait()
        outgoing = session.take_outgoing(0.0)
        spent += time.thread_time() - began
        if len(outgoing) != BATCH:
            raise SystemExit("answers were lost")
    await runners.close()
    return spent / (ROUNDS * BATCH)


def main() -> None:
    """Print medians of several runs, in microseconds."""
    costs = [machine_alone() for _ in range(REPEATS)]
    print(f"machine:             {median(costs) * 1e6:.2f} us per request and answer (best {min(costs) * 1e6:.2f})")
    costs = [asyncio.run(with_runner()) for _ in range(REPEATS)]
    print(f"machine and handler: {median(costs) * 1e6:.2f} us per request and answer (best {min(costs) * 1e6:.2f})")


if __name__ == "__main__":
    main()
