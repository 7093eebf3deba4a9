"""PairedTitanic in virtual time: what one half does as Binary Star makes it active or passive, and what it leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Any

import pytest

import core
import titanic
from tests.scenes.titanic_pair import JOURNAL
from tests.scenes.titanic_scripted_pair import HEARTBEAT_S, HeldSimDisk, PairScene, ScriptedPair, half_in, pair_scene
from tests.scenes.virtual_loop import in_virtual_time
from titanic.journal.ownership import Mark, Step, read_mark, write_mark
from titanic.mirror.replica_directory import lineage_at
from titanic.mirror.succession import Answer
from titanic.paired_store import PairedOptions, PairedTitanic, service_of

if TYPE_CHECKING:
    from collections.abc import Callable

STORE = b"s" * 16
WHOLE = Mark("mirror", 3, Step.IN_STEP, store=STORE, paired=True)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Answer, before: Callable[[], None] = lambda: None) -> list[float]:
    """Have the other half give these answers, the last one for ever; return the times at which it was asked."""
    asked: list[float] = []

    async def ask(*_: Any, **__: Any) -> Answer:
        asked.append(asyncio.get_running_loop().time())
        before()
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr("titanic.paired_store.ask_peer", ask)
    return asked


def writing(monkeypatch: pytest.MonkeyPatch, written: list[Mark], instead: Callable[[], None]) -> None:
    def write(disk: HeldSimDisk, mark: Mark) -> None:
        instead()
        written.append(mark)
        write_mark(disk, mark)

    monkeypatch.setattr("titanic.paired_store.write_mark", write)


def journal_of(half: PairedTitanic) -> titanic.Journal:
    assert half.service is not None
    journal = half.service.store.journal
    assert isinstance(journal, titanic.Journal)
    return journal


async def together(scene: PairScene, **options: Any) -> tuple[PairedTitanic, PairedTitanic]:
    """Start both halves; the first one serves, and the other one is in step and may take over."""
    one, other = [await scene.start(n, **options) for n in (0, 1)]
    scene.pairs[0].become_active()
    await scene.serving(one)
    while not other.status()["may_take_over_s"]:
        await asyncio.sleep(0.1)
    return one, other


# --- options --------------------------------------------------------------------------------------------------------------------------


def test_the_options_of_a_half_reach_its_store_and_its_services() -> None:
    given: dict[str, Any] = {"brokers": ["inproc://b"], "mirror_bind": "", "journal": titanic.JournalOptions()}
    lone = service_of(PairedOptions(mirror="", **given), None)
    assert (lone.store.mirror, lone.store._options) == (None, None)
    paired = service_of(PairedOptions(mirror="inproc://m", mirror_timeout_s=7.0, heartbeat_ms=70, liveness=9, **given), HeldSimDisk())
    link = paired.store.mirror
    assert link is not None
    assert (link.endpoint, link.timeout_s) == ("inproc://m", 7.0)
    assert (paired._worker_options["heartbeat_ms"], paired._worker_options["liveness"]) == (70, 9)


@in_virtual_time
async def test_the_window_in_which_a_mirror_may_take_over_alone() -> None:
    """Without a witness it depends on the time after which a broker gives a silent Titanic up."""

    def half(guard: str, **options: Any) -> PairedTitanic:
        return half_in(None, ScriptedPair(guard), HeldSimDisk(), **options)

    assert half("witness").window_s == 6 * HEARTBEAT_S
    assert half("fenced", heartbeat_ms=3000, liveness=4).window_s == 12.0 + 4 * HEARTBEAT_S
    assert half("witness", window_s=2.5).window_s == 2.5
    short = [half("witness", window_s=window_s).is_window_short for window_s in (2.9, 3.0, 3.1)]
    assert short == [True, True, False]
    assert not half("witness", window_s=1.0, go_on=False).is_window_short


# --- beginning and end ----------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_half_holds_its_directory_from_its_beginning_to_its_end() -> None:
    disk, pair = HeldSimDisk(), ScriptedPair()
    half = half_in(None, pair, disk)
    assert pair.service is not None
    assert pair.service() == {"part": "starts", "turns": 0, "holds": "nothing", "epoch": 0}
    before = asyncio.all_tasks()
    async with half:
        assert disk.locked
        with pytest.raises(titanic.StoreLocked):
            disk.hold()
        context = half._mirror_context
    assert (disk.locked, context.closed) == (False, True)
    assert asyncio.all_tasks() == before


@in_virtual_time
async def test_a_given_context_stays_open() -> None:
    async with core.Context() as context:
        async with half_in(context, ScriptedPair(), HeldSimDisk()):
            pass
        assert not context.closed


@in_virtual_time
async def test_a_directory_that_cannot_be_read_is_free_again() -> None:
    disk = HeldSimDisk({"manifest": b"damaged"})
    with pytest.raises(titanic.JournalError):
        async with half_in(None, ScriptedPair(), disk):
            pass
    assert not disk.locked


@in_virtual_time
@pytest.mark.parametrize("error", [OSError("no ballot"), RuntimeError("no ballot")], ids=["expected", "fault"])
async def test_the_error_of_the_pair_ends_a_half(error: Exception) -> None:
    async with pair_scene() as scene:
        one = await scene.start(0)
        serving = asyncio.ensure_future(one.serve_forever())
        await scene.is_part(one, "mirror")
        scene.pairs[0].failed.set_exception(error)
        with pytest.raises(type(error), match="no ballot"):
            await serving


@in_virtual_time
async def test_the_error_of_a_store_that_cannot_be_written_ends_a_half() -> None:
    """The other half can write: it is to lead."""
    async with pair_scene() as scene:
        one, _ = await together(scene)
        serving, begun = asyncio.ensure_future(one.serve_forever()), asyncio.get_running_loop().time()
        journal_of(one).log.wounded = "EIO"
        assert one.status()["state"] == "wounded: EIO"
        with pytest.raises(titanic.Wounded, match="EIO"):
            await serving
        assert asyncio.get_running_loop().time() - begun <= 2 * HEARTBEAT_S


@in_virtual_time
async def test_the_error_of_services_that_cannot_be_registered_ends_a_half() -> None:
    async with pair_scene() as scene:
        one, _ = await scene.start(0, liveness=0), await scene.start(1)
        scene.pairs[0].become_active()
        with pytest.raises(ValueError, match="liveness"):
            await one.serve_forever()


# --- active ---------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_half_serves_while_it_is_active_and_then_is_the_mirror(caplog: pytest.LogCaptureFixture) -> None:
    opened: list[titanic.Store] = []
    parts: list[str] = []
    loop = asyncio.get_running_loop()
    caplog.set_level(logging.INFO, "titanic")
    async with pair_scene() as scene:
        one, other = await scene.start(0, on_serving=opened.append), await scene.start(1)
        scene.disks[0].before = lambda _: parts.append(one.part)
        scene.pairs[0].become_active()
        service = await scene.serving(one)
        assert (opened, one.turns, one.part) == ([service.store], 1, "store")
        await scene.client.submit("echo", b"x")
        await asyncio.sleep(0.3)  # within a heartbeat
        left_at = loop.time()
        scene.pairs[0].become_passive()
        await scene.is_part(one, "mirror")
        assert loop.time() - left_at < 0.1
        assert (one.service, one.turns) == (None, 1)
        scene.pairs[1].become_active()
        await scene.serving(other)
        assert len((await scene.serving(other)).store.index.entries) == 1
    assert {"asks the other half", "opens the store", "store", "ends its turn"} <= {*parts}
    said = [record.getMessage() for record in caplog.records]
    for text in ("mirror of the other half", "asking the other half", "the store"):
        assert text in said


@in_virtual_time
async def test_progress_of_opening_a_store_is_reported() -> None:
    told: list[tuple[int, int]] = []
    async with pair_scene() as scene:
        one, _ = await scene.start(0, progress=lambda *numbers: told.append(numbers)), await scene.start(1)
        for _ in range(2):
            scene.pairs[0].become_active()
            await scene.serving(one)
            scene.pairs[0].become_passive()
            await scene.is_part(one, "mirror")
    assert told


@in_virtual_time
async def test_nothing_is_answered_while_the_pair_may_not_answer() -> None:
    """BST-29: the half is active, under the same ballot, and was paused perhaps."""
    async with pair_scene() as scene:
        await together(scene)
        scene.pairs[0].answers = False
        submitting = asyncio.ensure_future(scene.client.submit("echo", b"x"))
        await asyncio.sleep(2.0)
        assert not submitting.done()
        scene.pairs[0].answers = True
        await submitting


@in_virtual_time
async def test_clients_that_wait_do_not_delay_the_end_of_a_turn() -> None:
    loop = asyncio.get_running_loop()
    async with pair_scene() as scene:
        one, _ = await together(scene)
        ticket = await scene.client.submit("late", b"x")
        waiting = asyncio.ensure_future(scene.client.ask(b"titanic.wait", ticket.uuid.encode(), b"600000"))
        await asyncio.sleep(1.0)
        left_at = loop.time()
        scene.pairs[0].become_passive()
        await scene.is_part(one, "mirror")
        assert loop.time() - left_at < 0.5
        waiting.cancel()


@in_virtual_time
async def test_a_mirror_in_step_takes_over_alone_within_its_window_only() -> None:
    """Later, or once it has served, the other half may have acknowledged what it does not hold."""
    async with pair_scene() as scene:
        _, other = await together(scene, window_s=100.0)
        await scene.client.submit("echo", b"x")
        await asyncio.sleep(5.0)
        await scene.stop(0)
        scene.pairs[1].become_active()
        await scene.serving(other)
        assert read_mark(scene.disks[1]) == Mark("store", 2, alone=True, store=lineage_at(scene.disks[1]).store, paired=True)
    async with pair_scene() as scene:
        _, other = await together(scene, window_s=10.0)
        await scene.stop(0)
        await asyncio.sleep(20.0)
        scene.pairs[1].become_active()
        await asyncio.sleep(20.0)
        assert (other.part, other.service) == ("asks the other half", None)
        assert {"connected", "may_take_over_s"}.isdisjoint(other.status())
        assert other.page().not_ready() == "asks the other half"


@in_virtual_time
async def test_the_window_of_a_mirror_is_over_once_it_has_served() -> None:
    async with pair_scene() as scene:
        _, other = await together(scene, window_s=1000.0)
        scene.pairs[0].become_passive()
        scene.pairs[1].become_active()
        await scene.serving(other)
        while other.status()["mirror"] != "in step":
            await asyncio.sleep(0.1)
        await scene.stop(0)
        scene.pairs[1].become_passive()
        await scene.is_part(other, "mirror")
        assert other.status()["may_take_over_s"] == 0.0
        scene.pairs[1].become_active()
        await asyncio.sleep(5.0)
        assert other.part == "asks the other half"


# --- who leads ------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_half_that_gives_way_hands_its_role_over_and_asks_each_heartbeat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = answering(monkeypatch, Answer.LEAD)
    caplog.set_level(logging.INFO, "titanic")
    async with pair_scene() as scene:
        write_mark(scene.disks[0], WHOLE)
        one = await scene.start(0)
        scene.pairs[0].switches = False
        scene.pairs[0].become_active()
        await scene.is_part(one, "gives way")
        await asyncio.sleep(9.5)
        assert (len(asked), scene.pairs[0].switchovers, one.turns) == (10, [0] * 10, 0)
        assert one.status() == {"part": "asks the other half", "turns": 0, "holds": "whole", "epoch": 3} | {"part": one.part}
    said = [record.getMessage() for record in caplog.records]
    assert said.count("the other half has newer data and leads") == 1
    assert said.count("asking the other half") == 1


@in_virtual_time
async def test_a_half_that_cannot_tell_says_so_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = answering(monkeypatch, Answer.NEITHER)
    async with pair_scene() as scene:
        write_mark(scene.disks[0], WHOLE)
        one = await scene.start(0)
        scene.pairs[0].become_active()
        await scene.is_part(one, "neither can lead")
        await asyncio.sleep(9.5)
        assert (len(asked), scene.pairs[0].switchovers, read_mark(scene.disks[0])) == (10, [], WHOLE)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["neither half can tell which data is newer; see titanic promote"]


@in_virtual_time
async def test_what_was_logged_is_logged_again_after_a_turn(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "titanic")
    async with pair_scene() as scene:
        one, _ = await together(scene)
        for _ in range(2):
            scene.pairs[0].become_passive()
            await scene.is_part(one, "mirror")
            scene.pairs[0].become_active()
            await scene.serving(one)
    assert [record.getMessage() for record in caplog.records].count("asking the other half") == 3


@in_virtual_time
async def test_an_answer_that_comes_as_the_half_becomes_passive_is_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_scene() as scene:
        written: list[Mark] = []
        asked = answering(monkeypatch, Answer.FOLLOW, before=scene.pairs[0].become_passive)
        writing(monkeypatch, written, lambda: None)
        write_mark(scene.disks[0], WHOLE)
        one = await scene.start(0)
        scene.pairs[0].become_active()
        while not asked:
            await asyncio.sleep(0.01)
        await scene.is_part(one, "mirror")
        assert (read_mark(scene.disks[0]), one.turns, written) == (WHOLE, 0, [])


@in_virtual_time
@pytest.mark.parametrize("alone", [False, True])
async def test_a_store_that_the_other_half_does_not_follow_gives_way(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Its data is not newer, whatever was answered first, also if it may serve alone."""
    asked = answering(monkeypatch, *([] if alone else [Answer.FOLLOW]), Answer.LEAD)
    async with pair_scene() as scene:
        for disk in scene.disks:  # two stores that have nothing to do with each other
            async with titanic.Store(disk, JOURNAL):
                pass
        if alone:
            write_mark(scene.disks[0], Mark("store", 3, alone=True, store=lineage_at(scene.disks[0]).store, paired=True))
        one, _ = await scene.start(0), await scene.start(1)
        scene.pairs[0].become_active()
        await scene.is_part(one, "mirror")
        while not scene.pairs[0].switchovers:
            await asyncio.sleep(0.1)
        assert (len(asked), one.turns, scene.pairs[0].switchovers) == (1 if alone else 2, 1, [0])


