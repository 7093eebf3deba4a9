"""A program: a journal that writes requests until it is killed.

    python -m tests.scenes.titanic_killed_journal DIRECTORY FIRST

It says how many requests it has found, and then the number of each request that is acknowledged; they are counted from FIRST on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import encode_request
from titanic.journal.segment_log import LogOptions
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE = 100
BODY = encode_request(1, 0, 0, 0, b"", b"\x01\x04echo\x00\x02hi")


async def write(directory: str, first: int) -> None:
    index = RequestIndex(Limits())
    journal = Journal(RealDisk(directory), JournalOptions(log=LogOptions(segment_bytes=65536, reserve_bytes=4096)))
    await journal.open(index, store=bytes(16), created_ms=0)
    assert journal.log.problems == [] or all(p.code == "TORN" for p in journal.log.problems), journal.log.problems
    os.write(1, b"%d\n" % len(index.entries))
    number = first - 1

    def append() -> None:
        nonlocal number
        number += 1
        journal.append((RecordKind.REQUEST, number.to_bytes(16, "big"), BODY), (acknowledged, number))

    def acknowledged(argument: int, place: object, error: object) -> None:
        os.write(1, b"%d\n" % argument)
        append()

    for _ in range(AT_ONCE):
        append()
    await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    directory, first = arguments
    asyncio.run(write(directory, int(first)))


if __name__ == "__main__":
    main(sys.argv[1:])
