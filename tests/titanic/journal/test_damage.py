"""G2, S2, S3, S4, S12.

Every prefix and every flipped bit of a small journal, and files that do not belong where they are.

What must come out is an exact prefix, or an exact report; never silence, never another error. Damage at random: `SIM_DAMAGES` as in
`test_record_damage.py`, of which nearly one in twenty is done here, to a whole store.
"""

from __future__ import annotations

import os
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.scenes.hunts import stride
from tests.sim.disk import SimDisk
from tests.sim.journal_model import LIMITS, OPTIONS, STORE, Known, Play, contents, recover
from titanic.errors import JournalError, VersionTooNew
from titanic.journal.inspection import find_problems, segment_name
from titanic.journal.record import HEADER_BYTES, Damage, Record, RecordKind, scan, seed_of
from titanic.journal.segment_log import SegmentLog
from titanic.store.compaction import checkpoint_of
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from tests.sim.disk import Image

RANDOM_DAMAGES = 150 * max(1, int(os.environ.get("SIM_DAMAGES", "20000")) // 20_000)  # of each seed


@cache
def journal() -> tuple[tuple[tuple[str, bytes], ...], dict[bytes, Known]]:
    """Return a cleanly closed journal of several segments, and what is in it."""
    play = Play(42)
    play.start()
    for _ in range(14):
        play.batch()
    play.log.write_checkpoint(checkpoint_of(play.log, play.index))
    for _ in range(4):
        play.batch()
    play.log.close()
    return tuple(play.disk.survivors().items()), dict(play.kept)


def image() -> Image:
    return dict(journal()[0])


def segments(files: Image) -> list[str]:
    return sorted(name for name in files if name.endswith(".seg"))


def records_of(data: bytes) -> list[Record]:
    items = scan(data, seed_of(STORE), HEADER_BYTES, int.from_bytes(data[40:48], "big"))
    return [item for item in items if isinstance(item, Record)]


def test_the_journal_under_test_has_several_segments_and_is_clean() -> None:
    files = image()
    assert len(segments(files)) >= 3
    found, records, _ = find_problems(SimDisk(files))
    assert found.problems == []
    assert records > 30
    disk, _, index = recover(files)
    assert contents(disk, index) == journal()[1]


@pytest.mark.parametrize("part", range(8))
def test_every_flipped_bit_is_reported_and_harms_one_record_at_most(part: int) -> None:
    """S3: in segments, manifest and checkpoint. Without `HUNTS=all` every second bit of each octet."""
    files = image()
    written = {name: records_of(files[name]) for name in segments(files)}
    flips, every = 0, stride(2)
    for name in sorted(files):
        data = files[name]
        if name == "reserve":
            continue
        for bit in range(part if every == 1 else part + part % 2 * 8, len(data) * 8, 8 * every):
            flips += 1
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            check_flip(name, bit // 8, {**files, name: bytes(flipped)}, written)
    assert flips > 2000


@pytest.mark.parametrize("part", range(4))
def test_every_flipped_bit_of_a_checkpoint_with_rows_is_reported_and_all_records_are_read(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: as of one without rows."""
    monkeypatch.setattr("titanic.store.index.loading.ROWS_MIN", 1)
    play = Play(43)
    play.start()
    for _ in range(14):
        play.batch()
    data = checkpoint_of(play.log, play.index)
    play.log.write_checkpoint(data)
    play.batch()
    play.log.close()
    files, kept = play.disk.survivors(), set(play.kept)
    disk, log, index = recover(files)
    assert (log.problems, set(index.entries)) == ([], kept)
    assert index.entries.row_counts()
    assert contents(disk, index) == play.kept
    for bit in range(part, len(data) * 8, 4 * 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        _, log, index = recover({**files, "checkpoint": bytes(flipped)})
        assert [(p.code, p.path) for p in log.problems] == [("DAMAGED", "checkpoint")]
        assert set(index.entries) == kept


def check_flip(name: str, at: int, damaged: Image, written: dict[str, list[Record]]) -> None:
    """Check a store with a flipped bit in octet `at` of a file; `written` has the records of each segment."""
    if name == "checkpoint":
        _, log, index = recover(damaged)
        assert [(p.code, p.path) for p in log.problems] == [("DAMAGED", "checkpoint")]
        assert set(index.entries) == set(journal()[1])
        return
    found, _, _ = find_problems(SimDisk(damaged))
    named = [problem for problem in found.problems if problem.path == name]
    assert named, f"{name}: flip in octet {at} went unnoticed"
    assert [problem for problem in found.problems if problem.path != name] == []
    if name == "manifest" or at < HEADER_BYTES:
        assert [problem.code for problem in named] == ["DAMAGED"]
        assert set(recover(damaged)[2].entries) == set(journal()[1])
        return
    hit = next((r for r in written[name] if r.offset <= at < r.offset + r.size), None)
    if hit is None:  # in the zeros behind the last record: it looks like the beginning of a record
        assert [(problem.kind, problem.code) for problem in named][-1] == ("cut", "DAMAGED")
        assert set(recover(damaged)[2].entries) == set(journal()[1])
        return
    (problem,) = named
    if problem.kind == "padding":
        assert hit.offset + hit.size - 8 < problem.offset <= at < hit.offset + hit.size
        lost = set()
    else:
        assert problem.offset == hit.offset
        assert problem.length == hit.size or (problem.last == -1 and problem.length < hit.size)
        assert problem.first == hit.sequence
        assert problem.last in (hit.sequence, -1)
        if not hit.offset + 32 <= at < hit.offset + 48:
            assert problem.uuid in (hit.uuid, b"")
        lost = {hit.sequence}
    # The other segments are as they were written; they share no sequence with this one.
    assert {r.sequence for r in written[name]} - {r.sequence for r in records_of(damaged[name])} == lost


@pytest.mark.parametrize("part", range(4))
def test_every_prefix_of_every_other_file_is_named_and_harms_only_what_was_cut_off(part: int) -> None:
    """G2: sealed segments, manifest and checkpoint cut anywhere; what stood before the cut stays."""
    files = image()
    last = segments(files)[-1]
    checked = 0
    for name in sorted(set(files) - {last, "reserve"}):
        data = files[name]
        for size in range(part, len(data), 4):
            damaged = {**files, name: data[:size]}
            checked += 1
            if name == "checkpoint":
                _, log, index = recover(damaged)
                assert [(p.code, p.path) for p in log.problems] == [("DAMAGED", "checkpoint")]
                assert set(index.entries) == set(journal()[1])
                continue
            found, _, _ = find_problems(SimDisk(damaged))
            whole = name.endswith(".seg") and not data[size:].strip(b"\0")  # only zeros between records are gone
            assert whole or {problem.path for problem in found.problems} == {name}
            if name == "manifest":
                assert set(recover(damaged)[2].entries) == set(journal()[1])
                continue
            if size < HEADER_BYTES:
                continue
            left = [record.sequence for record in records_of(data) if record.offset + len(record.body) + 48 <= size]
            lost = {record.sequence for record in records_of(data)} - set(left)
            reported = {n for p in found.problems for n in range(p.first, p.last + 1)}
            assert reported == lost
    assert checked > 200


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_never_ends_in_another_error(seed: int) -> None:
    random = Random(seed)
    files = image()
    files.pop("checkpoint")  # with one, older segments are checked when they are read
    for _ in range(RANDOM_DAMAGES):
        damaged = dict(files)
        for _ in range(random.randrange(1, 4)):
            name = random.choice(sorted(damaged))
            data = bytearray(damaged[name])
            if data:
                start = random.randrange(len(data))
                size = min(random.choice((1, 8, 64, 512)), len(data) - start)
                data[start : start + size] = random.choice((bytes(size), random.randbytes(size), data[:size]))
                damaged[name] = bytes(data[: random.choice((len(data), random.randrange(len(data))))])
        try:
            disk, log, index = recover(damaged)
        except JournalError:
            continue
        changed = any(damaged[name].rstrip(b"\0") != files[name].rstrip(b"\0") for name in files if name != "reserve")
        assert bool(log.problems) == changed or set(index.entries) == set(journal()[1]) or ends_between_records(damaged, files)
        contents_or_reason(disk, index)


def ends_between_records(damaged: Image, files: Image) -> bool:
    """Tell whether the only change is that the last segment ends earlier, behind a whole record: an exact prefix."""
    last = segments(files)[-1]
    same = all(damaged[name].rstrip(b"\0") == files[name].rstrip(b"\0") for name in files if name not in (last, "reserve"))
    data = damaged[last].rstrip(b"\0")
    ends = [HEADER_BYTES, *(record.offset + record.size for record in records_of(files[last]))]
    return same and data in [files[last][:end].rstrip(b"\0") for end in ends]


@pytest.mark.parametrize("lost", [(1, 2), (4, 5), (2, 3, 4), (6,)])
def test_segments_of_which_nothing_is_left_take_no_others_with_them(lost: tuple[int, ...]) -> None:
    """S4: several files cut to nothing, and the manifest with them; what the others hold is served."""
    files = image()
    files.pop("checkpoint")
    names = segments(files)
    damaged = {**files, "manifest": files["manifest"][:50]}
    damaged.update((names[index], files[names[index]][:20]) for index in lost)
    _, log, index = recover(damaged)
    assert {problem.path for problem in log.problems} == {"manifest", *(names[index] for index in lost)}
    left = [record for name in names for record in records_of(damaged[name])]
    assert {record.uuid for record in left if record.kind == RecordKind.REQUEST} - {
        r.uuid for r in left if r.kind == RecordKind.CLOSE
    } <= set(index.entries)
    assert log.next > max(record.sequence for record in left)


def contents_or_reason(disk: SimDisk, index: RequestIndex) -> None:
    """Whatever has its REQUEST is whole; what has not has lost it to damage that was reported."""
    for uuid, entry in list(index.entries.items()):
        if entry.request is None:
            del index.entries[uuid]
    for uuid, known in contents(disk, index).items():
        assert known.body == journal_bodies()[uuid]


@cache
def journal_bodies() -> dict[bytes, bytes]:
    disk, _, index = recover(image())
    bodies = {uuid: known.body for uuid, known in contents(disk, index).items()}
    play = Play(42)  # the same history again, for the bodies of those that were closed
    play.start()
    for _ in range(18):
        before = dict(play.kept)
        play.batch()
        bodies |= {uuid: known.body for uuid, known in (before | play.kept).items()}
    return bodies


def test_a_newer_version_is_left_untouched() -> None:
    """S12."""
    files = image()
    for name in (segments(files)[0], segments(files)[-1]):
        data = bytearray(files[name])
        data[9] = 2
        head = bytes(data[:60])
        newer = {**files, name: head + zlib_check(head) + bytes(data[64:])}
        disk = SimDisk(newer)
        with pytest.raises(VersionTooNew) as caught:
            recover(newer, disk)
        assert (caught.value.name, caught.value.version, caught.value.most) == ("VERSION_TOO_NEW", 2, 1)
        assert disk.survivors() == newer
        assert not disk.locked


def zlib_check(head: bytes) -> bytes:
    return seed_of(head).to_bytes(4, "big")


def misplaced() -> dict[str, tuple[str, Image]]:
    """S4: name of the case -> (code, files)."""
    files = image()
    first, second, *_, last = segments(files)
    other = Play(7)
    other.start()
    other.batch()
    other.log.close()
    foreign = bytearray(other.disk.survivors()[segment_name(1)])
    foreign[16:32] = bytes(reversed(foreign[16:32]))
    head = bytes(foreign[:60])
    return {
        "missing middle": ("JOURNAL_SEQ_GAP", {n: d for n, d in files.items() if n != second}),
        "missing last": ("JOURNAL_SEQ_GAP", {n: d for n, d in files.items() if n != last}),
        "missing first": ("JOURNAL_SEQ_GAP", {n: d for n, d in files.items() if n != first}),
        "swapped": ("JOURNAL_DUP", {**files, first: files[second], second: files[first]}),
        "copied": ("JOURNAL_DUP", {**files, second: files[first]}),
        "copied behind": ("JOURNAL_DUP", {**files, segment_name(int(last[:12]) + 1): files[first]}),
        "foreign": ("JOURNAL_FOREIGN", {**files, second: head + zlib_check(head) + bytes(foreign[64:])}),
        "odd name": ("JOURNAL_FOREIGN", {**files, "copy of 1.seg": files[first]}),
    }


@pytest.mark.parametrize("case", misplaced())
def test_files_that_do_not_belong_stop_the_start_and_nothing_is_changed(case: str) -> None:
    """S4."""
    code, files = misplaced()[case]
    disk = SimDisk(files)
    with pytest.raises(JournalError) as caught:
        recover(files, disk)
    assert caught.value.name == code
    assert disk.survivors() == files
    assert {p.code for p in find_problems(disk)[0].problems} >= {code}


@pytest.mark.parametrize("kind", ["zeros", "duplicate"])
def test_a_block_that_was_zeroed_or_doubled_is_named_and_the_rest_is_served(kind: str) -> None:
    """S4: the records before and behind stay."""
    files = image()
    name = segments(files)[0]
    data = bytearray(files[name])
    records = records_of(files[name])
    one, two = records[1], records[2]
    if kind == "zeros":
        data[one.offset : two.offset + two.size] = bytes(two.offset + two.size - one.offset)
    else:
        data[two.offset : two.offset + two.size] = (files[name][one.offset : one.offset + one.size] * 2)[: two.size]
    files.pop("checkpoint")
    _, log, index = recover({**files, name: bytes(data)})
    lost = {one.sequence, two.sequence} if kind == "zeros" else {two.sequence}
    reported = {n for p in log.problems for n in range(p.first, p.last + 1)}
    assert reported == lost
    assert {p.path for p in log.problems} == {name}
    assert ("duplicate" in {p.kind for p in log.problems}) == (kind == "duplicate")
    hit = {one.uuid, two.uuid}
    assert {uuid for uuid in journal()[1] if uuid not in hit} <= set(index.entries)


def test_damage_keeps_its_segment_and_is_reported_again_until_accepted() -> None:
    files = image()
    files.pop("checkpoint")
    name = segments(files)[0]
    data = bytearray(files[name])
    data[200] ^= 1
    disk, log, _ = recover({**files, name: bytes(data)})
    assert int(name[:12]) not in log.droppable()
    assert name in disk.names()
    log.close()
    again = SegmentLog.open(disk, OPTIONS, RequestIndex(LIMITS), store=STORE)
    assert [p.path for p in again.problems] == [name]


def test_the_image_of_a_record_in_a_body_is_not_taken_for_a_record() -> None:
    """A client knows the layout, not the store id.

    What it sends cannot come out of a damaged record as another record.
    """
    play = Play(1)
    play.start()
    forged = bytearray(64)
    play.commit([play.request_draft(8)])
    name = segment_name(play.log.number)
    real = records_of(play.disk.survivors()[name])[0]
    forged[:] = play.disk.survivors()[name][real.offset : real.offset + 64]
    uuid = bytes(range(16))
    body = bytes(forged) * 3
    play.log.commit([(1, uuid, bytes(28) + b"\x01\x04echo\x00" + bytes([len(body)]) + body)])
    data = bytearray(play.disk.survivors()[name])
    carrier = records_of(bytes(data))[1]
    data[carrier.offset + 50] ^= 1
    items = list(scan(bytes(data), seed_of(STORE), HEADER_BYTES, real.sequence))
    assert [type(item) for item in items] == [Record, Damage]
