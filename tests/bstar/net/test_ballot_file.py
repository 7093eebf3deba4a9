from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from errno import EIO, ENOLCK, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from bstar.errors import StoreDamaged, StoreLocked
from bstar.machine.ballot import Record, RecordRole
from bstar.machine.ballot_slots import FILE_OCTETS, SLOT_OCTETS, encode_slot
from bstar.net.ballot_file import BallotFile, read_ballot_file

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = Record(RecordRole.SERVER, 5, 2, 9)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "not yet there" / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() is None
        store.save(RECORD)
        store.save(RECORD._replace(counter=10))
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == RECORD._replace(counter=10)
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.ballot", "a.ballot.lock"]


def test_a_ballot_that_comes_late_does_not_replace_a_higher_one(tmp_path: Path) -> None:
    """BST-27: what is on disk never falls."""
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD._replace(counter=11))
        store.save(RECORD)
        assert store.load() == RECORD._replace(counter=11)


def test_threads_save_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk the next ballot is drawn during the write of the previous one.

    Both are written, and the higher one stays.
    """
    path = tmp_path / "a.ballot"
    slow, go_on, sync = threading.Event(), threading.Event(), os.fdatasync

    def synced(handle: int) -> None:
        if not slow.is_set():
            slow.set()
            go_on.wait()
        sync(handle)

    with BallotFile(path, RecordRole.SERVER) as store, ThreadPoolExecutor() as pool:
        store.save(RECORD._replace(counter=1))
        monkeypatch.setattr(os, "fdatasync", synced)
        first = pool.submit(store.save, RECORD)
        slow.wait()
        second = pool.submit(store.save, RECORD._replace(counter=10))
        assert wait([second], timeout=0.05).not_done  # it has to wait, or both would be half of one and half of the other
        go_on.set()
        first.result()
        second.result()
        assert store.load() == RECORD._replace(counter=10)


def test_file_is_made_as_a_whole_and_then_overwritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BST-27: one copy is on disk before the other one is touched, and the size never changes."""
    log: list[str] = []
    fsync, replace, data_sync = os.fsync, os.replace, os.fdatasync
    path = tmp_path / "a"

    def synced(handle: int) -> None:
        log.append("sync directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "sync new file")
        fsync(handle)

    def renamed(old: str, new: Path) -> None:
        log.append("rename")
        assert Path(old).stat().st_size == FILE_OCTETS
        replace(old, new)

    def data_synced(handle: int) -> None:
        data_sync(handle)
        octets = path.read_bytes()
        assert len(octets) == FILE_OCTETS
        log.append(" ".join("new" if octets[at : at + SLOT_OCTETS] == encode_slot(newer, 2) else "old" for at in (0, SLOT_OCTETS)))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "fdatasync", data_synced)
    newer = RECORD._replace(counter=10)
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
        assert log == ["sync new file", "rename", "sync directory"]
        log.clear()
        store.save(newer)
    assert log == ["new old", "new new"]


