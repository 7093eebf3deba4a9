"""Titanic client: stores a request, fetches the reply later, and closes it.

python -m examples.guide.ticlient [BROKER]
"""

from __future__ import annotations

import sys

import titanic
from examples.guide.zhelpers import run


async def main(broker: str = "tcp://127.0.0.1:5555") -> None:
    """Ask echo through the store."""
    async with titanic.Client(broker) as store:
        ticket = await store.submit("echo", b"Hello world")
        print("I: request UUID", ticket.uuid)
        (reply,) = await ticket.result(timeout=60)
        print("Reply:", reply.decode())
        await ticket.close()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
