"""The directory of a mirror, call by call."""

from __future__ import annotations

from random import Random
from zlib import crc32

import msgpack
import pytest

from tests.sim.disk import SimDisk, crash_images
from titanic.errors import JournalError, VersionTooNew
from titanic.journal.manifest import Manifest
from titanic.journal.ownership import MARK_NAME, Mark, Step, read_mark
from titanic.mirror.replica_directory import Refused, Replica
from titanic.mirror.succession import Lineage, LineageKind
from titanic.wire.mirror_frames import EPOCH_JUMP_MAX, BadCall, Hello, Swap

STORE, OTHER = b"s" * 16, b"o" * 16
IN_STEP = Mark("mirror", 3, Step.IN_STEP, store=STORE)
HELLO = Hello(STORE, 3, False).encode()
MANIFEST = Manifest(STORE, (), ()).encode()
ONE, TWO, THREE = b"000000000001.seg", b"000000000002.seg", b"000000000003.seg"
ADDED = b"\0" * 5  # space that is allocated and not written to


def directory(mark: Mark | None, **files: bytes) -> SimDisk:
    image = {name.replace("_", "."): data for name, data in files.items()}
    return SimDisk(image | ({MARK_NAME: mark.encode()} if mark else {}))


def segments(mark: Mark | None = IN_STEP) -> SimDisk:
    """Return a directory with two sealed segments and one more."""
    disk = directory(mark)
    return SimDisk(disk.image | {ONE.decode(): b"one", TWO.decode(): b"two", THREE.decode(): b"three" + ADDED, "checkpoint": b"x"})


def hello(replica: Replica, said: bytes = HELLO) -> dict[str, list[int]]:
    return dict(msgpack.unpackb(replica.do(b"hello", [said])))


def marked(disk: SimDisk) -> Mark:
    mark = read_mark(disk)
    assert mark is not None
    return mark


def summary(data: bytes, used: int) -> list[int]:
    return [len(data), used, crc32(data[:used])]


# ---- whose files they are


def test_a_mirror_of_nothing_is_marked_as_one() -> None:
    disk = SimDisk()
    assert Replica(disk).mark == marked(disk) == Mark("mirror", 0, Step.EMPTY)


def test_a_store_that_becomes_a_mirror_keeps_its_epoch() -> None:
    """A store of an earlier one stays refused."""
    disk = directory(Mark("store", 7, store=STORE), manifest=MANIFEST)
    with pytest.raises(JournalError, match="--take-over"):
        Replica(disk)
    assert Replica(disk, take_over=True).mark == Mark("mirror", 7, Step.EMPTY)


def test_a_directory_that_was_a_store_and_is_empty_becomes_a_mirror() -> None:
    assert Replica(directory(Mark("store", 7, store=STORE))).mark == Mark("mirror", 7, Step.EMPTY)


def test_half_of_a_pair_is_what_its_files_are_until_it_has_a_mark() -> None:
    disk = directory(None, manifest=MANIFEST)
    replica = Replica(disk, paired=True)
    assert (replica.mark, replica.lineage) == (Mark("store", 0, Step.IN_STEP), Lineage(0, LineageKind.WHOLE, STORE))
    assert read_mark(disk) is None  # nothing is changed before there is better data
    disk = SimDisk()
    replica = Replica(disk, paired=True)
    assert (replica.mark, replica.lineage) == (Mark("mirror", 0, Step.EMPTY), Lineage())


@pytest.mark.parametrize("mark", [None, Mark("store", 3)])
def test_files_of_an_unknown_store_are_not_replaced(mark: Mark | None) -> None:
    """Their manifest cannot be read, and no mark says whose they are."""
    with pytest.raises(JournalError, match="manifest"):
        Replica(directory(mark, manifest=MANIFEST[:-1]), paired=True)


def test_a_mark_says_whose_files_they_are_when_the_manifest_cannot_be_read() -> None:
    replica = Replica(directory(Mark("store", 3, store=STORE), manifest=MANIFEST[:-1]), paired=True)
    assert replica.lineage == Lineage(3, LineageKind.WHOLE, STORE)


