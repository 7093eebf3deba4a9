"""Durable accept: records/s of the journal, each synced before its acknowledgement, against one fdatasync per append.

    python -m benchmarks.titanic_journal [--records 100000] [--size 256] [--window 1000] [--rounds 5] [--directory DIR]

Both run on the same disk, in turns, in one run; medians and the ratio are printed. The journal is used as by the service: from the event
loop, `window` records in flight, a new one for each acknowledged one. Estimate: half a minute. The ratio counts: at least 10
(performance.md), target 20.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.record import RecordKind
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from titanic.journal.record import Location


def one_sync_per_append(directory: Path, size: int, count: int) -> float:
    """Return appends/s of a plain file, one write and one fdatasync each."""
    handle = os.open(directory / "plain", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    octets = b"x" * size
    began = time.perf_counter()
    for number in range(count):
        os.pwrite(handle, octets, number * size)
        os.fdatasync(handle)
    rate = count / (time.perf_counter() - began)
    os.close(handle)
    return rate


async def journal(directory: Path, size: int, count: int, window: int) -> tuple[float, float, int]:
    """Return (records/s, CPU µs per record, syncs)."""
    store = Journal(RealDisk(directory / "store"), JournalOptions())
    await store.open(RequestIndex(Limits()), store=os.urandom(16), created_ms=0)
    body = b"x" * (size - 48)
    done = asyncio.get_running_loop().create_future()
    left, unsent = count, count - window

    def acknowledged(argument: Any, place: Location | None, error: Exception | None) -> None:
        nonlocal left, unsent
        if error is not None:
            raise error
        left -= 1
        if unsent:
            unsent -= 1
            store.append((RecordKind.REQUEST, argument, body), (acknowledged, argument))
        elif not left:
            done.set_result(None)

    cpu, began = time.process_time(), time.perf_counter()
    for number in range(window):
        uuid = number.to_bytes(16, "big")
        store.append((RecordKind.REQUEST, uuid, body), (acknowledged, uuid))
    await done
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    await store.close()
    return count / elapsed, cpu / count * 1e6, store.syncs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to measure; a temporary one when left out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plain, grouped, cpus, batches = [], [], [], []
    for _ in range(options.rounds + 1):  # the first round warms up
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            plain.append(one_sync_per_append(Path(name), options.size, 2000))
            rate, cpu, syncs = uvloop.run(journal(Path(name), options.size, options.records, options.window))
            grouped.append(rate)
            cpus.append(cpu)
            batches.append(options.records / syncs)
    result = {
        "append and fdatasync, per s": round(statistics.median(plain[1:])),
        "journal, records per s": round(statistics.median(grouped[1:])),
        "ratio": round(statistics.median(a / b for a, b in zip(grouped[1:], plain[1:], strict=True)), 1),
        "CPU us per record": round(statistics.median(cpus[1:]), 2),
        "records per sync": round(statistics.median(batches[1:])),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value:>12,}")


if __name__ == "__main__":
    main()
