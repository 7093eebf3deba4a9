"""S1, S2, S8, S9, G1.

Power loss at every disk call, with every subset of unsynced writes we can afford, torn or not.

The number of crash states is SIM_STATES in the environment. Without it there are 10,000, at every fourth call of each history; with
`HUNTS=all` 100,000, at every call. Each seed is another history of submits, replies, closes, restarts, compactions, checkpoints. A failing
state names its seed and moment.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.scenes.hunts import examples, stride
from tests.sim.disk import Image, SimDisk, crash_images
from tests.sim.journal_model import Moment, Play, Promise, check, recover

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY = 1 if "SIM_STATES" in os.environ else stride(4)  # of the calls of a history
STATES = int(os.environ.get("SIM_STATES") or examples(100_000))
SHARES = 20  # tests the states are spread over, so that each stays far below the time limit of a test
STEPS = 25


@pytest.fixture(autouse=True)
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half of the tests checkpoints have rows, few requests as there are."""
    share = getattr(request.node, "callspec", None)
    if share is None or share.params.get("share", 0) % 2:
        monkeypatch.setattr("titanic.store.index.loading.ROWS_MIN", 1)


def distinct(moments: list[Moment], random: Random, samples: int, begin: int = 0, every: int = 1) -> Iterator[tuple[int, Image]]:
    """Yield (index of the moment, disk) for every crash state of each `every`-th moment, each disk and promise once."""
    seen: set[int] = set()
    for index in range(begin, len(moments), every):
        moment = moments[index]
        for image in crash_images(moment.disk, random, samples):
            kept, closed, under_way = moment.promise
            mark = hash((frozenset(image.items()), frozenset(kept.items()), closed, frozenset(under_way)))
            if mark not in seen:
                seen.add(mark)
                yield index, image


def judge(image: Image, moment: Moment, label: str) -> None:
    try:
        check(*recover(image), moment.promise)
    except Exception as error:
        raise AssertionError(f"{label}: {error!r}") from error


@pytest.mark.parametrize("share", range(SHARES))
def test_power_loss_at_any_call_keeps_what_was_acknowledged(share: int) -> None:
    """TSP-06, TSP-14, IDM-02."""
    states, seed = 0, share * 1_000_003
    while states < STATES // SHARES:
        play = Play(seed)
        play.start()
        play.run(STEPS)
        play.watch("end")
        for index, image in distinct(play.moments, Random(seed), 4, seed % EVERY, EVERY):
            judge(image, play.moments[index], f"seed {seed} moment {index}")
            states += 1
        seed += 1
    assert states >= STATES // SHARES


def watched_recovery(image: Image, promise: Promise) -> list[Moment]:
    """Recover, check, and return every moment the recovery could have been cut off at."""
    disk = SimDisk(image)
    moments: list[Moment] = []
    disk.before = lambda _: moments.append(Moment(disk.snapshot(), promise))
    check(*recover(image, disk), promise)
    return moments


@pytest.mark.parametrize("share", range(4))
def test_power_loss_during_recovery_again_and_again(share: int) -> None:
    """S9: recovery from a crash is itself crashed at every call, and once more."""
    states, seed, share_of_states = 0, share * 7_000_003, max(STATES // 40, 1_000)
    while states < share_of_states:
        play = Play(seed)
        play.start()
        play.run(12)
        random = Random(seed)
        for index, first in distinct(play.moments, random, 2):
            if random.random() > 0.05:
                continue
            promise = play.moments[index].promise
            image = first
            for depth in range(3):
                moments = watched_recovery(image, promise)
                again = list(distinct(moments, random, 1))
                for at, other in again:
                    judge(other, moments[at], f"seed {seed} moment {index} depth {depth} call {at}")
                    states += 1
                image = random.choice(again)[1]
    assert states >= share_of_states


class LyingDisk(SimDisk):
    """A disk whose syncs do nothing: the bug of acknowledging before the sync."""

    lies: str = "sync"

    def sync(self, handle: int) -> None:
        if self.lies != "sync":
            super().sync(handle)

    def sync_directory(self) -> None:
        if self.lies != "sync_directory":
            super().sync_directory()


@pytest.mark.parametrize("lies", ["sync", "sync_directory"])
def test_the_check_finds_a_journal_that_does_not_sync(lies: str) -> None:
    """G11: seeded bugs are caught."""
    disk = LyingDisk()
    disk.lies = lies
    play = Play(3, disk)
    play.start()
    play.run(STEPS)
    play.watch("end")
    moment = play.moments[-1]
    caught = 0
    for image in crash_images(moment.disk, Random(1), 20):
        try:
            check(*recover(image), moment.promise)
        except Exception:  # whatever shows the loss counts
            caught += 1
    assert caught


def test_a_killed_process_loses_nothing_even_unsynced() -> None:
    """The promise of interval and never: what was written survives the end of the process."""
    play = Play(11)
    play.start()
    for _ in range(10):
        play.step()
    drafts = [play.request_draft(20) for _ in range(5)]
    play.log.commit(drafts, sync=False)
    _, log, index = recover(play.disk.survivors())
    assert {uuid for _, uuid, _ in drafts} <= set(index.entries)
    assert log.problems == []
