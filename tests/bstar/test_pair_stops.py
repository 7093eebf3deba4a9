from __future__ import annotations

import asyncio
import threading
from errno import ENOSPC
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
from bstar.machine.ballot import Record, RecordRole
from bstar.machine.wire import RequestHeader, RequestKind, encode_request_header
from bstar.net.ballot_file import BallotFile
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.bstar_sockets import QUICK_MS, Scene, echo, until, vote_until_it_serves

if TYPE_CHECKING:
    from pathlib import Path

ANY = "tcp://127.0.0.1:*"


# --- the ballot file --------------------------------------------------------------------------------------------------------------


async def test_ballot_is_on_disk_before_the_first_answer(tmp_path: Path) -> None:
    """BST-27."""
    path = tmp_path / "deep" / "primary.ballot"
    async with Scene() as scene, scene.client() as client:
        await scene.stop(0)
        primary = await scene.start(0, store=path)
        await client.request(b"x")
        assert client.server == "primary"
        with pytest.raises(bstar.StoreLocked) as locked:
            await scene.start(1, store=path)
        assert locked.value.pid > 0
        ballot = primary.ballot()
        await scene.stop(0)
        with BallotFile(path, RecordRole.SERVER) as store:
            record = store.load()
        assert record is not None
        assert (record.node, record.counter, record.incarnation) == (ballot.node, ballot.counter, 1)
        again = await scene.start(0, store=path)
        assert again.machine.settings.node == ballot.node
        assert again.machine.settings.incarnation == 2
        assert again.machine.member.counter >= ballot.counter


async def test_server_does_not_start_on_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    path.write_bytes(bytes(38))
    pair = bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", store=path)
    with pytest.raises(bstar.StoreDamaged) as caught:
        await pair.__aenter__()
    assert caught.value.path == str(path)
    assert path.read_bytes() == bytes(38)
    path.unlink()
    with BallotFile(path, RecordRole.SERVER) as free:
        assert free.load() is None


