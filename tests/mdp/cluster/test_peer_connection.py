"""mdp.cluster.peer_connection: when a peer is asked, when it is lost, and what of its messages goes where."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.cluster.peer_connection import ASK_SOON_S, MISSED_MAX, PeerConnection
from mdp.wire.commands import CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_PARTIAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

AT = "inproc://peer"
OFFER = [b"200", b"B", b"\x80"]
HEAD, OTHER = CLIENT_FINAL_03 + bytes(8), CLIENT_PARTIAL_03 + bytes(8)  # of answers to requests
LOST, ASKED, OFFERED = ("lost", AT), ("asked", AT), ("offered", AT, OFFER)


class Scene:
    """A peer that the test plays, a connection to it, and what its listener hears."""

    def __init__(self, context: core.Context, at: str = AT, state_s: float = 1.0, **options: Any) -> None:
        self.begun = asyncio.get_running_loop().time()
        self.context = context
        self.answers = False
        self.queries: list[tuple[float, list[bytes]]] = []  # with the time of each
        self.events: list[tuple[Any, ...]] = []
        self.at = at
        self.listen()
        self.connection = PeerConnection(context, at, b"A", self, state_s=state_s, socket_options=options)

    def listen(self) -> None:
        self.peer = self.context.socket(core.ROUTER, linger=0)
        self.peer.set_receiver(self._asked)
        self.peer.bind(self.at)

    @property
    def now_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self.begun, 3)

    @property
    def asked_at(self) -> list[float]:
        return [at for at, _ in self.queries]

    @property
    def askers(self) -> int:
        """Number of connections that have asked."""
        return len({frames[0] for _, frames in self.queries})

    def _asked(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            self.queries.append((self.now_s, frames))
            if self.answers:
                self.answer()

    def answer(self, number: int = -1, command: bytes = CLIENT_FINAL_03) -> None:
        """Answer a query, the last one by default."""
        name, head, *_ = self.queries[number][1]
        self.say(command + head[HEAD_BYTES:], *OFFER, name=name)

    def say(self, *frames: bytes, name: bytes = b"") -> None:
        self.peer.send_multipart([name or self.queries[-1][1][0], *frames])

    def on_offer(self, endpoint: str, body: list[bytes]) -> None:
        self.events.append(("offered", endpoint, body))

    def on_query_sent(self, endpoint: str) -> None:
        self.events.append(("asked", endpoint))

    def on_peer_lost(self, endpoint: str) -> None:
        self.events.append(("lost", endpoint))

    def on_answers(self, endpoint: str, batch: list[list[bytes]]) -> None:
        self.events.append(("answers", endpoint, batch))


def connections() -> set[str]:
    """Return the sockets of this process."""
    folder = "/proc/self/fd/"
    return {name for fd in os.listdir(folder) if os.path.exists(folder + fd) and (name := os.readlink(folder + fd)).startswith("socket:")}


@asynccontextmanager
async def scene(**options: Any) -> AsyncIterator[Scene]:
    async with core.Context() as context:
        made = Scene(context, **options)
        yield made
        await made.connection.close()


# --- queries ----------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_peer_is_asked_as_it_is_there_and_then_at_intervals() -> None:
    """Each query has an id of its own, which no request has."""
    async with scene() as made:
        made.answers = True
        await asyncio.sleep(3.5)
        assert made.asked_at == [0.0, 1.0, 2.0, 3.0]
        assert made.events == [ASKED, OFFERED] * 4
        for number, (_, frames) in enumerate(made.queries, start=1):
            assert frames[1:] == [CLIENT_REQUEST_03 + b"\xff" + number.to_bytes(7, "big"), b"mmi.lending", b"", b"A"]
        assert made.askers == 1


@in_virtual_time
async def test_a_peer_is_asked_sooner_when_it_has_answered() -> None:
    """Not while an answer is due, and no more than once in that while."""
    async with scene() as made:
        made.connection.ask_soon()  # there is no connection yet
        while not made.connection.send([]):
            await asyncio.sleep(0)
        made.connection.ask_soon()  # the first query is about to be sent
        assert made.queries == []
        await asyncio.sleep(0.5)
        made.connection.ask_soon()
        await asyncio.sleep(0.4)
        assert made.asked_at == [0.0]
        made.answer()
        await asyncio.sleep(0)
        for _ in range(2):
            made.connection.ask_soon()
        await asyncio.sleep(0.05)
        assert made.asked_at == [0.0, 0.9]
        made.answers = True
        await asyncio.sleep(1.0)
        assert made.asked_at == [0.0, 0.9, 1.9]
        made.connection.ask_soon()
        await asyncio.sleep(0.06)
        assert made.asked_at[3:] == [1.9 + ASK_SOON_S]


@in_virtual_time
async def test_answers_to_queries_are_separated_from_those_to_requests() -> None:
    """Those of one read go to the listener together."""
    async with scene() as made:
        await asyncio.sleep(0.5)
        made.events.clear()
        made.say(HEAD, b"1")
        made.answer()
        made.say(OTHER, b"2")
        await asyncio.sleep(0.1)
        assert made.events == [("answers", AT, [[HEAD, b"1"], [OTHER, b"2"]]), OFFERED]
        made.say(HEAD, b"3")
        await asyncio.sleep(0.1)
        made.answer(command=CLIENT_ERROR_03)
        await asyncio.sleep(0.1)
        made.answer(command=CLIENT_PARTIAL_03)
        await asyncio.sleep(0.1)
        assert made.events[2:] == [("answers", AT, [[HEAD, b"3"]]), OFFERED]


# --- silence ----------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_clock_that_comes_early_does_not_make_a_silent_peer_last_longer() -> None:
    """Timers of a loop come up to one step of its clock early: 16 ms on Windows."""
    loop = asyncio.get_running_loop()
    async with scene() as made:
        loop._clock_resolution = 0.016  # type: ignore[attr-defined]
        loop.call_at(made.begun + 2.99, lambda: None)
        await asyncio.sleep(3.5)
        assert (len(made.queries), made.askers) == (MISSED_MAX + 1, 2)


@in_virtual_time
async def test_a_peer_without_an_answer_to_three_queries_is_lost_and_connected_to_again() -> None:
    async with scene() as made:
        await asyncio.sleep(2.999)
        assert (made.asked_at, made.askers, made.events) == ([0.0, 1.0, 2.0], 1, [ASKED] * MISSED_MAX)
        await asyncio.sleep(3.0)
        assert made.asked_at == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert (made.askers, made.events) == (2, [ASKED] * MISSED_MAX + [LOST] + [ASKED] * MISSED_MAX)
        made.answer(0)  # nothing comes of the connection that was given up
        await asyncio.sleep(0)
        made.answer()
        await asyncio.sleep(0.9)
        assert made.events[-2:] == [OFFERED, ASKED]


@in_virtual_time
async def test_an_answer_to_the_last_query_begins_anew_and_a_late_one_does_not() -> None:
    async with scene() as made:
        await asyncio.sleep(2.5)
        made.answer()
        await asyncio.sleep(3.0)
        made.answer(-2)
        await asyncio.sleep(0.499)
        assert (made.askers, made.events.count(OFFERED), made.events.count(LOST)) == (1, 1, 0)
        await asyncio.sleep(0.002)
        assert (made.askers, made.events.count(OFFERED), made.events.count(LOST)) == (2, 1, 1)


@in_virtual_time
async def test_hb_02_what_moved_before_an_answer_does_not_keep_a_peer_later(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [500, 0, 0]
    monkeypatch.setattr(core.Socket, "in_transit", lambda self, routing_id=None: moved.pop(0))
    async with scene() as made:
        await asyncio.sleep(3.5)
        made.answer()
        await asyncio.sleep(3.499)
        assert (made.askers, LOST in made.events) == (1, False)
        await asyncio.sleep(0.002)
        assert (made.askers, LOST in made.events) == (2, True)


@in_virtual_time
@pytest.mark.parametrize(("late_s", "lost_s"), [(7 / 16, 3 + 7 / 16), (9 / 16, 4 + 9 / 16)])
async def test_a_pause_of_this_process_is_not_held_against_a_peer(late_s: float, lost_s: float) -> None:
    async with scene() as made:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2.5)
        loop.call_soon(setattr, loop._selector, "now_s", made.begun + 3.0 + late_s)  # type: ignore[attr-defined]  # it stood still
        await asyncio.sleep(0)
        await asyncio.sleep(lost_s - (3 + late_s) - 1 / 1024)
        assert LOST not in made.events
        await asyncio.sleep(1 / 1024)
        assert LOST in made.events


@in_virtual_time
async def test_a_connection_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer is lost meanwhile."""
    async with scene() as made:
        await asyncio.sleep(2.5)
        refused = list[float]()

        class NoMore:
            closed = False

            def socket(self, *_: Any, **__: Any) -> core.Socket:
                refused.append(made.now_s)
                raise OSError("no more files")

        with monkeypatch.context() as moment:
            moment.setattr(made.connection, "_context", NoMore())
            await asyncio.sleep(2.0)
            assert (refused[0], len(refused) > 1, made.askers) == (3.0, True, 1)
            assert made.connection.send([[HEAD]]) is False
        made.answers = True
        await asyncio.sleep(60.0)
        assert (made.askers, made.events[-1]) == (2, OFFERED)
        assert made.events.count(LOST) == len(refused) + 1


