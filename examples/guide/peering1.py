"""Prototype of the state flow: brokers publish their number of idle workers (here: a random number).

python -m examples.guide.peering1 DC1 DC2 DC3      # my name, my peers' names; one in each of three terminals
"""

from __future__ import annotations

import asyncio
import random
import sys

import core


async def main(name: str, peers: list[str], rounds: int | None = None) -> None:
    """Publish a number every second without a message, and print what peers publish."""
    async with core.Context() as context, context.socket(core.PUB) as statebe, context.socket(core.SUB) as statefe:
        statebe.bind(f"ipc://{name}-state.ipc")
        statefe.setsockopt(core.SUBSCRIBE, b"")
        for peer in peers:
            print(f"I: connecting to state backend at '{peer}'")
            statefe.connect(f"ipc://{peer}-state.ipc")
        while rounds is None or rounds > 0:
            if await statefe.poll(1000):
                peer_name, available = await statefe.recv_multipart()
                print(f"{peer_name.decode()} - {available.decode()} workers free", flush=True)
                rounds = None if rounds is None else rounds - 1
            else:
                await statebe.send_multipart([name.encode(), b"%d" % random.randrange(10)])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("syntax: peering1.py me {you}…")
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
