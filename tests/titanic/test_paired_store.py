"""`titanic.paired_store`: two Titanics of a pair with real sockets and files, stopped and started in every order; nothing accepted is
lost."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from errno import EMFILE, ENOSPC, EROFS
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import bstar
import core
import titanic
from core.runtime import runtime
from core.security.authenticator import curve_keypair
from tests.scenes.bstar_sockets import until
from tests.scenes.titanic_pair import Two
from titanic.commands.main import main
from titanic.journal.ownership import Mark, Step, check_is_of_no_pair, read_mark, write_mark
from titanic.mirror.peer_query import ask_peer
from titanic.mirror.replica_directory import Replica, lineage_at
from titanic.mirror.replica_server import Mirror
from titanic.mirror.succession import FORCED, Answer, Lineage, LineageKind, judge, lineage_of
from titanic.store.repair import read_store
from titanic.wire.mirror_frames import Call, pack_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)  # several stores are opened, on a machine that may be busy


def mark_of(two: Two, n: int) -> Mark:
    mark = read_mark(titanic.RealDisk(two.store(n)))
    assert mark is not None
    return mark


def held(two: Two, n: int) -> set[str]:
    """Return the requests in a directory; none while its files are being exchanged."""
    try:
        _, index = read_store(titanic.RealDisk(two.store(n)))
    except (titanic.JournalError, OSError):
        return set()
    return {entry.uuid.hex().upper() for entry in index.entries.values()}


async def test_the_other_one_takes_over_with_everything_and_the_first_becomes_its_mirror(tmp_path: Path) -> None:
    """BST-10, BST-11, TSP-16, BST-44, BEY-08: a vote is a Titanic that is missed at the broker; no fail-back.

    Roles change as often as needed.
    """
    async with Two(tmp_path, witness=True) as two:
        await two.start(0)
        await two.start(1)
        tickets = []
        for _ in range(2):
            leader = await two.settled()
            tickets += await two.submit("both")
            uuids = {ticket.uuid for ticket in tickets}
            await until(lambda uuids=uuids: held(two, 0) >= uuids and held(two, 1) >= uuids, "both hold it")  # type: ignore[misc]
            leader = await two.settled()
            await two.stop(leader)
            await until(lambda n=1 - leader: two.serving(n), "the other one takes over")  # type: ignore[misc]
            tickets += await two.submit("alone")
            mark = mark_of(two, 1 - leader)
            assert mark == Mark("store", mark.epoch, alone=True, store=mark.store, paired=True)
            await two.start(leader)
        await two.settled()
        marks = [mark_of(two, n) for n in (0, 1)]
        assert {mark.role for mark in marks} == {"mirror", "store"}
        assert {mark[1:4] for mark in marks} == {(marks[0].epoch, Step.IN_STEP, False)}
        assert await two.answered(tickets) == ["both", "alone"] * 2


class HoursAhead:
    """A system whose wall clock was set wrong."""

    def __getattr__(self, name: str) -> Any:
        return getattr(runtime.current(), name)

    def wall_ns(self) -> int:
        return runtime.current().wall_ns() + 5 * 3600 * 10**9


async def test_a_wall_clock_that_is_wrong_on_one_machine_ends_nothing_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: what had half an hour to live expired when the roles changed."""
    async with Two(tmp_path, witness=True) as two:
        await two.start(0)
        await two.start(1)
        await two.settled()
        ticket = await two.client.submit("echo", b"x", ttl=1800.0)
        leader = await two.settled()
        monkeypatch.setattr("titanic.store.store.runtime", SimpleNamespace(current=HoursAhead))
        await two.stop(leader)
        await until(lambda: two.serving(1 - leader), "the other one takes over")
        assert await two.answered([ticket]) == ["x"]


@pytest.mark.parametrize("first", [0, 1])
async def test_after_both_were_down_neither_serves_before_they_have_met(tmp_path: Path, first: int) -> None:
    """Each may have acknowledged alone; together they can decide."""
    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        await two.settled()
        tickets = await two.submit("1", "2")
        await two.stop(0)
        await two.stop(1)
        one = await two.start(first)
        await until(lambda: one.part == "asks the other half", "it asks")
        assert not two.serving(first)
        await two.start(1 - first)
        await two.settled()
        assert await two.answered(tickets) == ["1", "2"]


async def test_who_was_away_never_leads_though_it_was_made_active(tmp_path: Path) -> None:
    """One half acknowledged alone; the other, with older data, returns first and is active: it yields."""
    async with Two(tmp_path, witness=True) as two:
        await two.start(0)
        await two.start(1)
        await two.settled()
        tickets = await two.submit("before")
        behind = await two.settled()
        await two.stop(behind)
        await until(lambda: two.serving(1 - behind), "the other one takes over")
        tickets += await two.submit("alone")
        await two.stop(1 - behind)
        assert lineage_at(titanic.RealDisk(two.store(behind))).kind is LineageKind.WHOLE
        assert lineage_at(titanic.RealDisk(two.store(1 - behind))).kind is LineageKind.SOLE
        one = await two.start(behind)
        await until(lambda: one.part == "asks the other half", "it asks")
        assert not two.serving(behind)
        await two.start(1 - behind)
        await two.settled()
        assert await two.answered(tickets) == ["before", "alone"]


