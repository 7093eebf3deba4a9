"""G11: the checks can fail.

Each bug below is put into a copy of the package, and the crash, damage and fault checks must find it.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import titanic
from tests.mutants.forked import in_fork

PACKAGE = Path(titanic.__file__).parent
LIMIT_S = 230


class Bug(NamedTuple):
    """`old` stands once in the file and becomes `new`; the hunts are those that must find it, first found first."""

    name: str
    file: str
    old: str
    new: str
    hunts: str


BUGS = [
    Bug(
        "acknowledge before the sync",
        "journal/segment_log.py",
        "        if sync:\n            self.disk.sync(self._handle)\n        self._alive = True",
        "        self._alive = True",
        "crash",
    ),
    Bug(
        "the journal does not ask for syncs",
        "journal/group_commit.py",
        "commit(drafts, sync=self._sync,",
        "commit(drafts, sync=False,",
        "acknowledged",
    ),
    Bug(
        "no directory sync behind a new segment",
        "journal/recovery.py",
        '        disk.rename(name + ".tmp", name)\n        disk.sync_directory()\n',
        '        disk.rename(name + ".tmp", name)\n',
        "crash",
    ),
    Bug(
        "a new segment is named before it is synced",
        "journal/recovery.py",
        "        disk.write(handle, [header.encode(), *records], 0)\n        disk.sync(handle)\n",
        "        disk.write(handle, [header.encode(), *records], 0)\n",
        "crash again",
    ),
    Bug(
        "manifest and checkpoint are renamed before they are synced",
        "journal/recovery.py",
        "        disk.write(handle, [data], 0)\n        disk.sync(handle)\n",
        "        disk.write(handle, [data], 0)\n",
        "crash",
    ),
    Bug(
        "segments are removed before the manifest says so",
        "journal/segment_log.py",
        "        spans = dict(self.spans)\n",
        "        for number in numbers:\n            self.disk.unlink(segment_name(number))\n        spans = dict(self.spans)\n",
        "crash",
    ),
    Bug(
        "compaction forgets to write again",
        "store/compaction.py",
        "range(0, len(moves), BATCH_RECORDS)",
        "range(0, 0, BATCH_RECORDS)",
        "crash",
    ),
    Bug(
        "compaction drops closes too early",
        "store/index/request_index.py",
        "if not keyed and not any(",
        "if not keyed or not any(",
        "crash",
    ),
    Bug("compaction forgets keys", "store/index/request_index.py", "remembered.close == place\n", "False\n", "crash"),
    Bug("the checksum of a record is not looked at", "journal/record.py", "if crc32(body, value) != check:", "if False:", "damage"),
    Bug("the head check is not looked at", "journal/record.py", "if value & 0xFFFF != head_check or zero", "if zero", "damage"),
    Bug("the padding is not looked at", "journal/record.py", "if pad and data[", "if False and data[", "damage"),
    Bug(
        "the checksum of a segment header is not looked at",
        "journal/record.py",
        'if not good:\n            raise JournalError(path, "segment header has a bad',
        'if False:\n            raise JournalError(path, "segment header has a bad',
        "damage",
    ),
    *(
        Bug(
            f"the checksum of the {what} is not looked at",
            "journal/record.py",
            'if not good:\n        raise JournalError(path, f"{what}',
            f'if not good and what != "{what}":\n        raise JournalError(path, f"{{what}}',
            "damage",
        )
        for what in ("manifest", "checkpoint")
    ),
    Bug("checksums do not know their store", "journal/record.py", "return crc32(store)", "return 0", "damage"),
    Bug(
        "a doubled record counts twice",
        "journal/record.py",
        "            if record.sequence < expected:\n",
        "            if False:\n",
        "damage",
    ),
    Bug(
        "a gap in the sequence is not reported",
        "journal/record.py",
        "            if record.sequence > expected:\n",
        "            if False:\n",
        "damage crash",
    ),
    Bug("a newer version is read", "journal/record.py", "if version > VERSION and good:", "if False:", "damage"),
    Bug("a segment of another store is taken", "journal/inspection.py", "if header.store != found.store:", "if False:", "damage"),
    Bug("a swapped segment is taken", "journal/inspection.py", "elif header.number != number:", "elif False:", "damage"),
    Bug(
        "a missing segment is not noticed",
        "journal/inspection.py",
        "if number not in numbers and segment_name(number) not in gone:",
        "if False:",
        "damage",
    ),
    Bug("damage does not keep its segment", "journal/recovery.py", "        done.damaged.add(number)\n", "        pass\n", "damage"),
    Bug(
        "recovery loses the last batch",
        "journal/recovery.py",
        "                carried.append(item)\n                continue\n",
        "                continue\n",
        "crash",
    ),
    Bug(
        "recovery cuts the old segment before the new one stands",
        "journal/recovery.py",
        "    _write_new(disk, consumer, done, header, end.carried, start.segment_bytes)\n    if old is not None:\n",
        "    if old is not None:\n        _close_old(disk, done, old, header.first - 1, end.cut)\n"
        "    _write_new(disk, consumer, done, header, end.carried, start.segment_bytes)\n    if False:\n",
        "again",
    ),
    Bug(
        "records claim that their own batch is synced",
        "journal/segment_log.py",
        "encode_pieces(drafts, self._next, self.durable, self._seed)",
        "encode_pieces(drafts, self._next, self._next, self._seed)",
        "crash",
    ),
    Bug(
        "a failed sync is tried again on the same file",
        "journal/segment_log.py",
        "        self._alive = False\n        self.disk.write(self._handle, buffers, self._at)\n",
        "        self.disk.write(self._handle, buffers, self._at)\n",
        "faults",
    ),
    Bug(
        "a wounded store takes requests",
        "journal/segment_log.py",
        "        if self.wounded is not None:\n            raise Wounded(self.wounded)\n        if self.full",
        "        if self.full",
        "faults",
    ),
    Bug(
        "a full disk takes requests", "journal/segment_log.py", "        if self.full and not essential:\n", "        if False:\n", "faults"
    ),
    Bug(
        "a close is not applied at start",
        "store/index/loading.py",
        "        if entry is not None:\n            self._remove(entry)\n        self._add_tombstone(",
        "        self._add_tombstone(",
        "crash",
    ),
    Bug(
        "a checkpoint skips the open segment",
        "store/compaction.py",
        "Checkpoint(log.store, log.number,",
        "Checkpoint(log.store, log.number + 1,",
        "crash",
    ),
    Bug(
        "what a checkpoint knew stays though its segment is gone",
        "store/index/loading.py",
        "            if entry.request is None and entry.reply is None:\n                self._remove(entry)\n",
        "",
        "crash",
    ),
    Bug(
        "keys are forgotten at start",
        "store/index/loading.py",
        "            entry.key = key\n            entry.digest = digest_of(body",
        '            entry.key = b""\n            entry.digest = digest_of(body',
        "crash",
    ),
    Bug(
        "the quota forgets what was closed",
        "store/index/tables.py",
        "        self.bytes_used -= entry.size\n        self._count_service",
        "        self._count_service",
        "crash",
    ),
    Bug(
        "nobody looks whether a segment was cut off",
        "journal/inspection.py",
        "if broken or len(data) - end < SPARE_BYTES:",
        "if False:",
        "cut",
    ),
    Bug(
        "a record that goes on behind the end was never acknowledged",
        "journal/inspection.py",
        "if broken or len(data)",
        "if len(data)",
        "cut",
    ),
    Bug("what was cut off is forgotten", "journal/recovery.py", "end.durable + 1 + end.lost", "end.durable + 1", "cut"),
    Bug(
        "what was cut off is forgotten when records are carried over",
        "journal/recovery.py",
        "end.durable + 1 if end.carried else done.next",
        "done.next",
        "cut",
    ),
    Bug(
        "no room behind the last record",
        "journal/segment_log.py",
        "wanted = self._at + total + SPARE_BYTES",
        "wanted = self._at + total",
        "cut",
    ),
    Bug(
        "sequences begin anew behind a lost segment",
        "journal/recovery.py",
        "end = _End(max((span.last for span in done.spans.values() if span.last != OPEN), default=0))",
        "end = _End(0)",
        "cut",
    ),
    Bug("accepted damage is found again", "store/compaction.py", "if log.is_accepted(span.number, item):", "if False:", "cut"),
    Bug(
        "a short write is taken for a whole one", "journal/disk.py", "            if written < left:\n", "            if False:\n", "short"
    ),
    Bug(
        "the mirror does not sync",
        "mirror/replica_directory.py",
        "                disk.sync(self._handle(name))\n            case Call.CREATE",
        "                pass\n            case Call.CREATE",
        "mirror",
    ),
    Bug("the store does not wait for its mirror", "mirror/mirrored_disk.py", "(number and self._link.wait(number))", "number", "mirror"),
    Bug(
        "the mirror says in step before its files are in place",
        "mirror/replica_directory.py",
        'Mark("mirror", swap.epoch, Step.CHANGING, store=swap.store, paired=self._paired)',
        'Mark("mirror", swap.epoch, Step.IN_STEP, store=swap.store, paired=self._paired)',
        "mirror",
    ),
    Bug(
        "the mirror follows a store of an earlier epoch",
        "mirror/replica_directory.py",
        "        if hello.epoch < mark.epoch:\n",
        "        if False:\n",
        "mirror",
    ),
    Bug("a mirror can be served", "journal/segment_log.py", "            check_is_store(disk)\n", "", "mirror"),
    Bug(
        "copies are put in place without a sync",
        "mirror/replica_directory.py",
        "            self._finish(name + COPY_SUFFIX)\n",
        "",
        "mirror",
    ),
    Bug(
        "going on alone is not noted",
        "mirror/mirrored_disk.py",
        "                if not self._mark.alone:\n",
        "                if False:\n",
        "mirror",
    ),
]


def hunt(package_root: Path, hunts: str, seeds: int = 6) -> str:
    """Return what the hunts find in the package there, "" when it is nothing."""

    def work() -> str:
        # The package, and the tests that have imported it, are imported anew; what they stand on is there.
        for name in [name for name in sys.modules if name.partition(".")[0] in ("titanic", "tests")]:
            del sys.modules[name]
        sys.path.insert(0, str(package_root))
        os.environ["HUNT_SEEDS"] = str(seeds)
        os.chdir(package_root)
        package = import_module("titanic")
        assert package.__file__ == str(package_root / "titanic" / "__init__.py")
        return str(import_module("tests.sim.hunt").found(hunts.split()))

    log = package_root / "log"
    said = in_fork(lambda _: work(), LIMIT_S, log).said
    assert isinstance(said, str), log.read_text()
    return said


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_a_seeded_bug_is_caught(bug: Bug, tmp_path: Path) -> None:
    copy = tmp_path / "titanic"  # of the sources: where they are compiled too, a bug would not be seen
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("spark", "*.so"))  # with its bytecode: but for one file it is the same
    source = (copy / bug.file).read_text()
    assert source.count(bug.old) == 1, "the code has changed: seed this bug anew"
    (copy / bug.file).write_text(source.replace(bug.old, bug.new))
    said = hunt(tmp_path, bug.hunts)
    assert said.partition(":")[0] in bug.hunts.split(), f"not found: {said}"


@pytest.mark.parametrize("name", ["crash", "again", "damage", "cut", "faults", "mirror", "acknowledged", "short"])
@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_nothing_is_found_in_the_package_as_it_is(name: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "titanic", ignore=shutil.ignore_patterns("spark", "*.so"))
    # Few seeds: without a bug the search goes through all of them, and the crash tests themselves look much further.
    assert hunt(tmp_path, name, seeds=1) == ""


def test_there_are_enough_of_them() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
