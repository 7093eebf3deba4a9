"""`Socket.on_event`: an error of a callback is counted; the socket and the other callbacks go on."""

from __future__ import annotations

import pytest

import core
from core.constants import Event
from core.runtime import supervision
from core.runtime.supervision import Supervisor

pytestmark = pytest.mark.faults

ENDPOINTS = ["tcp://127.0.0.1:*", "ipc://*", "inproc://x"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_callback_that_fails_at_each_event_harms_nothing(endpoint: str) -> None:
    told: list[Event] = []

    def fails(event: core.MonitorEvent) -> None:
        raise ValueError(event.event.name)

    supervisor = Supervisor()
    with supervision.scope(supervisor):
        async with core.Context() as context:
            router, dealer = context.socket(core.ROUTER), context.socket(core.DEALER, identity=b"d")
            for socket in (router, dealer):
                socket.on_event(fails)
                socket.on_event(lambda event: told.append(event.event))
            router.bind(endpoint)
            dealer.connect(router.last_endpoint)
            for number in range(3):
                await dealer.send(b"%d" % number)
                assert await router.recv_multipart() == [b"d", b"%d" % number]
            await router.send_multipart([b"d", b"back"])
            assert await dealer.recv() == b"back"
            dealer.disconnect(router.last_endpoint)
    assert supervisor.faults == {"core event callback": len(told)}
    assert told.count(Event.MONITOR_STOPPED) == 2
