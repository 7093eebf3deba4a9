"""Asynchronous server: three clients ask without waiting, and get zero to four replies to each request."""

from __future__ import annotations

import asyncio
import random
import sys

import core
import pirate
from examples.guide.zhelpers import run


async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
    """Reply a random number of times, each after a pause."""
    for _ in range(random.randrange(5)):
        await asyncio.sleep(random.random() / 10)
        client.reply(*body)


async def client(context: core.Context, requests: int, every_s: float) -> None:
    """Ask at fixed times; print everything that is received."""
    name = f"{random.randrange(0x10000):04X}-{random.randrange(0x10000):04X}"
    dealer = context.socket(core.DEALER, identity=name.encode())
    dealer.set_receiver(lambda batch: [print(f"Client {name}: {frames[0].decode()}") for frames in batch])
    dealer.connect("inproc://server")
    for number in range(1, requests + 1):
        await dealer.send(b"request #%d" % number)
        await asyncio.sleep(every_s)


async def main(requests: str = "5", every_s: str = "1.0") -> None:
    """Run the server and its clients. A client that is silent for two seconds is forgotten."""
    async with core.Context() as context, pirate.AsyncServer("inproc://server", answer, ttl=2.0, context=context):
        await asyncio.gather(*(client(context, int(requests), float(every_s)) for _ in range(3)))
        await asyncio.sleep(float(every_s))


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
