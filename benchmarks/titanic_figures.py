"""Titanic's other figures: recovery, start-up, memory, room given back, latency of an accept.

    python -m benchmarks.titanic_figures [--records 300000] [--size 256] [--directory DIR] [--json]

    recovery            records/s read at a start without a checkpoint; at least 150,000
    start-up            seconds, with 1,000 open requests behind ever more closed ones; flat
    memory per request  octets of the process for each stored request, its body on the disk
    room given back     of the octets on the disk that closed requests took, the part that is free again after compaction
    latency             ms from submit to 200, through a broker, with 1, 100 and 1,000 submits in flight

Estimate: a minute.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import mdp
from benchmarks.titanic_service import daemons
from titanic.compaction import checkpoint_of, compact
from titanic.content import encode_request
from titanic.disk import RealDisk
from titanic.journal import JournalOptions
from titanic.ledger import Ledger, Limits
from titanic.log import Log, LogOptions
from titanic.record import Kind
from titanic.store import Store
from titanic.tsp import parse_request

if TYPE_CHECKING:
    from titanic.ledger import Location

LIMITS = Limits(requests_max=10_000_000, service_requests_max=10_000_000)
BATCH = 1000


def opened(directory: Path, segment_bytes: int = LogOptions().segment_bytes) -> tuple[Log, Ledger]:
    """Bring a store up."""
    ledger = Ledger(LIMITS)
    return Log.open(RealDisk(directory), LogOptions(segment_bytes=segment_bytes), ledger, store=os.urandom(16)), ledger


def fill(log: Log, ledger: Ledger, count: int, size: int) -> list[bytes]:
    """Store requests as the service does, without syncs; returns their UUIDs."""
    asked = parse_request([b"echo", b"x" * size])
    uuids = []
    for _ in range(count // BATCH):
        entries = [ledger.accept(os.urandom(16), asked, 1)[0] for _ in range(BATCH)]
        body = encode_request(1, 0, 0, 0, b"", asked.frames)
        places = commit(log, ledger, [(Kind.REQUEST, entry.uuid, body) for entry in entries])
        for entry, place in zip(entries, places, strict=True):
            ledger.stored(ledger.entries[entry.uuid], place)
        uuids += [entry.uuid for entry in entries]
    return uuids


def close(log: Log, ledger: Ledger, uuids: list[bytes]) -> None:
    """Close requests."""
    for start in range(0, len(uuids), BATCH):
        some = uuids[start : start + BATCH]
        places = commit(log, ledger, [(Kind.CLOSE, uuid, ledger.closing(ledger.entries[uuid], 2)) for uuid in some])
        for uuid, place in zip(some, places, strict=True):
            ledger.closed(uuid, place, 2)


def commit(log: Log, ledger: Ledger, drafts: list[Any]) -> list[Location]:
    placed = log.commit(drafts, sync=False)
    ledger.segments.add(placed.segment)
    return [(placed.segment, offset, size) for offset, size in zip(placed.offsets, placed.sizes, strict=True)]


def recovery(directory: Path, records: int, size: int) -> float:
    """Return records/s."""
    log, ledger = opened(directory)
    fill(log, ledger, records, size)
    log.close()
    return records / asyncio.run(start(directory))


async def start(directory: Path) -> float:
    """Return the seconds a store takes to come up."""
    store = Store(RealDisk(directory), JournalOptions(), LIMITS)
    began = time.perf_counter()
    await store.open()
    elapsed = time.perf_counter() - began
    await store.close()
    return elapsed


def start_up(directory: Path, closed: int, size: int) -> float:
    """Return seconds to start with 1,000 open requests and so many that were closed, compacted as the service does."""
    log, ledger = opened(directory, 8 * 1024 * 1024)
    fill(log, ledger, 1000, size)
    for _ in range(closed // 10_000):
        close(log, ledger, fill(log, ledger, 10_000, size))
        compact(log, ledger)
    log.write_checkpoint(checkpoint_of(log, ledger))
    log.close()
    return asyncio.run(start(directory))


def resident() -> int:
    """Return the octets this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(directory: Path, count: int, size: int) -> float:
    """Return octets per stored request."""
    log, ledger = opened(directory)
    fill(log, ledger, BATCH, size)
    gc.collect()
    before = resident()
    fill(log, ledger, count, size)
    after = resident()
    log.close()
    return (after - before) / count


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.iterdir())


def given_back(directory: Path, count: int, size: int) -> float:
    """Return which part of the room of closed requests is free after compaction."""
    log, ledger = opened(directory, 8 * 1024 * 1024)
    empty = on_disk(directory)
    uuids = fill(log, ledger, count, size)
    full = on_disk(directory)
    close(log, ledger, uuids)
    compact(log, ledger)
    left = on_disk(directory)
    log.close()
    return (full - left) / (full - empty)


async def latency(endpoint: str, window: int, count: int, size: int) -> tuple[float, float]:
    """Return (p50, p99) in ms."""
    body = b"x" * size
    async with mdp.Client(endpoint, timeout=30, window=2 * window) as client:
        while await client.mmi("service", "titanic.request") != "200":
            await asyncio.sleep(0.05)
        took: list[float] = []

        async def lane(numbers: Any) -> None:
            for _ in numbers:
                began = time.perf_counter()
                assert (await client.request("titanic.request", b"nobody", body))[0] == b"200"
                took.append(time.perf_counter() - began)

        numbers = iter(range(count))
        await asyncio.gather(*(lane(numbers) for _ in range(window)))
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
        result["recovery, records per s"] = round(recovery(root / "recovery", records, size))
        for closed in (10_000, 100_000, 200_000):
            result[f"start-up behind {closed:,} closed, ms"] = round(start_up(root / f"closed-{closed}", closed, size) * 1000, 1)
        result["memory per stored request, octets"] = round(memory(root / "memory", records, size))
        result["room given back, part"] = round(given_back(root / "room", 100_000, size), 3)
        endpoint = "tcp://127.0.0.1:15790"
        with daemons(root, endpoint):
            for window, count in ((1, 2000), (100, 20_000), (1000, 50_000)):
                p50, p99 = uvloop.run(latency(endpoint, window, count, size))
                result[f"accept with {window} in flight, p50 ms"] = round(p50, 2)
                result[f"accept with {window} in flight, p99 ms"] = round(p99, 2)
    if options.json:
        print(json.dumps(result))
    else:
        for line, value in result.items():
            print(f"{line:45} {value:>12,}")


if __name__ == "__main__":
    main()