def test_copy_that_is_damaged_is_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is whole again the other one is all there is."""
    path, first = tmp_path / "a", []
    path.write_bytes(encode_slot(RECORD, 7) + bytes(SLOT_OCTETS))
    sync = os.fdatasync

    def synced(handle: int) -> None:
        sync(handle)
        first.append(path.read_bytes()[:SLOT_OCTETS] == encode_slot(RECORD, 7))

    monkeypatch.setattr(os, "fdatasync", synced)
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == RECORD
        store.save(RECORD._replace(counter=10))
    assert first == [True, False]
    assert path.read_bytes() == encode_slot(RECORD._replace(counter=10), 8) * 2


def test_file_of_the_first_version_is_read_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    head = bytes.fromhex("8942535441520d0a 01 01 0000000000000005 0000000000000002 0000000000000009")
    path.write_bytes(head + zlib.crc32(head).to_bytes(4, "big"))
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == RECORD
        store.save(RECORD._replace(incarnation=3))
    assert path.stat().st_size == FILE_OCTETS
    with BallotFile(path, RecordRole.SERVER) as store:
        assert store.load() == RECORD._replace(incarnation=3)


@pytest.mark.parametrize("tear", [0, 1, 46, SLOT_OCTETS])
@pytest.mark.parametrize("at", [0, 1])
def test_write_that_fails_leaves_the_old_record_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, tear: int
) -> None:
    """The disk takes a part of one copy, or all of it, and then fails.

    Whatever the process does next, one copy is whole.
    """
    path, writes, write = tmp_path / "a", 0, os.write

    def torn(handle: int, octets: bytes) -> int:
        nonlocal writes
        if len(octets) != SLOT_OCTETS:
            return write(handle, octets)
        writes += 1
        if writes - 1 != at:
            return write(handle, octets)
        write(handle, octets[:tear])
        raise OSError(EIO, "Input/output error")

    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
        monkeypatch.setattr(os, "write", torn)
        with pytest.raises(OSError, match="Input/output") as caught:
            store.save(RECORD._replace(counter=10))
        assert caught.value.filename == str(path)
        found = read_ballot_file(path, RecordRole.SERVER)
        assert found is not None
        assert found.record in ((RECORD,) if at == 0 and tear < 46 else (RECORD, RECORD._replace(counter=10)))
        store.save(RECORD._replace(counter=11))
        found = read_ballot_file(path, RecordRole.SERVER)
        assert found is not None
        assert (found.record.counter, found.whole) == (11, 2)


@pytest.mark.parametrize("octets", [b"", b"x", bytes(38), bytes(39), bytes(FILE_OCTETS), bytes(100_000)])
def test_damage_names_the_file(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(octets)
    with BallotFile(path, RecordRole.SERVER) as store, pytest.raises(StoreDamaged) as caught:
        store.load()
    assert str(path) in str(caught.value)


def test_second_process_is_kept_away_and_told_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = (
        "import sys; from bstar.net.ballot_file import *; from bstar.machine.ballot import RecordRole; "
        "BallotFile(sys.argv[1], RecordRole.SERVER)"
    )
    root = Path(__file__).resolve().parents[3]
    with BallotFile(path, RecordRole.SERVER):
        with pytest.raises(StoreLocked) as caught:
            BallotFile(path, RecordRole.SERVER)
        assert caught.value.pid == os.getpid()
        done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()}" in done.stderr
    BallotFile(path, RecordRole.SERVER).close()


FULL_DISK = """
import os, sys
from bstar.machine.ballot import RecordRole, Record
from bstar.net.ballot_file import BallotFile
store = BallotFile(sys.argv[1], RecordRole.SERVER)
print(store.load())
for counter in range(100, 103):
    store.save(Record(RecordRole.SERVER, 5, 2, counter))
print(store.load().counter)
try:
    BallotFile(sys.argv[1] + "2", RecordRole.SERVER).save(Record(RecordRole.SERVER, 5, 2, 1))
except OSError as error:
    print(error.errno, error.filename, os.path.exists(sys.argv[1] + "2"), os.path.exists(sys.argv[1] + "2.tmp"))
