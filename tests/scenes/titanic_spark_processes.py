"""A store as a process beside broker and services; it can be killed and started again."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import msgpack

import mdp

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tests.scenes.spark_processes import AllServices

READY_WITHIN_S = 60.0


class House:
    """A store at the broker of the services; leaving the block ends it.

    Attributes:
        broker: endpoint.
        gate: file that some tables of `count_table` wait for.
    """

    def __init__(self, services: AllServices, place: Path, *store_options: str) -> None:
        self.place = place
        self.store_options = store_options
        self.gate = services.gates / "count_table"
        self.broker = services.broker
        self.environment = services.environment
        self.store: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        self.start_store()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.store is not None:
            self.store.terminate()
            self.store.wait(30)

    def start_store(self) -> None:
        """Start the store and wait until it serves."""
        arguments = ["-m", "titanic", "serve", "--broker", self.broker, "--store", str(self.place / "store"), *self.store_options]
        with (self.place / "titanic.journal.segment_log").open("ab") as log:
            self.store = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(self.environment)
            )
        give_up_at = time.monotonic() + READY_WITHIN_S
        with mdp.SyncClient(self.broker, timeout=READY_WITHIN_S) as client:
            while client.request("mmi.service", b"titanic.batch")[0] != b"200":
                assert self.store.poll() is None, (self.place / "titanic.journal.segment_log").read_text()
                assert time.monotonic() < give_up_at
                time.sleep(0.05)

    def kill_store(self) -> None:
        """End the store without warning."""
        assert self.store is not None
        self.store.kill()
        self.store.wait()

    def executed(self, prefix: str) -> dict[str, int]:
        """Return how often each body that begins with a prefix was executed."""
        with mdp.SyncClient(self.broker, timeout=100) as client:
            counted: dict[str, int] = msgpack.unpackb(client.request("count", b"?" + prefix.encode())[0])
        return counted

    def options(self, **more: Any) -> dict[str, str]:
        """Return the options of the source that lead here."""
        return {"broker": self.broker, **{name: str(value) for name, value in more.items()}}
