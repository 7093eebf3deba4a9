"""Requests stored in Titanic, each answered when it is on the disk; and the disk alone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import mdp
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 100


def submit(options: Options) -> None:
    """Keep `window` submits on their way."""

    async def run() -> None:
        body = body_of(options.size)
        async with mdp.Client(options.endpoint, timeout=60, window=2 * options.window) as client:
            with suppress(mdp.RequestError):
                await client.request("titanic.request", b"nobody", body, wait=True)
            ready()
            meter = Meter(options)
            going = True

            def bodies() -> Iterator[list[bytes]]:
                while going:
                    yield [b"nobody", body]

            pending = 0
            async for outcome in client.map("titanic.request", bodies(), window=options.window):
                assert outcome.reply is not None
                assert outcome.reply[0] == b"200"
                pending += 1
                if pending == BATCH:
                    pending = 0
                    going = meter.add(BATCH)
                    if not going:
                        break
            report(meter.figures())

    run_on_loop(run())


def sync_each(options: Options) -> None:
    """Append to a file, one write and one fdatasync for each."""
    with TemporaryDirectory() as folder:
        handle = os.open(Path(folder) / "plain", os.O_RDWR | os.O_CREAT)
        body = body_of(options.size)
        ready()
        meter = Meter(options)
        at = 0
        while meter.add(1):
            os.pwrite(handle, body, at)
            os.fdatasync(handle)
            at += len(body)
        report(meter.figures())
        os.close(handle)


if __name__ == "__main__":
    main({"submit": submit, "sync-each": sync_each})
