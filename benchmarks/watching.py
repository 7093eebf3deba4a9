"""What watching costs: requests per second of a broker that is not watched, and of one with metrics and event log, taken in turn.

    python -m benchmarks.watching [--runs 5] [--requests 200000]

Real programs, all pinned to one CPU so that every microsecond the broker spends is missing elsewhere; medians of interleaved runs. The
watched broker is scraped once a second while it is measured, as Prometheus would do every fifteen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

from mdp.eventlog_files import read_events

AT_MOST = 0.05
"""The part of the throughput that metrics and event log together may cost."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(stack: ExitStack, word: str, *arguments: str) -> None:
    """Start a daemon of ours and wait until it says so."""
    process = subprocess.Popen([sys.executable, "-m", "mdp", *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    stack.callback(process.stderr.close)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGTERM)
    for line in process.stderr:
        if word in line:
            return
    raise SystemExit(f"mdp {arguments[0]} ended at once")


def scrape(url: str, done: threading.Event) -> None:
    while not done.wait(1.0):
        with suppress(OSError), urlopen(url) as response:
            response.read()


def measure(requests: int, folder: Path | None) -> float:
    """Return replies per second; watched when there is a folder for the log."""
    endpoint, http = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    watched = [] if folder is None else ["--http", http, "--events", str(folder)]
    with ExitStack() as stack:
        start(stack, "broker serves", "broker", "--bind", endpoint, *watched)
        start(stack, "registered", "worker", "--broker", endpoint, "--service", "echo", "--concurrency", "250")
        if folder is not None:
            done = threading.Event()
            scraper = threading.Thread(target=scrape, args=(f"http://{http}/metrics", done))
            scraper.start()
            stack.callback(scraper.join)
            stack.callback(done.set)
        bench = ["bench", "--broker", endpoint, "--requests", str(requests), "--window", "1000", "--json"]
        found = subprocess.run([sys.executable, "-m", "mdp", *bench], capture_output=True, check=True)
    figures = json.loads(found.stdout)
    assert figures["lost"] == 0
    return float(figures["rate"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200_000)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    plain: list[float] = []
    watched: list[float] = []
    events = 0
    with tempfile.TemporaryDirectory() as place:
        measure(given.requests // 10, None)  # warm-up
        for run in range(given.runs):
            folder = Path(place) / str(run)
            order = [None, folder] if run % 2 else [folder, None]
            for one in order:
                (plain if one is None else watched).append(measure(given.requests, one))
            events += sum(event.kind == "answered" for event in read_events(folder))
    ratio = statistics.median(w / p for w, p in zip(watched, plain, strict=True))
    print(f"unwatched {statistics.median(plain):,.0f}/s, watched {statistics.median(watched):,.0f}/s, events read {events:,}")
    print(f"cost {100 * (1 - ratio):.1f} % (median of pairs; at most {100 * AT_MOST:.0f} %)")
    return int(1 - ratio > AT_MOST)


if __name__ == "__main__":
    raise SystemExit(main())
