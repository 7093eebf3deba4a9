"""Start and stop worker processes as the queue of their service grows and shrinks.

    python -m examples.pipeline.scaler --service orders.price --handler examples.pipeline.orders:price --workers-max 4 --log scaler.jsonl

It asks the broker by MMI (`mmi.services`) how many requests wait and run, and appends what it saw and did to a file, a JSON object a line.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import mdp

LOOK_EVERY_S = 0.5
# Looks in a row with too little work before a worker is stopped: a pause between two files is no reason.
QUIET_LOOKS = 6
STOP_WITHIN_S = 15.0


class Scale:
    """Number of workers that a queue needs. Pure.

    Args:
        concurrency: requests that one worker handles at once.
        workers_max: maximum number of workers; the minimum is one.
    """

    def __init__(self, concurrency: int, workers_max: int) -> None:
        self._concurrency = concurrency
        self._workers_max = workers_max
        self._quiet = 0

    def wanted(self, workers: int, open_requests: int) -> int:
        """Return the number of workers for so many open requests; it changes by one at a time."""
        needed = min(max(1, -(-open_requests // (2 * self._concurrency))), self._workers_max)
        self._quiet = self._quiet + 1 if needed < workers else 0
        if needed > workers:
            return workers + 1
        if self._quiet >= QUIET_LOOKS:
            self._quiet = 0
            return workers - 1
        return workers


def open_requests(client: mdp.SyncClient, service: str) -> int | None:
    """Return how many requests of a service wait or run at the broker, None if it does not answer."""
    try:
        _, described = client.request("mmi.services", b"")
    except mdp.RequestError:
        return None
    rows: list[dict[str, Any]] = json.loads(described)
    return sum(int(row["queued"]) + int(row["running"]) for row in rows if row and row["name"] == service)


class Workers:
    """Worker processes, the oldest first."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "mdp", "worker", *arguments]
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopping: list[subprocess.Popen[bytes]] = []

    def pids(self) -> list[int]:
        """Return those that run; one that has died is not counted any longer."""
        self._running = [process for process in self._running if process.poll() is None]
        self._stopping = [process for process in self._stopping if process.poll() is None]
        return [process.pid for process in self._running]

    def start(self) -> None:
        self._running.append(subprocess.Popen(self._command, stdin=subprocess.DEVNULL))

    def stop(self) -> None:
        """Let the youngest finish what it has begun, and end."""
        process = self._running.pop()
        process.send_signal(signal.SIGTERM)
        self._stopping.append(process)

    def stop_all(self) -> None:
        while self._running:
            self.stop()
        for process in self._stopping:
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


@click.command()
@click.option("--broker", default="tcp://127.0.0.1:5555")
@click.option("--service", required=True)
@click.option("--handler", required=True)
@click.option("--concurrency", default=16, help="Requests that one worker handles at once.")
@click.option("--workers-max", default=4)
@click.option("--log", type=click.Path(path_type=Path), required=True)
def main(broker: str, service: str, handler: str, concurrency: int, workers_max: int, log: Path) -> None:
    """Keep as many workers of a service as its queue needs, until SIGTERM."""
    # Credit as large as concurrency: what waits, waits at the broker, and goes to a worker that has just come.
    numbers = ("--concurrency", str(concurrency), "--credit", str(concurrency), "--heartbeat-ms", "1000", "--reconnect-ms", "200")
    workers = Workers("--broker", broker, "--service", service, "--handler", handler, *numbers)
    scale = Scale(concurrency, workers_max)
    signal.signal(signal.SIGTERM, _end)
    try:
        with (
            mdp.SyncClient(broker, timeout=2.0, attempts=1) as client,
            log.open("a", buffering=1, encoding="utf-8") as lines,
            suppress(KeyboardInterrupt),
        ):
            while True:
                queue = open_requests(client, service)
                here = workers.pids()
                # A broker that does not answer is no reason to stop anything, and a dead worker is replaced.
                wanted = max(1, len(here)) if queue is None else scale.wanted(len(here), queue)
                if wanted > len(here):
                    workers.start()
                elif wanted < len(here):
                    workers.stop()
                lines.write(json.dumps({"time": time.time(), "queue": queue, "workers": workers.pids()}) + "\n")
                time.sleep(LOOK_EVERY_S)
    finally:
        workers.stop_all()


def _end(number: int, frame: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