"""


FILL = "import os\nfile = os.open('disk/fill', os.O_WRONLY | os.O_CREAT)\nwhile True: os.write(file, bytes(4096))"


def test_ballots_are_drawn_on_a_full_disk(tmp_path: Path) -> None:
    """BST-27: the room was taken when the file was made."""
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "a.ballot"
    (tmp_path / "fill.py").write_text(FILL)
    (tmp_path / "make.py").write_text(make_one(path))
    (tmp_path / "full.py").write_text(FULL_DISK)
    python = sys.executable
    script = f"mount -t tmpfs -o size=64k none disk && {python} make.py && ! {python} fill.py 2> fill.log && {python} full.py {path}"
    root = str(Path(__file__).resolve().parents[3])
    ran = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (tmp_path / "fill.log").exists():
        pytest.skip(f"no file system of our own on this machine: {ran.stderr}")
    assert ran.stdout.splitlines() == [str(RECORD), "102", f"28 {path}2 False False"], ran.stderr


def make_one(path: Path) -> str:
    return (
        "from bstar.machine.ballot import RecordRole, Record; from bstar.net.ballot_file import BallotFile; "
        f"BallotFile('{path}', RecordRole.SERVER).save(Record(RecordRole.SERVER, 5, 2, 9))"
    )


@pytest.mark.parametrize("other", [None, b"", encode_slot(RECORD._replace(counter=3), 7) * 2])
def test_a_file_that_is_taken_away_or_exchanged_is_there_again_at_the_next_ballot(tmp_path: Path, other: bytes | None) -> None:
    """A restart cannot find a file without a name."""
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        for counter in (9, 10, 11):  # the file is made, opened, overwritten
            store.save(RECORD._replace(counter=counter))
        path.unlink()
        if other is not None:
            path.write_bytes(other)
        for counter in (12, 13):
            store.save(RECORD._replace(counter=counter))
            contents = read_ballot_file(path, RecordRole.SERVER)
            assert contents is not None
            assert contents.record.counter == counter
            assert contents.whole == 2


def next_descriptors() -> list[int]:
    """Return the numbers of the three files that are opened next, of which one that stays open takes the first."""
    handles = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    for handle in handles:
        os.close(handle)
    return handles


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    before = next_descriptors()
    store = BallotFile(path, RecordRole.SERVER)
    for number in range(4):
        store.save(RECORD._replace(counter=number))
        assert store.load() == RECORD._replace(counter=number)
        if number == 2:
            path.unlink()
    with pytest.raises(StoreLocked):
        BallotFile(path, RecordRole.SERVER)
    assert next_descriptors()[0] <= before[2]  # the lock and the slots
    store.close()
    store.close()
    assert next_descriptors() == before


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes")
def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {"a.ballot": 0o600, "a.ballot.lock": 0o600}


def test_the_lock_has_the_number_of_the_process_and_nothing_else(tmp_path: Path) -> None:
    lock = tmp_path / "a.ballot.lock"
    lock.write_text("9" * 30)
    with BallotFile(tmp_path / "a.ballot", RecordRole.SERVER):
        assert lock.read_text() == str(os.getpid())
        lock.write_text("nobody")
        with pytest.raises(StoreLocked) as caught:
            BallotFile(tmp_path / "a.ballot", RecordRole.SERVER)
        assert caught.value.pid == 0


def test_the_same_ballot_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
        path.unlink()
        store.save(RECORD)
        assert store.load() == RECORD


def test_a_file_is_replaced_whatever_it_contains(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    path.write_bytes(b"not a ballot")
    with BallotFile(path, RecordRole.SERVER) as store:
        store.replace(RECORD)
        assert store.load() == RECORD
        store.save(RECORD._replace(counter=1))  # BST-27: what is on disk never falls
        assert store.load() == RECORD


def test_a_file_of_one_byte_more_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(StoreDamaged):
        read_ballot_file(path, RecordRole.SERVER)


def test_a_write_that_is_cut_short_is_a_full_disk_and_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        write = os.write
        monkeypatch.setattr(os, "write", lambda handle, octets: write(handle, octets[:10]))
        with pytest.raises(OSError, match=r"a\.ballot") as caught:
            store.save(RECORD)
        assert caught.value.errno == ENOSPC
        assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ballot.lock"]
        monkeypatch.undo()
        store.save(RECORD)
        assert store.load() == RECORD


def fail_with(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_an_error_of_a_call_with_a_descriptor_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ballot"
    calls: list[tuple[str, Callable[[BallotFile], object]]] = [
        ("read", BallotFile.load),
        ("fdatasync", lambda store: store.save(RECORD)),
        ("fsync", lambda store: store.replace(RECORD)),
    ]
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(RECORD)
        for name, call in calls:
            with monkeypatch.context() as moment:
                moment.setattr(os, name, fail_with(EIO))
                with pytest.raises(OSError, match=r"a\.ballot") as caught:
                    call(store)
            assert (caught.value.errno, caught.value.filename) == (EIO, str(path))


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_lock_that_the_file_system_refuses_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = next_descriptors()
    monkeypatch.setattr("fcntl.flock", fail_with(ENOLCK))
    with pytest.raises(OSError, match=r"a\.ballot\.lock") as caught:
        BallotFile(tmp_path / "a.ballot", RecordRole.SERVER)
    assert caught.value.errno == ENOLCK
    assert next_descriptors() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_is_no_ballot_file_and_nothing_waits_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    os.mkfifo(path)
    with BallotFile(path, RecordRole.SERVER) as store, pytest.raises(StoreDamaged, match="0 bytes"):
        store.load()


def test_after_a_write_that_failed_the_copy_it_was_about_is_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BST-27: the other one is the only valid one."""
    with BallotFile(tmp_path / "a.ballot", RecordRole.SERVER) as store:
        store.save(RECORD)
        sought: list[int] = []
        seek, sync = os.lseek, os.fdatasync

        def fail(handle: int) -> None:
            if len(sought) == 2:
                raise OSError(EIO, "broken")
            sync(handle)

        def noted(handle: int, at: int, whence: int) -> int:
            sought.append(at)
            return seek(handle, at, whence)

        monkeypatch.setattr(os, "lseek", noted)
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="broken"):
            store.save(RECORD._replace(counter=10))
        store.save(RECORD._replace(counter=11))
        assert sought == [0, SLOT_OCTETS, SLOT_OCTETS, 0]
