"""Events per second of a broker's log: read from segments and from Parquet, up to the report.

    python -m benchmarks.spark_events [--events 2000000] [--rounds 3] [--block-events 50] [--reader]

Spark on local[2]; 20 services, 40 workers, blocks of 50 events (a busy broker's; an idle one's have one), eight segments. Targets: 100,000
events/s from segments, 300,000 from Parquet. The report is latency by service and hour, utilisation and retries, collected; every table
reads the log again. Medians after a warm-up. With `--reader` only the conversion of bytes to Arrow columns, in this process, by its CPU
time. Estimate: two minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mdp.eventlog.files import segments
from mdp.eventlog.format import ANSWERED, Block, Clock, encode_block, encode_header
from mdp.spark import register, report
from mdp.spark.eventlog.arrow_columns import event_batches
from mdp.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK_EVENTS = 50
SEGMENTS = 8
CLOCK = Clock(1_706_695_200_000_000, 1000.0)


def write_log(directory: Path, events: int, seed: int = 1, block_events: int = BLOCK_EVENTS) -> int:
    """Write segments as a busy broker would; return the number of events."""
    drawn = random.Random(seed)
    blocks = events // SEGMENTS // block_events
    directory.mkdir()
    number = 0
    for segment in range(SEGMENTS):
        pieces = [encode_header(CLOCK)]
        for _ in range(blocks):
            number += 1
            at = 1000.0 + number * 0.002
            given = [at - drawn.expovariate(200) for _ in range(block_events)]
            opened = [moment - drawn.expovariate(1000) for moment in given]
            service = b"service-%d" % drawn.randrange(20)
            worker = drawn.randrange(40).to_bytes(5, "big")
            ids = drawn.randbytes(8 * block_events)
            pieces.append(encode_block(Block(ANSWERED, block_events, at, service, worker, b"\0\0\0\0\1", ids, 1, opened, given, 100, 200)))
        (directory / f"events-{segment + 1:016x}.mdpe").write_bytes(b"".join(pieces))
    return number * block_events


def seconds(events: DataFrame) -> float:
    """Return the seconds of the report."""
    began = time.perf_counter()
    found = report(events)
    for table in (found.latency, found.utilisation, found.retries):
        assert table.collect()
    return time.perf_counter() - began


def read_alone(place: Path, events: int, rounds: int, block_events: int) -> float:
    """Return events per second of CPU time from segments to Arrow batches, without Spark."""
    count = write_log(place / "events", events, block_events=block_events)
    found = []
    for _ in range(rounds):
        began = time.process_time()
        read = sum(batch.num_rows for path in segments(place / "events") for batch in event_batches(path.read_bytes()))
        found.append(count / (time.process_time() - began))
        assert read == count
    return statistics.median(found)


def measure(spark: SparkSession, place: Path, events: int, rounds: int, block_events: int) -> dict[str, float]:
    """Return events per second by format."""
    register(spark)
    count = write_log(place / "events", events, block_events=block_events)
    spark.read.format("mdp-events").load(str(place / "events")).write.parquet(str(place / "copy"))
    found: dict[str, list[float]] = {"mdp-events": [], "parquet": []}
    for number in range(rounds + 1):
        for kind, directory in (("mdp-events", "events"), ("parquet", "copy")):
            speed = count / seconds(spark.read.format(kind).load(str(place / directory)))
            if number:  # the first is a warm-up
                found[kind].append(speed)
    return {kind: statistics.median(speeds) for kind, speeds in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-events", type=int, default=BLOCK_EVENTS)
    parser.add_argument("--reader", action="store_true")
    options = parser.parse_args()
    if options.reader:
        with tempfile.TemporaryDirectory() as place:
            speed = read_alone(Path(place), options.events, options.rounds, options.block_events)
            print(f"{'reader':<10} {speed:>10,.0f} events/s of CPU time")
        return
    spark = local_session("benchmark", "local[2]", partitions=2)
    with tempfile.TemporaryDirectory() as place:
        for kind, speed in measure(spark, Path(place), options.events, options.rounds, options.block_events).items():
            print(f"{kind:<10} {speed:>10,.0f} events/s")
    spark.stop()


if __name__ == "__main__":
    main()
