"""core.net.writing: the end of a stream, within LINGER; large messages in parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from core.net import writing
from core.net.writing import Ending
from tests.scenes.builds import replaces_names

if TYPE_CHECKING:
    from collections.abc import Callable


class Transport:
    """A transport with bytes to write."""

    def __init__(self, waiting: int, fault: bool = False) -> None:
        self.waiting = waiting
        self.fault = fault
        self.calls: list[str] = []

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> None:
        return None

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.fault:
            raise OSError
        self.calls.append("eof")

    def abort(self) -> None:
        self.calls.append("abort")


def ending(transport: Transport, linger_s: float | None) -> Ending:
    loop = asyncio.get_running_loop()

    def later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return loop.call_later(delay_s, call)

    return Ending(loop.time, later, cast("Any", transport), linger_s, transport.get_write_buffer_size)


@replaces_names
@pytest.mark.parametrize(
    ("waiting", "linger_s", "calls"),
    [
        (0, None, ["eof", "abort"]),  # everything was sent
        (9, None, ["eof"]),  # no limit
        (9, 0.0, ["eof", "abort"]),  # the limit is over
        (9, 30.0, ["eof"]),
    ],
)
async def test_sock_15_a_stream_ends_when_everything_was_sent_or_linger_is_over(
    waiting: int, linger_s: float | None, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LAST_WORDS_S", 0.01)
    transport = Transport(waiting)
    end = ending(transport, linger_s)
    end.end_stream()
    await asyncio.sleep(0.1)
    end.cancel()
    assert transport.calls == calls


async def test_a_stream_that_was_reset_is_aborted() -> None:
    transport = Transport(0, fault=True)
    end = ending(transport, None)
    end.end_stream()
    end.cancel()
    assert transport.calls == ["abort"]


@replaces_names
async def test_parts_are_written_one_by_one_where_writelines_does_not_pause(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CPython 3.13.0, where `test_kept_alive` sees what waits without a bound otherwise."""
    monkeypatch.setattr(writing, "WRITELINES_PAUSES", False)
    pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint)
    frames = [b"head", bytes(range(256)) * 4096, b"", bytes(2**18)]
    for _ in range(3):
        await push.send_multipart(frames)
    for _ in range(3):
        assert await pull.recv_multipart() == frames
