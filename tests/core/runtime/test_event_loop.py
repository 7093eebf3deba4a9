"""core.runtime.event_loop: the loop that was asked for, for as long as it runs."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import pytest

from core.runtime import event_loop


async def kind() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_stock_loop_on_request() -> None:
    assert event_loop.run(kind(), uvloop=False).startswith("asyncio")


@pytest.mark.parametrize("uvloop", [True, None])
def test_uvloop_where_installed(uvloop: bool | None) -> None:
    assert event_loop.has_uvloop()
    assert event_loop.run(kind(), uvloop=uvloop) == "uvloop"


def test_absent_uvloop_is_an_error_only_when_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "has_uvloop", lambda: False)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.run(kind()).startswith("asyncio")
    with pytest.raises(ImportError):
        event_loop.run(kind(), uvloop=True)


def test_debug_is_passed_on() -> None:
    async def debug() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert event_loop.run(debug(), debug=True)


@pytest.mark.parametrize("uvloop", [True, False])
def test_p3_a_signal_that_does_not_end_the_wait_of_an_idle_loop_is_handled_at_once(uvloop: bool) -> None:
    """As one that comes right before the wait; here it comes to another thread."""

    async def signalled() -> str:
        loop = asyncio.get_running_loop()
        handled: asyncio.Future[str] = loop.create_future()
        before = signal.signal(signal.SIGUSR1, lambda *_: handled.set_result("handled"))
        # The loop waits by then, and for nothing else; a signal that comes earlier is handled in any case.
        other = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
        other.start()
        try:
            return await handled
        finally:
            other.join()
            signal.signal(signal.SIGUSR1, before)

    assert event_loop.run(signalled(), uvloop=uvloop) == "handled"
    assert signal.set_wakeup_fd(-1) == -1


async def test_the_first_to_end_ends_the_others() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    async def fails() -> None:
        raise LookupError

    await event_loop.until_one_ends(forever(), asyncio.sleep(0))
    assert ended == ["forever"]
    with pytest.raises(LookupError):
        await event_loop.until_one_ends(fails(), forever())
    assert ended == ["forever"] * 2
