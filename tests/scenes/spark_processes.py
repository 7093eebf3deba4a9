"""Broker and workers of Spark tests as processes, with more services than one, and a broker that is killed."""

from __future__ import annotations

import time

from core.daemon.exit_codes import Unreachable
from mdp.client.sync import SyncClient
from mdp.spark.demo.processes import POLL_S, READY_WITHIN_S, Processes, workers_of


class ServiceProcesses(Processes):
    def offer(self, service: str, handler: str, *options: str) -> None:
        """Start a worker process for another service, and wait until it is registered."""
        process = self._start(service, "worker", "--broker", self.broker, "--service", service, "--handler", handler, *options)
        give_up_at = time.monotonic() + READY_WITHIN_S
        with SyncClient(self.broker, timeout=1.0, attempts=1) as client:
            while not workers_of(client, service):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise Unreachable(f"the worker of {service} did not start; its log is in {self._logs}")
                time.sleep(POLL_S)

    def restart_broker(self) -> None:
        """Kill the broker and start it again at the same endpoint."""
        assert self.broker_process is not None
        self.broker_process.kill()
        self.broker_process.wait()
        self.broker_process = self._start("broker-again", "broker", "--bind", self.broker)
