"""The promise, seen from outside the process.

System calls, a full disk, a disk that cannot be written, brokers that go away.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import titanic
from tests.sim.disk import SimDisk
from tests.sim.journal_model import LIMITS, OPTIONS
from titanic.store.index.request_index import RequestIndex
from titanic.store.repair import read_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SENDS = ("write(", "writev(", "sendto(", "sendmsg(")


@asynccontextmanager
async def program(*command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def serve(endpoint: str, store: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "titanic", "serve", "--broker", endpoint, "--store", str(store), *more]


async def said(process: asyncio.subprocess.Process, what: str) -> None:
    assert process.stderr is not None
    while what not in (line := (await process.stderr.readline()).decode()):
        assert line, f"ended without saying {what!r}"


# ------------------------------------------------------------------------------------------------------ no 200 before its sync


def strace_works() -> bool:
    """Whether this machine can trace system calls: strace is there and may do it."""
    found = shutil.which("strace")
    return found is not None and subprocess.run([found, "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


def octets_in(line: str) -> bytes:
    """Return the bytes of all strings of a line that `strace -xx` wrote."""
    return b"".join(bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', line))


def judge_trace(lines: list[str], uuids: list[bytes]) -> None:
    """Check that each acknowledgement began after an fdatasync that began after the write of its record had ended."""
    begun: dict[str, tuple[int, str]] = {}  # by thread
    writes: list[tuple[int, bytes]] = []
    syncs: list[tuple[int, int]] = []
    sends: list[tuple[int, bytes]] = []
    for at, line in enumerate(lines):
        thread, _, rest = line.partition(" ")
        rest = rest.lstrip()
        if rest.endswith("<unfinished ...>"):
            begun[thread] = (at, rest)
            if rest.startswith(SENDS):
                sends.append((at, octets_in(rest)))
            continue
        start, text = begun.pop(thread, (at, "")) if rest.startswith("<...") else (at, "")
        text += rest
        if text.startswith(("pwritev(", "pwritev2(")):
            writes.append((at, octets_in(text)))
        elif text.startswith("fdatasync(") and text.rstrip().endswith("= 0"):
            syncs.append((start, at))
        elif rest.startswith(SENDS):
            sends.append((at, octets_in(rest)))
    for uuid in uuids:
        raw = bytes.fromhex(uuid.decode())
        written = min(at for at, octets in writes if raw in octets)
        acknowledged = min(at for at, octets in sends if uuid in octets)
        assert any(written < start and end < acknowledged for start, end in syncs), f"{uuid!r} was acknowledged before its sync"


async def traced(endpoint: str, directory: Path) -> list[bytes]:
    """Run a store under strace, submit one by one and many at once; returns the UUIDs."""
    trace = ["strace", "-f", "-xx", "-s", "1000000", "-o", str(directory / "trace")]
    calls = ["-e", "trace=pwritev,pwritev2,fdatasync,write,writev,sendto,sendmsg"]
    async with program(*trace, *calls, *serve(endpoint, directory / "store"), start_new_session=True) as process:
        try:
            async with mdp.Client(endpoint, timeout=60) as client:
                while await client.mmi("service", "titanic.request") != "200":
                    await asyncio.sleep(0.02)
                replies = [await client.request("titanic.request", b"nobody", b"%d" % n) for n in range(20)]
                replies += await asyncio.gather(*(client.request("titanic.request", b"nobody", b"%d" % n) for n in range(300)))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
    assert {reply[0] for reply in replies} == {b"200"}
    return [reply[1] for reply in replies]


class WatchedDisk(SimDisk):
    """Notes what is durable at the moment a store acknowledges: the same proof at the seam, for machines without strace."""

    def durable(self) -> bytes:
        return b"".join(self.snapshot().contents.values())


async def watched() -> int:
    """Submit to a store on a watched disk; return the number of checked acknowledgements."""
    disk = WatchedDisk()
    looked: list[bool] = []
    options = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=256))
    async with titanic.Store(disk, options) as store:
        done = asyncio.get_running_loop().create_future()

        def look(reply: list[bytes]) -> None:
            looked.append(reply[0] == b"200" and bytes.fromhex(reply[1].decode()) in disk.durable())
            if len(looked) == 300:
                done.set_result(None)

        for number in range(300):
            store.submit([b"nobody", b"%d" % number], look)
        await done
    assert all(looked)
    return len(looked)


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
async def test_no_200_leaves_before_its_fdatasync_has_returned(tmp_path: Path) -> None:
    """G5, TSP-06: by the system calls of the process where they can be seen, and at the disk's seam everywhere."""
    assert await watched() == 300
    if strace_works():
        async with mdp.Broker() as broker:
            uuids = await traced(broker.bind("tcp://127.0.0.1:*"), tmp_path)
        judge_trace((tmp_path / "trace").read_text().splitlines(), uuids)


def test_the_judge_of_traces_finds_an_acknowledgement_that_came_too_early() -> None:
    uuid = b"AB" * 16
    record = '1 pwritev(5, [{iov_base="' + "\\xab" * 16 + '", iov_len=16}], 1, 0) = 16'
    reply = '2 sendto(7, "' + "".join(f"\\x{octet:02x}" for octet in uuid) + '", 32, 0, NULL, 0) = 32'
    sync = ["1 fdatasync(5 <unfinished ...>", "1 <... fdatasync resumed>) = 0"]
    judge_trace([record, *sync, reply], [uuid])
    for early in ([record, reply, *sync], [record, sync[0], reply, sync[1]], [*sync, record, reply]):
        with pytest.raises(AssertionError, match="before its sync"):
            judge_trace(early, [uuid])


# ------------------------------------------------------------------------------------------------------------- disks that refuse


