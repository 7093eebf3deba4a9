"""ROUTER to DEALER: a weighted random scatter, twice as much work for A as for B.

The guide's program sleeps for a second until the workers are connected. Here each worker announces itself.
"""

from __future__ import annotations

import asyncio
import random
import sys

import core
from examples.guide.zhelpers import run


async def worker(context: core.Context, name: bytes) -> None:
    """Take work until END and print the amount."""
    dealer = context.socket(core.DEALER, identity=name)
    dealer.connect("inproc://routing")
    await dealer.send(b"here I am")
    total = 0
    while await dealer.recv() != b"END":
        total += 1
    print(f"{name.decode()} received: {total}")


async def main(tasks: str = "10") -> None:
    """Scatter the tasks."""
    async with core.Context() as context, asyncio.TaskGroup() as group:
        client = context.socket(core.ROUTER)
        client.bind("inproc://routing")
        for name in (b"A", b"B"):
            group.create_task(worker(context, name))
        for _ in range(2):
            await client.recv_multipart()
        for _ in range(int(tasks)):
            await client.send_multipart([random.choice([b"A", b"A", b"B"]), b"This is the workload"])
        for name in (b"A", b"B"):
            await client.send_multipart([name, b"END"])


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
