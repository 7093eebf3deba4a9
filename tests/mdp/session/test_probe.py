"""mdp.session.probe: what is asked, which answers count, and what silence means."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import core
from bstar.machine.ballot import NO_BALLOT, Ballot
from mdp.session import probe
from mdp.session.probe import Probe
from mdp.wire.commands import V01, V03
from mdp.wire.failover import RETRY_S_USUAL
from tests.scenes.mdp_scripted_broker import PROBE, StandIn
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SEEN = Ballot(7, 9)
LOWER, HIGHER = b"6.0000000000000009", b"8.0000000000000001"
PAIR = [b"", b"MDPC01", b"mmi.pair", b"7.0000000000000009"]
PASSIVE = "it is the passive broker of its pair"
SILENT = "it accepted the connection and does not answer"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a busy machine not taken for a silent broker."""
    monkeypatch.setattr(probe, "PROBE_S", PATIENCE_S)


class Calls:
    """A probe, and what it calls, in order."""

    def __init__(self, broker: StandIn) -> None:
        self.broker = broker
        self.said: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.probe: Probe

    async def next(self) -> tuple[Any, ...]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.said.get()

    async def asked(self) -> bytes:
        """Return the peer that asked."""
        async with asyncio.timeout(PATIENCE_S):
            peer = await self.broker.asked.get()
        assert await self.next() == ("reached", True)
        return peer


@asynccontextmanager
async def probing(
    broker: StandIn, *, votes: bool = True, then: Callable[[], object] = object, fails: dict[str, int] | None = None
) -> AsyncIterator[Calls]:
    """Probe; `then` is called soon after the connection is up or lost; what `fails` names raises so often."""
    calls = Calls(broker)
    left = Counter(fails or {})

    def said(name: str, *rest: Any) -> None:
        calls.said.put_nowait((name, *rest))
        if left[name]:
            left[name] -= 1
            raise ValueError

    def on_reached(reached: bool) -> None:
        asyncio.get_running_loop().call_soon(then)
        said("reached", reached)

    async with core.Context() as context:
        calls.probe = Probe(
            context,
            broker.endpoint,
            {"reconnect_ivl": 1},
            on_reached=on_reached,
            on_dialect=partial(said, "dialect"),
            on_refused=partial(said, "refused"),
            on_unreachable=lambda: said("unreachable", calls.probe.connection.trouble),
            seen=SEEN,
            votes=votes,
        )
        try:
            yield calls
        finally:
            calls.probe.close()
            await calls.probe.connection.wait_closed()
        assert calls.said.empty()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ([b"200"], (V03, NO_BALLOT, 0)),
        ([b"501"], (V01, NO_BALLOT, 0)),
        ([b"200", b"shards", b"3"], (V03, NO_BALLOT, 3)),
        ([b"200", b"shards", b"0"], (V01, NO_BALLOT, 0)),
        ([b"200", b"7.0000000000000009"], (V03, SEEN, 0)),
        ([b"200", HIGHER], (V03, Ballot(8, 1), 0)),
    ],
)
@pytest.mark.parametrize("votes", [False, True])
async def test_the_first_answer_says_the_dialect_the_ballot_and_the_shards(body: list[bytes], answer: tuple[Any, ...], votes: bool) -> None:
    async with StandIn(protocol=None) as broker, probing(broker, votes=votes) as calls:
        peer = await calls.asked()
        # No answers to the question.
        broker.send(peer, b"MDPC01", b"mmi.protocol", b"501")
        broker.send(peer, b"", b"MDPC02", b"mmi.protocol", b"501")
        broker.send(peer, b"", b"MDPC01", b"mmi.service", b"501")
        broker.send(peer, b"", b"MDPC01")
        broker.send(peer, *PROBE[:3], *body)
        broker.send(peer, *PROBE[:3], b"200", b"shards", b"9")  # the second answer
        assert await calls.next() == ("dialect", *answer)
        assert broker.probes == 1
        assert broker.inbox.empty()


