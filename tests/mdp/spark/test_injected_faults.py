"""Faults injected into the loop, the clients, the exchanges and the bar of a dispatch.

An error of its partition only.
"""

from __future__ import annotations

import io

import pytest

from mdp.spark.rows.exchange import Chunk
from mdp.spark.rows.loop_bridge import Bridge, Destination
from mdp.spark.rows.progress import Progress
from tests.scenes.fault_injection import Broken, sabotaged
from tests.scenes.spark_client import Answering

pytestmark = pytest.mark.faults


class Rows:
    """Rows shown by a bar."""

    def seen(self) -> tuple[int, int]:
        return 3, 0


class Terminal(io.StringIO):
    """Can be broken."""

    broken = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.broken:
            raise OSError(5, "Input/output error")
        return super().write(text)


def ask(bridge: Bridge, broker: str = "a") -> list[list[bytes] | None]:
    chunk = Chunk([(b"x",)], ["k"])
    with bridge.exchange(Destination((broker,), timeout_s=1.0, attempts=1), "echo", 8) as feed:
        feed(chunk)
        chunk.finished.result()
    return [answer.reply for answer in chunk.answers]


def answered() -> Answering:
    return Answering(lambda *frames: [b"<" + frames[0] + b">"])


def test_what_a_detached_task_has_left_is_asked_about_after_a_fault() -> None:
    with sabotaged("mdp dispatch rest") as supervisor:
        answering = answered()
        bridge = Bridge(answering.connect)
        chunk = Chunk([(b"x",)] * 3, ["k"] * 3)
        with bridge.exchange(Destination(("a",), timeout_s=1.0, attempts=1), "echo", 1, detach=True) as feed:
            feed(chunk)
        chunk.finished.result(60)
        assert supervisor.faults == {"mdp dispatch rest": 1}
        bridge.close()


def test_rows_are_answered_though_the_thread_of_the_loop_failed() -> None:
    with sabotaged("mdp dispatch loop") as supervisor:
        bridge = Bridge(answered().connect)
        assert ask(bridge) == [[b"<x>"]]
        assert supervisor.restarts == {"mdp dispatch loop": 1}
        bridge.close()


@pytest.mark.parametrize("name", ["mdp dispatch client", "mdp dispatch exchange"])
def test_a_fault_is_an_error_of_its_partition_only(name: str) -> None:
    with sabotaged(name):
        bridge = Bridge(answered().connect)
        with pytest.raises(Broken, match=name):
            ask(bridge)
        assert ask(bridge) == [[b"<x>"]]
        bridge.close()


def test_a_broker_that_cannot_be_reached_is_no_fault() -> None:
    with sabotaged():
        bridge = Bridge(answered().connect)
        with pytest.raises(ConnectionError):
            ask(bridge, "refused")
        bridge.close()


def test_a_dispatch_goes_on_without_its_bar() -> None:
    with sabotaged("mdp progress"), Progress(Rows(), 3, stream=Terminal()):  # type: ignore[arg-type]
        pass


def test_a_dispatch_outlives_its_terminal() -> None:
    stream = Terminal()
    with sabotaged("mdp progress"), Progress(Rows(), 3, stream=stream):  # type: ignore[arg-type]
        stream.broken = True


def test_the_last_word_of_a_bar_is_all_there_is() -> None:
    stream = Terminal()
    with sabotaged(), Progress(Rows(), 3, stream=stream):  # type: ignore[arg-type]
        pass
    assert "3 of 3 rows" in stream.getvalue()
    assert stream.getvalue().endswith("\n")