# --- ends -------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_connection_is_up_from_its_peer_to_its_end() -> None:
    async with scene() as made:
        assert made.connection.send([[HEAD, b"early"]]) is False
        await asyncio.sleep(0.5)
        assert made.connection.send([[HEAD, b"1"], [HEAD, b"2"]]) is True
        await asyncio.sleep(0.1)
        assert [frames[1:] for _, frames in made.queries[1:]] == [[HEAD, b"1"], [HEAD, b"2"]]
        made.peer.close()
        await asyncio.sleep(5.0)
        assert made.connection.send([[HEAD, b"late"]]) is False
        assert made.events == [ASKED, LOST]


@in_virtual_time
async def test_nothing_follows_the_end_of_a_connection() -> None:
    async with scene() as made:
        await asyncio.sleep(2.5)
        made.answer()
        await made.connection.close()
        before = list(made.events)
        await asyncio.sleep(10.0)
        assert (made.events, len(made.queries), made.connection.send([[HEAD]])) == (before, 3, False)


async def test_a_connection_is_closed_when_its_end_was_awaited(tmp_path: Path) -> None:
    async with core.Context() as context:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{tmp_path}/peer")
            listening.listen()
            before = connections()
            async with scene() as made:
                silent = PeerConnection(context, f"ipc://{tmp_path}/peer", b"A", made, state_s=1.0, socket_options={})
                await eventually(lambda: connections() - before)
                opened = connections() - before
                await silent.close()
                assert not connections() & opened