@pytest.mark.parametrize(
    ("votes", "first"),
    [
        (True, [b"300", b"", b"40"]),
        (True, [b"200", LOWER]),
        (False, [b"200", LOWER]),
    ],
)
@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([b"200", LOWER], ("dialect", V03, Ballot(6, 9), 0)),
        ([b"300", HIGHER, b"40"], ("refused", 0.04, PASSIVE)),
        ([b"400"], ("refused", RETRY_S_USUAL, PASSIVE)),
        ([b"200"], ("refused", RETRY_S_USUAL, PASSIVE)),
    ],
)
async def test_a_broker_that_refuses_or_serves_under_a_lower_ballot_is_asked_once_more_with_ours(
    votes: bool, first: list[bytes], second: list[bytes], said: tuple[Any, ...]
) -> None:
    """BST-10, BST-33, BST-45."""
    async with StandIn(protocol=None) as broker, probing(broker, votes=votes) as calls:
        peer = await calls.asked()
        broker.send(peer, *PROBE[:3], *first)
        assert await broker.next() == (peer, PAIR)
        broker.send(peer, *PAIR[:3], *second)
        assert await calls.next() == said
        assert broker.inbox.empty()


async def test_a_worker_is_no_vote() -> None:
    """BST-10."""
    async with StandIn(protocol=None) as broker, probing(broker, votes=False) as calls:
        peer = await calls.asked()
        broker.send(peer, *PROBE[:3], b"300", HIGHER, b"40")
        assert await calls.next() == ("refused", 0.04, PASSIVE)
        assert broker.inbox.empty()


async def test_a_broker_that_does_not_answer_the_second_question_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StandIn(protocol=None) as broker, probing(broker) as calls:
        peer = await calls.asked()
        monkeypatch.setattr(probe, "PROBE_S", 0.01)
        broker.send(peer, *PROBE[:3], b"300", b"", b"40")
        assert await broker.next() == (peer, PAIR)
        assert await calls.next() == ("refused", RETRY_S_USUAL, PASSIVE)


async def test_a_broker_that_has_answered_is_not_called_silent_while_it_answers_the_second_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.02)
    async with StandIn(protocol=None, tells=True) as broker, probing(broker) as calls:
        peer = await calls.asked()
        monkeypatch.setattr(probe, "PROBE_S", 0.1)
        broker.send(peer, *PROBE[:3], b"300", b"", b"40")
        assert await broker.next() == (peer, PAIR)
        before = [calls.said.get_nowait() for _ in range(calls.said.qsize())]
        assert set(before) <= {("unreachable", SILENT), ("refused", RETRY_S_USUAL, PASSIVE)}
        if ("refused", RETRY_S_USUAL, PASSIVE) not in before:  # unless the machine is busy
            assert await calls.next() == ("refused", RETRY_S_USUAL, PASSIVE)


async def test_a_silent_broker_that_has_not_told_its_limits_speaks_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.02)
    async with StandIn(protocol=None) as broker, probing(broker) as calls:
        await calls.asked()
        assert await calls.next() == ("dialect", V01, NO_BALLOT, 0)


