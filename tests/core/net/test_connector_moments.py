"""core.net.connector: exact delays, what is reached through a name, and attempts that end while a connection opens."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from errno import EINVAL
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.net.connector import ReconnectDelay
from core.runtime import runtime
from tests.scenes.connection_attempts import TCP, Proxy, dealer, given_up, until, values
from tests.scenes.waiting import PATIENCE_S, Watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(("random", "factor"), [(0.0, 1.0), (0.5, 1.5), (0.75, 1.75)])
def test_opt_03_a_delay_without_a_maximum_is_the_interval_and_a_random_part_of_it(random: float, factor: float) -> None:
    delay = ReconnectDelay(2.0, 0.0, lambda: random)
    assert [delay.next_s() for _ in range(3)] == [2.0 * factor] * 3


@pytest.mark.parametrize(("random", "factor"), [(0.0, 1.0), (0.5, 0.875), (1.0, 0.75)])
def test_opt_04_delays_double_up_to_the_maximum_and_begin_anew_after_a_connection(random: float, factor: float) -> None:
    delay = ReconnectDelay(1.0, 6.0, lambda: random)
    for _ in range(2):
        assert [delay.next_s() for _ in range(5)] == [factor * seconds for seconds in (1.0, 2.0, 4.0, 6.0, 6.0)]
        delay.reset()


@pytest.mark.parametrize(
    ("options", "delay_ms"), [({"reconnect_ivl": 30_000}, 30_000), ({"reconnect_ivl": 40_000, "reconnect_ivl_max": 20_000}, 20_000)]
)
async def test_opt_03_delays_are_in_milliseconds(context: core.Context, free_port: int, options: dict[str, int], delay_ms: int) -> None:
    context.random = lambda: 0.0
    client = context.socket(core.DEALER, linger=0, **options)
    watch = Watch(client)
    client.connect(f"tcp://127.0.0.1:{free_port}")
    await watch.until(core.EVENT_CONNECT_RETRIED)
    assert values(watch, core.EVENT_CONNECT_RETRIED) == [delay_ms]


async def test_opt_11_the_delay_after_a_refusal_is_in_milliseconds(context: core.Context) -> None:
    context.random = lambda: 0.0
    context.authenticator = core.Authenticator(passwords={"bob": "other"})
    server = context.socket(core.PULL, plain_server=1)
    server.bind(TCP)
    client = context.socket(core.PUSH, linger=0, refused_ivl=20_000, plain_username=b"ann", plain_password=b"secret")
    watch = Watch(client)
    client.connect(server.last_endpoint)
    await watch.until(core.EVENT_CONNECT_RETRIED)
    assert values(watch, core.EVENT_CONNECT_RETRIED) == [20_000]


@pytest.mark.parametrize(("answer", "ends"), [(5, True), (4, False)])
async def test_opt_07_a_refusal_that_a_proxy_reports_ends_the_attempts(context: core.Context, answer: int, ends: bool) -> None:
    proxy = await asyncio.start_server(Proxy(refuses=answer), "127.0.0.1", 0)
    address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    options: dict[str, Any] = {"socks_proxy": address, "socks_username": "ann", "socks_password": "secret", "reconnect_ivl": 30_000}
    client = context.socket(core.PUSH, linger=0, reconnect_stop=core.RECONNECT_STOP_CONN_REFUSED, **options)
    watch = Watch(client)
    client.connect("tcp://somewhere.example:5555")
    if ends:
        await until(lambda: given_up(client))
    else:
        await watch.until(core.EVENT_CONNECT_RETRIED)
    assert watch.seen[core.EVENT_CONNECT_RETRIED] == (not ends)
    client.close()
    proxy.close()
    await proxy.wait_closed()


@pytest.mark.parametrize("proxy", ["a..b:1080", "127.0.0.1:70000", "localhost:70000", "localhost:\u00b2", "1.2.3.4;localhost:1080", ":1"])
async def test_opt_08_a_proxy_that_is_no_address_is_an_event(context: core.Context, proxy: str) -> None:
    """And no fault of the program: it is tried again as any other."""
    client = context.socket(core.PUSH, linger=0, reconnect_ivl=1, socks_proxy=proxy)
    watch = Watch(client)
    client.connect("tcp://somewhere.example:5555")
    await watch.until(core.EVENT_CONNECT_RETRIED, 2)
    (reason, *_) = {one.reason for one in watch.events if one.event == core.EVENT_CLOSED}
    assert "HOST:PORT" in reason
    assert repr(proxy) in reason


async def test_opt_08_a_proxy_with_an_ipv6_address(context: core.Context) -> None:
    proxy = Proxy()
    async with await asyncio.start_server(proxy, "::1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pull = context.socket(core.PULL)
        target = pull.bind_to_random_port("tcp://127.0.0.1")
        push = context.socket(core.PUSH, linger=0, socks_proxy=f"[::1]:{port}", socks_username="ann", socks_password="secret")
        push.connect(f"tcp://somewhere.example:{target}")
        await push.send(b"through")
        assert await pull.recv() == b"through"
        push.close()
        await push.wait_closed()


async def test_what_a_name_stands_for_is_asked_before_each_attempt(tmp_path: Path, free_port: int) -> None:
    answers = [f"tcp://127.0.0.1:{free_port}", "inproc://nowhere", f"ipc://{tmp_path}/here"]
    asked = []

    async def resolve(name: str) -> str:
        asked.append(name)
        return answers[min(len(asked), len(answers)) - 1]

    async with core.Context(resolver=resolve) as context, asyncio.timeout(PATIENCE_S):
        server = context.socket(core.PULL)
        server.bind(answers[2])
        client = context.socket(core.PUSH, linger=0, reconnect_ivl=1)
        watch = Watch(client)
        client.connect("name://printer")
        await client.send(b"found")
        assert await server.recv() == b"found"
        assert asked == ["printer"] * 3
        reasons = [one.reason for one in watch.events if one.event == core.EVENT_CLOSED]
        assert reasons[1] == "inproc://nowhere is not reached over a connection"
        assert {one.endpoint for one in watch.events} == {"name://printer"}


async def test_a_connection_has_the_options_of_its_socket(context: core.Context) -> None:
    server = context.socket(core.ROUTER, linger=0)
    server.bind(TCP)
    client = context.socket(core.DEALER, linger=0, tcp_keepalive=1)
    watch = Watch(client)
    client.connect(server.last_endpoint)
    await watch.peers()
    (number,) = values(watch, core.EVENT_CONNECTED)
    with socket.socket(fileno=os.dup(number)) as same:
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


class Hooked(socket.socket):
    """A socket whose `connect` calls something after it is connected, in the loop iteration before the session gets its transport."""

    connected: Callable[[], object]

    def connect(self, address: Any) -> None:
        super().connect(address)
        self.connected()


class Hooks(runtime.Runtime):
    def __init__(self, connected: Callable[[], object]) -> None:
        super().__init__()
        self.connected = connected

    def stream_socket(self, family: socket.AddressFamily) -> socket.socket:
        made = Hooked(family, socket.SOCK_STREAM)
        made.connected = self.connected
        return made


async def test_a_connection_that_opens_as_its_time_is_over_is_left_and_leaves_nothing(context: core.Context, tmp_path: Path) -> None:
    server = context.socket(core.ROUTER, linger=0)
    server.bind(f"ipc://{tmp_path}/server")
    client = context.socket(core.DEALER, linger=0, connect_timeout=20, reconnect_ivl=600_000)
    watch = Watch(client)
    with runtime.scope(Hooks(partial(time.sleep, 0.05))):
        client.connect(server.last_endpoint)
    await watch.until(core.EVENT_CONNECT_RETRIED)
    assert watch.seen[core.EVENT_CLOSED] == 1
    client.close()
    await client.wait_closed()  # and not after the delay


async def test_a_socket_that_is_closed_as_its_connection_opens_leaves_nothing(context: core.Context, tmp_path: Path) -> None:
    server = context.socket(core.ROUTER, linger=0)
    server.bind(f"ipc://{tmp_path}/server")
    client = context.socket(core.DEALER, linger=0)
    with runtime.scope(Hooks(lambda: asyncio.get_running_loop().call_soon(client.close))):
        client.connect(server.last_endpoint)
    await until(lambda: client.closed)
    await client.wait_closed()
    await until(lambda: not server.pattern.pipes)
    assert (list(context._sockets), list(context._closing)) == ([server], [])


async def test_an_endpoint_that_was_left_is_not_tried_again(context: core.Context) -> None:
    """Disconnected, and the socket goes on."""
    server = context.socket(core.ROUTER, linger=0)
    server.bind(TCP)
    client = context.socket(core.DEALER, linger=0, reconnect_ivl=1)
    watch = Watch(client)
    client.connect(server.last_endpoint)
    await watch.peers()
    client.disconnect(server.last_endpoint)
    await watch.lost()
    other = context.socket(core.ROUTER, linger=0)
    other.bind(TCP)
    client.connect(other.last_endpoint)
    await watch.peers(2)
    assert watch.seen[core.EVENT_CONNECT_RETRIED] == 0


async def test_a_second_connection_is_kept_like_the_first(context: core.Context, free_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    client = dealer(context, reconnect_ivl=1)
    watch = Watch(client)
    client.connect(endpoint)
    for number in (1, 2):
        server = context.socket(core.ROUTER, linger=0)
        server.bind(endpoint)
        await watch.peers(number)
        await client.send(b"here")
        await server.recv_multipart()
        events = [one.event for one in watch.events]
        assert core.EVENT_CONNECT_RETRIED not in events[len(events) - 1 - events[::-1].index(core.EVENT_CONNECTED) :]
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("side", ["connects", "accepts"])
async def test_a_socket_option_that_the_system_refuses_ends_the_connection_with_its_reason(context: core.Context, side: str) -> None:
    """And nothing stays open: the socket can be closed."""
    refused = {"tcp_keepalive_cnt": 100_000}  # Linux takes up to 127
    server = context.socket(core.ROUTER, linger=0, **refused if side == "accepts" else {})
    client = dealer(context, reconnect_ivl=1, **refused if side == "connects" else {})
    watch = Watch(server if side == "accepts" else client)
    server.bind(TCP)
    client.connect(server.last_endpoint)
    await watch.until(core.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 2)
    failed = [one for one in watch.events if one.event == core.EVENT_HANDSHAKE_FAILED_NO_DETAIL]
    assert {(one.value, one.reason.partition(":")[0]) for one in failed} == {(EINVAL, "the system refuses TCP_KEEPCNT 100000")}
    for one in (client, server):
        one.close()
        await one.wait_closed()
