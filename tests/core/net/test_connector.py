"""core.net.connector: when there is another attempt, after which delay, and what an end leaves behind."""

from __future__ import annotations

import socket
from errno import ECONNREFUSED
from typing import Any

import pytest

import core
from tests.scenes.connection_attempts import TCP, dealer, given_up, until, values
from tests.scenes.waiting import Watch


async def test_opt_03_the_delay_after_a_failure_is_in_its_event(context: core.Context, free_port: int) -> None:
    client = dealer(context, reconnect_ivl=30_000)
    watch = Watch(client)
    client.connect(f"tcp://127.0.0.1:{free_port}")
    await watch.until(core.EVENT_CONNECT_RETRIED)
    (delay_ms,) = values(watch, core.EVENT_CONNECT_RETRIED)
    assert 30_000 <= delay_ms <= 60_000
    assert [one.event for one in watch.events] == [core.EVENT_CONNECT_DELAYED, core.EVENT_CLOSED, core.EVENT_CONNECT_RETRIED]
    assert str(ECONNREFUSED) in watch.events[1].reason
    assert values(watch, core.EVENT_CLOSED) == [-1]
    client.close()
    await client.wait_closed()  # and not after the delay


async def test_opt_04_delays_grow_and_are_short_again_after_a_connection(context: core.Context, free_port: int) -> None:
    client = dealer(context, reconnect_ivl=4, reconnect_ivl_max=20_000)
    watch = Watch(client)
    client.connect(f"tcp://127.0.0.1:{free_port}")
    await watch.until(core.EVENT_CONNECT_RETRIED, 3)
    server = context.socket(core.ROUTER, linger=0)
    server.bind(f"tcp://127.0.0.1:{free_port}")
    await watch.peers()
    grown = values(watch, core.EVENT_CONNECT_RETRIED)
    assert grown[2] > grown[0]
    server.close()
    await watch.until(core.EVENT_CONNECT_RETRIED, len(grown) + 1)
    assert values(watch, core.EVENT_CONNECT_RETRIED)[len(grown)] <= 4


@pytest.mark.parametrize(("first", "interval_ms"), [("absent", -1), ("present", -1), ("absent", 0), ("present", 0)])
async def test_opt_03_without_an_interval_there_is_one_attempt(context: core.Context, free_port: int, first: str, interval_ms: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    client = dealer(context, reconnect_ivl=interval_ms)
    watch = Watch(client)
    server = context.socket(core.ROUTER, linger=0)
    if first == "present":
        server.bind(endpoint)
    client.connect(endpoint)
    if first == "present":
        await watch.peers()
        server.close()
    await until(lambda: given_up(client))
    assert values(watch, core.EVENT_CONNECT_RETRIED) == []


@pytest.mark.parametrize(
    ("options", "again"),
    [({"refused_ivl": 20_000}, True), ({"refused_ivl": 0}, False), ({"reconnect_ivl": -1}, False), ({"reconnect_ivl": 0}, False)],
)
async def test_opt_11_the_delay_after_a_refusal_is_its_own(context: core.Context, options: dict[str, int], again: bool) -> None:
    server = context.socket(core.PULL, plain_server=1)
    server.bind(TCP)
    context.authenticator = core.Authenticator(passwords={"bob": "other"})
    plain: dict[str, Any] = {"plain_username": b"ann", "plain_password": b"secret"}
    client = context.socket(core.PUSH, linger=0, **{"refused_ivl": 20_000, "reconnect_ivl": 1, **plain, **options})
    watch = Watch(client)
    client.connect(server.last_endpoint)
    if again:
        await watch.until(core.EVENT_CONNECT_RETRIED)
        (delay_ms,) = values(watch, core.EVENT_CONNECT_RETRIED)
        assert 20_000 <= delay_ms <= 40_000
    else:
        await until(lambda: given_up(client))
        assert values(watch, core.EVENT_CONNECT_RETRIED) == []


async def test_opt_07_a_server_that_is_well_and_leaves_is_tried_again(context: core.Context) -> None:
    """Neither a refusal nor a failed handshake."""
    server = context.socket(core.ROUTER, linger=0)
    server.bind(TCP)
    stop = core.RECONNECT_STOP_CONN_REFUSED | core.RECONNECT_STOP_HANDSHAKE_FAILED
    client = dealer(context, reconnect_ivl=30_000, reconnect_stop=stop)
    watch = Watch(client)
    client.connect(server.last_endpoint)
    await watch.peers()
    assert values(watch, core.EVENT_CONNECTED)[0] > 2  # a descriptor
    server.close()
    await watch.until(core.EVENT_CONNECT_RETRIED)
    assert not given_up(client)


async def test_connecting_ends_after_its_time(context: core.Context) -> None:
    """A listener whose queue is full lets nobody in, and says nothing."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = full.getsockname()
        others = [socket.socket() for _ in range(2)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(place)
        client = dealer(context, connect_timeout=30, reconnect_ivl=30_000)
        watch = Watch(client)
        client.connect(f"tcp://127.0.0.1:{place[1]}")
        await watch.until(core.EVENT_CONNECT_RETRIED)
        assert [one.reason for one in watch.events if one.event == core.EVENT_CLOSED] == ["no connection within 0.03 s"]
        patient = dealer(context, connect_timeout=0)
        attempts = Watch(patient)
        patient.connect(f"tcp://127.0.0.1:{place[1]}")
        await attempts.until(core.EVENT_CONNECT_DELAYED)
        patient.close()  # while it connects
        await patient.wait_closed()
        assert watch.seen[core.EVENT_CONNECTED] == 0
        assert {one.event for one in attempts.events} <= {core.EVENT_CONNECT_DELAYED, core.EVENT_MONITOR_STOPPED}
        for other in others:
            other.close()


async def test_disconnecting_ends_what_goes_on(context: core.Context, free_port: int) -> None:
    server = context.socket(core.ROUTER, linger=0)
    server.bind(TCP)
    peers = Watch(server)
    client = dealer(context, reconnect_ivl=1)
    watch = Watch(client)
    absent = f"tcp://127.0.0.1:{free_port}"
    for endpoint in (absent, server.last_endpoint):
        client.connect(endpoint)
    await watch.peers()
    await watch.until(core.EVENT_CONNECT_RETRIED, 2)
    client.disconnect(server.last_endpoint)
    await peers.lost()
    client.disconnect(absent)
    assert given_up(client)
    client.close()
    await client.wait_closed()
    assert peers.seen[core.EVENT_ACCEPTED] == 1
