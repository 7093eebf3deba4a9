"""Processes of the pipeline: each can be killed, and started again by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from examples.pipeline.orders import HANDLER, SERVICE
from examples.pipeline.scaler import open_requests
from mdp.spark.demo.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    import mdp

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
READY_WITHIN_S = 90.0
STOP_WITHIN_S = 20.0
POLL_S = 0.1
CONCURRENCY = 8
WORKERS_MAX = 4
# Starts of the streams after an end by themselves, as systemd or Kubernetes would start them. On a busy machine Spark gives up a Python
# process that takes more than ten seconds to start, and its query ends.
STREAM_STARTS_MAX = 5
# Java processes that live for two minutes: the second compiler and a parallel collector cost more than they gain.
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Program:
    """One process in a group of its own, with its log."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], logs: Path) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._log = logs / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=ROOT, start_new_session=True
            )

    def kill(self) -> None:
        """End the process and those it has started, without warning."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def check(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended; its log is {self._log}")


class Parts:
    """All processes of the pipeline; leaving the block stops them.

    Args:
        place: directory of lake, store, events and logs.
        service_ms: milliseconds the service takes.
    """

    def __init__(self, place: Path, service_ms: float) -> None:
        self.lake, self.events, self.scaler_log = place / "lake", place / "events", place / "scaler.jsonl"
        self.broker = f"tcp://127.0.0.1:{free_port()}"
        self.page = f"127.0.0.1:{free_port()}" if find_spec("aiohttp") else None
        self.spark_page = f"http://127.0.0.1:{free_port()}"
        self._master = f"spark://127.0.0.1:{free_port()}"
        self.verdict = self.lake / "verdict.json"
        self._place = place
        self._stack = ExitStack()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
            "PIPELINE_SERVICE_MS": str(service_ms),
        }
        self.restarts = 0  # of the streams, when they have ended by themselves
        self.programs = {name: Program(name, command, self._environment, place / "logs") for name, command in self._commands().items()}

    def __enter__(self) -> Self:
        (self._place / "logs").mkdir(parents=True, exist_ok=True)
        self.lake.mkdir(exist_ok=True)
        with ExitStack() as starting:
            for name in ("broker", "store", "scaler", "spark-master", "spark-worker-1", "spark-worker-2", "stream"):
                program = self.programs[name]
                starting.callback(program.stop)
                program.start()
                if name == "spark-master":
                    self.wait_until(self._master_is_up, "the Spark master is up")
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _commands(self) -> dict[str, list[str]]:
        ours = [sys.executable, "-m"]
        broker, heartbeats = ["--broker", self.broker], ["--heartbeat-ms", "1000"]
        page = ["--http", self.page] if self.page else []
        # An order that failed twice will fail again.
        store = ["--store", str(self._place / "store"), "--max-attempts", "2", "--retry-s", "0.1"]
        scaler = ["--service", SERVICE, "--handler", HANDLER, "--concurrency", str(CONCURRENCY), "--workers-max", str(WORKERS_MAX)]
        ports = ["--port", self._master.rpartition(":")[2], "--webui-port", self.spark_page.rpartition(":")[2]]
        spark_worker = ["--cores", "1", "--memory", "800m", "--work-dir", str(self._place / "spark"), "--webui-port", "0"]
        return {
            "broker": [*ours, "mdp", "broker", "--bind", self.broker, "--events", str(self.events), *heartbeats, *page],
            "store": [*ours, "titanic", "serve", *broker, *store, *heartbeats],
            "scaler": [*ours, "examples.pipeline.scaler", *broker, *scaler, "--log", str(self.scaler_log)],
            "spark-master": [*_spark_class("master.Master"), *ports],
            "spark-worker-1": [*_spark_class("worker.Worker"), *spark_worker, self._master],
            "spark-worker-2": [*_spark_class("worker.Worker"), *spark_worker, self._master],
            "stream": [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self._master, *self._settings(), *self._program()],
        }

    def _settings(self) -> list[str]:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "700m",
            "spark.driver.extraJavaOptions": SMALL_JAVA,
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": SMALL_JAVA,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # An executor that is killed takes its tasks with it: not their fault.
            "spark.task.maxFailures": "8",
        }
        return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    def _program(self) -> list[str]:
        return [str(ROOT / "examples" / "pipeline" / "job.py"), str(self.lake), self.broker, str(self.events)]

    def _master_is_up(self) -> bool:
        try:
            with urlopen(f"{self.spark_page}/json/", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def wait_until(self, true: Callable[[], bool], what: str, within_s: float = READY_WITHIN_S) -> None:
        """Wait for a condition; raises RuntimeError when a program has ended, or after some seconds."""
        give_up_at = time.monotonic() + within_s
        while not true():
            self.look_after()
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"not within {within_s:g} s: {what}; logs are in {self._place / 'logs'}")
            time.sleep(POLL_S)

    def look_after(self) -> None:
        """Start the streams again if they have failed; raises RuntimeError if another program has ended."""
        stream = self.programs["stream"].process
        if stream is not None and stream.poll() not in (None, 0) and not self.verdict.exists() and self.restarts < STREAM_STARTS_MAX:
            self.restarts += 1
            self.programs["stream"].start()
        for name, program in self.programs.items():
            if name != "stream" or not self.verdict.exists():
                program.check()

    def work_is_open(self, client: mdp.SyncClient) -> bool:
        """Return whether requests wait or run at the broker."""
        return bool(open_requests(client, SERVICE))

    def executor_pids(self) -> list[int]:
        """Return the executors that Spark's workers have started."""
        return [pid for number in (1, 2) for pid in _children(self.programs[f"spark-worker-{number}"].pid)]


def _spark_class(name: str) -> list[str]:
    """Return the command of a daemon of Spark, as its start-master.sh and start-worker.sh run it."""
    return [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # `pid (name) state ppid`, and a name may have blanks and brackets.
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:  # has ended
            continue
        if int(words[1]) == parent:
            found.append(int(stat.parent.name))
    return found
