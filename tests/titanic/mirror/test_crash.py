"""The mirror at any moment.

What was acknowledged is there after the first machine is gone for good, whatever the mirror had synced. SIM_STATES in the environment, or
100,000, is ten times the number of crash states; on the sources half of that without `HUNTS=all`.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.scenes.hunts import examples
from tests.sim.disk import SimDisk, crash_images
from tests.sim.journal_model import LIMITS, STORE, Moment, Play, check, recover
from tests.sim.mirror_line import DirectLine
from titanic.errors import JournalError, MirrorAway
from titanic.journal.ownership import MARK_NAME, Mark, Step, read_mark
from titanic.journal.segment_log import SegmentLog
from titanic.mirror.mirrored_disk import MirroredDisk
from titanic.mirror.replica_directory import Refused, Replica
from titanic.store.index.request_index import RequestIndex

if TYPE_CHECKING:
    from tests.sim.disk import Image

STATES = int(os.environ.get("SIM_STATES") or examples(100_000, divisor=2)) // 10
SHARES = 4


class MirroredPlay(Play):
    """A play whose disk has a mirror; the moments are those of the mirror."""

    go_on = False
    breaks = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mirror = SimDisk()
        self.disk.before = None
        self.mirror.before = lambda _: self.moments.append(Moment(self.mirror.snapshot(), self.promise()))

    def start(self) -> None:
        self.index = RequestIndex(LIMITS)
        self.line = DirectLine(self.mirror, self.seed, self.breaks)
        self.both = MirroredDisk(self.disk, self.line, self.go_on)
        self.line.disk = self.both
        self.log = SegmentLog.open(self.both, self.options, self.index, store=STORE)
        self.both.attach(self.log.store)


def promoted(image: Image) -> tuple[Mark, Image]:
    """Return what the mark says, and the directory as a store."""
    mark = Mark.decode(image[MARK_NAME]) if MARK_NAME in image else Mark("mirror", step=Step.EMPTY)
    return mark, {name: data for name, data in image.items() if name != MARK_NAME}


@pytest.mark.parametrize("breaks", [0.0, 0.02], ids=["steady", "breaking"])
@pytest.mark.parametrize("share", range(SHARES))
def test_a_mirror_in_step_holds_everything_acknowledged_at_any_moment(share: int, breaks: float) -> None:
    """Crashes of the mirror itself too: any subset of what it had not synced."""
    states = judged = 0
    seed = share * 1_000_003
    while states < STATES // SHARES // 2:
        play = MirroredPlay(seed)
        play.breaks = breaks
        play.start()
        play.run(15)
        random = Random(seed)
        for index, moment in enumerate(play.moments):
            for image in crash_images(moment.disk, random, 2):
                states += 1
                mark, files = promoted(image)
                if mark.step is not Step.IN_STEP:
                    assert mark.step in (Step.EMPTY, Step.CHANGING)
                    continue
                judged += 1
                try:
                    check(*recover(files), moment.promise)
                except Exception as error:
                    raise AssertionError(f"seed {seed} moment {index}: {error!r}") from error
        seed += 1
    assert judged > states // 2


def test_a_mirror_that_was_away_catches_up_while_the_store_waits() -> None:
    play = MirroredPlay(5)
    play.start()
    play.run(6)
    first = play.line.sessions
    play.line._open = play.line.live = False
    play.run(6)
    assert play.line.sessions == first + 1
    _, files = promoted(play.mirror.survivors())
    check(*recover(files), play.promise())
    assert {n: d for n, d in play.disk.survivors().items() if n.endswith(".seg")} == {n: d for n, d in files.items() if n.endswith(".seg")}


def test_only_what_the_mirror_does_not_hold_is_copied() -> None:
    play = MirroredPlay(5)
    play.start()
    play.run(30)
    sealed = sum(len(data) for name, data in play.disk.survivors().items() if name.endswith(".seg"))
    before = play.both.copied_bytes
    play.line._open = play.line.live = False
    play.batch()
    assert play.both.copied_bytes - before < sealed / 2


def test_a_store_that_goes_on_alone_notes_it_and_the_mirror_knows_it_is_behind() -> None:
    play = MirroredPlay(5)
    play.go_on = True
    play.start()
    play.line.greet()
    for _ in range(3):
        play.batch()
    assert play.line.live
    mark = read_mark(play.disk)
    assert mark is not None
    assert not mark.alone
    play.line._open = play.line.live = False
    play.line.away = True
    kept = set(play.kept)
    while set(play.kept) <= kept:
        play.batch()
    mark = read_mark(play.disk)
    assert mark is not None
    assert mark.alone
    play.line.greet()
    assert read_mark(play.mirror) is not None
    assert play.line.replica.mark.step.value == "behind"
    play.batch()
    assert play.line.live
    assert play.line.replica.mark.step.value == "in step"
    check(*recover(promoted(play.mirror.survivors())[1]), play.promise())


def test_a_store_that_is_closed_does_not_wait_for_a_mirror_that_is_away() -> None:
    play = MirroredPlay(5)
    play.start()
    play.batch()
    play.line._open = play.line.live = False
    play.line.away = play.line.ending = True
    with pytest.raises(MirrorAway):
        play.commit([play.request_draft(10)])


def test_a_mirror_is_not_served_and_a_store_does_not_become_one_by_accident() -> None:
    play = MirroredPlay(5)
    play.start()
    play.batch()
    play.log.close()
    with pytest.raises(JournalError, match="titanic promote") as caught:
        recover(play.mirror.survivors())
    assert caught.value.name == "MIRROR"
    with pytest.raises(JournalError, match="--take-over"):
        Replica(SimDisk(play.disk.survivors()))
    assert Replica(SimDisk(play.disk.survivors()), take_over=True).mark.step is Step.EMPTY


def test_a_store_of_an_earlier_epoch_is_refused_and_another_store_too() -> None:
    """After a promotion the old store cannot write over the new one."""
    play = MirroredPlay(5)
    play.start()
    play.batch()
    replica = play.line.replica
    replica._set_mark(replica.mark._replace(epoch=3))
    with pytest.raises(Refused, match="STALE"):
        replica.do(b"hello", [play.both.hello()])
    other = play.both._mark._replace(store=b"x" * 16, epoch=9)
    play.both._mark = other
    with pytest.raises(Refused, match="another store"):
        replica.do(b"hello", [play.both.hello()])


class LazyReplica(DirectLine):
    """A mirror that says it has synced and has not: the bug the check must find."""

    def greet(self) -> None:
        super().greet()
        self.replica.disk = Lying(self.mirror)  # type: ignore[assignment]


class Lying:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def sync(self, handle: int) -> None:
        """Do nothing."""


def test_the_check_finds_a_mirror_that_does_not_sync() -> None:
    play = MirroredPlay(3)
    play.start()
    line = LazyReplica(play.mirror, 3)
    line.disk = play.both
    play.both._link = line
    play.run(15)
    caught = 0
    for moment in play.moments[-40:]:
        for image in crash_images(moment.disk, Random(1), 5):
            try:
                mark, files = promoted(image)
                if mark.step is Step.IN_STEP:
                    check(*recover(files), moment.promise)
            except Exception:  # whatever shows the loss counts
                caught += 1
    assert caught