# --- the mark -------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.parametrize("before", [None, WHOLE])
async def test_a_mark_that_was_written_too_late_is_withdrawn(monkeypatch: pytest.MonkeyPatch, before: Mark | None) -> None:
    """Nothing was done in its epoch; of a new directory it says no more than that there was nothing."""
    written: list[Mark] = []
    async with pair_scene() as scene:
        pair = scene.pairs[0]
        answering(monkeypatch, Answer.FOLLOW)
        writing(monkeypatch, written, lambda: setattr(pair, "answers", False))
        if before is not None:
            write_mark(scene.disks[0], before)
        one = await scene.start(0)
        pair.become_active()
        while pair.answers:
            await asyncio.sleep(0.01)
        pair.become_passive()
        await scene.is_part(one, "mirror")
        ours = Mark("store", 1 if before is None else 4, store=b"" if before is None else STORE, paired=True)
        assert written == [ours, *([] if before is None else [before])]
        assert one.turns == 0


@in_virtual_time
async def test_a_store_that_goes_on_alone_writes_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Mark] = []
    async with pair_scene() as scene:
        async with titanic.Store(scene.disks[0], JOURNAL):
            pass
        write_mark(scene.disks[0], Mark("store", 3, alone=True, store=lineage_at(scene.disks[0]).store, paired=True))
        writing(monkeypatch, written, lambda: None)
        one = await scene.start(0)
        scene.pairs[0].become_active()
        await scene.serving(one)
        assert (written, one.turns) == ([], 1)


