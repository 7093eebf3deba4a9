from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from bstar.ballot import RECORD_OCTETS, Owner, Record
from bstar.errors import StoreDamaged, StoreLocked
from bstar.store import BallotStore

RECORD = Record(Owner.SERVER, 5, 2, 9)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "not yet there" / "a.ballot"
    with BallotStore(path, Owner.SERVER) as store:
        assert store.load() is None
        store.save(RECORD)
        store.save(RECORD._replace(counter=10))
    with BallotStore(path, Owner.SERVER) as store:
        assert store.load() == RECORD._replace(counter=10)
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.ballot", "a.ballot.lock"]


def test_a_ballot_that_comes_late_does_not_replace_a_higher_one(tmp_path: Path) -> None:
    """BST-27: what is on disk never falls."""
    path = tmp_path / "a.ballot"
    with BallotStore(path, Owner.SERVER) as store:
        store.save(RECORD._replace(counter=11))
        store.save(RECORD)
        assert store.load() == RECORD._replace(counter=11)


def test_threads_that_save_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk the next ballot is drawn while the one before is on its way: both arrive, and the higher one stays."""
    path = tmp_path / "a.ballot"
    slow, go_on, sync = threading.Event(), threading.Event(), os.fsync

    def synced(handle: int) -> None:
        if not slow.is_set():
            slow.set()
            go_on.wait()
        sync(handle)

    with BallotStore(path, Owner.SERVER) as store, ThreadPoolExecutor() as pool:
        monkeypatch.setattr(os, "fsync", synced)
        first = pool.submit(store.save, RECORD)
        slow.wait()
        second = pool.submit(store.save, RECORD._replace(counter=10))
        assert wait([second], timeout=0.05).not_done  # it has to wait, or it would take the new file of the first away
        go_on.set()
        first.result()
        second.result()
        assert store.load() == RECORD._replace(counter=10)


def test_file_is_replaced_as_a_whole_and_synced_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BST-27: sync of the new file, rename, sync of the directory; nothing is written in place."""
    log: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        log.append("sync directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "sync file")
        sync(handle)

    def renamed(old: str, new: Path) -> None:
        log.append("rename")
        assert Path(old).stat().st_size == RECORD_OCTETS
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with BallotStore(tmp_path / "a", Owner.SERVER) as store:
        store.save(RECORD)
    assert log == ["sync file", "rename", "sync directory"]


def test_error_of_the_disk_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BallotStore(tmp_path / "a", Owner.SERVER) as store:
        store.save(RECORD)

        def broken(handle: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            store.save(RECORD._replace(counter=10))
        assert store.load() == RECORD


@pytest.mark.parametrize("octets", [b"", b"x", bytes(RECORD_OCTETS), bytes(RECORD_OCTETS + 1), bytes(100_000)])
def test_damage_names_the_file(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(octets)
    with BallotStore(path, Owner.SERVER) as store, pytest.raises(StoreDamaged) as caught:
        store.load()
    assert str(path) in str(caught.value)


def test_second_process_is_kept_away_and_told_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = "import sys; from bstar.store import *; from bstar.ballot import Owner; BallotStore(sys.argv[1], Owner.SERVER)"
    root = Path(__file__).resolve().parents[2]
    with BallotStore(path, Owner.SERVER):
        with pytest.raises(StoreLocked) as caught:
            BallotStore(path, Owner.SERVER)
        assert caught.value.pid == os.getpid()
        done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()}" in done.stderr
    BallotStore(path, Owner.SERVER).close()
