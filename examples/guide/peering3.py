"""Full cluster: all three flows, clients with bursts, a monitor. The broker is that of the package.

python -m examples.guide.peering3 DC1 DC2 DC3      # my name, my peers' names; one in each of three terminals
"""

from __future__ import annotations

import asyncio
import random
import sys

import core
import peering

CLIENTS, WORKERS = 10, 5


async def client(context: core.Context, broker: peering.Broker, requests: int | None) -> None:
    """Send bursts of up to 14 tasks; report a task without a reply in 10 s, and end."""
    socket, monitor = context.socket(core.REQ, linger=0), context.socket(core.PUSH)
    with socket, monitor:
        socket.connect(broker.localfe)
        monitor.connect(f"ipc://{broker.name}-monitor.ipc")
        while requests is None or requests > 0:
            await asyncio.sleep(random.randrange(5) if requests is None else 0)
            for _ in range(random.randrange(15)):
                task = b"%04X" % random.randrange(0x10000)
                await socket.send(task)
                if not await socket.poll(10_000):
                    await monitor.send(b"E: CLIENT EXIT - lost task " + task)
                    return
                reply = await socket.recv()
                assert reply == task  # a worker echoes the task
                await monitor.send(reply)
                requests = None if requests is None else requests - 1


async def worker(context: core.Context, broker: peering.Broker, seconds: float) -> None:
    """Take some time for each task, and echo it."""
    with context.socket(core.REQ, linger=0) as socket:
        socket.connect(broker.localbe)
        await socket.send(b"READY")
        while True:
            task = await socket.recv_multipart()
            await asyncio.sleep(random.uniform(0, seconds))
            await socket.send_multipart(task)


async def main(name: str, peers: list[str], requests: int | None = None, seconds: float = 1.0) -> None:
    """Run a broker with clients and workers until the clients are done, and print the monitor's messages."""
    async with core.Context() as context, peering.Broker(name, dict.fromkeys(peers)) as broker, context.socket(core.PULL) as monitor:
        monitor.bind(f"ipc://{name}-monitor.ipc")
        monitor.set_receiver(lambda batch: [print(frames[0].decode(), flush=True) for frames in batch] and None)
        workers = [asyncio.create_task(worker(context, broker, seconds)) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*(client(context, broker, requests) for _ in range(CLIENTS)))
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("syntax: peering3.py me {you}…")
    print(f"I: preparing broker at {sys.argv[1]}…")
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