@in_virtual_time
async def test_a_half_whose_disk_is_full_hands_over_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = True

    def fail() -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    async with pair_scene() as scene:
        answering(monkeypatch, Answer.FOLLOW)
        writing(monkeypatch, [], fail)
        scene.pairs[0].switches = False
        one, _ = await scene.start(0), await scene.start(1)
        scene.pairs[0].become_active()
        await scene.is_part(one, "its store cannot be written: No space left on device")
        await asyncio.sleep(4.5)
        assert (scene.pairs[0].switchovers, one.turns) == ([0] * 5, 0)
        full = False
        await scene.serving(one)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert errors[0].startswith("its store cannot be written: No space left on device, so this half cannot lead; the other half leads")


@in_virtual_time
async def test_a_disk_that_is_broken_ends_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with pair_scene() as scene:
        answering(monkeypatch, Answer.FOLLOW)
        writing(monkeypatch, [], fail)
        one = await scene.start(0)
        scene.pairs[0].become_active()
        with pytest.raises(OSError, match="Input/output"):
            await one.serve_forever()


# --- handing over ---------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_half_that_hands_over_accepts_nothing_more() -> None:
    async with pair_scene() as scene:
        one, other = await together(scene)
        assert await scene.pairs[1].drain(1.0)  # of the mirror, which has nothing to finish
        assert await one.drain(1.0)
        assert one.page().not_ready() == "the store is being stopped"
        scene.pairs[0].become_passive()
        scene.pairs[1].become_active()
        await scene.serving(other)


@in_virtual_time
async def test_a_half_whose_role_could_not_be_handed_over_serves_again_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with pair_scene() as scene:
        one, _ = await together(scene)
        for turns in range(1, 6):  # at any time within a heartbeat
            assert await one.drain(0.0)
            await asyncio.sleep(0.3)
            begun = loop.time()
            scene.pairs[0].stay()
            while one.turns == turns:
                await asyncio.sleep(0.01)
            assert loop.time() - begun < 0.3
            await scene.serving(one)
        await asyncio.sleep(10.0)
        assert one.turns == 6
        await scene.client.submit("echo", b"x")
