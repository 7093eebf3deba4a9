"""Broker and workers of the demo as child processes."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from core.daemon.exit_codes import Unreachable
from core.machine.peer_text import read_json
from mdp.client.sync import SyncClient
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Processes", "broker_stats", "free_port", "workers_of"]

# A new process loads Python and its packages; on a busy machine this takes long.
READY_WITHIN_S = 60.0
# Daemons drain within 10 s by themselves.
_STOP_WITHIN_S = 15.0
POLL_S = 0.05
# Silent heartbeats of a worker: one minute. A worker that is paused is silent and not lost, and on a busy machine Spark begins late.
LIVENESS = 24


class Processes:
    """Broker and workers of one service, each a process; leaving the block stops them all."""

    def __init__(self, service: str, handler: str, *, workers: int, concurrency: int, environment: Mapping[str, str], logs: Path) -> None:
        self.broker = f"tcp://127.0.0.1:{free_port()}"
        self.service = service
        self.broker_process: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []  # in the order of their start
        self._handler = handler  # `package.module:function` of the workers
        self._worker_count = workers
        self._concurrency = concurrency  # requests a worker handles at once
        self._environment = dict(environment)
        self._logs = logs  # directory with a log file per process
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as starting:
            starting.callback(self._stop)
            self.broker_process = self._start_broker("broker")
            for _ in range(self._worker_count):
                self.start_worker()
            self._wait_until_ready()
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_worker(self) -> None:
        arguments = ("--broker", self.broker, "--service", self.service, "--handler", self._handler)
        name = f"worker-{len(self.workers) + 1}"
        self.workers.append(self._start(name, "worker", *arguments, "--concurrency", str(self._concurrency)))

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Stop a worker process while the block runs, where the system can (not on Windows)."""
        process = self.workers[number]
        if sys.platform == "win32":
            yield
            return
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            # No effect if it was killed meanwhile.
            process.send_signal(signal.SIGCONT)

    def restart_broker(self) -> None:
        """Kill the broker and start it again at the same endpoint."""
        assert self.broker_process is not None
        self.broker_process.kill()
        self.broker_process.wait()
        self.broker_process = self._start_broker("broker-again")

    def _start_broker(self, name: str) -> subprocess.Popen[bytes]:
        return self._start(name, "broker", "--bind", self.broker, "--liveness", str(LIVENESS))

    def kill(self, number: int) -> int:
        """Kill a worker process, as a crash of the machine would, and return its process id."""
        process = self.workers[number]
        process.kill()
        return process.pid

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mdp", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        self._processes.append(process)
        return process

    def _wait_until_ready(self) -> None:
        give_up_at = time.monotonic() + READY_WITHIN_S
        with SyncClient(self.broker, timeout=1.0, attempts=1) as client:
            while self._ready_workers(client) < self._worker_count:
                ended = [process for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > give_up_at:
                    raise Unreachable(f"the broker and its workers did not start; their logs are in {self._logs}")
                time.sleep(POLL_S)

    def _ready_workers(self, client: SyncClient) -> int:
        try:
            return len(workers_of(client, self.service))
        except RequestError:  # the broker is not there yet
            return 0

    def _stop(self) -> None:
        # Workers first: they unregister at the broker.
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def workers_of(client: SyncClient, service: str) -> list[dict[str, Any]]:
    """Return a broker's rows about the workers of a service; none if it does not know the service. Raises RequestError."""
    code, *described = client.request("mmi.workers", service.encode())
    workers: list[dict[str, Any]] = read_json(described[0]) if code == b"200" else []
    return workers


def broker_stats(client: SyncClient) -> dict[str, int]:
    _, described = client.request("mmi.stats", b"")
    counters: dict[str, int] = read_json(described)
    return counters


def free_port() -> int:
    """Return a free port of 127.0.0.1; raises Unreachable if there is none."""
    # Below the range of automatic ports: between this check and the broker's bind, or while the broker restarts, no new connection can
    # take it.
    for port in random.sample(range(20_000, 32_000), 1000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise Unreachable("there is no free port on 127.0.0.1")
