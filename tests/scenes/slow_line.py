"""A slow line: a program that forwards tcp, with so many octets a second in each direction.

It may take many more at once, as a tunnel or a proxy does.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIECE_S: Final = 0.01
BUFFER_BYTES: Final = 16 * 1024
SEGMENT_BYTES: Final = 1400  # of a network, not of one machine, whose segments are larger than the buffer


@asynccontextmanager
async def slow_line(endpoint: str, octets_s: int, taken_octets: int = BUFFER_BYTES) -> AsyncIterator[str]:
    """Yield the endpoint of a slow line to another one, which takes so many octets before they go on."""
    tasks: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while octets := await reader.read(int(octets_s * PIECE_S)):
                writer.write(octets)
                await writer.drain()
                await asyncio.sleep(len(octets) / octets_s)
        except OSError:
            pass  # an end has gone
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
        for one, other in ((reader, far_writer), (far_reader, writer)):
            tasks.add(asyncio.create_task(forward(one, other)))

    listening = socket.socket()
    # Small buffers: what a sender's system counts as taken has gone through the line.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    listening.bind(("127.0.0.1", 0))
    async with await asyncio.start_server(accept, sock=listening, limit=taken_octets) as server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
