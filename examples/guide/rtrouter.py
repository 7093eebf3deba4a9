"""ROUTER to ROUTER: each must know the other's name before it can send."""

from __future__ import annotations

import asyncio

import core
from examples.guide.zhelpers import dump, run


async def main() -> None:
    """Send a message each way."""
    async with core.Context() as context:
        worker = context.socket(core.ROUTER, identity=b"WORKER")
        worker.bind("inproc://routing")
        server = context.socket(core.ROUTER, identity=b"SERVER")
        met = asyncio.Event()
        server.set_receiver(None, on_peer=lambda name, joined: met.set())
        server.connect("inproc://routing")

        await met.wait()  # the guide's program sleeps for a second
        await server.send_multipart([b"WORKER", b"", b"send to worker"])
        dump(await worker.recv_multipart())
        await worker.send_multipart([b"SERVER", b"", b"send to server"])
        dump(await server.recv_multipart())


if __name__ == "__main__":
    run(main())
