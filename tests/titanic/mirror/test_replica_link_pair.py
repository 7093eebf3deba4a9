"""The connection of a store to its mirror in a pair: pulses, and when the store may go on alone."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

import titanic
from bstar.net.boot_clock import boot_clock
from tests.scenes.slow_line import slow_line
from tests.scenes.titanic_octets import GatedDisk, is_in_state, line_of, mirrored, octets, store, terms
from tests.scenes.waiting import eventually
from tests.titanic.mirror.test_replica_server import submitted
from titanic.journal.ownership import read_mark
from titanic.mirror.replica_link import MirrorLine
from titanic.mirror.replica_server import Mirror

if TYPE_CHECKING:
    from pathlib import Path

    from titanic.mirror.replica_link import MirrorTerms


async def test_each_pulse_is_sent_when_the_one_before_was_answered(endpoint: str, disk: GatedDisk) -> None:
    async with mirrored(disk, endpoint, terms=terms(7.5), go_on=True) as (mirror, stored):
        await mirror.followed()
        await is_in_state(stored, "in step")
        for number in (1, 2, 3):
            pulse = await mirror.next()
            assert (int.from_bytes(pulse.number, "big"), pulse.call, pulse.arguments) == (number, b"pulse", (b"7500",))
            if number == 2:
                await mirror.answer(pulse._replace(number=(1).to_bytes(8, "big")), b"pulse")  # not this one
                for _ in range(20):  # many times the pause between two pulses
                    accepted = asyncio.ensure_future(submitted(stored, b"x"))
                    while (said := await mirror.next()).call not in (b"sync", b"pulse"):
                        pass
                    assert said.call == b"sync"
                    await mirror.socket.send_multipart([said.peer, said.session, said.number, b"ok"])  # the detail may be left out
                    assert (await accepted)[0] == b"200"
            await mirror.answer(pulse, b"pulse")
        line_of(stored).end()


async def test_each_answer_to_a_pulse_puts_off_the_moment_to_go_on_alone(
    endpoint: str, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("titanic.mirror.replica_link.boot_clock", lambda: now)
    async with mirrored(disk, endpoint, terms=terms(10.0), go_on=True) as (mirror, stored):
        line = line_of(stored)
        await mirror.followed()
        first = await mirror.next(b"pulse")
        now = 110.0
        assert not line.may_go_alone()
        now = 110.3
        assert line.may_go_alone()
        now = 108.0
        await mirror.answer(first, b"pulse")
        await mirror.next(b"pulse")  # the answer has arrived
        now = 118.0
        assert not line.may_go_alone()
        now = 118.3
        assert line.may_go_alone()
        line.end()


async def test_pulses_begin_anew_on_a_new_connection(endpoint: str, disk: GatedDisk) -> None:
    """The one before was never answered."""
    async with mirrored(disk, endpoint, terms=terms(), go_on=True) as (mirror, stored):
        for session in (1, 2):
            await mirror.followed()
            pulse = await mirror.next(b"pulse")
            assert int.from_bytes(pulse.session, "big") == session
            await mirror.answer(pulse._replace(session=(9).to_bytes(8, "big")), b"pulse")
            await mirror.answer(pulse, b"no", b"ended")
            await is_in_state(stored, "away", "ended")
        await mirror.followed()


@pytest.mark.parametrize(
    ("made", "alone"),
    [
        (terms(alone=True), True),  # from the beginning: the mirror was not in step when this half was last the store
        (terms(0.001), True),  # the mirror may not take over any more
        (terms(), False),
        (terms(0.001, serves=False), False),
    ],
)
async def test_a_store_acknowledges_alone_when_its_mirror_may_not_take_over(
    endpoint: str, disk: GatedDisk, made: MirrorTerms, alone: bool
) -> None:
    async with store(disk, endpoint, terms=made, go_on=True) as stored:
        if not made.alone:
            async with octets(endpoint) as mirror:
                await mirror.followed()
                await is_in_state(stored, "in step")
            await is_in_state(stored, "away", "the connection ended")
        accepted = asyncio.ensure_future(submitted(stored, b"x"))
        if alone:
            assert (await accepted)[0] == b"200"
            assert line_of(stored).state == "away"
        else:
            async with octets(endpoint) as mirror:
                await mirror.greeted()
                swap = await mirror.copied()
                assert not accepted.done()
                await mirror.answer(swap)
                assert (await accepted)[0] == b"200"
                line_of(stored).end()


async def test_before_its_mirror_was_there_a_store_of_a_pair_does_not_serve(endpoint: str, disk: GatedDisk) -> None:
    async with store(disk, endpoint, terms=terms(0.0), go_on=True) as stored:
        served = asyncio.ensure_future(stored.wait_for_mirror())
        async with octets(endpoint) as mirror:
            await mirror.greeted()
            swap = await mirror.copied()
            assert not served.done()
            await mirror.answer(swap)
            await served


async def test_hb_02_a_batch_that_takes_longer_than_the_window_ends_the_promise_of_the_mirror_and_nothing_else(tmp_path: Path) -> None:
    """Pulses are behind it on a slow line: the store serves on, not alone."""
    large = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=2**21, reserve_bytes=4096))
    async with (
        Mirror(titanic.RealDisk(tmp_path / "b"), paired=True) as mirror,
        slow_line(mirror.bind("tcp://127.0.0.1:*"), 500_000) as line,
    ):
        link = MirrorLine(line, timeout_s=1.5, terms=terms(0.2, pulse_s=0.02))
        async with titanic.Store(titanic.RealDisk(tmp_path / "a"), large, mirror=link, go_on=True) as stored:
            await stored.wait_for_mirror()
            await eventually(lambda: mirror.lease.holds(boot_clock()))
            accepted = asyncio.ensure_future(submitted(stored, os.urandom(1_500_000)))
            await eventually(lambda: not mirror.lease.holds(boot_clock()))
            assert (accepted.done(), stored.stalled, link.state) == (False, None, "in step")
            assert (await accepted)[0] == b"200"
            mark = read_mark(titanic.RealDisk(tmp_path / "a"))
            assert mark is not None
            assert not mark.alone
            await eventually(lambda: mirror.lease.holds(boot_clock()))
            assert (mirror.sessions, link.state) == (1, "in step")
