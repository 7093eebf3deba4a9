"""Simple Pirate queue: requests go to the longest idle worker.

python -m examples.guide.spqueue [FRONTEND [BACKEND]]
"""

from __future__ import annotations

import sys

import pirate
from examples.guide.zhelpers import print_logs, run


async def main(frontend: str = "tcp://*:5555", backend: str = "tcp://*:5556") -> None:
    """Serve until the program is stopped."""
    print_logs()
    async with pirate.Queue(frontend, backend, simple=True) as queue:
        print(f"I: queue at {queue.frontend} for clients, at {queue.backend} for workers")
        await queue.serve_forever()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
