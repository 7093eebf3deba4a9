"""Other figures of Titanic: recovery, start-up, memory, reclaimed space, latency of an accept.

    python -m benchmarks.titanic_figures [--records 300000] [--size 256] [--directory DIR] [--json]

    recovery            records/s read at a start without a checkpoint; at least 150,000
    start-up            ms, with 1,000 open requests behind ever more closed ones; flat
    memory per request  bytes of the process for each stored request, its body on the disk
    room given back     part of the disk bytes of closed requests that is free again after compaction
    latency             ms from submit to 200, through a broker, of 1, 100 and 1,000 clients that each wait for it

Recovery and start-up also by CPU time, which is their duration on an idle machine. Estimate: a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import core
import mdp
from benchmarks.titanic_service import daemons
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import JournalOptions
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import encode_request
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import checkpoint_of, compact
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.store import Store
from titanic.wire.tsp import parse_request

if TYPE_CHECKING:
    from titanic.journal.record import Location

LIMITS = Limits(requests_max=10_000_000, service_requests_max=10_000_000)
BATCH = 1000


def opened(directory: Path, segment_bytes: int = LogOptions().segment_bytes) -> tuple[SegmentLog, RequestIndex]:
    """Start a store."""
    index = RequestIndex(LIMITS)
    return SegmentLog.open(RealDisk(directory), LogOptions(segment_bytes=segment_bytes), index, store=os.urandom(16)), index


def fill(log: SegmentLog, index: RequestIndex, count: int, size: int) -> list[bytes]:
    """Store requests as the service does, without syncs; return their UUIDs."""
    asked = parse_request([b"echo", b"x" * size])
    uuids = []
    for _ in range(count // BATCH):
        entries = [index.accept(os.urandom(16), asked, 1)[0] for _ in range(BATCH)]
        body = encode_request(1, 0, 0, 0, b"", asked.frames)
        places = commit(log, index, [(RecordKind.REQUEST, entry.uuid, body) for entry in entries])
        for entry, place in zip(entries, places, strict=True):
            index.stored(index.entries[entry.uuid], place)
        uuids += [entry.uuid for entry in entries]
    return uuids


def close(log: SegmentLog, index: RequestIndex, uuids: list[bytes]) -> None:
    """Close requests."""
    for start in range(0, len(uuids), BATCH):
        some = uuids[start : start + BATCH]
        places = commit(log, index, [(RecordKind.CLOSE, uuid, index.closing(index.entries[uuid], 2)) for uuid in some])
        for uuid, place in zip(some, places, strict=True):
            index.closed(uuid, place, 2)


def commit(log: SegmentLog, index: RequestIndex, drafts: list[Any]) -> list[Location]:
    placed = log.commit(drafts, sync=False)
    index.segments.add(placed.segment)
    return [(placed.segment, offset, size) for offset, size in zip(placed.offsets, placed.sizes, strict=True)]


def recovery(directory: Path, records: int, size: int) -> tuple[float, float]:
    """Return records/s and records per second of CPU time, the best of three starts."""
    log, index = opened(directory)
    fill(log, index, records, size)
    log.close()
    took = []
    for _ in range(3):
        (directory / "checkpoint").unlink(missing_ok=True)  # from the previous end
        took.append(asyncio.run(start(directory)))
    return records / min(elapsed for elapsed, _ in took), records / min(cpu for _, cpu in took)


async def start(directory: Path) -> tuple[float, float]:
    """Return the seconds of a store's start, by the clock and by CPU time."""
    store = Store(RealDisk(directory), JournalOptions(), LIMITS)
    began, began_cpu = time.perf_counter(), time.process_time()
    await store.open()
    elapsed, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    await store.close()
    return elapsed, cpu


def start_up(directory: Path, closed: int, size: int) -> tuple[float, float]:
    """Return seconds, and CPU seconds, to start with 1,000 open requests and this many closed ones."""
    log, index = opened(directory, 8 * 1024 * 1024)
    fill(log, index, 1000, size)
    for _ in range(closed // 10_000):
        close(log, index, fill(log, index, 10_000, size))
        compact(log, index)
    log.write_checkpoint(checkpoint_of(log, index))
    log.close()
    return asyncio.run(start(directory))


def resident() -> int:
    """Return this process's bytes of memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(directory: Path, count: int, size: int) -> float:
    """Return bytes per stored request."""
    log, index = opened(directory)
    fill(log, index, BATCH, size)
    gc.collect()
    before = resident()
    fill(log, index, count, size)
    after = resident()
    log.close()
    return (after - before) / count


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.iterdir())


def given_back(directory: Path, count: int, size: int) -> float:
    """Return the part of the space of closed requests that is free after compaction."""
    log, index = opened(directory, 8 * 1024 * 1024)
    empty = on_disk(directory)
    uuids = fill(log, index, count, size)
    full = on_disk(directory)
    close(log, index, uuids)
    compact(log, index)
    left = on_disk(directory)
    log.close()
    return (full - left) / (full - empty)


async def latency(endpoint: str, clients: int, count: int, size: int) -> tuple[float, float]:
    """Return (p50, p99) in ms of several clients, each with its own connection and one submit at a time."""
    body = b"x" * size
    took: list[float] = []
    numbers = iter(range(count))

    async def ask(client: mdp.Client) -> None:
        while await client.mmi("service", "titanic.request") != "200":
            await asyncio.sleep(0.05)
        for _ in numbers:
            began = time.perf_counter()
            assert (await client.request("titanic.request", b"nobody", body))[0] == b"200"
            took.append(time.perf_counter() - began)

    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(core.Context())
        all_of_them = [await stack.enter_async_context(mdp.Client(endpoint, timeout=30, context=context)) for _ in range(clients)]
        await asyncio.gather(*map(ask, all_of_them))
    took = took[len(took) // 10 :]  # a warm-up
    cuts = statistics.quantiles(took, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    records, size = options.records, options.size
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        root = Path(name)
        by_clock, by_cpu = recovery(root / "recovery", records, size)
        result["recovery, records per s"], result["recovery, records per s of CPU"] = round(by_clock), round(by_cpu)
        for closed in (10_000, 100_000, 200_000):
            elapsed, cpu = start_up(root / f"closed-{closed}", closed, size)
            result[f"start-up behind {closed:,} closed, ms"] = round(elapsed * 1000, 1)
            result[f"start-up behind {closed:,} closed, ms of CPU"] = round(cpu * 1000, 1)
        result["memory per stored request, octets"] = round(memory(root / "memory", records, size))
        result["room given back, part"] = round(given_back(root / "room", 100_000, size), 3)
        endpoint = "tcp://127.0.0.1:15790"
        with daemons(root, endpoint):
            for clients, count in ((1, 2000), (100, 20_000), (1000, 50_000)):
                p50, p99 = uvloop.run(latency(endpoint, clients, count, size))
                result[f"accept, {clients} clients, p50 ms"] = round(p50, 2)
                result[f"accept, {clients} clients, p99 ms"] = round(p99, 2)
    if options.json:
        print(json.dumps(result))
    else:
        for line, value in result.items():
            print(f"{line:45} {value:>12,}")


if __name__ == "__main__":
    main()
