"""The operator's verbs, which need no broker: exit codes, every damaged record named, nothing thrown away."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest
from click.testing import CliRunner
from pyarrow import parquet

import mdp
from core.daemon.exit_codes import BadConfig
from tests.scenes.programs import ROOT, Program
from tests.scenes.waiting import eventually
from tests.sim.journal_model import Play
from titanic.commands import serve
from titanic.commands.main import main
from titanic.errors import StoreLocked
from titanic.journal.disk import ReadingDisk, RealDisk
from titanic.journal.inspection import read_file, segment_name
from titanic.journal.manifest import OPEN
from titanic.journal.ownership import Mark, Step, write_mark
from titanic.journal.record import HEADER_BYTES, Record, RecordKind, encode, scan, seed_of
from titanic.journal.record_bodies import encode_close
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.repair import check, read_store
from titanic.store.status import PAGE_MAX
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from functools import partial

    from click.testing import Result


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of several segments, closed in order."""
    play = Play(42, RealDisk(tmp_path), LogOptions(segment_bytes=1024, reserve_bytes=256))  # type: ignore[arg-type]
    play.start()
    for _ in range(12):
        play.batch()
    play.log.close()
    return tmp_path


def titanic(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], standalone_mode=False)


def exit_code(*arguments: str | Path) -> tuple[int, str, str]:
    """Run as the shell would, since exit codes are decided at the very end."""
    done = Program(("titanic", *map(str, arguments)), ROOT, {}).end()
    return done.code, done.out.decode(), done.err


