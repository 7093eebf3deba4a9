"""Majordomo worker: the echo service.

python -m examples.guide.mdworker [BROKER]
"""

from __future__ import annotations

import sys

import mdp
from examples.guide.zhelpers import print_logs, run


def echo(request: mdp.Request) -> list[bytes]:
    """Return the body."""
    return list(request.body)


async def main(broker: str = "tcp://127.0.0.1:5555") -> None:
    """Serve until the program is stopped."""
    print_logs()
    async with mdp.Worker(broker, "echo", handler=echo) as worker:
        await worker.serve_forever()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
