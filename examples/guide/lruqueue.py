"""Load-balancing broker: ten clients, three workers, and a queue that gives requests to the longest idle worker."""

from __future__ import annotations

import asyncio

import core
import pirate
from examples.guide.zhelpers import run

CLIENTS, WORKERS = 10, 3


async def client(context: core.Context) -> None:
    """Ask once and print the reply."""
    req = context.socket(core.REQ)
    req.connect("inproc://frontend")
    await req.send(b"HELLO")
    print("Client:", (await req.recv()).decode())


async def worker(context: core.Context) -> None:
    """Answer OK to everything, as a bare REQ socket."""
    req = context.socket(core.REQ)
    req.connect("inproc://backend")
    await req.send(b"READY")
    while True:
        address, empty, request = await req.recv_multipart()
        print("Worker:", request.decode())
        await req.send_multipart([address, empty, b"OK"])


async def main() -> None:
    """Run all of them in one process."""
    async with core.Context() as context, pirate.Queue("inproc://frontend", "inproc://backend", simple=True, context=context):
        workers = [asyncio.ensure_future(worker(context)) for _ in range(WORKERS)]
        await asyncio.gather(*(client(context) for _ in range(CLIENTS)))
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


if __name__ == "__main__":
    run(main())
