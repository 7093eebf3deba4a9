"""A fault injected into a switchover and into the writing of a ballot.

The operator gets an answer, and a witness ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bstar
import core
from bstar.errors import NotActive
from bstar.machine.ballot import Ballot
from bstar.machine.wire import Question, QuestionKind, RequestKind, encode_question
from bstar.operator import order
from tests.scenes.bstar_sockets import PATIENCE_S, PATIENT, Scene, until
from tests.scenes.fault_injection import Broken, sabotaged

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.faults


async def test_who_orders_a_switchover_hears_of_a_fault_and_orders_it_again() -> None:
    with sabotaged("bstar switchover"):
        async with Scene(control="tcp://127.0.0.1:*") as scene:
            await scene.settle()
            control = scene.pairs[0].control_endpoint
            with pytest.raises(NotActive, match="Broken"):
                await order(control, RequestKind.SWITCHOVER, PATIENCE_S)
            assert scene.serving() == [True, False]
            await order(control, RequestKind.SWITCHOVER, PATIENCE_S)


async def test_a_server_whose_switchover_failed_in_the_middle_serves_on() -> None:
    async def broken(drain_s: float) -> bool:
        raise Broken

    resumed: list[bool] = []
    async with Scene() as scene, scene.client() as client:
        await scene.settle()
        scene.pairs[0].on_handover(broken, lambda: resumed.append(True))
        with pytest.raises(Broken):
            await scene.pairs[0].switchover()
        assert resumed == [True]
        assert await client.request(b"x", patience=PATIENT) == [b"x"]
        assert scene.serving() == [True, False]


async def test_a_switchover_that_fails_while_its_server_stops_resumes_nothing() -> None:
    """Requests accepted again would be cut off at its end, and no other switchover begins."""
    fails, ends, times, resumed = asyncio.Event(), asyncio.Event(), [], []

    async def finish(drain_s: float) -> bool:
        times.append(drain_s)
        if len(times) == 1:
            await fails.wait()
            raise Broken
        return await ends.wait()

    async with Scene() as scene:
        await scene.settle()
        pair = scene.pairs[0]
        pair.on_handover(finish, lambda: resumed.append(True))
        switching = asyncio.ensure_future(pair.switchover(5.0))
        await until(lambda: times == [5.0])
        stopping = asyncio.ensure_future(pair.drain(7.0))
        await until(lambda: times == [5.0, 7.0])
        fails.set()
        with pytest.raises(Broken):
            await switching
        assert resumed == []
        with pytest.raises(NotActive, match="it is stopping"):
            await pair.switchover()
        ends.set()
        assert await stopping
        await until(lambda: scene.serving() == [False, True])


async def test_a_witness_ends_with_a_fault_in_writing(tmp_path: Path) -> None:
    with sabotaged("bstar witness ballot"):
        async with core.Context() as context, bstar.Witness(f"ipc://{tmp_path}/w", heartbeat_ms=10, context=context) as witness:
            ended = asyncio.ensure_future(witness.serve_forever())
            asker = context.socket(core.DEALER, linger=0)
            asker.connect(witness.endpoint)
            nonce = 0
            while not ended.done():  # what an earlier life may have granted has to run out first
                nonce += 1
                await asker.send(encode_question(Question(QuestionKind.ASK, nonce, Ballot(1, 10), 20)))
                await asyncio.sleep(0.005)
            with pytest.raises(Broken):
                await ended