async def test_a_broker_is_not_called_silent_when_our_own_loop_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is when it answers nothing in another period."""
    monkeypatch.setattr(probe, "PROBE_S", 0.02)
    stood_still = asyncio.get_running_loop().create_future()

    def stand_still() -> None:
        if not stood_still.done():
            time.sleep(0.04)
            asyncio.get_running_loop().call_later(0, stood_still.set_result, None)  # after the clock of the probe, which is due by now

    async with StandIn(protocol=None) as broker, probing(broker, then=stand_still) as calls:
        await stood_still
        assert (calls.said.get_nowait(), calls.said.empty()) == (("reached", True), True)
        assert await calls.next() == ("dialect", V01, NO_BALLOT, 0)


async def test_a_silent_broker_of_ours_is_unreachable_each_time_and_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.01)
    monkeypatch.setattr(probe, "SILENCES_MAX", 3)
    async with StandIn(protocol=None, tells=True) as broker, probing(broker) as calls:
        await calls.asked()
        assert [await calls.next() for _ in range(3)] == [("unreachable", SILENT)] * 2 + [("refused", RETRY_S_USUAL, SILENT)]
        assert broker.probes == 1


async def test_after_a_lost_connection_the_question_is_asked_again_and_its_silences_counted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.01)
    monkeypatch.setattr(probe, "SILENCES_MAX", 1_000_000)
    async with StandIn(protocol=None, tells=True) as broker, probing(broker) as calls:
        peer = await calls.asked()
        assert await calls.next() == ("unreachable", SILENT)
        broker.cut(peer)
        while (said := await calls.next()) != ("reached", False):
            assert said == ("unreachable", SILENT)
        monkeypatch.setattr(probe, "SILENCES_MAX", 2)
        while (said := await calls.next())[0] == "unreachable":
            assert said[1] != SILENT
        assert said == ("reached", True)
        assert [await calls.next() for _ in range(2)] == [("unreachable", SILENT), ("refused", RETRY_S_USUAL, SILENT)]
        assert broker.probes == 2


@pytest.mark.faults
async def test_a_dialect_that_cannot_be_taken_is_a_refusal() -> None:
    """Else the broker would never be asked again."""
    async with StandIn(protocol=None) as broker, probing(broker, fails={"dialect": 1}) as calls:
        broker.send(await calls.asked(), *PROBE[:3], b"200")
        assert await calls.next() == ("dialect", V03, NO_BALLOT, 0)
        assert (await calls.next())[:2] == ("refused", RETRY_S_USUAL)


@pytest.mark.faults
async def test_a_refusal_that_cannot_be_taken_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "RETRY_S_USUAL", 0.01)
    async with StandIn(protocol=None) as broker, probing(broker, fails={"dialect": 1, "refused": 3}) as calls:
        broker.send(await calls.asked(), *PROBE[:3], b"200")
        assert await calls.next() == ("dialect", V03, NO_BALLOT, 0)
        assert [(await calls.next())[0] for _ in range(4)] == ["refused"] * 4


@pytest.mark.parametrize("serves", [True, False])
async def test_a_second_answer_does_not_count(serves: bool) -> None:
    async with StandIn(protocol=None) as broker, probing(broker) as calls:
        peer = await calls.asked()
        if serves:
            broker.send(peer, *PROBE[:3], b"200")
            assert await calls.next() == ("dialect", V03, NO_BALLOT, 0)
        else:
            broker.send(peer, *PAIR[:3], b"400")
            assert await calls.next() == ("refused", RETRY_S_USUAL, PASSIVE)
        for body in ([b"400"], [b"200", HIGHER]):
            broker.send(peer, *PROBE[:3], b"300", b"", b"40")  # its second question says that all before was read
            assert await broker.next() == (peer, PAIR)
            broker.send(peer, *PAIR[:3], *body)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("tells", [False, True])
async def test_nothing_is_said_after_close(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.005)
    async with StandIn(protocol=None, tells=tells) as broker, probing(broker) as calls:
        async with asyncio.timeout(PATIENCE_S):
            await broker.asked.get()
        calls.probe.close()
        while not calls.said.empty():
            calls.said.get_nowait()
        await asyncio.sleep(probe.PROBE_S)  # its clock would have been due before
        assert calls.said.empty()


@pytest.mark.parametrize("tells", [False, True])
async def test_a_broker_that_has_gone_is_not_taken_for_a_silent_one(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    async with StandIn(protocol=None, tells=tells) as broker, probing(broker) as calls:
        monkeypatch.setattr(probe, "PROBE_S", 0.01)
        async with asyncio.timeout(PATIENCE_S):
            await broker.asked.get()
        await broker.close()
        while await calls.next() != ("reached", False):
            continue
        await asyncio.sleep(probe.PROBE_S)  # its clock would have been due before
        while not calls.said.empty():
            name, trouble = calls.said.get_nowait()
            assert (name, trouble == SILENT) == ("unreachable", False)


async def test_a_probe_that_was_answered_by_silence_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.005)
    async with StandIn(protocol=None) as broker, core.Context() as context:
        answered: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()

        def on_dialect(*answer: Any) -> None:
            kept[0].close()
            answered.set_result(answer)

        rest: dict[str, Any] = dict.fromkeys(("on_reached", "on_refused", "on_unreachable"), lambda *_: None)
        kept = [Probe(context, broker.endpoint, {}, **rest, on_dialect=on_dialect, seen=NO_BALLOT, votes=True)]
        assert await answered == (V01, NO_BALLOT, 0)
        await kept[0].connection.wait_closed()
        reference = weakref.ref(kept.pop())
        gc.collect()
        assert reference() is None


async def test_a_closed_probe_is_not_kept() -> None:
    async with StandIn(protocol=None) as broker, core.Context() as context:
        rest: dict[str, Any] = dict.fromkeys(("on_reached", "on_dialect", "on_refused", "on_unreachable"), lambda *_: None)
        kept = [Probe(context, broker.endpoint, {}, **rest, seen=NO_BALLOT, votes=True)]
        async with asyncio.timeout(PATIENCE_S):
            await broker.asked.get()
        kept[0].close()
        await kept[0].connection.wait_closed()
        reference = weakref.ref(kept.pop())
        gc.collect()
        assert reference() is None
