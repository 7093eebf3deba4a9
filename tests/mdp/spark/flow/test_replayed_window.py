"""Requests whose keys the broker is asked about first, and a broker that does not tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgpack
import pytest

from mdp.errors import Timeout
from mdp.spark.flow.windows import ReplayedWindow
from tests.scenes.fault_injection import sabotaged
from tests.scenes.spark_client import Answering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.client.client import Outcome


class Broker(Answering):
    """Knows some keys, or nothing."""

    def __init__(self, known: Sequence[bytes] = (), code: bytes = b"200") -> None:
        super().__init__()
        self.known = known
        self.code = code

    async def request(self, service: str, *frames: bytes, attempts: int) -> list[bytes]:
        await super().request(service, *frames, attempts=attempts)
        if not self.code:
            raise Timeout(service)
        keys = msgpack.unpackb(frames[0])
        return [self.code, b"".join(b"k" if key in self.known else b"-" for key in keys)] if self.code == b"200" else [self.code]


async def replayed(broker: Broker, count: int = 4) -> dict[int, bool]:
    """Send requests in two parts; return what their outcomes say, by index."""
    wake = asyncio.Event()
    window = ReplayedWindow(broker, "echo", broker.open_window("echo", wake.set, wait=False))
    first = [window.send([(b"x",)] * (count // 2), [f"k{half}{number}" for number in range(count // 2)]) for half in range(2)]
    assert first == [0, count // 2]
    found: dict[int, Outcome] = {}
    while len(found) < count:
        await wake.wait()
        wake.clear()
        found |= {outcome.index: outcome for outcome in window.take()}
    assert all(outcome.error is None for outcome in found.values())
    return {index: found[index].replayed for index in sorted(found)}


async def test_the_outcome_says_whether_the_reply_was_there_before() -> None:
    broker = Broker([b"k00", b"k11"])
    assert await replayed(broker) == {0: True, 1: False, 2: False, 3: True}
    assert sorted(broker.questions) == [("mmi.keys", msgpack.packb([b"k%d0" % half, b"k%d1" % half]), b"echo") for half in range(2)]


@pytest.mark.parametrize("code", [b"", b"403", b"501"])
async def test_a_broker_that_does_not_tell_delays_nothing(code: bytes) -> None:
    assert set((await replayed(Broker(code=code))).values()) == {False}


@pytest.mark.faults
async def test_requests_are_sent_after_a_fault_too() -> None:
    with sabotaged("mdp dispatch keys") as supervisor:
        assert set((await replayed(Broker())).values()) == {False}
        assert supervisor.faults == {"mdp dispatch keys": 1}


async def test_what_is_withdrawn_is_not_sent() -> None:
    broker = Broker()
    window = ReplayedWindow(broker, "echo", broker.open_window("echo", lambda: None, wait=False))
    window.send([(b"x",)], ["k"])
    await window.withdraw()
    await asyncio.sleep(0)
    assert broker.keys == []
    assert window.take() == []
