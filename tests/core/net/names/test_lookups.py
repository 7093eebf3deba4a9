"""Host names whose lookup hangs, because name servers do not answer: nothing else waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from errno import EAGAIN, EINTR
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.daemon.exit_codes import Unreachable
from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.net.names.lookups import addresses_now, end_waits
from core.runtime import runtime
from tests.scenes.fault_injection import sabotaged
from tests.scenes.hanging_names import Hanging, hanging
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

PAGE = figures_page("a daemon", "thing", dict, not_ready=str, tables=list)
MANY = 40  # more than the loop's pool has threads


async def test_names_that_hang_keep_no_thread_from_other_names_and_other_work() -> None:
    with hanging() as names:
        async with core.Context() as context, context.socket(core.ROUTER) as router:
            router.bind("tcp://127.0.0.1:*")
            port = router.last_endpoint.rpartition(":")[2]
            for number in range(MANY):
                context.socket(core.DEALER, linger=0).connect(f"tcp://host-{number}.test:{port}")
            await eventually(lambda: len(names.asked) == MANY)
            async with asyncio.timeout(PATIENCE_S), context.socket(core.DEALER) as dealer:
                assert await asyncio.to_thread(int, "7") == 7  # as ballots are written
                dealer.connect(f"tcp://localhost:{port}")
                await dealer.send(b"hello")
                assert (await router.recv_multipart())[1] == b"hello"


async def test_attempts_to_connect_to_a_name_share_its_lookup() -> None:
    with hanging() as names:
        async with core.Context() as context, context.socket(core.ROUTER) as router, context.socket(core.DEALER, linger=0) as dealer:
            router.bind("tcp://127.0.0.1:*")
            gave_up: list[str] = []
            dealer.on_event(lambda event: gave_up.append(event.reason), core.EVENT_CLOSED)
            dealer.connect_timeout, dealer.reconnect_ivl = 5, 1
            dealer.connect(router.last_endpoint.replace("127.0.0.1", "slow.test"))
            await eventually(lambda: len(gave_up) > MANY)
            assert names.asked == ["slow.test"]
            assert set(gave_up) == {"no connection within 0.005 s, or its name is not resolved"}
            names.may_answer.set()
            await dealer.send(b"hello")
            async with asyncio.timeout(PATIENCE_S):
                assert (await router.recv_multipart())[1] == b"hello"


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_program_does_not_wait_for_a_lookup_at_its_end(cancelled: bool) -> None:
    async def main() -> None:
        async with core.Context() as context:
            dealer = context.socket(core.DEALER, linger=0)
            dealer.connect("tcp://slow.test:5555")
            await eventually(lambda: names.asked)
            if cancelled:
                dealer.close()

    with hanging() as names:
        asyncio.run(main())
        assert not names.may_answer.is_set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.net.names.lookups.LISTEN_S", 0.01)


@pytest.mark.usefixtures("soon")
async def test_a_name_to_listen_on_is_waited_for_a_while_and_the_error_says_why() -> None:
    with hanging() as names:
        async with core.Context() as context, context.socket(core.ROUTER) as router:
            with pytest.raises(core.EndpointError, match=r"host 'slow.test' to bind to: name servers have not answered for 0.01 s"):
                router.bind("tcp://slow.test:*")
            with pytest.raises(Unreachable, match=r"HTTP on slow.test:0: name servers have not answered for 0.01 s"):
                async with serve_page(("slow.test", 0), PAGE):
                    pass
            assert set(names.asked) == {"slow.test"}
            router.bind("tcp://localhost:*")
            async with serve_page(("localhost", 0), PAGE) as port:
                assert port


async def test_signals_are_handled_while_a_name_to_listen_on_is_resolved() -> None:
    """So a second SIGTERM, or Ctrl-C, ends a program at once: in a call of the system they are not."""

    class Deaf(Hanging):
        told = False

        def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            os.kill(os.getpid(), signal.SIGUSR1)
            self.told = self.may_answer.wait(PATIENCE_S)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
            return super().addresses(host, port, family)

    names = Deaf()
    before = signal.signal(signal.SIGUSR1, lambda *_: names.may_answer.set())
    try:
        with runtime.scope(names):
            async with core.Context() as context:
                context.socket(core.PULL).bind("tcp://slow.test:*")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert names.told


class Interruption:
    """A handler of signals that runs before one line of a thread; `came` when it did."""

    def __init__(self, before_line: int) -> None:
        self._left = before_line
        self.came = False

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        self._left -= event == "line"
        if not self._left and not self.came:
            self.came = True
            end_waits()
        return self.trace


@pytest.mark.usefixtures("soon")
def test_a_wait_for_a_name_to_listen_on_is_ended_by_a_signal_at_any_moment() -> None:
    """The handler runs in the thread that waits, and within what waits: it takes no lock that this holds."""
    ends = []
    before = sys.gettrace()
    with hanging():
        for line in count(1):
            signalled = Interruption(line)
            sys.settrace(signalled.trace)
            try:
                addresses_now("slow.test", 0, socket.AF_INET)
            except OSError as error:
                ends.append(error.errno)
            finally:
                sys.settrace(before)
            if not signalled.came:
                break
    assert set(ends) == {EINTR, EAGAIN}
    assert ends[-1] == EAGAIN


@pytest.mark.usefixtures("soon")
def test_a_daemon_does_not_wait_at_its_end_for_the_name_of_its_page() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable):
            async with serve_page(("slow.test", 0), PAGE):
                pass

    with hanging() as names:
        asyncio.run(main())
        assert not names.may_answer.is_set()


async def test_more_names_than_threads_are_an_error_that_is_tried_again() -> None:
    with hanging() as names:
        async with core.Context() as context:
            reasons: list[str] = []
            for number in range(70):
                dealer = context.socket(core.DEALER, linger=0, reconnect_ivl=5)
                dealer.on_event(lambda event: reasons.append(event.reason), core.EVENT_CLOSED)
                dealer.connect(f"tcp://host-{number}.test:5555")
            await eventually(lambda: any("too many host names are being resolved" in reason for reason in reasons))
            assert len(names.asked) == 64
            names.may_answer.set()
            await eventually(lambda: len(set(names.asked)) == 70)


@pytest.mark.faults
async def test_a_fault_of_a_lookup_is_an_error_of_its_attempt() -> None:
    with sabotaged("core name lookup"), hanging():
        async with core.Context() as context, context.socket(core.ROUTER) as router, context.socket(core.DEALER, linger=0) as dealer:
            router.bind("tcp://127.0.0.1:*")
            dealer.connect(router.last_endpoint.replace("127.0.0.1", "localhost"))
            await dealer.send(b"hello")
            async with asyncio.timeout(PATIENCE_S):
                assert (await router.recv_multipart())[1] == b"hello"
