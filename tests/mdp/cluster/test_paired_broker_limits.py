"""mdp.cluster.paired_broker: what it keeps while it may not answer, or hands over, is bounded, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

import bstar
import core
from mdp.access.rules import Rules
from mdp.wire.commands import client_request
from mdp.wire.events import Failure, Work
from tests.scenes.mdp_paired_brokers import Brokers, echo, until
from tests.scenes.mdp_scripted_pair import PairedScene

if TYPE_CHECKING:
    from collections import Counter

    import mdp

LIMIT = "mdp.cluster.paired_broker.WITHHELD_MAX_BYTES"


class Gate:
    """A handler that answers when the gate is open, and what it has begun."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[bytes] = []

    async def answer(self, request: mdp.Request) -> list[bytes]:
        self.begun.append(request.body[0])
        await self.open.wait()
        return [*request.body]


def more_than(before: int, counters: Counter[str]) -> bool:
    return counters.total() > before


async def test_peers_that_come_and_go_while_nothing_may_be_answered_are_kept_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it are disconnected, and come back; none of them is taken for one that is still there."""
    async with Brokers() as pair:
        await pair.settle()
        await pair.worker()
        broker, tried = pair.brokers[0], 0
        with monkeypatch.context() as moment:
            moment.setattr(LIMIT, 2000)
            moment.setattr(pair.pairs[0], "serves", lambda: False)
            client = pair.context.socket(core.DEALER, linger=0)
            client.connect(pair.fronts[0])
            while broker.pair_counters["withheld"] < 5:
                tried += 1
                async with core.Context() as context, context.socket(core.DEALER, linger=0) as visitor:
                    visitor.connect(pair.fronts[0])
                    await visitor.send_multipart(client_request("0.3", b"echo", [b"%d" % tried], id=b"%08d" % tried))
                    await until(partial(more_than, broker.pair_counters.total(), broker.pair_counters))
            assert broker._kept_bytes <= 2 * 2000
        asker = await pair.client()
        assert await asker.request("echo", b"x", wait=True) == [b"x"]
        await until(lambda: not broker._kept)
        assert broker._turned_away == set()
        assert broker.machine.counters.accepted == broker.machine.counters.closed


@pytest.mark.parametrize("done", [True, False])
async def test_requests_that_come_during_a_hand_over_are_kept_within_the_limit(done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clients send those beyond it again: to the other broker, or to this one if that goes away."""
    gate = Gate()
    async with Brokers(heartbeat_ms=1000) as pair:
        await pair.settle()
        await pair.worker("slow", gate.answer)
        await pair.worker("echo", echo)
        client, other = await pair.client(timeout=60.0), await pair.client(timeout=60.0)
        broker = pair.brokers[0]
        first = client.request("slow", b"first", wait=True)
        await until(lambda: bool(gate.begun))
        monkeypatch.setattr(LIMIT, 5000)
        switching = asyncio.ensure_future(pair.pairs[0].switchover(60.0))
        await until(lambda: broker._drained.awaited)
        late = [other.request("echo", b"%d" % number, bytes(900)) for number in range(20)]
        await until(lambda: broker.pair_counters["withheld"] + len(broker._postponed) >= 20)
        assert sum(map(len, (frame for message in broker._postponed for frame in message))) <= 5000
        assert broker.pair_counters["withheld"] > 0
        if not done:
            await pair.stop(1)
            await until(lambda: pair.pairs[0].status()["peer"]["state"] == "silent")
        gate.open.set()
        if done:
            await switching
        else:
            with pytest.raises(bstar.errors.NotActive):
                await switching
        assert await first == [b"first"]
        assert await asyncio.gather(*late) == [[b"%d" % number, bytes(900)] for number in range(20)]
        assert gate.begun == [b"first"]


async def test_a_broker_that_ends_while_it_may_not_answer_says_nothing() -> None:
    """Its clients send their requests to the other one: an ERROR would end them."""
    async with PairedScene() as scene:
        scene.pair.begin()
        client, worker = scene.peer(), await scene.worker()
        await client.request(0)
        assert isinstance(await worker.work(), Work)
        scene.pair.may_answer = False
        await scene.broker.__aexit__(None, None, None)
        for peer in (client, worker):
            await peer.watch.lost()
            assert not peer.socket.readable()


async def test_what_new_rules_refuse_is_said_when_it_may_be_said() -> None:
    """They are in force at once, also for messages that came before."""
    everyone, others = ({"allow": [{"who": ["*"], "anonymous": True, "serve": ["*"], "call": names}]} for names in (["*"], ["other"]))
    async with PairedScene(rules=Rules(everyone)) as scene:
        scene.pair.begin()
        client = scene.peer()
        await client.request(0)
        await until(lambda: scene.broker.stats["queued"] == 1)
        scene.pair.may_answer = False
        await client.request(1)
        await scene.until("held_back")
        scene.broker.set_rules(Rules(others))
        assert scene.broker.stats["queued"] == 0
        assert scene.counters["held_back"] == 2
        assert not client.socket.readable()
        scene.pair.may_answer = True
        failures = [await client.told(), await client.told()]
        assert {failure.code for failure in failures if isinstance(failure, Failure)} == {"FORBIDDEN"}
        assert len({failure.id for failure in failures if isinstance(failure, Failure)}) == 2