def test_a_manifest_of_a_later_version_is_left_alone() -> None:
    newer = MANIFEST[:8] + (2).to_bytes(2, "big") + MANIFEST[10:-4]
    newer += crc32(newer).to_bytes(4, "big")
    with pytest.raises(VersionTooNew):
        Replica(directory(Mark("store", 3, store=STORE), manifest=newer), paired=True)


# ---- what is here


def test_sealed_segments_of_the_same_history_are_named_by_their_size() -> None:
    assert hello(Replica(segments())) == {
        ONE.decode(): [3],
        TWO.decode(): [3],
        THREE.decode(): summary(b"three" + ADDED, 5),
        "checkpoint": summary(b"x", 1),
    }


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (IN_STEP, Hello(STORE, 4, False)),
        (IN_STEP._replace(role="store"), Hello(STORE, 4, False)),
        (Mark("store", 3, Step.IN_STEP, store=STORE, paired=True), Hello(STORE, 3, True)),
    ],
)
def test_of_another_history_each_file_is_compared(mark: Mark, said: Hello) -> None:
    """A segment of the same size is not the same.

    The half of a pair that was the store may have acknowledged records that were lost.
    """
    replica = Replica(segments(mark), paired=True, take_over=True)
    assert hello(replica, said.encode())[ONE.decode()] == summary(b"one", 3)


def test_of_another_store_each_file_is_compared() -> None:
    replica = Replica(directory(Mark("mirror", 3, Step.EMPTY, store=OTHER), manifest=MANIFEST))
    assert hello(replica) == {}


@pytest.mark.parametrize(
    ("data", "used"),
    [(b"", 0), (bytes(10), 0), (b"a" + bytes(10), 1), (bytes(1024 * 1024) + b"a" + bytes(2 * 1024 * 1024), 1024 * 1024 + 1)],
)
def test_the_zeros_at_the_end_of_a_file_are_not_compared(data: bytes, used: int) -> None:
    assert hello(Replica(directory(IN_STEP, checkpoint=data))) == {"checkpoint": summary(data, used)}


@pytest.mark.parametrize("step", [Step.EMPTY, Step.CHANGING])
def test_files_of_unknown_contents_are_not_named(step: Step) -> None:
    assert hello(Replica(segments(IN_STEP._replace(step=step)))) == {}


def test_what_an_earlier_session_left_is_removed() -> None:
    disk = SimDisk(segments().image | {"checkpoint.copy.tmp": b"half"})
    assert "checkpoint.copy.tmp" not in hello(Replica(disk))
    assert "checkpoint.copy.tmp" not in disk.names()


@pytest.mark.parametrize(("step", "after"), [(Step.IN_STEP, Step.BEHIND), (Step.CHANGING, Step.CHANGING)])
def test_a_store_that_is_alone_leaves_its_mirror_behind(step: Step, after: Step) -> None:
    disk = segments(IN_STEP._replace(step=step))
    hello(Replica(disk), Hello(STORE, 3, True).encode())
    assert marked(disk).step is after


def test_half_of_a_pair_that_was_the_store_is_not_behind_before_it_has_followed() -> None:
    disk = segments(Mark("store", 3, store=STORE, paired=True))
    hello(Replica(disk, paired=True), Hello(STORE, 4, True).encode())
    assert marked(disk) == Mark("store", 3, store=STORE, paired=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([HELLO, HELLO], "2 arguments"),
        ([], "0 arguments"),
        ([b"\xc1"], "msgpack"),
    ],
)
def test_a_hello_has_one_argument(arguments: list[bytes], reason: str) -> None:
    with pytest.raises(BadCall, match=reason):
        Replica(segments()).do(b"hello", arguments)


# ---- calls


def following(*calls: list[bytes], disk: SimDisk | None = None) -> SimDisk:
    disk = disk or segments()
    replica = Replica(disk)
    hello(replica)
    for call, *arguments in calls:
        assert replica.do(call, arguments) == b""
    replica.end()
    assert not disk._handles
    return disk


