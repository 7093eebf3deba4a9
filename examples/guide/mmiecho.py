"""Ask a Majordomo broker whether it has an echo service.

python -m examples.guide.mmiecho [BROKER]
"""

from __future__ import annotations

import sys

import mdp
from examples.guide.zhelpers import run


async def main(broker: str = "tcp://127.0.0.1:5555") -> None:
    """Print the code: 200 if there is one, else 404."""
    async with mdp.Client(broker) as client:
        print("Lookup echo service:", await client.mmi("service", "echo"))


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
