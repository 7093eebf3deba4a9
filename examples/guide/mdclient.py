"""Majordomo client: asks echo many times, one request after the other.

python -m examples.guide.mdclient [BROKER [REQUESTS]]
"""

from __future__ import annotations

import sys

import mdp
from examples.guide.zhelpers import run


async def main(broker: str = "tcp://127.0.0.1:5555", requests: str = "100000") -> None:
    """Ask, and print the number of replies."""
    async with mdp.Client(broker) as client:
        for _ in range(int(requests)):
            await client.request("echo", b"Hello world")
    print(f"{int(requests)} requests/replies processed")


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
