"""Freelance server, model 3.

python -m examples.guide.flserver3 [ENDPOINT]
"""

from __future__ import annotations

import sys

import freelance
from examples.guide.zhelpers import print_logs, run


async def main(endpoint: str = "tcp://127.0.0.1:5555") -> None:
    """Serve until the program is stopped."""
    print_logs()
    async with freelance.Server(endpoint, lambda body: body, model=3) as server:
        print(f"I: service is ready at {server.endpoint}")
        await server.serve_forever()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
