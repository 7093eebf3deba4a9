"""Run programmes by their seeds: `python -m tests.interop.differential FIRST COUNT [--uvloop]`; one line of JSON for each.

A process of its own, because libzmq ends the one it runs in when an assertion of its own fails, or by a signal, which some programmes bring
about. The last line then tells at which seed, and the standard error in whose code (`died_here`).
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import sys

import core
from tests.interop.differential.differences import explain
from tests.interop.differential.generate import programme_of
from tests.interop.differential.libzmq import Libzmq
from tests.interop.differential.lockstep import run, shrink


async def main(first: int, count: int) -> None:
    """Run `count` programmes."""
    library = Libzmq()
    async with core.Context() as context:
        for seed in range(first, first + count):
            say(begun=seed)
            found = await run(programme_of(seed), library, context, explain)
            if found is None:
                continue
            row = explain(found)
            if row is None:
                found = await shrink(found, library, context)
                row = explain(found)
            say(seed=seed, row=row.name if row else None, text=str(found))
    say(done=True)
    library.close()


def say(**fields: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    faulthandler.enable()
    logging.disable(logging.CRITICAL)  # peers that break rules are what some programmes are about
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
    else:
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
