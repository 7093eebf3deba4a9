"""pirate.cli: the bodies of `pirate queue` and `pirate worker`, run without the commands."""

from __future__ import annotations

import pirate
from pirate.cli import QueueDaemonOptions, WorkerDaemonOptions, serve_queue, serve_worker
from tests.scenes.lifetime import running

TCP = "tcp://127.0.0.1:*"


async def test_a_request_goes_through_queue_and_worker() -> None:
    async with running(serve_queue, QueueDaemonOptions(TCP, TCP)) as queue:
        async with running(serve_worker, WorkerDaemonOptions([queue.fields["backend"]])) as worker:
            async with pirate.Client(queue.fields["frontend"], timeout=60) as client:
                assert await client.request(b"hello") == [b"hello"]
    assert (queue.fields["kind"], worker.fields["kind"]) == ("paranoid", "paranoid")
