"""Errors of functions that a program gave to a socket: they are counted, and other peers go on."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

import core
from core.constants import Event
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.fault_injection import sabotaged
from tests.scenes.forked_child import in_child
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_watcher_of_peers_that_fails_costs_one_connection_at_most(endpoint: str, connected: bool) -> None:
    told: asyncio.Queue[bool] = asyncio.Queue()
    got: asyncio.Queue[object] = asyncio.Queue()

    def watches(peer: bytes, comes: bool) -> None:
        told.put_nowait(comes)
        if comes == connected and supervisor.faults.get("core peer watcher", 0) < 1:
            raise ValueError(peer)

    supervisor = Supervisor()
    with supervision.scope(supervisor):
        async with asyncio.timeout(PATIENCE_S), core.Context() as context:
            router = context.socket(core.ROUTER)
            router.bind(endpoint)
            router.set_receiver(got.put_nowait, watches)
            for number in range(3):  # each is called the same
                with context.socket(core.DEALER, identity=b"d", reconnect_ivl=1, linger=0) as dealer:
                    dealer.connect(router.last_endpoint)
                    assert await told.get()
                    if connected and number == 0:
                        again = await told.get()
                        assert again != (endpoint == "inproc://x")  # such a connection does not come back
                        if not again:
                            continue
                    dealer.send(b"x")
                    await got.get()
                while await told.get():
                    pass
    assert supervisor.faults == {"core peer watcher": 1}


async def test_the_last_message_of_a_peer_comes_before_its_end() -> None:
    """Also over inproc, where both happen at once."""
    told: list[object] = []
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        router, dealer = context.socket(core.ROUTER), context.socket(core.DEALER, identity=b"d", linger=-1)
        router.bind("inproc://x")
        router.set_receiver(told.extend, lambda _, comes: told.append(comes))
        dealer.connect("inproc://x")
        await eventually(lambda: told)
        dealer.send(b"last")
        dealer.close()
        assert told == [True]  # not inside a call of the peer
        await eventually(lambda: len(told) == 3)
    assert told == [True, [b"d", b"last"], False]


async def test_what_came_for_a_receiver_that_is_taken_away_is_queued_first() -> None:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind("inproc://x")
        push.connect("inproc://x")
        pull.set_receiver(print)
        await push.send(b"1")
        pull.set_receiver(None)
        await push.send(b"2")
        assert [await pull.recv(), await pull.recv()] == [b"1", b"2"]


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_receiver_that_fails_for_one_peer_gets_the_messages_of_others(endpoint: str, queued: bool) -> None:
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def receives(messages: list[list[bytes]]) -> None:
        for message in messages:
            if message[0] == b"0":
                raise ValueError(message)
            got.put_nowait(message)

    errors: list[object] = []
    supervisor = Supervisor()
    with supervision.scope(supervisor):
        async with asyncio.timeout(PATIENCE_S), core.Context() as context:
            asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told["exception"]))  # of the transport
            router = context.socket(core.ROUTER)
            router.bind(endpoint)
            dealers = [context.socket(core.DEALER, identity=b"%d" % number, reconnect_ivl=-1) for number in range(3)]
            for dealer in dealers:
                dealer.connect(router.last_endpoint)
                await dealer.send(b"ready")
                await router.recv_multipart()
            if not queued:
                router.set_receiver(receives)
            for dealer in dealers:
                await dealer.send(b"x")
            await eventually(lambda: not queued or len(router.inbound.active) == 3)
            router.set_receiver(receives)
            assert sorted([await got.get(), await got.get()]) == [[b"1", b"x"], [b"2", b"x"]]
            await eventually(lambda: router.pattern.peer(b"0") is None)
    by_transport = endpoint != "inproc://x" and not queued  # an error in a read ends the connection
    assert supervisor.faults == ({} if by_transport else {"core receiver": 1})
    assert len(errors) == by_transport


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_rep_02_a_request_that_its_receiver_failed_for_is_owed_no_answer(endpoint: str) -> None:
    """The socket answered no other request any more."""
    supervisor = Supervisor()
    with supervision.scope(supervisor):
        async with asyncio.timeout(PATIENCE_S), core.Context() as context:
            rep = context.socket(core.REP)

            def answers(messages: list[list[bytes]]) -> None:
                rep.send(b"%d" % (1 // int(messages[0][0])))

            rep.bind(endpoint)
            rep.set_receiver(answers)
            bad, good = context.socket(core.REQ, linger=0), context.socket(core.REQ)
            good.connect(rep.last_endpoint)
            with bad.connect(rep.last_endpoint):
                await bad.send(b"0")
                await eventually(lambda: supervisor.faults)
            await good.send(b"1")
            assert await good.recv() == b"1"
    assert supervisor.faults == {"core receiver": 1}


@pytest.mark.parametrize("end", [core.Context.term, core.Context.destroy])
async def test_an_error_in_one_call_at_the_end_of_a_context_leaves_out_no_other(end: Callable[[core.Context], None]) -> None:
    told: list[str] = []
    with sabotaged("core context end"):
        context = core.Context()
        for name in ("fails", "first", "second"):
            context.on_end[partial(told.append, name)] = asyncio.get_running_loop()
        end(context)
        end(context)
    assert told == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_end_of_a_context_in_a_forked_child_is_nothing_to_the_servers_of_its_parent() -> None:
    told: list[str] = []
    loop = asyncio.new_event_loop()
    context = core.Context()
    context.on_end[partial(told.append, "ended")] = loop

    def ends() -> str:
        context.term()
        loop.run_until_complete(asyncio.sleep(0))
        return str(told)

    assert in_child(ends) == "[]"
    context.term()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert told == ["ended"]
