"""Cost of a round trip: the same requests one after the other, and all at once.

    python -m examples.guide.tripping [REQUESTS]

Client, broker and worker are in one process here, each with its own sockets over tcp.
"""

from __future__ import annotations

import sys
import time

import core
from examples.guide.zhelpers import run

ANY = "tcp://127.0.0.1:*"


def start_broker(context: core.Context) -> tuple[str, str]:
    """Forward clients' messages to the worker W, and replies to the client C."""
    frontend, backend = context.socket(core.ROUTER, hwm=0), context.socket(core.ROUTER, hwm=0)
    frontend.bind(ANY)
    backend.bind(ANY)
    frontend.set_receiver(lambda batch: backend.send_many([[b"W", *frames[1:]] for frames in batch]))
    backend.set_receiver(lambda batch: frontend.send_many([[b"C", *frames[1:]] for frames in batch]))
    return frontend.last_endpoint, backend.last_endpoint


async def main(requests: str = "10000") -> None:
    """Measure and print both."""
    print("Setting up test...")
    count = int(requests)
    async with core.Context() as context:
        frontend, backend = start_broker(context)
        worker = context.socket(core.DEALER, identity=b"W", hwm=0)
        worker.set_receiver(worker.send_many)
        worker.connect(backend)
        client = context.socket(core.DEALER, identity=b"C", hwm=0)
        client.connect(frontend)
        await worker.send(b"hello")  # when the client receives it, all are connected: no pause is needed
        while not await client.poll(10):
            await worker.send(b"hello")
        while await client.poll(100):
            await client.recv()

        print("Synchronous round-trip test...")
        began = time.perf_counter()
        for _ in range(count):
            await client.send(b"hello")
            await client.recv()
        print(f" {count / (time.perf_counter() - began):.0f} calls/second")

        print("Asynchronous round-trip test...")
        began = time.perf_counter()
        for _ in range(count):
            await client.send(b"hello")
        for _ in range(count):
            await client.recv()
        print(f" {count / (time.perf_counter() - began):.0f} calls/second")


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