async def test_a_switchover_loses_nothing(tmp_path: Path) -> None:
    """BST-36: while requests come in all the time."""
    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        one = two.running[await two.settled()]
        assert one is not None
        submits = asyncio.ensure_future(two.submit(*(str(n) for n in range(50))))
        await one.pair.switchover()
        tickets = await submits
        await two.settled()
        assert await two.answered(tickets) == [str(n) for n in range(50)]
        for one in two.running:
            assert one is not None
            assert one.page().not_ready() == ""
            assert {"bstar_active", "bstar_became_passive"} <= {family.name for family in one.page().families()}
            assert one.page().snapshot().figures["part"] in ("store", "mirror")


async def test_without_its_mirror_a_strict_one_serves_nothing_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with Two(tmp_path, witness=True, go_on=False) as two:
        await two.start(0)
        await two.start(1)
        leader = await two.settled()
        tickets = await two.submit("1")
        await two.stop(leader)
        other = two.running[1 - leader]
        assert other is not None
        await until(lambda: other.part == "asks the other half", "the other one is active, and does not serve alone")
        await two.start(leader)
        await two.settled()
        tickets += await two.submit("2")
        assert await two.answered(tickets) == ["1", "2"]


async def test_everything_between_the_two_can_be_secured(tmp_path: Path) -> None:
    public, secret = curve_keypair()

    def secured() -> core.Curve:
        return core.Curve(secret_key=secret, server_key=public, keys={public: "one of us"})

    async with Two(tmp_path, witness=True, secured=secured) as two:
        await two.start(0)
        await two.start(1)
        leader = await two.settled()
        tickets = await two.submit("1")
        await two.stop(leader)
        await until(lambda: two.serving(1 - leader), "the other one takes over")
        assert await two.answered(tickets) == ["1"]


async def test_changing_roles_leaves_nothing_open_and_nothing_running(tmp_path: Path) -> None:
    """A pair runs for years: files, sockets and threads of a turn end with it."""

    def used() -> tuple[int, list[str]]:
        threads = sorted(thread.name.split("_")[0] for thread in threading.enumerate() if thread.name.startswith("titanic"))
        return len(os.listdir("/dev/fd")), threads

    async def hand_over() -> None:
        one = two.running[await two.settled()]
        assert one is not None
        with suppress(bstar.NotActive):
            await one.pair.switchover()

    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        await hand_over()
        await two.settled()
        before, threads = used()
        for _ in range(4):
            await hand_over()
        await two.settled()
        # Connections come and go; four turns that left something behind would have left more.
        await until(lambda: used()[1] == threads and used()[0] <= before + 3, "what a turn used is given back")


async def test_a_warning_of_the_mirror_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def unprotected(options: object, endpoint: str) -> str:
        return "ANYBODY MAY CONNECT" if "/mirror" in endpoint else ""

    monkeypatch.setattr("core.sockets.endpoints.unprotected", unprotected)
    monkeypatch.setattr("core.sockets.context.log", SimpleNamespace(warning=lambda text, **_: said.append(text)))
    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        for _ in range(3):
            one = two.running[await two.settled()]
            assert one is not None
            with suppress(bstar.NotActive):
                await one.pair.switchover()
        await two.settled()
    assert 1 <= len(said) <= 2  # of each of the two once


@pytest.mark.parametrize("error", [ENOSPC, EROFS, EMFILE])
async def test_a_store_with_a_full_disk_waits_and_leads_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    full, write = False, write_mark

    def written(disk: titanic.RealDisk, mark: Mark) -> None:
        if full:
            raise OSError(error, os.strerror(error))
        write(disk, mark)

    monkeypatch.setattr("titanic.paired_store.write_mark", written)
    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        leader = await two.settled()
        tickets = await two.submit("kept")
        other = two.running[1 - leader]
        assert other is not None
        full = True
        await two.stop(leader)
        await until(lambda: other.status()["part"] == f"its store cannot be written: {os.strerror(error)}", "it says so")
        assert not two.serving(1 - leader)
        full = False
        await until(lambda: two.serving(1 - leader), "it leads")
        assert await two.answered(tickets) == ["kept"]


async def test_a_store_goes_on_alone_when_its_mirror_may_not_take_over_any_more(tmp_path: Path) -> None:
    # A store whose term ends in the window, here by a pause of this process, waits for its mirror: it may have taken over.
    async with Two(tmp_path, window_s=2.0, heartbeat_ms=2000) as two:
        await two.start(0)
        await two.start(1)
        leader = await two.settled()
        assert not mark_of(two, leader).alone
        await two.stop(1 - leader)
        tickets = await two.submit("waits for the window")
        assert mark_of(two, leader).alone
        assert await two.answered(tickets) == ["waits for the window"]


