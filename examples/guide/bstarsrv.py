"""Binary Star server, primary (-p) or backup (-b).

python -m examples.guide.bstarsrv -p|-b [LOCAL REMOTE FRONTEND]
"""

from __future__ import annotations

import sys

import bstar
from examples.guide.zhelpers import print_logs, run

ENDPOINTS = {
    "-p": ("tcp://*:5003", "tcp://127.0.0.1:5004", "tcp://*:5001"),
    "-b": ("tcp://*:5004", "tcp://127.0.0.1:5003", "tcp://*:5002"),
}


async def main(which: str = "", *endpoints: str) -> None:
    """Serve until the program is stopped."""
    print_logs()
    if which not in ENDPOINTS:
        print("Usage: bstarsrv { -p | -b }")
        return
    local, remote, frontend = endpoints or ENDPOINTS[which]
    print(f"I: {'Primary' if which == '-p' else 'Backup'}, waiting for {'backup (slave)' if which == '-p' else 'primary (master)'}")
    async with bstar.Pair(bstar.PRIMARY if which == "-p" else bstar.BACKUP, local=local, remote=remote) as pair:
        pair.on_active(lambda: print("I: ready as master"))
        pair.on_passive(lambda: print("I: ready as slave"))
        pair.voter(frontend, handler=lambda request: request.body)
        await pair.serve_forever()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
