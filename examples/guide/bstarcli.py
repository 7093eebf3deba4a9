"""Binary Star client: counts at the active server.

python -m examples.guide.bstarcli [PRIMARY BACKUP [REQUESTS [EVERY_S]]]      REQUESTS 0 never ends
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import bstar
from examples.guide.zhelpers import print_logs, run


async def main(
    primary: str = "tcp://127.0.0.1:5001", backup: str = "tcp://127.0.0.1:5002", requests: str = "0", every_s: str = "1.0"
) -> None:
    """Ask once a second and print what comes back."""
    print_logs()
    servers = {"primary": primary, "backup": backup}
    print(f"I: connecting to server at {primary}...")
    async with bstar.Client(primary, backup, on_switch=lambda name: print(f"I: connecting to server at {servers[name]}...")) as client:
        for number in itertools.count(1):
            (reply,) = await client.request(b"%d" % number)
            print(f"I: server replied OK ({reply.decode()})")
            if number == int(requests):
                break
            await asyncio.sleep(float(every_s))


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