def flip(path: Path, offset: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def records(store: Path, number: int) -> list[Record]:
    data = (store / segment_name(number)).read_bytes()
    items = scan(data, seed_of(data[16:32]), HEADER_BYTES, int.from_bytes(data[40:48], "big"))
    return [item for item in items if isinstance(item, Record)]


def test_a_clean_store_is_0(store: Path) -> None:
    code, out, err = exit_code("verify", "--store", store)
    assert (code, err) == (0, "")
    assert "records" in out
    report = json.loads(titanic("verify", "--store", store, "--json").output)
    assert report["problems"] == []
    assert report["records"] > 20


def test_a_damaged_record_is_3_and_named(store: Path) -> None:
    """S3."""
    numbers = sorted(int(path.name[:12]) for path in store.glob("*.seg"))
    number, victim = next((n, record) for n in numbers for record in records(store, n) if record.kind == RecordKind.REQUEST)
    flip(store / segment_name(number), victim.offset + 50)
    code, out, err = exit_code("verify", "--store", store)
    assert code == 3
    assert f"DAMAGED {segment_name(number)} at {victim.offset}+{victim.size}" in out
    assert victim.uuid.hex().upper() in out
    assert "1 problems" in err
    (problem,) = json.loads(exit_code("verify", "--store", store, "--json")[1])["problems"]
    assert (problem["offset"], problem["uuid"]) == (victim.offset, victim.uuid.hex().upper())


def test_repair_asks_before_it_accepts_a_loss_and_throws_nothing_away(store: Path) -> None:
    number = min(int(path.name[:12]) for path in store.glob("*.seg"))
    victim = records(store, number)[1]
    path = store / segment_name(number)
    flip(path, victim.offset + 50)
    damaged = path.read_bytes()[victim.offset : victim.offset + victim.size]
    before = {file.name: file.read_bytes() for file in store.iterdir() if file.name != "lock"}
    code, out, err = exit_code("repair", "--store", store)
    assert code == 3
    assert "--accept-loss" in err
    assert str(victim.offset) in out
    assert {file.name: file.read_bytes() for file in store.iterdir() if file.name != "lock"} == before
    assert exit_code("repair", "--store", store, "--accept-loss")[0] == 0
    assert (store / f"{segment_name(number)}.bad-{victim.offset}").read_bytes() == damaged
    assert exit_code("verify", "--store", store)[0] == 0
    assert exit_code("repair", "--store", store)[1] == "nothing to repair\n"


def test_a_mirror_is_not_repaired(store: Path) -> None:
    """Its store would take the segments for those that it has sent."""
    write_mark(RealDisk(store), Mark("mirror", 1, store=b"s" * 16))
    number = min(int(path.name[:12]) for path in store.glob("*.seg"))
    flip(store / segment_name(number), records(store, number)[1].offset + 50)
    before = {file.name: file.read_bytes() for file in store.iterdir() if file.name != "lock"}
    failed = titanic("repair", "--store", store, "--accept-loss").exception
    assert isinstance(failed, BadConfig)
    assert "this directory is a mirror" in failed.message
    assert {file.name: file.read_bytes() for file in store.iterdir() if file.name != "lock"} == before


@pytest.mark.parametrize("case", ["missing", "swapped", "header", "manifest", "foreign name"])
def test_a_store_that_does_not_start_starts_after_repair(store: Path, case: str) -> None:
    """S4."""
    first, second, *_ = sorted(store.glob("*.seg"))
    if case == "missing":
        second.unlink()
    elif case == "swapped":
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
    elif case == "header":
        flip(first, 20)
    elif case == "manifest":
        flip(store / "manifest", 30)
    else:
        (store / "copy.seg").write_bytes(first.read_bytes())
    assert exit_code("verify", "--store", store)[0] == 3
    code, out, _ = exit_code("repair", "--store", store, "--accept-loss")
    assert (code, out.splitlines()[-1]) == (0, "repaired")
    assert exit_code("verify", "--store", store)[0] == 0
    if case in ("header", "manifest", "foreign name"):
        assert "copy.seg.aside" in os.listdir(store) or case != "foreign name"
        _, index = read_store(RealDisk(store))
        assert index.entries


def test_a_newer_store_is_78_and_left_alone(store: Path) -> None:
    """S12."""
    path = max(store.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[9] = 7
    data[60:64] = seed_of(bytes(data[:60])).to_bytes(4, "big")
    path.write_bytes(data)
    for verb in (("verify",), ("ls",), ("compact",), ("repair", "--accept-loss")):
        code, _, err = exit_code(verb[0], "--store", store, *verb[1:])
        assert code == 78
        assert "VERSION_TOO_NEW" in err
    assert path.read_bytes() == data


def test_a_disk_error_is_74(store: Path) -> None:
    first = min(store.glob("*.seg"))
    first.unlink()
    first.mkdir()
    code, _, err = exit_code("verify", "--store", store)
    assert code == 74
    assert err.count("\n") == 1


def test_a_store_in_use_is_69_and_names_the_pid(store: Path) -> None:
    """S11."""
    disk = RealDisk(store)
    disk.lock()
    code, _, err = exit_code("ls", "--store", store)
    disk.unlock()
    assert code == 69
    assert str(os.getpid()) in err


def test_a_store_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    code, _, err = exit_code("verify", "--store", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in err
    assert not (tmp_path / "nowhere").exists()


def test_serve_wants_to_know_where_to_store(tmp_path: Path) -> None:
    assert exit_code("serve")[0] == 2
    assert exit_code("serve", "--memory", "--store", tmp_path)[0] == 2
    code, _, err = exit_code("serve", "--memory", "--fsync", "sometimes")
    assert code == 2
    assert "interval=MS" in err


@pytest.mark.parametrize(
    ("arguments", "bytes_max"), [(("--store", "x"), 16 * 2**30), (("--memory",), 256 * 2**20), (("--memory", "--bytes-max", "7"), 7)]
)
def test_a_store_in_memory_is_full_long_before_one_on_disk(
    arguments: tuple[str, ...], bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[partial[object]] = []
    monkeypatch.setattr(serve, "run_daemon", lambda body, settings: chosen.append(body))
    assert titanic("serve", *arguments).exit_code == 0
    assert [body.args[0].titanic.limits.bytes_max for body in chosen] == [bytes_max]


def test_ls_and_export_show_every_request_that_is_not_closed(store: Path) -> None:
    _, index = read_store(RealDisk(store))
    rows = [json.loads(line) for line in titanic("ls", "--store", store, "--json").output.splitlines()]
    assert {row["uuid"] for row in rows} == {uuid.hex().upper() for uuid in index.entries}
    assert titanic("ls", "--store", store, "--service", "other").output == ""
    lines = titanic("ls", "--store", store, "--service", "echo").output.splitlines()
    assert len(lines) == len(rows)
    assert titanic("export", "--store", store, "--output", store / "out.json").exit_code == 0
    exported = [json.loads(line) for line in (store / "out.json").read_text().splitlines()]
    assert {row["uuid"] for row in exported} == {row["uuid"] for row in rows}
    assert all("request" in row for row in exported)
    assert all(("reply" in row) == (row["state"] == "answered") for row in exported)
    assert all(("reason" in row) == (row["state"] == "dead") for row in exported)
    printed = [json.loads(line) for line in titanic("export", "--store", store).output.splitlines()]
    assert [row | {"age_s": 0} for row in printed] == [row | {"age_s": 0} for row in exported]


def test_compact_keeps_what_is_not_closed(store: Path) -> None:
    _, before = read_store(RealDisk(store))
    code, out, _ = exit_code("compact", "--store", store)
    assert code == 0
    assert "dropped" in out
    found, after = read_store(RealDisk(store))
    assert set(after.entries) == set(before.entries)
    assert len(found.spans) < 4
    assert check(RealDisk(store))[0] == []
    assert read_file(RealDisk(store), "checkpoint")


async def test_compact_keeps_the_keys_of_a_store_that_is_served_with_more_of_them(tmp_path: Path) -> None:
    """It does not know --keys-max of the daemon: what it forgot was executed again."""
    count = Limits().keys_max + 10
    log = SegmentLog.open(RealDisk(tmp_path), LogOptions(), RequestIndex(Limits()), store=os.urandom(16))
    closes = [encode_close(1000 + number, 1, OPEN, b"key%d" % number, bytes(16)) for number in range(count)]
    for start in range(0, count, 1000):
        log.commit([(RecordKind.CLOSE, os.urandom(16), body) for body in closes[start : start + 1000]])
    log.close()
    assert titanic("compact", "--store", tmp_path).exit_code == 0
    async with Store(RealDisk(tmp_path), limits=Limits(keys_max=2 * count)) as store:
        assert store.index.keys_of_closed == count


def test_export_writes_msgpack_and_parquet_with_the_bodies_as_they_are(store: Path) -> None:
    lines = [json.loads(line) for line in exit_code("export", "--store", store)[1].splitlines()]
    for form in ("msgpack", "parquet"):
        assert titanic("export", "--store", store, "--output", store / f"out.{form}", "--format", form).exit_code == 0
    with (store / "out.msgpack").open("rb") as file:
        packed = list(msgpack.Unpacker(file))
    table = parquet.read_table(store / "out.parquet").to_pylist()
    assert [row["uuid"] for row in packed] == [row["uuid"] for row in table] == [row["uuid"] for row in lines]
    for line, one, two in zip(lines, packed, table, strict=True):
        assert one["request"] == two["request"] == [base64.b64decode(frame) for frame in line["request"]]
        assert one["reason"] == two["reason"] == line.get("reason")
    assert exit_code("export", "--store", store, "--format", "parquet")[0] == 2


def test_ls_says_that_a_damaged_store_is_degraded(store: Path) -> None:
    number = min(int(path.name[:12]) for path in store.glob("*.seg"))
    flip(store / segment_name(number), records(store, number)[1].offset + 50)
    code, out, err = exit_code("ls", "--store", store)
    assert (code, "degraded" in err) == (0, True)
    assert out


def test_a_record_this_version_cannot_read_is_named_and_the_others_are_shown(store: Path) -> None:
    """A right checksum over a malformed body: what a later version, or an internal fault, could leave."""
    last = max(store.glob("*.seg"))
    number = int(last.name[:12])
    data = bytearray(last.read_bytes())
    seed = seed_of(bytes(data[16:32]))
    end = records(store, number)[-1]
    place = end.offset + end.size
    (unreadable,) = encode([(RecordKind.REQUEST, b"\x07" * 16, b"short")], end.sequence + 1, end.sequence, seed)
    data[place : place + len(unreadable)] = unreadable
    last.write_bytes(data)
    code, out, _ = exit_code("verify", "--store", store)
    assert (code, "body of a REQUEST is too short" in out, b"\x07".hex() * 16 in out) == (3, True, True)
    code, out, err = exit_code("ls", "--store", store)
    assert (code, bool(out), "degraded" in err) == (0, True, True)
    assert exit_code("export", "--store", store)[0] == 0


@pytest.mark.parametrize("verb", ["verify", "repair", "repair --accept-loss", "compact", "promote --accept-loss"])
def test_an_output_that_cannot_be_written_is_no_error_of_the_store(store: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """A repair and a promotion are finished, and the directory is free again."""
    if verb.startswith("promote"):
        write_mark(RealDisk(store), Mark("mirror", 1, Step.BEHIND, paired=True))
    elif verb != "compact":
        number = min(int(path.name[:12]) for path in store.glob("*.seg"))
        flip(store / segment_name(number), records(store, number)[1].offset + 50)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("click.echo", fail)
        failed = titanic(*verb.split(), "--store", store).exception
    assert isinstance(failed, OSError)
    if verb.startswith("promote"):
        assert titanic("promote", "--store", store).output == "it may serve alone already; nothing changed\n"
    elif verb == "repair --accept-loss":
        assert titanic("repair", "--store", store).output == "nothing to repair\n"
        assert "checkpoint" in os.listdir(store)
    else:
        RealDisk(store).lock()


@pytest.mark.parametrize("verb", ["verify", "ls", "export", "compact", "promote", "repair"])
def test_a_directory_without_a_store_is_not_well_and_left_alone(tmp_path: Path, verb: str) -> None:
    """Another one was meant: to say that all is well in it would be the worst answer."""
    (tmp_path / "notes.txt").write_text("")
    code, out, err = exit_code(verb, "--store", tmp_path)
    assert (code, out, err) == (1, "", f"titanic: {tmp_path} holds no store\n")
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("verb", ["verify", "ls", "export"])
def test_who_only_looks_writes_nothing_and_needs_no_right_to(store: Path, verb: str) -> None:
    """S13: a store of another user, or on a read-only device; also one that was copied without its lock."""
    for copied in (False, True):
        if copied:
            (store / "lock").unlink()
        before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in store.iterdir()}
        with readonly(store):
            code, _, err = exit_code(verb, "--store", store)
        assert (code, err) == (0, "")
        assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in store.iterdir()} == before


@contextmanager
def readonly(store: Path) -> Iterator[None]:
    """Mount the directory over itself read-only where that may be done; elsewhere take the right to write away."""
    bound = os.geteuid() == 0 and subprocess.run(["mount", "--bind", store, store], capture_output=True, check=False).returncode == 0
    if bound:
        subprocess.run(["mount", "-o", "remount,bind,ro", store], check=True)
    else:
        store.chmod(0o555)
    try:
        yield
    finally:
        if bound:
            subprocess.run(["umount", store], check=True)
        else:
            store.chmod(0o755)


def test_a_store_in_use_is_locked_even_without_its_lock_file(store: Path) -> None:
    """S11."""
    writer = RealDisk(store)
    writer.lock()
    (store / "lock").unlink()
    with pytest.raises(StoreLocked):
        RealDisk(store).lock()
    writer.unlock()
    RealDisk(store).lock()


def test_two_may_read_at_once_and_a_store_in_use_is_not_read(store: Path) -> None:
    """S11."""
    one, two, writer = ReadingDisk(store), ReadingDisk(store), RealDisk(store)
    one.lock()
    two.lock()
    with pytest.raises(StoreLocked):
        writer.lock()
    one.unlock()
    two.unlock()
    writer.lock()
    with pytest.raises(StoreLocked) as caught:
        ReadingDisk(store).lock()
    assert caught.value.pid == os.getpid()
    writer.unlock()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("form", ["jsonl", "msgpack", "parquet"])
def test_an_export_that_cannot_be_written_is_no_fault_of_the_store(store: Path, form: str) -> None:
    code, _, err = exit_code("export", "--store", store, "--output", "/dev/full", "--format", form)
    assert (code, err) == (74, "titanic: /dev/full: No space left on device; free some space or choose another path\n")


def test_a_store_that_cannot_be_read_leaves_an_earlier_export_as_it_is(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    earlier = tmp_path_factory.mktemp("exports") / "rows"
    earlier.write_text("earlier")
    for file in store.iterdir():
        file.write_bytes(b"of no store")
    assert exit_code("export", "--store", store, "--output", earlier)[0] == 3
    assert earlier.read_text() == "earlier"


async def test_ls_lists_every_request_that_was_open_all_the_time() -> None:
    """Those that are closed between two pages moved as many others before the place where the next one began."""
    rows = [{"uuid": f"{n:032X}", "state": "waiting", "service": "echo", "age_s": 1.0, "attempts": 0} for n in range(2 * PAGE_MAX)]
    stay = {row["uuid"] for row in rows[PAGE_MAX - 1 :: 3]}
    closing = iter([[row for row in rows[:PAGE_MAX] if row["uuid"] not in stay], [row for row in rows if row["uuid"] not in stay]])

    async def look(request: mdp.Request) -> list[bytes]:
        match request.body:
            case [b"requests", _, start, count]:
                page = rows[int(start) : int(start) + int(count)]
                for row in next(closing, []):
                    if row in rows:
                        rows.remove(row)
                return [b"200", json.dumps(page).encode()]
        return [b"200", json.dumps({"state": "serving", "problems": 0}).encode()]

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(endpoint, "titanic.look", handler=look) as worker:
            await eventually(lambda: worker.connected)
            code, out, err = await asyncio.to_thread(exit_code, "ls", "--broker", endpoint, "--json")
    listed = [json.loads(line)["uuid"] for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert stay <= set(listed)
    assert len(listed) == len(set(listed))
