"""Lazy Pirate server: a REP socket that, on request, crashes or stalls at random.

python -m examples.guide.lpserver [ENDPOINT [misbehave [SEED]]]
"""

from __future__ import annotations

import sys
from random import Random

import core
import pirate
from examples.guide.zhelpers import print_logs, run


async def main(endpoint: str = "tcp://*:5555", misbehave: str = "", seed: str = "") -> None:
    """Echo until the program is stopped or simulates a crash."""
    print_logs()

    def echo(body: list[bytes]) -> list[bytes]:
        print(f"I: normal request ({body[0].decode()})")
        return body

    answer = pirate.Mishaps(echo, Random(seed or None), one_in=3 if misbehave else 10**9, overload_s=2.0)
    async with core.Context() as context:
        server = context.socket(core.REP)
        server.bind(endpoint)
        while True:
            try:
                await server.send_multipart(await answer(await server.recv_multipart()))
            except pirate.SimulatedCrash:
                break


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
