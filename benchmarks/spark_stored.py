"""A million rows through Titanic while everything is killed: rows lost, rows executed twice, CPU.

    python -m benchmarks.spark_stored [--rows 1000000] [--batch 256] [--partitions 8] [--master local[2,4]] [--quiet]

A broker, a store on disk (`--fsync always`), one worker process, and Spark: `dispatch(…, batch=…, via="titanic")`. The Python worker of the
first attempt at every second partition is killed when it has rows, half of them a second time; the store is killed twice and the broker
once, and started again. With a `--master` whose executors are processes of this machine, as of a standalone cluster here, one of these is
killed too. The service counts each row that it executes, and tells at the end. With `--quiet` nothing is killed. Estimate: two minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import mdp
from mdp.batch.tables import decode_table, encode_table
from mdp.spark import dispatch
from mdp.spark.demo.processes import Processes
from mdp.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

PAYLOAD_BYTES = 100
# Executors of a standalone cluster on this machine.
SMALL = {"spark.executor.memory": "700m", "spark.executor.cores": "1"}
# What is killed when this part of the rows is executed.
KILLS = {0.2: "store", 0.4: "broker", 0.6: "store", 0.75: "executor"}
# Rows executed, by their number: 0, 1, 2 times.
_times = bytearray()


@mdp.service("counted", batch="arrow")
def counted(table: pa.Table) -> pa.Table:
    """Count rows; a row of number -1 asks for the numbers of rows that were executed once and more often."""
    numbers = table["id"].to_pylist()
    if numbers == [-1]:
        return pa.table({"length": [_times.count(1)], "again": [len(_times) - _times.count(0) - _times.count(1)]})
    if len(_times) <= max(numbers):
        _times.extend(bytes(max(numbers) + 1 - len(_times)))
    for number in numbers:
        _times[number] += 1
    return pa.table({"length": pc.binary_length(table["payload"])})


def killed(partitions: int) -> Any:
    """Return a stage that kills its Python worker in the first attempts of some partitions."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        crashes = 0 if partition % 2 else 2 if partition % 4 else 1
        for batch in batches:
            yield batch
            if context.attemptNumber() < crashes and partition < partitions:
                os.kill(os.getpid(), signal.SIGKILL)

    return stage


class Store:
    """The store as a process."""

    def __init__(self, broker: str, place: Path) -> None:
        self._command = [sys.executable, "-m", "titanic", "serve", "--broker", broker, "--store", str(place / "store")]
        self._log = (place / "titanic.log").open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._log.close()


def executed(broker: str) -> tuple[int, int]:
    """Return how many rows were executed once, and how many more often."""
    asked = pa.table({"id": [-1], "payload": [b""]})
    with mdp.SyncClient(broker, timeout=60) as client:
        (found,) = decode_table(client.request("counted", encode_table(asked)), rows_max=1).to_pylist()
    return found["length"], found["again"]


def executors_of(application: str) -> list[int]:
    """Return the executors of an application that are processes of this machine."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            words = place.read_bytes().split(b"\0")
            if application.encode() in words and any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words):
                found.append(int(place.parent.name))
    return found


class Killer(threading.Thread):
    """Thread that kills parts as rows are executed, and starts them again."""

    def __init__(self, processes: Processes, store: Store, application: str, rows: int) -> None:
        super().__init__(name="killer")
        self.killed: Counter[str] = Counter()
        self._processes = processes
        self._store = store
        self._application = application
        self._rows = rows
        self._over = threading.Event()

    def run(self) -> None:
        for part, name in KILLS.items():
            while sum(executed(self._processes.broker)) < part * self._rows:
                if self._over.wait(0.2):
                    return
            self._kill(name)

    def _kill(self, name: str) -> None:
        if name == "broker":
            self._processes.restart_broker()
        elif name == "store":
            self._store.kill()
            self._store.start()
        else:
            executors = executors_of(self._application)
            if not executors:
                return
            os.kill(executors[0], signal.SIGKILL)  # Spark starts another
        self.killed[name] += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def main() -> None:
    """Run the job and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = local_session("stored", options.master, settings=SMALL)
        stack.callback(spark.stop)
        handler = "benchmarks.spark_stored:counted"
        processes = stack.enter_context(Processes("counted", handler, workers=1, concurrency=16, environment=os.environ, logs=place))
        store = Store(processes.broker, place)
        stack.callback(store.close)
        rows = spark.range(0, options.rows, 1, options.partitions)
        rows = rows.selectExpr("id", f"cast(rpad(concat('r', id), {PAYLOAD_BYTES}, '.') as binary) as payload")
        answered = dispatch(
            rows,
            broker=processes.broker,
            service="counted",
            request=("id", "payload"),
            schema="length long",
            batch=options.batch,
            via="titanic",
            timeout=10,
            attempts=12,  # what is killed comes back within them
        )
        if not options.quiet:
            answered = answered.mapInArrow(killed(options.partitions), answered.schema)
        killer = Killer(processes, store, spark.sparkContext.applicationId, options.rows)
        if not options.quiet:
            killer.start()
        began = time.perf_counter()
        right = answered.filter(f"_status = 'OK' and length = {PAYLOAD_BYTES}").select("id").distinct().count()
        took = time.perf_counter() - began
        if not options.quiet:
            killer.stop()
        once, again = executed(processes.broker)
    cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    print(f"{options.rows:,} rows in batches of {options.batch}: {took:.1f} s, {options.rows / took:,.0f} rows/s")
    print(f"CPU of broker, store and worker: {cpu:.1f} s, {cpu / options.rows * 1e6:.1f} µs a row")
    print("killed: " + (", ".join(f"{name} {times}" for name, times in killer.killed.items()) or "nothing"))
    print(f"lost {options.rows - right:,}, executed once {once:,}, executed twice {again:,}")


if __name__ == "__main__":
    main()
