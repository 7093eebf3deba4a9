"""Paranoid Pirate worker: echoes; on request, it crashes or stalls at random.

python -m examples.guide.ppworker [BACKEND [misbehave [SEED]]]
"""

from __future__ import annotations

import sys
from random import Random

import pirate
from examples.guide.zhelpers import print_logs, run


def echo(body: list[bytes]) -> list[bytes]:
    """Return the request."""
    print("I: normal reply")
    return body


async def main(backend: str = "tcp://127.0.0.1:5556", misbehave: str = "", seed: str = "") -> None:
    """Serve until the program is stopped, or until a simulated crash."""
    print_logs()
    handler = pirate.Mishaps(echo, Random(seed or None)) if misbehave else echo
    async with pirate.Worker(backend, handler) as worker:
        try:
            await worker.serve_forever()
        except pirate.SimulatedCrash:
            return


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
