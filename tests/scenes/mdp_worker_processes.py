"""A process that forks workers: hundreds of them, without starting Python hundreds of times.

    python -m tests.scenes.mdp_worker_processes BROKER

A line on standard input makes one more worker of the service `echo` and prints its process id; the end of the input ends the nursery, and
the workers with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mdp.worker.worker import Worker  # here, and not when it is used first: before the forks

if TYPE_CHECKING:
    from mdp.request import Request

ROOT = Path(__file__).parents[2]
HANDLING_S = 0.002  # long enough for requests to be in flight when a worker is killed


async def echo(request: Request) -> list[bytes]:
    await asyncio.sleep(HANDLING_S)
    return request.body


async def work(broker: str) -> None:
    async with Worker(broker, "echo", handler=echo, concurrency=4, dialect="0.3", reconnect_ms=50, reconnect_max_ms=100) as worker:
        await worker.serve_forever()


def main() -> None:
    children: set[int] = set()
    for _ in sys.stdin.buffer:
        # Only then may their numbers be given to others, who must not be killed in their place.
        children.difference_update(ended(children))
        child = os.fork()
        if not child:
            sys.stdin.close()
            asyncio.run(work(sys.argv[1]))
            return
        children.add(child)
        print(child, flush=True)  # noqa: T201
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def ended(children: set[int]) -> set[int]:
    """Wait for those that are gone, and return them."""
    return {child for child in children if os.waitpid(child, os.WNOHANG)[0]}


class Nursery:
    """The nursery of one broker; all of its workers are gone when the block is left."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.mdp_worker_processes", self._broker],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def hire(self) -> int:
        """Start a worker and return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @staticmethod
    def kill(worker: int) -> None:
        os.kill(worker, signal.SIGKILL)


if __name__ == "__main__":
    main()
