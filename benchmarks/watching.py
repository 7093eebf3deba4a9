"""Cost of operating a broker: metrics, event log, rules, PLAIN and CURVE, each compared with a plain broker, in turns.

    python -m benchmarks.watching [--rounds 11] [--requests 50000]

One broker and one worker for each variant, real programs, and a client in this one, all pinned to one CPU, 1,000 requests in flight: the
credit row of the benchmarks. Every round measures every variant. Compared is the CPU time of the three programs for a request, which
determines the throughput on one CPU and which other programs affect least; medians of the ratios of a round. The cost of a scrape is
measured apart and added for one scrape a second; every fifteen seconds is usual.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import core
import core.runtime.event_loop
import mdp
from benchmarks.process import cpu_s, free_endpoint
from core.daemon.metrics import WebLimits
from core.daemon.run import settle_memory
from core.security.authenticator import curve_keypair
from mdp.commands.bench import WARM_UP_REQUESTS, Figures, Load, measure
from mdp.eventlog.files import read_events

AT_MOST = 0.05
"""Maximum part of the throughput for metrics and event log together."""
WINDOW = 1000
SCRAPES = 20
RULES = """\
[[allow]]
who = ["web"]
anonymous = true
call = ["echo"]

[[allow]]
who = ["desk"]
anonymous = true
serve = ["echo"]
"""


@dataclass
class Stage:
    """One variant: its flags, and once it is up its endpoint and programs."""

    name: str
    broker: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    security: core.Curve | core.Plain | None = None
    metrics: str = ""  # where to scrape
    endpoint: str = ""
    share: float = 1.0  # of the requests; what takes long is measured with fewer
    pids: list[int] = field(default_factory=list)
    spent_us: list[float] = field(default_factory=list)  # CPU for a request, by round
    rates: list[float] = field(default_factory=list)

    def start(self, stack: ExitStack) -> None:
        self.endpoint = free_endpoint()
        self.pids = [
            start(stack, "broker serves", "broker", "--bind", self.endpoint, *self.broker),
            start(stack, "registered", "worker", "--broker", self.endpoint, "--service", "echo", "--concurrency", "250", *self.worker),
        ]

    def run(self, requests: int) -> None:
        before = time.process_time() + sum(map(cpu_s, self.pids))
        figures = core.runtime.event_loop.run(ask(self, requests))
        spent_s = time.process_time() + sum(map(cpu_s, self.pids)) - before
        assert figures.lost == 0
        self.spent_us.append(1e6 * spent_s / (requests + WARM_UP_REQUESTS))
        self.rates.append(figures.rate)


async def ask(stage: Stage, requests: int) -> Figures:
    async with mdp.Client(stage.endpoint, timeout=30, window=WINDOW, security=stage.security) as client:
        return await measure(client, Load("echo", requests, WINDOW, 16))


def start(stack: ExitStack, word: str, *arguments: str) -> int:
    """Start a daemon of ours and wait until it is ready; return its process id."""
    process = subprocess.Popen([sys.executable, "-m", "mdp", *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    stack.callback(process.stderr.close)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGTERM)
    for line in process.stderr:
        if word in line:
            return process.pid
    raise SystemExit(f"mdp {arguments[0]} ended at once")


def scrape_s(stage: Stage) -> float:
    """Return the CPU seconds of the broker for one scrape."""
    before = cpu_s(stage.pids[0])
    for _ in range(SCRAPES):
        time.sleep(WebLimits().keep_s)  # a recent page is reused
        with urlopen(f"http://{stage.metrics}/metrics") as response:
            response.read()
    return (cpu_s(stage.pids[0]) - before) / SCRAPES


def secret(path: Path, text: str | bytes) -> str:
    """Write a file that only its owner reads; return its name."""
    path.touch(0o600)
    path.write_text(text if isinstance(text, str) else text.decode())
    return str(path)


def variants(place: Path) -> list[Stage]:
    """Return the variants to measure; the first is a plain broker."""
    rules = ["--rules", secret(place / "rules.toml", RULES)]
    faces = [free_endpoint().removeprefix("tcp://") for _ in range(2)]
    users = ["--plain-users", secret(place / "users", "web w\ndesk d\n")]
    desk = ["--plain-user", "desk", "--plain-password", secret(place / "desk", "d")]
    (public, private), (client, client_secret), (worker, worker_secret) = (curve_keypair() for _ in range(3))
    known = secret(place / "known", f"{client.decode()} web\n{worker.decode()} desk\n")
    curve = ["--curve-secret", secret(place / "broker.key", private), "--curve-authorized", known]
    curve_desk = ["--curve-secret", secret(place / "desk.key", worker_secret), "--curve-server-key", public.decode()]
    curve_web = core.Curve(secret_key=client_secret, server_key=public)
    return [
        Stage("nothing"),
        Stage("metrics", ["--http", faces[0]], metrics=faces[0]),
        Stage("metrics and event log", ["--http", faces[1], "--events", str(place / "events")], metrics=faces[1]),
        Stage("rules", rules),
        Stage("PLAIN and rules", [*users, *rules], desk, core.Plain(user="web", password="w")),
        Stage("CURVE", curve, curve_desk, curve_web, share=0.05),
        Stage("CURVE and rules", [*curve, *rules], curve_desk, curve_web, share=0.05),
    ]


def table(stages: list[Stage]) -> float:
    """Print the results; return the cost of metrics and event log together, as a part of the throughput."""
    plain = stages[0].spent_us
    costs: dict[str, float] = {}
    print(f"{'broker with':<24}{'us CPU/request':>16}{'requests/s':>14}{'us more':>10}{'throughput':>12}")
    for stage in stages:
        more_us = statistics.median(mine - other for mine, other in zip(stage.spent_us, plain, strict=True))
        costs[stage.name] = 1 - statistics.median(other / mine for mine, other in zip(stage.spent_us, plain, strict=True))
        spent_us, rate = statistics.median(stage.spent_us), statistics.median(stage.rates)
        print(f"{stage.name:<24}{spent_us:>16.2f}{rate:>14,.0f}{more_us:>10.2f}{-100 * costs[stage.name]:>+11.1f}%")
    return costs["metrics and event log"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--requests", type=int, default=50_000)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    settle_memory()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        stages = variants(place)
        with ExitStack() as stack:
            for stage in stages:
                stage.start(stack)
            for turn in range(given.rounds):
                # The order affects caches, so it changes each time.
                for stage in random.Random(turn).sample(stages, len(stages)):
                    stage.run(int(given.requests * stage.share))
            scraping_s = scrape_s(stages[2])
        events = sum(event.kind == "answered" for event in read_events(place / "events"))
        assert events == given.rounds * (given.requests + WARM_UP_REQUESTS), events
    cost = table(stages) + scraping_s
    print(f"a scrape takes the broker {1000 * scraping_s:.1f} ms")
    print(f"{events:,} events read; metrics and event log cost {100 * cost:.1f} %, at most {100 * AT_MOST:.0f} %")
    return int(cost > AT_MOST)


if __name__ == "__main__":
    raise SystemExit(main())
