"""Lazy Pirate client: retries when no reply comes, and reports when it gives up.

python -m examples.guide.lpclient [ENDPOINT [REQUESTS [TIMEOUT]]]      REQUESTS 0 never ends
"""

from __future__ import annotations

import itertools
import sys

import pirate
from examples.guide.zhelpers import print_logs, run


async def main(endpoint: str = "tcp://127.0.0.1:5555", requests: str = "0", timeout: str = "2.5") -> None:
    """Count, and check that each number comes back."""
    print_logs()
    async with pirate.Client(endpoint, timeout=float(timeout), check=lambda request, reply: request == reply) as client:
        for number in itertools.count(1):
            try:
                (reply,) = await client.request(b"%d" % number)
            except pirate.NoReply:
                print("E: server seems to be offline, abandoning")
                break
            print(f"I: server replied OK ({reply.decode()})")
            if number == int(requests):
                break


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
