"""ROUTER to REQ: work goes to the worker that asks for it, so to the longest idle one."""

from __future__ import annotations

import asyncio
import random
import sys

import core
from examples.guide.zhelpers import run

WORKERS = 10


async def worker(context: core.Context) -> None:
    """Ask for work until END and print the amount."""
    mama = context.socket(core.REQ)
    mama.connect("inproc://routing")
    total = 0
    while True:
        await mama.send(b"ready")
        if await mama.recv() == b"END":
            break
        total += 1
        await asyncio.sleep(random.random() / 100)
    print(f"Processed: {total} tasks")


async def main(tasks: str = "100") -> None:
    """Distribute the tasks, then the ends."""
    async with core.Context() as context, asyncio.TaskGroup() as group:
        client = context.socket(core.ROUTER)
        client.bind("inproc://routing")
        for _ in range(WORKERS):
            group.create_task(worker(context))
        for number in range(int(tasks) + WORKERS):
            address, empty, _ = await client.recv_multipart()
            await client.send_multipart([address, empty, b"This is the workload" if number < int(tasks) else b"END"])


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
