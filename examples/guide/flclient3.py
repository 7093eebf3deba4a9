"""Freelance client, model 3: the best live server.

python -m examples.guide.flclient3 [REQUESTS [ENDPOINT …]]
"""

from __future__ import annotations

import sys
import time

import freelance
from examples.guide.zhelpers import print_logs, run


async def main(requests: str = "10000", *endpoints: str) -> None:
    """Ask many times and print the average round trip."""
    print_logs()
    async with freelance.Client(endpoints or ["tcp://127.0.0.1:5555"], model=3) as client:
        began = time.perf_counter()
        for _ in range(int(requests)):
            try:
                await client.request(b"random name")
            except freelance.NoServer:
                print("E: name service not available, aborting")
                return
        print(f"Average round trip cost: {(time.perf_counter() - began) / int(requests) * 1e6:.0f} usec")


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
