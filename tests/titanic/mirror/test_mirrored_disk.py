"""titanic.mirror.mirrored_disk: what a mirror gets, call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from titanic.errors import MirrorAway
from titanic.journal.disk import RealDisk
from titanic.mirror.mirrored_disk import MirroredDisk
from titanic.wire.mirror_frames import COPIES_MAX, PIECE_BYTES, Call, Hello

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STORE = b"s" * 16
SEGMENT, OLDER = "000000000002.seg", "000000000001.seg"


class Link:
    """Takes calls for a mirror, which is in step, away, or ends its session after some calls."""

    def __init__(self, live: bool = False) -> None:
        self.live = live
        self.ready = 0
        self.ending = self.stale = False
        self.posted: list[tuple[Call, list[bytes], int]] = []
        self.waited: list[int] = []
        self.lost_from = 1 << 30  # number of the first call that is not done any more
        self.on_post: Callable[[], object] = lambda: None

    def post(self, call: Call, *arguments: bytes, session: int = 0) -> int:
        self.posted.append((call, list(arguments), session))
        self.on_post()
        return len(self.posted)

    def wait(self, number: int) -> bool:
        self.waited.append(number)
        return number < self.lost_from

    def wait_change(self, timeout_s: float) -> None:
        self.ending = True

    def joined(self, session: int, live: bool) -> None:
        self.live = live

    def copies(self) -> list[tuple[bytes, int, int]]:
        """Return name, offset and length of each piece that was sent, and forget them."""
        sent = [(given[0], int(given[1]), len(given[2])) for call, given, _ in self.posted if call is Call.COPY]
        self.posted.clear()
        return sent


@pytest.fixture
def link() -> Link:
    return Link()


class CountingDisk(RealDisk):
    """A directory that counts its syncs."""

    syncs = 0

    def sync(self, handle: int) -> None:
        self.syncs += 1
        super().sync(handle)

    def sync_directory(self) -> None:
        self.syncs += 1
        super().sync_directory()


def mirrored(directory: Path, link: Link, *, go_on: bool = False, may_go_alone: Callable[[], bool] | None = None) -> MirroredDisk:
    disk = MirroredDisk(CountingDisk(directory), link, go_on, may_go_alone)
    disk.attach(STORE)
    return disk


@pytest.mark.parametrize(
    ("go_on", "paired", "went_alone", "says_alone"),
    [
        (False, False, False, False),
        (True, False, False, True),
        (True, False, True, True),
        (True, True, False, False),
        (True, True, True, True),
        (False, True, False, False),
    ],
)
def test_a_mirror_learns_that_the_store_acknowledges_without_it(
    tmp_path: Path, link: Link, go_on: bool, paired: bool, went_alone: bool, says_alone: bool
) -> None:
    """Else it would count as in step, and be promoted without what the store acknowledged alone."""
    disk = mirrored(tmp_path, link, go_on=go_on, may_go_alone=(lambda: True) if paired else None)
    if went_alone:
        disk.sync_directory()
    again = mirrored(tmp_path, link, go_on=go_on, may_go_alone=(lambda: True) if paired else None)  # started again
    for one in (disk, again):
        assert Hello.decode(one.hello()) == Hello(STORE, 0, says_alone)


def test_a_store_that_went_alone_stays_so_until_a_mirror_is_in_step(tmp_path: Path, link: Link) -> None:
    disk = mirrored(tmp_path, link, go_on=True, may_go_alone=lambda: True)
    disk.sync_directory()
    for lost_from, alone in ((0, True), (1 << 30, False)):
        link.lost_from = 1 << 30
        assert disk.copy_ahead(1, {})
        link.ready, link.lost_from = 1, lost_from
        assert disk.join() is not alone
        again = mirrored(tmp_path, Link(), go_on=True, may_go_alone=lambda: True)
        assert (Hello.decode(disk.hello()).alone, Hello.decode(again.hello()).alone) == (alone, alone)


@pytest.mark.parametrize(("go_on", "may"), [(False, True), (True, False)])
def test_a_store_that_may_not_go_alone_acknowledges_nothing_without_its_mirror(tmp_path: Path, link: Link, go_on: bool, may: bool) -> None:
    disk = mirrored(tmp_path, link, go_on=go_on, may_go_alone=lambda: may)
    with pytest.raises(MirrorAway):
        disk.sync_directory()


def test_a_file_that_grew_is_sent_from_where_its_copy_ended_and_one_that_did_not_is_not_sent(tmp_path: Path, link: Link) -> None:
    (tmp_path / OLDER).write_bytes(b"o" * 10)
    (tmp_path / SEGMENT).write_bytes(b"a" * 20 + bytes(30))
    disk = mirrored(tmp_path, link)
    same = (10, 10, crc32(b"o" * 10))
    assert disk.copy_ahead(1, {OLDER: same})
    assert link.copies() == [(SEGMENT.encode(), 0, 20)]
    assert disk.copied_bytes == 20
    (tmp_path / SEGMENT).write_bytes(b"a" * 20 + b"b" * 5 + bytes(25))
    link.ready = 1
    assert disk.join()
    assert link.copies() == [(SEGMENT.encode(), 20, 5)]
    assert disk.copied_bytes == 25
    assert disk.copy_ahead(2, {OLDER: same})
    (tmp_path / SEGMENT).write_bytes(b"c" * 30)  # another file: all of it
    link.copies()
    link.ready = 2
    assert disk.join()
    assert link.copies() == [(SEGMENT.encode(), 0, 30)]


def test_a_sealed_segment_that_the_mirror_has_is_known_by_its_size(tmp_path: Path, link: Link) -> None:
    (tmp_path / OLDER).write_bytes(b"o" * 10)
    (tmp_path / SEGMENT).write_bytes(b"a" * 20)
    disk = mirrored(tmp_path, link)
    assert disk.copy_ahead(1, {OLDER: (10,), SEGMENT: (20, 20, crc32(b"a" * 20))})
    assert link.copies() == []
    assert disk.copy_ahead(2, {OLDER: (9,), SEGMENT: (20, 20, 0)})
    assert link.copies() == [(OLDER.encode(), 0, 10), (SEGMENT.encode(), 0, 20)]


def test_a_file_that_is_removed_while_others_are_copied_is_left_out(tmp_path: Path, link: Link) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    disk = mirrored(tmp_path, link)
    link.on_post = lambda: (tmp_path / "b").unlink(missing_ok=True)
    assert disk.copy_ahead(1, {})
    assert [name for name, *_ in link.copies()] == [b"a", b"c"]


@pytest.mark.parametrize("lost_from", [1, 2])
def test_copying_ends_with_its_session(tmp_path: Path, link: Link, lost_from: int) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    disk = mirrored(tmp_path, link)
    link.lost_from = lost_from
    assert not disk.copy_ahead(1, {})
    assert len(link.copies()) == lost_from


def test_a_large_file_is_sent_some_pieces_at_a_time(tmp_path: Path, link: Link) -> None:
    pieces = COPIES_MAX + 3
    (tmp_path / "a").write_bytes(b"x" * ((pieces - 1) * PIECE_BYTES + 1))
    disk = mirrored(tmp_path, link)
    assert disk.copy_ahead(1, {})
    assert link.waited == [2, 3, 4, pieces]  # so at most COPIES_MAX are in flight
    assert [at for _, at, _ in link.copies()] == [number * PIECE_BYTES for number in range(pieces)]
    link.lost_from = 2
    assert not disk.copy_ahead(2, {})
    assert len(link.copies()) == COPIES_MAX + 1


def test_an_empty_file_is_sent_too(tmp_path: Path, link: Link) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert mirrored(tmp_path, link).copy_ahead(1, {})
    assert link.copies() == [(b"a", 0, 0)]


def test_a_mirror_in_step_gets_the_calls_of_all_files_but_those_of_the_store_alone(tmp_path: Path) -> None:
    disk = mirrored(tmp_path, link := Link(live=True))
    handle, reserve = disk.create("a"), disk.create("reserve")
    for one in (handle, reserve):
        disk.preallocate(one, 64)
    disk.write(handle, [b"x", b"y"], 3)
    disk.rename("a", "b")
    disk.truncate(handle, 8)
    disk.sync(handle)
    disk.close(handle)
    disk.close(reserve)
    opened = disk.open("b")
    disk.write(opened, [b"z"], 0)
    disk.close(opened)  # the mirror opened its file itself, and keeps it
    assert (tmp_path / "b").read_bytes() == b"z\0\0xy\0\0\0"
    disk.unlink("b")
    assert not (tmp_path / "b").exists()
    disk.sync_directory()
    assert [(call, given) for call, given, _ in link.posted] == [
        (Call.CREATE, [b"a"]),
        (Call.PREALLOCATE, [b"a", b"64"]),
        (Call.WRITE, [b"a", b"3", b"xy"]),
        (Call.RENAME, [b"a", b"b"]),
        (Call.TRUNCATE, [b"b", b"8"]),
        (Call.SYNC, [b"b"]),
        (Call.CLOSE, [b"b"]),
        (Call.WRITE, [b"b", b"0", b"z"]),
        (Call.UNLINK, [b"b"]),
        (Call.SYNC_DIRECTORY, []),
    ]
    assert link.waited == [6, 10]


def test_a_sync_is_one_of_this_directory_too(tmp_path: Path) -> None:
    disk = mirrored(tmp_path, Link(live=True))
    assert isinstance(disk.disk, CountingDisk)
    handle = disk.create("a")
    before = disk.disk.syncs
    disk.sync(handle)
    assert disk.disk.syncs == before + 1
    disk.sync_directory()
    assert disk.disk.syncs == before + 2


def test_before_it_is_attached_a_mirror_gets_nothing(tmp_path: Path, link: Link) -> None:
    disk = MirroredDisk(RealDisk(tmp_path), link, False)
    disk.sync_directory()
    assert (link.posted, link.waited) == ([], [])
