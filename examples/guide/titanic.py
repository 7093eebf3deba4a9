"""Titanic: keeps requests on disk until they are answered.

    python -m examples.guide.titanic [BROKER [FOLDER]]

Run it as a module, as above: as a script it would be imported in place of the package of the same name.
"""

from __future__ import annotations

import asyncio
import sys

from examples.guide.zhelpers import print_logs, run
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import JournalOptions
from titanic.store.service import Service
from titanic.store.store import Store


async def main(broker: str = "tcp://127.0.0.1:5555", folder: str = ".titanic") -> None:
    """Serve until the program is stopped."""
    print_logs()
    async with Service(broker, Store(RealDisk(folder), JournalOptions())):
        print(f"I: Titanic stores in {folder}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