@in_virtual_time
async def test_a_silent_peer_that_takes_no_connection_any_longer_is_lost_once(tmp_path: Path) -> None:
    async with scene(at=f"ipc://{tmp_path}/peer") as made:
        await asyncio.sleep(2.5)
        made.peer.unbind(made.at)
        await asyncio.sleep(60.0)
        assert made.events == [("asked", made.at)] * MISSED_MAX + [("lost", made.at)]


async def test_a_peer_gets_any_number_of_messages_and_learns_our_limits(tmp_path: Path) -> None:
    async with scene(at=f"ipc://{tmp_path}/peer", state_s=3600.0) as made:
        await eventually(lambda: made.queries)
        assert made.connection.send([[HEAD, b"%d" % number] for number in range(5000)])
        await eventually(lambda: len(made.queries) == 5001)
        assert made.peer.peer_limits() is not None


async def test_a_peer_that_comes_back_is_asked_at_once(tmp_path: Path) -> None:
    async with scene(at=f"ipc://{tmp_path}/peer", state_s=3600.0, reconnect_ivl=1) as made:
        asked, lost = ("asked", made.at), ("lost", made.at)
        await eventually(lambda: made.queries)
        made.peer.close()
        await eventually(lambda: lost in made.events)
        await made.peer.wait_closed()
        made.listen()
        await eventually(lambda: len(made.queries) == 2)
        assert made.events == [asked, lost, asked]


async def test_what_a_peer_has_not_read_is_not_sent_after_the_end(tmp_path: Path) -> None:
    """Whatever the options of the program say."""
    async with scene(at=f"ipc://{tmp_path}/peer", state_s=3600.0, linger=-1) as made:
        watch = Watch(made.peer)
        await eventually(lambda: made.queries)
        read = list[object]()
        made.peer.set_receiver(read.extend)
        for _ in range(50):
            assert made.connection.send([[HEAD, bytes(1_000_000)]])
        await made.connection.close()
        await watch.lost()
        assert len(read) < 50


# --- the log ----------------------------------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mdp.cluster.peer_connection"]


@in_virtual_time
async def test_a_peer_that_does_not_answer_is_in_the_log_after_a_while_and_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with scene() as made:
        made.answers = True
        await asyncio.sleep(0.5)
        made.answers = False
        await asyncio.sleep(6.4)
        assert (lines(caplog), made.events.count(LOST)) == ([], 1)
        await asyncio.sleep(0.2)
        silent = f"no workers of the peer at {AT}, and it is tried again: it is connected and does not answer"
        assert lines(caplog) == [silent]
        await asyncio.sleep(30)
        assert lines(caplog) == [silent]
        made.answers = True
        await asyncio.sleep(5)
        assert lines(caplog) == [silent, f"the peer at {AT} answers"]
        made.answers = False
        await asyncio.sleep(5.9)
        assert len(lines(caplog)) == 2