async def test_two_that_cannot_tell_say_so_and_touch_nothing(tmp_path: Path) -> None:
    """Two stores that have nothing to do with each other: neither is put over the other."""
    for n in (0, 1):
        async with titanic.Store(titanic.RealDisk(tmp_path / f"store{n}"), titanic.JournalOptions()):
            pass
    before = {path.name: path.read_bytes() for path in (tmp_path / "store1").glob("*.seg")}
    async with Two(tmp_path) as two:
        one = await two.start(0)
        other = await two.start(1)
        await until(lambda: "neither can lead" in (one.part, other.part), "one says so")
        assert not two.serving(0)
        assert not two.serving(1)
        await two.stop(0)
        await two.stop(1)
    assert {path.name: path.read_bytes() for path in (tmp_path / "store1").glob("*.seg")} == before


async def test_questions_to_a_mirror(tmp_path: Path) -> None:
    """It answers by its data, promises only to the store it is in step with, and counts all other messages."""
    disk = titanic.RealDisk(tmp_path)
    store = b"s" * 16
    write_mark(disk, Mark("mirror", 3, Step.IN_STEP, store=store))
    async with Mirror(disk, paired=True) as mirror, core.Context() as context:
        endpoint = mirror.bind("tcp://127.0.0.1:*")
        assert await ask_peer(endpoint, Lineage(3, LineageKind.WHOLE, store), 5.0) is Answer.FOLLOW
        assert await ask_peer(endpoint, Lineage(2, LineageKind.WHOLE, store), 5.0) is Answer.LEAD
        assert await ask_peer(endpoint, Lineage(9, LineageKind.SOLE, b"o" * 16), 5.0, context=context) is Answer.NEITHER
        async with context.socket(core.DEALER, linger=0) as dealer:
            dealer.connect(endpoint)
            for frames in ([Call.PULSE.value], [Call.PULSE.value, b"x"], [Call.PULSE.value, b"9" * 9], [Call.CONSULT.value, b"\xc1"]):
                await dealer.send_multipart([*pack_pair(1, 1), *frames])
            await dealer.send_multipart([*pack_pair(1, 1), Call.PULSE.value, b"1000"])  # of nobody it follows: no answer
            await dealer.send_multipart([*pack_pair(0, 2), Call.CONSULT.value, Lineage().encode()])
            assert (await dealer.recv_multipart())[3] == b"lead"
        assert mirror.refused == 4
        assert mirror.lease.said_at is None


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


def test_a_mirror_whose_disk_failed_is_promoted_only_with_its_loss_accepted(tmp_path: Path) -> None:
    """It was in step, but what is read of it may not be on the disk."""
    disk = titanic.RealDisk(tmp_path)
    failed = Mark("mirror", 3, Step.IN_STEP, store=b"s" * 16, doubt=True)
    write_mark(disk, failed)
    code, said = run("promote", "--store", str(tmp_path))
    assert (code, "its disk failed" in said, read_mark(disk)) == (3, True, failed)
    assert run("promote", "--store", str(tmp_path), "--accept-loss")[0] == 0
    assert read_mark(disk) == Mark("store", 4, store=b"s" * 16)


def test_an_operator_lets_one_serve_alone_and_the_loss_is_named(tmp_path: Path) -> None:
    """The other machine is gone for good; its data, should it ever come back, are older by an operator's word."""
    disk = titanic.RealDisk(tmp_path)
    store = b"s" * 16
    for before, words in (
        (Mark("mirror", 3, Step.IN_STEP, store=store, paired=True), "if the other half acknowledged alone"),
        (Mark("mirror", 3, Step.BEHIND, store=store, paired=True), "while this one was away is lost"),
        (Mark("mirror", 3, Step.CHANGING, store=store, paired=True), "being exchanged"),
    ):
        write_mark(disk, before)
        code, said = run("promote", "--store", str(tmp_path))
        assert (code, words in said, read_mark(disk)) == (3, True, before)
        code, said = run("promote", "--store", str(tmp_path), "--accept-loss")
        assert (code, words in said) == (0, True)
        assert read_mark(disk) == Mark("store", 3 + FORCED, alone=True, store=store, paired=True)
    others = lineage_of(Mark("store", 40, alone=True, store=store, paired=True), store)
    assert judge(others, lineage_of(read_mark(disk), store)) is Answer.FOLLOW
    write_mark(disk, Mark("mirror", 0, Step.EMPTY, paired=True))
    assert run("promote", "--store", str(tmp_path), "--accept-loss")[0] == 1


def test_a_directory_of_a_pair_is_neither_served_nor_a_mirror_alone(tmp_path: Path) -> None:
    disk = titanic.RealDisk(tmp_path)
    write_mark(disk, Mark("store", 3, store=b"s" * 16, paired=True))
    for check in (check_is_of_no_pair, Replica):
        with pytest.raises(titanic.JournalError, match="one of a pair's") as caught:
            check(disk)
        assert caught.value.name == "MIRROR"
