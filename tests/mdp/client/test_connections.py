"""mdp.client.connections: connections that are ordered and given up before they are opened, or lost again and again.

Rules of specs/mdp.md: BEY-05.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import core
import mdp
from mdp.client.calls import CallDefaults, PendingRequest
from mdp.client.connections import LockstepTransport
from mdp.client.pending import RequesterLimits
from mdp.client.requester_01 import LockstepRequester
from mdp.wire.commands import V01, client_final, client_heartbeat
from tests.scenes.virtual_loop import in_virtual_time


def two_requests(context: core.Context, *, before: bool = False) -> tuple[LockstepRequester[PendingRequest], LockstepTransport]:
    """Return a machine and its transport, which is opened with the requests or `before` them, and has one socket."""
    machine: LockstepRequester[PendingRequest] = LockstepRequester(V01, RequesterLimits())
    ends: dict[str, Any] = dict.fromkeys(("on_joined", "on_lost"), lambda: None)
    ends |= dict.fromkeys(("on_received", "on_updates"), lambda _: None)
    transport = LockstepTransport(context, {}, lambda: 0.0, machine, **ends)
    if before:
        transport.open("tcp://127.0.0.1:9")
    context.max_sockets = 1
    call = CallDefaults(1.0, 1).call("echo")
    for number in (b"1", b"2"):
        machine.submit(PendingRequest(call, [number]), 0.0)
    if not before:
        transport.open("tcp://127.0.0.1:9")
    return machine, transport


async def test_a_connection_that_cannot_be_opened_may_be_given_up_in_the_same_iteration() -> None:
    async with core.Context() as context:
        machine, transport = two_requests(context, before=True)
        assert len(machine.orders) == 1  # beside the one that is open
        assert len(transport.close_all()) == 1
        assert (machine.connections, machine.orders, transport.trouble != "") == (0, [], True)


@pytest.mark.parametrize("before", [True, False])
async def test_one_connection_serves_where_no_other_can_be_opened(before: bool) -> None:
    async with core.Context() as context:
        machine, transport = two_requests(context, before=before)
        transport.flush()
        assert machine.connections == 1
        transport.close_all()


class ClosingBroker:
    """A broker that closes each connection at once; with an answer before, if there is one."""

    def __init__(self, context: core.Context) -> None:
        self.socket = context.socket(core.ROUTER, linger=0)
        self.socket.bind("inproc://broker")
        self.socket.set_receiver(lambda _: None, on_peer=self._on_peer)
        self.answer: list[bytes] | None = None
        self.joined_at: list[float] = []

    def waits(self) -> list[float]:
        """Return the seconds between the connections so far, and forget them."""
        times, self.joined_at = self.joined_at, []
        return [after - before for before, after in pairwise(times)]

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        loop = asyncio.get_running_loop()
        if joined:
            self.joined_at.append(loop.time())
            if self.answer is not None:
                self.socket.send_multipart([peer, *self.answer])
            loop.call_later(0.001, self.socket.cut, peer)


@pytest.mark.parametrize("dialect", ["0.3", "0.2"])
@in_virtual_time
async def test_waits_for_a_broker_that_closes_each_connection_grow_until_it_answers(dialect: str) -> None:
    async with core.Context() as context:
        broker = ClosingBroker(context)
        async with mdp.Client("inproc://broker", dialect=dialect, context=context, timeout=1000.0) as client:
            assert await asyncio.gather(client.request("echo", b"x"), return_exceptions=True)  # MDP/0.2 connects for a request
            await asyncio.sleep(100)
            waits = broker.waits()
            assert max(waits[:3]) < 0.5
            assert 16.0 <= max(waits) < 33.0
            broker.answer = client_heartbeat() if dialect == "0.3" else client_final("0.2", b"echo", b"", [b"y"])
            await asyncio.sleep(100)
            assert 0.075 < max(broker.waits()[2:]) < 0.15  # the first wait, a part of which is random
