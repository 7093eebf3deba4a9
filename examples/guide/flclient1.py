"""Freelance client, model 1: one server after the other.

python -m examples.guide.flclient1 [ENDPOINT …]
"""

from __future__ import annotations

import sys

import freelance
from examples.guide.zhelpers import print_logs, run


async def main(*endpoints: str) -> None:
    """Ask once."""
    print_logs()
    async with freelance.Client(endpoints or ["tcp://127.0.0.1:5555"], model=1) as client:
        try:
            await client.request(b"Hello world")
        except freelance.NoServer:
            print("E: no server answered, abandoning")
        else:
            print("Service is running OK")


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
