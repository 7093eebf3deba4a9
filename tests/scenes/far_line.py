"""A far machine: a program that forwards tcp, and all that passes arrives later."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def far_line(endpoint: str, delay_s: float) -> AsyncIterator[str]:
    """Yield an endpoint from which octets take so long to another one, and as long back."""
    loop, tasks, writers = asyncio.get_running_loop(), set[asyncio.Task[None]](), list[asyncio.StreamWriter]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while octets := await reader.read(65536):
                loop.call_later(delay_s, writer.write, octets)
        loop.call_later(delay_s, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
        writers.extend((writer, far_writer))
        for one, other in ((reader, far_writer), (far_reader, writer)):
            tasks.add(asyncio.create_task(forward(one, other)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
