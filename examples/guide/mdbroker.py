"""Majordomo broker.

python -m examples.guide.mdbroker [ENDPOINT]
"""

from __future__ import annotations

import sys

import mdp
from examples.guide.zhelpers import print_logs, run


async def main(endpoint: str = "tcp://*:5555") -> None:
    """Serve until the program is stopped."""
    print_logs()
    async with mdp.Broker() as broker:
        print(f"I: MDP broker is active at {broker.bind(endpoint)}")
        await broker.serve_forever()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