class SmallDisk(titanic.RealDisk):
    """A real directory on a device of some size."""

    room = 400_000

    def _need(self, more: int) -> None:
        used = sum((self.directory / name).stat().st_blocks * 512 for name in self.names())
        if used + more > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def preallocate(self, handle: int, size: int) -> None:
        self._need(size)
        super().preallocate(handle, size)


@asynccontextmanager
async def small_disk(directory: Path) -> AsyncIterator[titanic.RealDisk]:
    """A tmpfs of 400 kB where we may mount one, else a directory that behaves like it."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SmallDisk.room}", "tmpfs", str(directory)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield titanic.RealDisk(directory) if mounted else SmallDisk(directory)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_small_disk_fills_up_refuses_and_resumes_by_itself(tmp_path: Path) -> None:
    """S6: requests are refused, replies and closes go on, and room that is given back is used."""
    options = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=65536))
    async with small_disk(tmp_path / "disk") as disk, titanic.Store(disk, options) as store:

        async def ask(call: Any, *frames: bytes) -> list[bytes]:
            done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            call(list(frames), done.set_result)
            return await done

        uuids = []
        while (reply := await ask(store.submit, b"echo", b"x" * 2000))[0] == b"200":
            uuids.append(reply[1])
            assert len(uuids) < 1000
        assert reply[0] == b"500"
        assert b"full" in reply[1]
        assert len(uuids) > 50
        assert store.status["state"] == "full"
        store.answer(bytes.fromhex(uuids[0].decode()), [b"done"])
        while (await ask(store.fetch, uuids[0])) == [b"300"]:
            await asyncio.sleep(0.001)
        assert await ask(store.fetch, uuids[0]) == [b"200", b"done"]
        for uuid in uuids:
            assert await ask(store.close_request, uuid) == [b"200"]
        while (await ask(store.submit, b"echo", b"again"))[0] != b"200":
            await asyncio.sleep(0.05)
        assert store.status["state"] == "serving"


async def test_a_directory_that_cannot_be_written_is_74_and_said_in_one_line(tmp_path: Path) -> None:
    """S13: a file where the directory should be, or a directory on a read-only device."""
    (tmp_path / "file").write_text("")
    process = await asyncio.create_subprocess_exec(
        *serve("tcp://127.0.0.1:9", tmp_path / "file" / "store"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 74
    assert b"Traceback" not in err


async def test_a_store_on_a_device_mounted_read_only_is_74_and_left_alone(tmp_path: Path) -> None:
    """S13: on a tmpfs where mounting is allowed; elsewhere, without root, a directory without write permission."""
    directory = tmp_path / "disk"
    async with small_disk(directory) as disk:
        async with titanic.Store(disk, titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))):
            pass
        before = {file.name: file.read_bytes() for file in directory.iterdir()}
        mounted = directory.is_mount()
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
        else:
            directory.chmod(0o555)
        try:
            if os.access(directory, os.W_OK):
                return  # root on a machine where nothing may be mounted can write anywhere
            options: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(*serve("tcp://127.0.0.1:9", directory), **options)
            _, err = await process.communicate()
        finally:
            if not mounted:
                directory.chmod(0o755)
        assert process.returncode == 74
        assert b"Traceback" not in err
        assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


class ReadOnlyDisk(SimDisk):
    """A device that was mounted read-only after an error, as Linux does."""

    read_only = False

    def _call(self, name: str) -> None:
        super()._call(name)
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


async def test_a_disk_that_becomes_read_only_refuses_and_goes_on_serving_what_it_has() -> None:
    disk = ReadOnlyDisk()
    async with titanic.Store(disk, titanic.JournalOptions(log=OPTIONS)) as store:
        first: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.submit([b"echo", b"x"], first.set_result)
        uuid = (await first)[1]
        disk.read_only = True
        second: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.submit([b"echo", b"y"], second.set_result)
        assert (await second)[0] == b"500"
        third: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.fetch([uuid], third.set_result)
        assert await third == [b"300"]
        disk.read_only = False
    assert RequestIndex(LIMITS).entries == {}
    assert [entry.uuid.hex().upper().encode() for entry in read_store(SimDisk(disk.survivors()))[1].entries.values()] == [uuid]


# --------------------------------------------------------------------------------------------------------------- several brokers


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
async def test_titanic_and_its_clients_go_to_the_next_broker_when_one_dies(tmp_path: Path) -> None:
    """TSP-16: `--broker` repeated; what was accepted at the first is answered at the second."""

    async def echo(request: mdp.Request) -> list[bytes]:
        return list(request.body)

    async with mdp.Broker() as second:
        backup = second.bind("tcp://127.0.0.1:*")
        broker = [sys.executable, "-m", "mdp", "broker", "--bind"]
        async with program(*broker, "tcp://127.0.0.1:*") as first:
            assert first.stderr is not None
            while b"endpoint" not in (line := await first.stderr.readline()):
                assert line
            primary = re.search(rb"tcp://127.0.0.1:\d+", line)
            assert primary is not None
            both = [primary[0].decode(), backup]
            options = ["--heartbeat-ms", "100", "--broker", backup]
            async with (
                program(*serve(both[0], tmp_path / "store", *options)) as store,
                titanic.Client(both, timeout=2.0, attempts=30) as client,
            ):
                await said(store, "titanic serves")
                tickets = [await client.submit("echo", b"%d" % n) for n in range(20)]
                first.kill()
                await first.wait()
                tickets += [await client.submit("echo", b"%d" % n) for n in range(20, 40)]
                async with mdp.Worker(both, "echo", handler=echo, heartbeat_ms=100):
                    assert [await ticket.result(60) for ticket in tickets] == [[b"%d" % n] for n in range(40)]
                for ticket in tickets:
                    await ticket.close()
