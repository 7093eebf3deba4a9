"""Broker and workers of Spark tests as processes, with more services than one, and a broker that is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from core.daemon.exit_codes import Unreachable
from mdp.client.sync import SyncClient
from mdp.errors import RequestError
from mdp.spark.demo.processes import POLL_S, READY_WITHIN_S, Processes, workers_of
from tests.mdp.spark.services import GATES
from tests.scenes.spark_services import SERVICES

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]


class ServiceProcesses(Processes):
    def offer(self, service: str, handler: str, *options: str) -> None:
        """Start a worker process for another service, and wait until it is registered."""
        process = self._start(service, "worker", "--broker", self.broker, "--service", service, "--handler", handler, *options)
        give_up_at = time.monotonic() + READY_WITHIN_S
        with SyncClient(self.broker, timeout=READY_WITHIN_S) as client:
            while not workers_of(client, service):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise Unreachable(f"the worker of {service} did not start; its log is in {self._logs}")
                time.sleep(POLL_S)


class AllServices(ServiceProcesses):
    """Broker with an event log, and one worker process with every service of `tests.scenes.spark_services`.

    Attributes:
        environment: of the processes.
        gates: directory with a file for each service that may go on.
        events: directory of the event log.
    """

    def __init__(self, place: Path, *worker_options: str) -> None:
        self.gates, self.events = place / "gates", place / "events"
        self.gates.mkdir(parents=True)
        self.worker_options = worker_options
        named = {"PYTHONPATH": str(ROOT), GATES: str(self.gates), "MDP_BROKER_EVENTS": str(self.events)}
        self.environment: Mapping[str, str] = {**os.environ, **named}
        super().__init__(SERVICES[0], "", workers=1, concurrency=64, environment=self.environment, logs=place / "logs")

    def start_worker(self) -> None:
        app = ("--broker", self.broker, "--app", "tests.scenes.spark_services", *self.worker_options)
        self.workers.append(self._start(f"worker-{len(self.workers) + 1}", "worker", *app))

    def _ready_workers(self, client: SyncClient) -> int:
        try:
            return int(all(workers_of(client, service) for service in SERVICES))
        except RequestError:  # the broker is not there yet
            return 0
