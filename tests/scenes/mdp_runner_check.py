"""Check at the end of every worker of a test: it can still work on all the requests it should."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mdp.worker.worker import Worker

if TYPE_CHECKING:
    import pytest

__all__ = ["RunnerCheck"]

# A runner that was woken or has ended needs an iteration of the event loop or two to be one thing or the other.
SETTLE_TURNS = 3


class RunnerCheck:
    """Looks at workers just before they end their runners.

    Attributes:
        troubles: what was wrong.
        checked: workers that were looked at.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.troubles: list[str] = []
        self.checked = 0
        close = Worker._close

        async def check_and_close(worker: Worker) -> None:
            try:
                for _ in range(SETTLE_TURNS):
                    await asyncio.sleep(0)
                self.check(worker)
            finally:
                await close(worker)

        monkeypatch.setattr(Worker, "_close", check_and_close)

    def check(self, worker: Worker) -> None:
        """Note what is wrong with the runners of a worker."""
        runners = worker._runners
        if runners is None:
            return
        self.checked += 1
        tasks, concurrency = runners._tasks, worker.options.concurrency
        idle = {runner.task for runner in runners._idle_runners if not runner.wake.done()}
        busy = {request._task for request in runners.running}
        if any(task.done() for task in tasks):
            self.troubles.append(f"{worker.service}: {sum(task.done() for task in tasks)} of {len(tasks)} runners are dead")
        if tasks != idle | busy or idle & busy:
            self.troubles.append(f"{worker.service}: {len(tasks)} runners, but {len(idle)} idle and {len(busy)} busy ones")
        if len(tasks) > concurrency:
            self.troubles.append(f"{worker.service}: {len(tasks)} runners, more than {concurrency}")
        if set(runners._cancellations.since) - set(runners.running):
            self.troubles.append(
                f"{worker.service}: {len(runners._cancellations.since)} requests are remembered as cancelled and do not run"
            )
