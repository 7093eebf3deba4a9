"""The connection of a store to its mirror, with a mirror that is made of octets."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgpack
import pytest

import core
import titanic
from tests.titanic.mirror.test_replica_server import OPTIONS, submitted
from titanic.mirror.replica_link import MirrorLine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Said(NamedTuple):
    """One message of a store."""

    peer: bytes
    session: bytes
    number: bytes
    call: bytes
    arguments: tuple[bytes, ...]


class Octets:
    """A mirror that holds nothing, and answers when a test does."""

    def __init__(self, socket: core.Socket) -> None:
        self.socket = socket

    async def next(self, *calls: bytes) -> Said:
        """Return the next message, or the next one with one of these calls."""
        while True:
            peer, session, number, call, *arguments = await self.socket.recv_multipart()
            if not calls or call in calls:
                return Said(peer, session, number, call, tuple(arguments))

    async def answer(self, said: Said, word: bytes = b"ok", detail: bytes = b"") -> None:
        await self.socket.send_multipart([said.peer, said.session, said.number, word, detail])

    async def greeted(self) -> Said:
        """Answer the next hello: there is nothing here."""
        said = await self.next(b"hello")
        await self.answer(said, detail=msgpack.packb({}))
        return said

    async def copied(self) -> Said:
        """Answer copies up to the swap, and return that."""
        while (said := await self.next(b"copy", b"swap")).call == b"copy":
            await self.answer(said)
        return said

    async def followed(self) -> None:
        """Come in step."""
        await self.greeted()
        await self.answer(await self.copied())


@asynccontextmanager
async def octets(endpoint: str) -> AsyncIterator[Octets]:
    async with core.Context() as context:
        socket = context.socket(core.ROUTER, linger=0)
        socket.bind(endpoint)
        yield Octets(socket)
        socket.close(linger=0)


class GatedDisk(titanic.RealDisk):
    """A disk one of whose syncs waits for a gate."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.slow = threading.Event()
        self.gate = threading.Event()

    def sync(self, handle: int) -> None:
        if self.slow.is_set():
            self.slow.clear()
            self.gate.wait()
        super().sync(handle)


@asynccontextmanager
async def store(disk: titanic.RealDisk, endpoint: str, timeout_s: float = 30.0) -> AsyncIterator[titanic.Store]:
    line = MirrorLine(endpoint, timeout_s=timeout_s)
    async with titanic.Store(disk, OPTIONS, mirror=line) as opened:
        yield opened


@pytest.mark.faults
async def test_the_answer_to_a_later_hello_is_not_taken_for_that_of_a_sync(tmp_path: Path) -> None:
    """While the store's own disk syncs, the connection is lost and made again: the mirror does not have the record."""
    endpoint, disk = f"ipc://{tmp_path}/mirror", GatedDisk(tmp_path / "a")
    async with octets(endpoint) as first:
        stack = store(disk, endpoint)
        stored = await stack.__aenter__()
        await first.followed()
        await stored.wait_for_mirror()
        disk.slow.set()
        accepted = asyncio.ensure_future(submitted(stored, b"request"))
        await first.next(b"sync")
    async with octets(endpoint) as second:
        await second.greeted()
        copy = await second.next(b"copy")  # the answer to hello has arrived
        disk.gate.set()
        await second.answer(copy)
        swap = await second.copied()
        assert not accepted.done()
        await second.answer(swap)
        assert (await accepted)[0] == b"200"
        assert stored.mirror is not None
        stored.mirror.end()
        second.socket.close(linger=0)
        await stack.__aexit__(None, None, None)


async def test_a_mirror_may_read_its_files_for_longer_than_a_sync_may_last(tmp_path: Path) -> None:
    """It answers a hello after that: it reads gigabytes when roles have changed."""
    endpoint = f"ipc://{tmp_path}/mirror"
    async with octets(endpoint) as mirror, store(titanic.RealDisk(tmp_path / "a"), endpoint, timeout_s=0.01) as stored:
        hello = await mirror.next()
        while "not answered" not in str(stored.stalled):
            await asyncio.sleep(0.001)
        await mirror.answer(hello, detail=msgpack.packb({}))
        copy = await mirror.next()
        assert (copy.session, copy.call) == (hello.session, b"copy")
