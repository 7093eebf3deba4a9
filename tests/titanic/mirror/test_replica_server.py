"""A mirror over sockets: in step before 200, away, back again, promoted; and on the command line."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
import titanic
from tests.scenes.prefork import command
from tests.scenes.slow_line import slow_line
from titanic.commands.operator import operator
from titanic.errors import Unavailable
from titanic.journal.ownership import MARK_NAME, Step, read_mark
from titanic.mirror.replica_link import MirrorLine
from titanic.mirror.replica_server import Mirror
from titanic.store.repair import check, read_store
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, Hello, Swap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OPTIONS = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536, reserve_bytes=4096))


@asynccontextmanager
async def mirror(directory: Path, endpoint: str = "tcp://127.0.0.1:*", **options: Any) -> AsyncIterator[tuple[Mirror, str]]:
    async with Mirror(titanic.RealDisk(directory), **options) as copy:
        yield copy, copy.bind(endpoint)


@asynccontextmanager
async def store(directory: Path, endpoint: str, go_on: bool = False) -> AsyncIterator[titanic.Store]:
    line = MirrorLine(endpoint, timeout_s=5.0)
    async with titanic.Store(titanic.RealDisk(directory), OPTIONS, mirror=line, go_on=go_on) as opened:
        yield opened


async def submitted(stored: titanic.Store, body: bytes) -> list[bytes]:
    done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    stored.submit([b"echo", body], done.set_result)
    return await done


async def in_step(stored: titanic.Store) -> None:
    assert stored.mirror is not None
    while stored.mirror.state != "in step":
        await asyncio.sleep(0.001)


def same_segments(one: Path, two: Path) -> bool:
    def of(directory: Path) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in directory.glob("*.seg")}

    return of(one) == of(two)


async def test_what_is_acknowledged_is_on_both_disks(tmp_path: Path) -> None:
    async with mirror(tmp_path / "b") as (copy, endpoint), store(tmp_path / "a", endpoint) as stored:
        await stored.wait_for_mirror()
        replies = await asyncio.gather(*(submitted(stored, b"%d" % n * 100) for n in range(500)))
        assert {reply[0] for reply in replies} == {b"200"}
        # Looked at while it is held: each 200 has left, so its record is in the files of the mirror.
        _, index = read_store(titanic.RealDisk(tmp_path / "b"))
        assert {entry.uuid.hex().upper().encode() for entry in index.entries.values()} == {reply[1] for reply in replies}
        assert copy.replica.mark.step is Step.IN_STEP
    assert same_segments(tmp_path / "a", tmp_path / "b")
    assert check(titanic.RealDisk(tmp_path / "b"))[0] == []


async def test_socket_options_may_name_what_both_ends_set_themselves(tmp_path: Path) -> None:
    options = {"linger": 5, "sndhwm": 1000}
    async with mirror(tmp_path / "b", socket_options=options) as (_, endpoint):
        line = MirrorLine(endpoint, timeout_s=5.0, socket_options=options)
        async with titanic.Store(titanic.RealDisk(tmp_path / "a"), OPTIONS, mirror=line) as stored:
            await stored.wait_for_mirror()
            assert line.state == "in step"


async def test_hb_02_a_mirror_on_a_slow_line_is_waited_for_while_octets_move(tmp_path: Path) -> None:
    """A sync and each copy take many times as long as an answer may; it never came in step."""
    large = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=2**20, reserve_bytes=4096))
    async with mirror(tmp_path / "b") as (_, endpoint), slow_line(endpoint, 500_000) as line:
        for _ in range(2):  # what the first one does not send is caught up with
            link = MirrorLine(line, timeout_s=0.3)
            async with titanic.Store(titanic.RealDisk(tmp_path / "a"), large, mirror=link) as stored:
                await stored.wait_for_mirror()
                assert (await submitted(stored, os.urandom(700_000)))[0] == b"200"
    (tmp_path / "b").rename(tmp_path / "former")
    async with mirror(tmp_path / "b") as (_, endpoint), slow_line(endpoint, 500_000) as line:
        link = MirrorLine(line, timeout_s=0.3)
        async with titanic.Store(titanic.RealDisk(tmp_path / "a"), large, mirror=link) as stored:
            await stored.wait_for_mirror()  # all of its files
            assert link.state == "in step"
    assert same_segments(tmp_path / "a", tmp_path / "b")


async def test_without_its_mirror_a_store_takes_nothing_and_goes_on_by_itself_when_it_is_back(tmp_path: Path) -> None:
    async with mirror(tmp_path / "b") as (_, endpoint):
        stack = store(tmp_path / "a", endpoint)
        stored = await stack.__aenter__()
        await stored.wait_for_mirror()
        assert (await submitted(stored, b"first"))[0] == b"200"
    while stored.stalled is None:
        await asyncio.sleep(0.001)
    code, reason = await submitted(stored, b"refused")
    assert code == b"500"
    assert b"mirror is away" in reason
    async with mirror(tmp_path / "b", endpoint):
        await in_step(stored)
        assert (await submitted(stored, b"second"))[0] == b"200"
        await stack.__aexit__(None, None, None)
    assert same_segments(tmp_path / "a", tmp_path / "b")


async def test_a_store_that_may_go_on_says_so_and_brings_the_mirror_up_to_it(tmp_path: Path) -> None:
    async with mirror(tmp_path / "b") as (_, endpoint):
        stack = store(tmp_path / "a", endpoint, go_on=True)
        stored = await stack.__aenter__()
        await in_step(stored)
        assert (await submitted(stored, b"first"))[0] == b"200"
    assert (await submitted(stored, b"alone"))[0] == b"200"
    assert stored.status["mirror"] != "in step"
    mark = read_mark(titanic.RealDisk(tmp_path / "a"))
    assert mark is not None
    assert mark.alone
    async with mirror(tmp_path / "b", endpoint):
        await in_step(stored)
        assert (await submitted(stored, b"together"))[0] == b"200"
        await stack.__aexit__(None, None, None)
    assert same_segments(tmp_path / "a", tmp_path / "b")
    _, index = read_store(titanic.RealDisk(tmp_path / "b"))
    assert len(index.entries) == 3


async def test_a_batch_that_lost_its_mirror_is_acknowledged_when_the_mirror_holds_it(tmp_path: Path) -> None:
    """Nothing that was appended is refused because the mirror went away in the middle."""
    async with mirror(tmp_path / "b") as (_, endpoint):
        stack = store(tmp_path / "a", endpoint)
        stored = await stack.__aenter__()
        await stored.wait_for_mirror()
        assert stored.mirror is not None
        waiting = [asyncio.ensure_future(submitted(stored, b"%d" % n)) for n in range(10)]
        await asyncio.sleep(0)
    async with mirror(tmp_path / "b", endpoint):
        assert {reply[0] for reply in await asyncio.gather(*waiting)} <= {b"200"}
        await stack.__aexit__(None, None, None)
    _, index = read_store(titanic.RealDisk(tmp_path / "b"))
    assert len(index.entries) == 10


async def test_closing_does_not_wait_for_a_mirror_that_is_away(tmp_path: Path) -> None:
    async with store(tmp_path / "a", "tcp://127.0.0.1:9") as stored:
        assert (await submitted(stored, b"x"))[0] == b"500"
    assert (tmp_path / "a" / MARK_NAME).exists()


async def test_strangers_cannot_write_to_a_mirror(tmp_path: Path) -> None:
    async with mirror(tmp_path / "b") as (copy, endpoint), core.Context() as context:
        dealer = context.socket(core.DEALER, linger=0)
        dealer.connect(endpoint)
        for frames in (
            [b"", b"", b""],
            [bytes(8), bytes(8), b"write", b"../x", b"0", b"evil"],
            [bytes(8), bytes(8), b"hello", b"\xc1"],
            [bytes(8), bytes(8), b"hello"],
        ):
            await dealer.send_multipart(frames)
        for _ in range(2):
            assert (await dealer.recv_multipart())[2] == b"no"
        assert copy.refused == 4
        assert sorted(os.listdir(tmp_path / "b")) == ["lock", MARK_NAME]
        dealer.close()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


@pytest.mark.parametrize("lie", ["no argument", "not msgpack", "another store", "a far epoch", "an older epoch", "a swap", "a write"])
async def test_a_peer_whose_hello_is_refused_costs_the_store_nothing(tmp_path: Path, lie: str) -> None:
    """The store goes on under the same session, and its mirror stays in step."""
    async with mirror(tmp_path / "b") as (copy, endpoint), store(tmp_path / "a", endpoint) as stored, core.Context() as context:
        await in_step(stored)
        assert (await submitted(stored, b"before"))[0] == b"200"
        mark = copy.replica.mark
        frames = {
            "no argument": [b"hello"],
            "not msgpack": [b"hello", b"\xc1"],
            "another store": [b"hello", Hello(bytes(16), mark.epoch, False).encode()],
            "a far epoch": [b"hello", Hello(mark.store, mark.epoch + EPOCH_JUMP_MAX + 1, False).encode()],
            "an older epoch": [b"hello", Hello(mark.store, mark.epoch - 1, False).encode()],
            "a swap": [b"swap", Swap({}, [], mark.epoch, mark.store).encode()],
            "a write": [b"write", b"segment", b"0", b"evil"],
        }[lie]
        async with context.socket(core.DEALER, linger=0) as liar:
            liar.connect(endpoint)
            for _ in range(3):
                await liar.send_multipart([_number(1), _number(1), *frames])
                if frames[0] == b"hello":
                    assert (await liar.recv_multipart())[2] == b"no"
                assert (await submitted(stored, b"meanwhile"))[0] == b"200"
        assert (await submitted(stored, b"after"))[0] == b"200"
        assert stored.mirror is not None
        assert (stored.mirror.state, copy.sessions, copy.connected, copy.replica.mark) == ("in step", 1, True, mark)
        assert copy.refused >= 3
    assert same_segments(tmp_path / "a", tmp_path / "b")


async def cli(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *command("titanic"), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


@asynccontextmanager
async def daemon(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command("titanic"), *arguments, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process, what: str) -> str:
    assert process.stderr is not None
    while what not in (line := (await process.stderr.readline()).decode()):
        assert line, f"ended without saying {what!r}"
    return line


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
async def test_the_first_machine_is_lost_and_the_mirror_promoted(tmp_path: Path) -> None:
    """kill -9, never to come back: every accepted request is answered by the second one.

    The first cannot come back by accident.
    """
    one, two = str(tmp_path / "a"), str(tmp_path / "b")

    async def echo(request: mdp.Request) -> list[bytes]:
        return list(request.body)

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with daemon("mirror", "--bind", "tcp://127.0.0.1:*", "--store", two) as second:
            at = (await said(second, "titanic mirrors")).partition("endpoint=")[2].split()[0]
            serve = ["serve", "--broker", endpoint, "--store"]
            async with daemon(*serve, one, "--mirror", at) as first, titanic.Client(endpoint, timeout=60) as client:
                assert "on the mirror" in await said(first, "200 means")
                tickets = [await client.submit("echo", b"%d" % n) for n in range(30)]
                first.send_signal(signal.SIGKILL)
                await first.wait()
            assert (await cli("promote", "--store", two))[0] == 69  # in use
            second.send_signal(signal.SIGTERM)
            assert await second.wait() == 0
        code, out = await cli("serve", "--broker", endpoint, "--store", two)
        assert (code, "titanic promote" in out) == (78, True)
        assert (await cli("promote", "--store", two))[0] == 0
        assert (await cli("promote", "--store", two))[0] == 1
        async with (
            daemon(*serve, two, "--mirror", at, "--mirror-away", "go-on"),
            titanic.Client(endpoint) as client,
            mdp.Worker(endpoint, "echo", handler=echo),
        ):
            assert [await client.ticket(ticket.uuid).result(100) for ticket in tickets] == [[b"%d" % n] for n in range(30)]
            # The machine that was lost comes back as the mirror of what was its mirror.
            assert (await cli("mirror", "--bind", at, "--store", one))[0] == 78
            async with daemon("mirror", "--bind", at, "--store", one, "--take-over") as third:
                await said(third, "in step")
    assert operator.commands["promote"].help


@pytest.mark.parametrize("away", ["--memory", "--fsync=never"])
async def test_a_mirror_needs_fsync_always(away: str, tmp_path: Path) -> None:
    where = [away] if away == "--memory" else [away, "--store", str(tmp_path)]
    assert (await cli("serve", *where, "--mirror", "tcp://127.0.0.1:9"))[0] == 2


def test_an_error_of_a_mirror_that_is_away_is_one_that_may_pass() -> None:
    assert issubclass(titanic.MirrorAway, Unavailable)