def disk_fails(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let every write of a ballot file fail until the event is set."""
    mended, write = threading.Event(), BallotFile.save

    def save(store: BallotFile, record: Record) -> None:
        if not mended.is_set():
            raise OSError(ENOSPC, "No space left on device", str(store.path))
        write(store, record)

    monkeypatch.setattr(BallotFile, "save", save)
    return mended


async def test_server_whose_ballot_cannot_be_written_stays_what_it_was_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """BST-27: logged once, counted, shown, tried again by itself; when there is space it serves."""
    path = tmp_path / "a.ballot"
    caplog.set_level("INFO")
    async with bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", heartbeat_ms=300, store=path) as pair:
        node = pair.status()["node"]
        await until(lambda: pair._clock() >= pair.machine.member.peer_until)
        mended = disk_fails(monkeypatch)
        assert await pair.vote() is bstar.Verdict.HOLD
        await until(lambda: pair.counters["ballot_not_written"] == 3)
        assert await pair.vote() is bstar.Verdict.REJECT
        status = pair.status()
        assert (status["state"], status["serving"], status["claim"]) == ("primary", False, "idle")
        assert status["trouble"] == pair.trouble == "the ballot file cannot be written: No space left on device"
        assert pair.metrics()["bstar_trouble"] == 1
        assert len([one for one in caplog.records if "cannot be written" in one.getMessage()]) == 1
        mended.set()
        await until(lambda: not pair.trouble)
        assert "the ballot file can be written again" in caplog.messages
        await vote_until_it_serves(pair)
        with pytest.raises(bstar.StoreLocked):
            BallotFile(path, RecordRole.SERVER)
        ballot = pair.ballot()
        assert f"{ballot.node:016x}" == node
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == Record(RecordRole.SERVER, ballot.node, 1, ballot.counter)


async def test_server_that_starts_on_a_full_disk_has_a_new_node_id_and_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incarnation that is not on disk would be used again, and its messages taken for old ones."""
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(Record(RecordRole.SERVER, 5, 2, 9))
    mended = disk_fails(monkeypatch)
    async with bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", heartbeat_ms=300, store=path) as pair:
        settings = pair.machine.settings
        assert (settings.node != 5, settings.incarnation, pair.machine.member.counter) == (True, 1, 9)
        await until(lambda: pair._clock() >= pair.machine.member.peer_until)
        while await pair.vote() is not bstar.Verdict.REJECT:  # the moment of another attempt to write
            await until(lambda: pair.status()["claim"] == "idle")
        assert not pair.serving
        assert "No space left" in pair.trouble
        mended.set()
        await until(lambda: not pair.trouble)
        await vote_until_it_serves(pair)
        ballot = pair.ballot()
        assert (ballot.node, ballot.counter >= 10) == (settings.node, True)
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == Record(RecordRole.SERVER, settings.node, 1, ballot.counter)


async def test_callers_are_refused_while_the_ballot_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        await scene.stop(1)
        backup = await scene.start(1, store=tmp_path / "b.ballot")
        await until(lambda: backup.state is bstar.State.PASSIVE)
        mended = disk_fails(monkeypatch)
        await scene.stop(0)
        async with scene.client() as client:
            reply = client.request(b"x")
            await until(lambda: backup.counters["ballot_not_written"] > 1 and client.counters["refused"] > 1)
            assert not reply.done()
            mended.set()
            assert await reply == [b"x"]
        assert backup.counters["claims_failed"] > 0


# --- what must stop a server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [bstar.PRIMARY, bstar.BACKUP])
async def test_two_servers_of_one_role_are_refused(role: bstar.State) -> None:
    """BST-06, BST-08, F3."""
    async with core.Context() as context:
        first = bstar.Pair(role, local="inproc://one", remote="inproc://two", heartbeat_ms=20, context=context)
        second = bstar.Pair(role, local="inproc://two", remote="inproc://one", heartbeat_ms=20, context=context)
        async with first, second:
            for pair in (first, second):
                with pytest.raises(bstar.Misconfigured, match=f"both servers are configured as {role.name.lower()}"):
                    await pair.serve_forever()
                assert await pair.vote() is bstar.Verdict.REJECT


async def test_server_that_hears_itself_is_refused() -> None:
    """F3: swapped or equal addresses."""
    async with core.Context() as context:
        async with bstar.Pair(bstar.PRIMARY, local="inproc://one", remote="inproc://one", heartbeat_ms=20, context=context) as pair:
            with pytest.raises(bstar.Misconfigured, match="our own address"):
                await pair.serve_forever()


async def test_wrongly_started_second_primary_does_not_stop_the_one_that_serves() -> None:
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        wrong = bstar.Pair(bstar.PRIMARY, local=ANY, remote=scene.pairs[0].endpoint, heartbeat_ms=QUICK_MS, context=scene.context)
        await scene.stop(1)
        async with wrong:
            scene.lines[0].target = wrong.endpoint
            scene.lines[0].cut()
            scene.lines[0].heal()
            with pytest.raises(bstar.Misconfigured):
                await wrong.serve_forever()
        assert scene.pairs[0].serving


@pytest.mark.parametrize("told, error", [(b"3", bstar.DualActive), (b"4", bstar.DualPassive)])
async def test_compatible_mode_dies_as_the_guide_has_it(told: bytes, error: type[Exception]) -> None:
    """BST-06: no further requests accepted, the error surfaced, silence instead of state."""
    async with core.Context() as context:
        peer = context.socket(core.XPUB)
        peer.bind("inproc://peer")
        pair = bstar.Pair(bstar.PRIMARY, local="inproc://us", remote="inproc://peer", heartbeat_ms=20, compatible=True, context=context)
        async with pair:
            frontend = pair.voter("inproc://front", handler=echo)
            await peer.recv()
            first = b"2" if told == b"3" else b"3"
            while pair.state not in (bstar.State.ACTIVE, bstar.State.PASSIVE):
                await peer.send(first)
                await asyncio.sleep(0.001)
            await peer.send(told)
            with pytest.raises(error):
                await pair.serve_forever()
            client = context.socket(core.REQ, linger=0)
            client.connect(frontend)
            await client.send(b"x")
            await until(lambda: pair.counters["refused"] == 1)
            assert not pair.serving


@pytest.mark.faults
async def test_failing_callback_ends_the_pair() -> None:
    def broken() -> None:
        raise RuntimeError("cannot load")

    async with Scene() as scene:
        await scene.stop(0)
        pair = await scene.start(0)
        pair.on_active(broken)
        with pytest.raises(RuntimeError, match="cannot load"):
            await pair.serve_forever()
        assert not pair.serving


@pytest.mark.faults
async def test_an_event_callback_that_fails_leaves_the_pair_alone() -> None:
    """The callbacks of the change itself are called, in their order, and so is the other one."""
    supervisor, told = Supervisor(), []

    def fails(event: dict[str, Any]) -> None:
        raise ValueError(event["event"])

    with supervision.scope(supervisor):
        async with Scene() as scene:
            for pair in scene.pairs:
                pair.on_event(fails)
                pair.on_event(lambda event: told.append(event["event"]))
                pair.on_active(lambda: told.append("entered"))
            await scene.settle()
            await until(lambda: scene.serving() == [True, False])
            await scene.pairs[0].switchover()
            await until(lambda: scene.serving() == [False, True])
    assert told.count("entered") == 2
    assert supervisor.faults == {"bstar event callback": len(told) - 2}


async def test_a_pair_whose_context_the_program_ends_is_left_with_its_ballot_file_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease cannot be released, and its requests cannot be refused."""
    begun, path = asyncio.Event(), tmp_path / "ballot"

    async def work(request: bstar.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with bstar.Witness(ANY, heartbeat_ms=QUICK_MS) as witness, core.Context() as context:
        options: dict[str, Any] = {"local": ANY, "remote": "tcp://127.0.0.1:1", "heartbeat_ms": QUICK_MS, "witness": witness.endpoint}
        async with bstar.Pair(bstar.PRIMARY, **options, store=path, context=context) as pair:
            async with bstar.Client(pair.voter(ANY, handler=work), "tcp://127.0.0.1:1") as client:
                asking = asyncio.ensure_future(client.request(b"x"))
                await begun.wait()
                context.term()
                with pytest.raises(core.ContextTerminated):
                    await pair.serve_forever()
            await asyncio.wait([asking])
            assert isinstance(asking.exception(), bstar.errors.ClientClosed)
    with BallotFile(path, RecordRole.SERVER) as free:
        assert free.load() is not None
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.faults
async def test_a_pair_that_has_failed_is_not_active_when_its_ballot_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program would begin to serve, and its lease would keep the other server from it."""
    written, write = threading.Event(), BallotFile.save
    written.set()

    def save(store: BallotFile, record: Record) -> None:
        written.wait()
        write(store, record)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BallotFile, "save", save)
    began: list[bool] = []
    options: dict[str, Any] = {"local": ANY, "remote": "tcp://127.0.0.1:1", "heartbeat_ms": QUICK_MS, "store": tmp_path / "ballot"}
    async with bstar.Pair(bstar.PRIMARY, **options) as pair:
        pair.on_active(lambda: began.append(True))
        written.clear()
        while await pair.vote() is not bstar.Verdict.HOLD:
            await asyncio.sleep(QUICK_MS / 1000)
        pair.timer(0.001, fail)
        with pytest.raises(ZeroDivisionError):
            await pair.serve_forever()
        written.set()
        await until(lambda: pair._writer.writing == 0)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (began, pair.counters["became_active"]) == ([], 0)


async def test_operators_who_ask_a_pair_that_is_being_left_cause_no_faults(caplog: pytest.LogCaptureFixture) -> None:
    begun, cancelled, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await asked.wait()

    async def ask(operator: core.Socket) -> None:
        await cancelled.wait()
        for kind in (RequestKind.STATUS, RequestKind.SWITCHOVER):
            await operator.send_multipart([b"", encode_request_header(RequestHeader(kind, 1, 1))])
        await asyncio.sleep(0.1)
        asked.set()

    async with core.Context() as context:
        async with bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", control=ANY, context=context) as pair:
            operator = context.socket(core.DEALER, linger=0)
            operator.connect(pair.control_endpoint)
            await operator.send_multipart([b"", encode_request_header(RequestHeader(RequestKind.STATUS, 1, 1))])
            await operator.recv_multipart()
            pair.timer(0.001, work)
            await begun.wait()
            asking = asyncio.ensure_future(ask(operator))
        await asking
    assert not caplog.records
