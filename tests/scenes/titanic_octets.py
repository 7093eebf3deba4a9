"""A mirror that is made of octets, and a store that it is the mirror of."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

import core
import titanic
from tests.scenes.waiting import eventually
from titanic.mirror.replica_link import MirrorLine, MirrorTerms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OPTIONS = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))


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

    async def followed(self) -> Said:
        """Come in step; return the hello."""
        said = await self.greeted()
        await self.answer(await self.copied())
        return said

    async def obey(self) -> None:
        """Answer every call that is answered, from now on."""
        while True:
            said = await self.next(b"hello", b"copy", b"swap", b"sync", b"sync_directory")
            await self.answer(said, detail=msgpack.packb({}) if said.call == b"hello" else b"")


@asynccontextmanager
async def octets(endpoint: str) -> AsyncIterator[Octets]:
    async with core.Context() as context:
        socket = context.socket(core.ROUTER, linger=0)
        socket.bind(endpoint)
        yield Octets(socket)
        socket.close(linger=0)


class GatedDisk(titanic.RealDisk):
    """A disk one of whose syncs, or reads in the writer thread, waits for a gate."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.slow = threading.Event()
        self.slow_read = threading.Event()
        self.gate = threading.Event()
        self.named: dict[int, str] = {}
        self.read_by_writer: set[str] = set()
        self.unreadable = threading.Event()

    def open(self, name: str) -> int:
        handle = super().open(name)
        self.named[handle] = name
        return handle

    def sync(self, handle: int) -> None:
        if self.slow.is_set():
            self.slow.clear()
            self.gate.wait()
        super().sync(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if self.slow_read.is_set() and not threading.current_thread().name.startswith("asyncio"):  # not while files are copied ahead
            self.slow_read.clear()
            self.gate.wait()
        if threading.current_thread().name.startswith("titanic"):
            if self.unreadable.is_set():
                raise OSError("unreadable")
            self.read_by_writer.add(self.named[handle])
        return super().read(handle, size, offset)


@asynccontextmanager
async def store(
    disk: titanic.RealDisk, endpoint: str, timeout_s: float = 30.0, terms: MirrorTerms | None = None, go_on: bool = False
) -> AsyncIterator[titanic.Store]:
    line = MirrorLine(endpoint, timeout_s=timeout_s, terms=terms)
    async with titanic.Store(disk, OPTIONS, mirror=line, go_on=go_on) as opened:
        yield opened


@asynccontextmanager
async def mirrored(disk: titanic.RealDisk, endpoint: str, **options: Any) -> AsyncIterator[tuple[Octets, titanic.Store]]:
    """Begin with a mirror, and end without it: the store does not wait for it then."""
    async with store(disk, endpoint, **options) as opened, octets(endpoint) as mirror:
        yield mirror, opened


def terms(window_s: float = 1000.0, *, pulse_s: float = 0.001, alone: bool = False, serves: bool = True) -> MirrorTerms:
    return MirrorTerms(window_s, pulse_s, alone, lambda: serves)


def line_of(stored: titanic.Store) -> MirrorLine:
    assert stored.mirror is not None
    return stored.mirror


async def is_in_state(stored: titanic.Store, state: str, reason: str = "") -> None:
    await eventually(lambda: (line_of(stored).state, line_of(stored).reason) == (state, reason))