@pytest.mark.parametrize(
    ("calls", "name", "data"),
    [
        ([[b"write", ONE, b"1", b"NE"]], ONE, b"oNE"),
        ([[b"create", b"new.seg"], [b"write", b"new.seg", b"0", b"x"]], b"new.seg", b"x"),
        ([[b"write", ONE, b"0", b"x"], [b"create", ONE], [b"write", ONE, b"0", b"y"]], ONE, b"y"),
        ([[b"preallocate", ONE, b"5"]], ONE, b"one\0\0"),
        ([[b"truncate", ONE, b"2"]], ONE, b"on"),
        ([[b"rename", ONE, TWO]], TWO, b"one"),
        ([[b"write", ONE, b"0", b"O"], [b"rename", ONE, TWO], [b"write", TWO, b"1", b"N"]], TWO, b"ONe"),
        ([[b"write", TWO, b"0", b"T"], [b"rename", ONE, TWO], [b"write", TWO, b"1", b"N"]], TWO, b"oNe"),
        ([[b"write", ONE, b"0", b"O"], [b"unlink", ONE]], ONE, None),
        ([[b"write", ONE, b"0", b"O"], [b"unlink", ONE], [b"create", ONE]], ONE, b""),
        ([[b"write", ONE, b"0", b"O"], [b"close", ONE], [b"write", ONE, b"1", b"N"]], ONE, b"ONe"),
        ([[b"close", ONE], [b"close", ONE]], ONE, b"one"),
        ([[b"sync_directory"], [b"sync", ONE]], ONE, b"one"),
    ],
)
def test_each_call_is_made_here_too(calls: list[list[bytes]], name: bytes, data: bytes | None) -> None:
    assert following(*calls).survivors().get(name.decode()) == data


@pytest.mark.parametrize("call", [[b"unlink", ONE], [b"close", ONE], [b"hello", HELLO]])
def test_files_that_are_not_needed_any_more_are_closed(call: list[bytes]) -> None:
    """The space of an unlinked file that is open is not free."""
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    replica.do(b"write", [ONE, b"0", b"O"])
    assert len(disk._handles) == 1
    replica.do(call[0], call[1:])
    assert not disk._handles


def test_a_file_that_was_renamed_is_not_written_to_by_its_old_name() -> None:
    replica = Replica(segments())
    hello(replica)
    for call in ([b"write", ONE, b"0", b"O"], [b"rename", ONE, TWO]):
        replica.do(call[0], call[1:])
    with pytest.raises(FileNotFoundError):
        replica.do(b"write", [ONE, b"0", b"x"])


def test_a_sync_returns_when_it_is_on_the_disk() -> None:
    def durable(disk: SimDisk) -> tuple[dict[int, bytes], list[str]]:
        state = disk.snapshot()
        return state.contents, sorted(state.names)

    written = following([b"write", ONE, b"0", b"O"], [b"create", b"new.seg"])
    contents, names = durable(written)
    assert b"One" not in contents.values()
    assert "new.seg" not in names
    contents, names = durable(following([b"sync", ONE], [b"sync_directory"], disk=written))
    assert b"One" in contents.values()
    assert "new.seg" in names


@pytest.mark.parametrize(
    "call",
    [
        [b"write"],
        [b"write", ONE],
        [b"write", ONE, b"0"],
        [b"write", ONE, b"0", b"x", b"y"],
        [b"write", ONE, b"-1", b"x"],
        [b"write", b"../x", b"0", b"x"],
        [b"write", MARK_NAME.encode(), b"0", b"x"],
        [b"sync", ONE, b"x"],
        [b"create", ONE, b"x"],
        [b"preallocate", ONE],
        [b"preallocate", ONE, b"x"],
        [b"truncate", ONE],
        [b"truncate", ONE, b"x"],
        [b"rename", ONE],
        [b"rename", ONE, b"/x"],
        [b"unlink", ONE, b"x"],
        [b"close", ONE, b"x"],
        [b"copy", ONE, b"0"],
        [b"copy", ONE, b"x", b"x"],
        [b"swap"],
        [b"swap", b"\xc1"],
        [b"garbage"],
        [b"consult", ONE],
    ],
)
def test_what_is_no_call_changes_nothing(call: list[bytes]) -> None:
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    before = disk.survivors()
    with pytest.raises(BadCall):
        replica.do(call[0], call[1:])
    assert disk.survivors() == before
    assert replica.mark == IN_STEP


# ---- copies


