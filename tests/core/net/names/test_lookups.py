"""Host names whose lookup hangs, because name servers do not answer: nothing else waits for it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.runtime import runtime
from tests.scenes.fault_injection import sabotaged
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

MANY = 40  # more than the loop's pool has threads


class Hanging(runtime.Runtime):
    """A resolver that does not answer for any name but `localhost`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
        self.asked.append(host)
        if host != "localhost":
            self.may_answer.wait(10 * PATIENCE_S)
            host = "127.0.0.1"
        return super().addresses(host, port, family)


@contextmanager
def hanging() -> Iterator[Hanging]:
    names = Hanging()
    with runtime.scope(names):
        try:
            yield names
        finally:
            names.may_answer.set()


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
