"""mdp.client.connections: connections that are ordered and given up before they are opened."""

from __future__ import annotations

import core
from mdp.client.calls import CallDefaults, PendingRequest
from mdp.client.connections import LockstepTransport
from mdp.client.pending import RequesterLimits
from mdp.client.requester_01 import LockstepRequester
from mdp.wire.commands import V01


async def test_a_connection_that_cannot_be_opened_may_be_given_up_in_the_same_iteration() -> None:
    async with core.Context() as context:
        machine: LockstepRequester[PendingRequest] = LockstepRequester(V01, RequesterLimits())
        transport = LockstepTransport(
            context, {}, lambda: 0.0, machine, on_joined=lambda: None, on_updates=lambda _: None, on_lost=lambda: None
        )
        transport.open("tcp://127.0.0.1:9")
        context.max_sockets = 1
        call = CallDefaults(1.0, 1).call("echo")
        for number in (b"1", b"2"):
            machine.submit(PendingRequest(call, [number]), 0.0)
        assert len(machine.orders) == 1  # beside the one that is open
        assert len(transport.close_all()) == 1
        assert (machine.connections, machine.orders, transport.trouble != "") == (0, [], True)