def test_copies_are_put_in_place_together_and_everything_else_goes() -> None:
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    for call in (
        [b"copy", THREE, b"0", b"th"],
        [b"copy", THREE, b"2", b"REE"],
        [b"copy", ONE, b"0", b"longer"],
        [b"copy", b"left", b"0", b"x"],  # removed by the store meanwhile
    ):
        replica.do(call[0], call[1:])
    assert disk.survivors()[THREE.decode()] == b"three" + ADDED
    sizes = {ONE.decode(): 4, TWO.decode(): 3, THREE.decode(): 8}
    assert replica.do(b"swap", [Swap(sizes, [ONE.decode(), THREE.decode()], 5, STORE).encode()]) == b""
    left = {name: data for name, data in disk.survivors().items() if name != MARK_NAME}
    assert left == {ONE.decode(): b"long", TWO.decode(): b"two", THREE.decode(): b"thREE\0\0\0"}
    assert replica.mark == marked(disk) == Mark("mirror", 5, Step.IN_STEP, store=STORE)
    assert not disk._handles
    assert replica.lineage == Lineage(5, LineageKind.WHOLE, STORE)


def test_a_file_that_is_equal_is_synced_before_the_mirror_is_in_step() -> None:
    """It may have been written, and not synced, before the connection was lost."""
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    replica.do(b"write", [ONE, b"0", b"O"])
    hello(replica)
    replica.do(b"swap", [Swap({ONE.decode(): 3}, [], 3, STORE).encode()])
    assert b"One" in disk.snapshot().contents.values()


def test_whatever_a_crash_leaves_of_a_swap_the_mark_is_true() -> None:
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    replica.do(b"copy", [ONE, b"0", b"two"])
    replica.do(b"copy", [THREE, b"0", b"TWO"])
    moments = []
    disk.before = lambda _: moments.append(disk.snapshot())
    sizes = {ONE.decode(): 3, THREE.decode(): 3}
    replica.do(b"swap", [Swap(sizes, [*sizes], 4, STORE).encode()])
    steps = set()
    for number, moment in enumerate(moments):
        for image in crash_images(moment, Random(number), 20):
            mark = Mark.decode(image[MARK_NAME])
            steps.add((mark.step, mark.epoch))
            if mark == IN_STEP:
                assert {name: image[name] for name in (ONE.decode(), TWO.decode())} == {ONE.decode(): b"one", TWO.decode(): b"two"}
            elif mark.step is Step.IN_STEP:
                assert {name: data for name, data in image.items() if name.endswith(".seg")} == {
                    ONE.decode(): b"two",
                    THREE.decode(): b"TWO",
                }
    assert steps == {(Step.IN_STEP, 3), (Step.CHANGING, 4), (Step.IN_STEP, 4)}


def test_a_swap_of_an_implausible_epoch_is_refused() -> None:
    replica = Replica(segments())
    hello(replica)
    with pytest.raises(Refused, match="not believed"):
        replica.do(b"swap", [Swap({}, [], 10**12, STORE).encode()])
    assert replica.mark == IN_STEP


def test_the_furthest_epoch_that_is_believed() -> None:
    hello(Replica(segments()), Hello(STORE, 3 + EPOCH_JUMP_MAX, False).encode())
    with pytest.raises(Refused, match="not believed"):
        hello(Replica(segments()), Hello(STORE, 3 + EPOCH_JUMP_MAX + 1, False).encode())


@pytest.mark.parametrize("alone", [False, True])
def test_half_of_a_pair_that_acknowledged_alone_follows_no_other_of_its_epoch(alone: bool) -> None:
    disk = directory(Mark("store", 3, alone=True, store=STORE, paired=True), manifest=MANIFEST)
    replica = Replica(disk, paired=True)
    with pytest.raises(Refused, match="STALE this half is sole at epoch 3"):
        hello(replica, Hello(STORE, 3, alone).encode())
    hello(replica, Hello(STORE, 4, alone).encode())


def test_an_empty_mirror_believes_any_epoch() -> None:
    replica = Replica(directory(IN_STEP._replace(step=Step.EMPTY)))
    assert hello(replica, Hello(STORE, 10**12, False).encode()) == {}


