"""The loop on its own thread: shared clients, their lifetime, and no endless waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from mdp.spark.rows.exchange import Chunk
from mdp.spark.rows.loop_bridge import Bridge, Destination, process_bridge
from tests.mdp.spark.conftest import ROOT
from tests.scenes.spark_client import Answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# What is registered first is called last: after the bridge had its turn.
ENDING = """
import atexit, threading
atexit.register(lambda: print(*sorted(thread.name for thread in threading.enumerate())))
from mdp.spark.rows.loop_bridge import process_bridge
process_bridge()
print(*sorted(thread.name for thread in threading.enumerate()))
"""


@pytest.fixture
def answering() -> Answering:
    return Answering(lambda *frames: [b"<" + frames[0] + b">"])


@pytest.fixture
def bridge(answering: Answering) -> Iterator[Bridge]:
    bridge = Bridge(answering.connect)
    yield bridge
    bridge.close()


def to(broker: str) -> Destination:
    return Destination((broker,), timeout_s=1.0, attempts=1)


def ask(bridge: Bridge, broker: str, count: int = 1) -> list[list[bytes] | None]:
    chunk = Chunk([(str(n).encode(),) for n in range(count)], [str(n) for n in range(count)])
    with bridge.exchange(to(broker), "echo", 8) as feed:
        feed(chunk)
        chunk.finished.result()
    return [answer.reply for answer in chunk.answers]


def test_rows_cross_to_the_loop_and_back(bridge: Bridge, answering: Answering) -> None:
    assert ask(bridge, "a", 1000) == [[f"<{n}>".encode()] for n in range(1000)]
    assert answering.most_under_way == 8


def test_partitions_that_want_the_same_share_a_client(bridge: Bridge, answering: Answering) -> None:
    for broker in ("a", "b", "a", "a"):
        ask(bridge, broker)
    assert [place.brokers for place in answering.opened] == [("a",), ("b",)]
    assert answering.closed == []


def test_idle_clients_are_closed_the_longest_unused_first(bridge: Bridge, answering: Answering) -> None:
    with bridge.exchange(to("in use"), "echo", 8):
        for broker in "abcda":
            ask(bridge, broker)
        assert answering.closed == []
        ask(bridge, "e")
        assert [place.brokers for place in answering.closed] == [("b",)]


def test_closing_the_bridge_closes_every_client(answering: Answering) -> None:
    bridge = Bridge(answering.connect)
    ask(bridge, "a")
    ask(bridge, "b")
    bridge.close()
    assert sorted(place.brokers for place in answering.closed) == [("a",), ("b",)]
    assert not [thread for thread in threading.enumerate() if thread.name == "mdp-dispatch"]


def test_a_client_that_cannot_be_opened_is_an_error_of_its_partition_only(bridge: Bridge) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionError, match="nobody there"):
            ask(bridge, "refused")
    assert ask(bridge, "a") == [[b"<0>"]]


@pytest.mark.faults
def test_a_client_that_cannot_be_opened_is_the_same_error_of_all_partitions_that_wait_for_it() -> None:
    """The second one had a KeyError, and what a third one had opened meanwhile was forgotten."""
    answering, gate, entered = Answering(), threading.Event(), threading.Event()

    @asynccontextmanager
    async def connect(to: Destination) -> AsyncIterator[Answering]:
        entered.set()
        while not gate.is_set():
            await asyncio.sleep(0.001)
        raise ConnectionError("nobody there")
        yield answering

    bridge = Bridge(connect)
    errors: list[BaseException] = []

    def partition() -> None:
        try:
            ask(bridge, "a")
        except Exception as error:
            errors.append(error)

    partitions = [threading.Thread(target=partition) for _ in range(2)]
    partitions[0].start()
    entered.wait()
    partitions[1].start()
    while next(iter(bridge._clients.values())).users < 2:
        time.sleep(0.001)
    gate.set()
    for one in partitions:
        one.join()
    assert [type(error) for error in errors] == [ConnectionError] * 2
    bridge.close()


def test_leaving_the_block_gives_up_what_has_no_answer(bridge: Bridge, answering: Answering) -> None:
    answering.silent = True
    chunk = Chunk([(b"x",)] * 100_000, ["k"] * 100_000)
    with bridge.exchange(to("a"), "echo", 2) as feed:
        feed(chunk)
    assert not chunk.finished.done()
    answering.silent = False
    assert ask(bridge, "a") == [[b"<0>"]]


def test_with_detach_what_was_taken_is_asked_about_though_nobody_waits(bridge: Bridge, answering: Answering) -> None:
    """A task that was cancelled; the client is free for another partition when the last row has its answer."""
    answering.silent = True
    chunk = Chunk([(b"x",)] * 100, [f"k{number}" for number in range(100)])
    with bridge.exchange(to("a"), "echo", 2, detach=True) as feed:
        feed(chunk)
    answering.silent = False
    chunk.finished.result(60)
    assert answering.keys == [f"k{number}" for number in range(100)]
    assert ask(bridge, "a") == [[b"<0>"]]


def test_a_bridge_that_is_closed_waits_for_nothing_that_was_left(answering: Answering) -> None:
    answering.silent = True
    bridge = Bridge(answering.connect)
    with bridge.exchange(to("a"), "echo", 2, detach=True) as feed:
        feed(Chunk([(b"x",)] * 10, ["k"] * 10))
    bridge.close()
    assert [place.brokers for place in answering.closed] == [("a",)]


def test_partitions_are_spread_over_brokers_with_the_others_behind() -> None:
    several = Destination(("a", "b", "c"), timeout_s=1.0, attempts=1)
    assert [several.rotated(number).brokers for number in (0, 1, 5)] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]
    assert to("a").rotated(7).brokers == ("a",)


def test_a_process_has_one_bridge() -> None:
    assert process_bridge() is process_bridge()


def test_a_process_that_ends_has_no_thread_left_in_the_loop() -> None:
    """A thread inside native code when the interpreter ends would crash the process."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.splitlines(), done.returncode) == (["MainThread mdp dispatch loop", "MainThread"], 0), done.stderr


def test_a_bridge_that_was_halted_or_closed_can_be_halted_again(answering: Answering) -> None:
    before = threading.active_count()
    bridge = Bridge(answering.connect)
    assert threading.active_count() == before + 1
    for _ in range(2):
        bridge.halt()
        assert threading.active_count() == before
    bridge = Bridge(answering.connect)
    bridge.close()
    bridge.halt()
    assert threading.active_count() == before