def test_an_empty_mirror_follows_another_store() -> None:
    assert hello(Replica(directory(IN_STEP._replace(step=Step.EMPTY))), Hello(OTHER, 3, False).encode()) == {}


class CountingDisk(SimDisk):
    """A disk that keeps which files are open, and which were written and not synced since."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened: dict[int, str] = {}
        self.most = 0
        self.unsynced: set[str] = set()

    def create(self, name: str) -> int:
        return self._count(name, super().create(name))

    def open(self, name: str) -> int:
        return self._count(name, super().open(name))

    def _count(self, name: str, handle: int) -> int:
        self.opened[handle] = name
        self.most = max(self.most, len(self.opened))
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self.opened[handle]

    def write(self, handle: int, buffers: object, offset: int) -> None:
        super().write(handle, buffers, offset)  # type: ignore[arg-type]
        self.unsynced.add(self.opened[handle])

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self.unsynced.discard(self.opened[handle])


def test_a_swap_has_no_more_than_one_file_to_sync_and_open() -> None:
    """Copies are synced as they come.

    A swap that had gigabytes to sync would last for longer than the store waits.
    """
    disk = CountingDisk()
    replica = Replica(disk)
    replica.do(b"hello", [Hello(STORE, 0, False).encode()])
    names = [f"{n:012}.seg" for n in range(4)]
    for name in names:
        for offset in range(3):
            replica.do(b"copy", [name.encode(), b"%d" % offset, b"x"])
        assert disk.unsynced == {f"{name}.copy.tmp"}
    replica.do(b"swap", [Swap(dict.fromkeys(names, 3), names, 0, STORE).encode()])
    assert [name for name in disk.names() if name.endswith(".seg")] == names
    replica.do(b"hello", [Hello(STORE, 0, False).encode()])
    replica.do(b"swap", [Swap(dict.fromkeys(names, 3), [], 0, STORE).encode()])
    assert disk.most == 2  # of files, of which there may be thousands


# ---- errors of the disk


def failing(disk: SimDisk, call: str) -> None:
    """Have one call fail, once."""

    def before(made: str) -> None:
        if made == call:
            disk.before = None
            raise OSError(f"no {call}")

    disk.before = before


@pytest.mark.faults
def test_after_an_error_of_the_disk_nothing_here_is_compared() -> None:
    """Files that can be read may not be on the disk; a restart knows this too."""
    disk = segments()
    replica = Replica(disk)
    hello(replica)
    replica.do(b"write", [ONE, b"0", b"O"])
    failing(disk, "sync")
    with pytest.raises(OSError, match="no sync"):
        replica.do(b"sync", [ONE])
    assert not disk._handles
    assert replica.mark == marked(disk) == IN_STEP._replace(doubt=True)
    assert hello(replica) == hello(Replica(SimDisk(disk.survivors()))) == {}
    replica.do(b"copy", [ONE, b"0", b"One"])
    replica.do(b"swap", [Swap({ONE.decode(): 3}, [ONE.decode()], 3, STORE).encode()])
    assert marked(disk) == IN_STEP


@pytest.mark.faults
def test_an_error_as_copies_come_does_not_touch_half_of_a_pair_that_was_the_store() -> None:
    mark = Mark("store", 3, store=STORE, paired=True)
    disk = directory(mark, manifest=MANIFEST)
    replica = Replica(disk, paired=True)
    hello(replica, Hello(STORE, 4, False).encode())
    failing(disk, "write")
    with pytest.raises(OSError, match="no write"):
        replica.do(b"copy", [ONE, b"0", b"x"])
    assert (replica.mark, marked(disk), replica.lineage.kind) == (mark, mark, LineageKind.WHOLE)
    assert not disk._handles


@pytest.mark.faults
def test_a_mirror_that_cannot_write_its_mark_reports_the_first_error() -> None:
    disk = segments()
    replica = Replica(disk)
    hello(replica)

    def before(made: str) -> None:
        raise OSError(f"no {made}")

    disk.before = before
    with pytest.raises(OSError, match="no truncate"):
        replica.do(b"truncate", [ONE, b"0"])
    assert replica.mark == IN_STEP
    assert not disk._handles
