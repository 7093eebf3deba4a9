"""core.net.os_sockets: connections that are opened, what their sockets are asked for, and proxies (TRN-04, TRN-06, OPT-08)."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.address import IpcBind, IpcConnect, TcpConnect, parse_bind, parse_connect
from core.net import os_sockets
from core.net.os_sockets import listen_ipc, open_ipc, open_tcp
from core.options import Options
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.scenes.scripted_system import System

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what Linux alone tells of its sockets and interfaces")


class Peer(asyncio.Protocol):
    """Keeps its transport and what it has received."""

    def __init__(self) -> None:
        self.octets = b""
        self.made = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self.made.set()

    def data_received(self, data: bytes) -> None:
        self.octets += data

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()


async def accepting(peer: Peer, host: str = "127.0.0.1", path: str = "") -> tuple[asyncio.Server, int]:
    """Return a server that accepts one connection, and its port."""
    loop = asyncio.get_running_loop()
    if path:
        return await loop.create_unix_server(lambda: peer, path), 0
    server = await loop.create_server(lambda: peer, host, 0)
    return server, server.sockets[0].getsockname()[1]


async def connected(host: str = "127.0.0.1", source: str = "", path: str = "") -> tuple[asyncio.Server, Peer, Peer]:
    """Return a server, the end that it has accepted, and the end that has connected."""
    theirs = Peer()
    server, port = await accepting(theirs, host, path)
    if path:
        ours = await open_ipc(cast("IpcConnect", parse_connect(f"ipc://{path}")), Peer)
    else:
        text = f"[{host}]" if ":" in host else host
        ours = await open_tcp(cast("TcpConnect", parse_connect(f"tcp://{source}{text}:{port}")), Options(), Peer)
    await theirs.made.wait()
    return server, theirs, ours


async def ended(server: asyncio.Server, *peers: Peer) -> None:
    for one in peers:
        one.transport.abort()
        await one.lost.wait()
    server.close()
    await server.wait_closed()


async def test_a_full_backlog_is_waited_for(tmp_path: Path, opened: list[socket.socket]) -> None:
    bind = cast("IpcBind", parse_bind(f"ipc://{tmp_path}/s"))
    listening = listen_ipc(bind, Options(backlog=0))
    opened += [listening.sock, socket.socket(socket.AF_UNIX)]
    opened[-1].connect(bind.address)
    asyncio.get_running_loop().call_later(0.05, lambda: opened.append(listening.sock.accept()[0]))
    peer = await open_ipc(cast("IpcConnect", parse_connect(bind.endpoint)), Peer)
    assert len(opened) == 3
    peer.transport.abort()


@pytest.mark.parametrize(
    ("source", "address"), [("127.0.0.7:0;", "127.0.0.7"), pytest.param("lo:0;", "127.0.0.1", marks=LINUX), ("", "127.0.0.1")]
)
async def test_trn_04_a_connection_comes_from_the_source_that_its_endpoint_names(source: str, address: str, system: System) -> None:
    server, theirs, ours = await connected(source=source)
    assert os_sockets.peer_address(theirs.transport) == address
    assert (os_sockets.peer_address(ours.transport), system.asked) == ("127.0.0.1", [])
    await ended(server, ours, theirs)


@pytest.mark.parametrize(("ipv6", "family"), [(0, socket.AF_INET), (1, socket.AF_UNSPEC)])
async def test_trn_04_so_does_one_to_a_name(ipv6: int, family: socket.AddressFamily, system: System) -> None:
    theirs = Peer()
    server, port = await accepting(theirs)
    system.found = [(socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]
    connect = cast("TcpConnect", parse_connect(f"tcp://127.0.0.8:0;ours.test:{port}"))
    ours = await open_tcp(connect, Options(ipv6=ipv6), Peer)
    await theirs.made.wait()
    assert (os_sockets.peer_address(theirs.transport), system.asked) == ("127.0.0.8", [("ours.test", port, family)])
    assert not system.made[0].getblocking()
    await ended(server, ours, theirs)


async def test_an_ipv6_address_needs_no_option_to_connect() -> None:
    server, theirs, ours = await connected("::1")
    assert os_sockets.peer_address(ours.transport) == "::1"
    await ended(server, ours, theirs)


async def test_a_name_without_an_address_is_unreachable(system: System) -> None:
    system.addresses = lambda *_: []  # type: ignore[method-assign]  # a resolver that says nothing
    with pytest.raises(OSError, match="no address of the name could be tried") as refused:
        await open_tcp(cast("TcpConnect", parse_connect("tcp://nobody:5")), Options(), Peer)
    assert refused.value.errno == errno.EHOSTUNREACH


# --- a connection's socket ----------------------------------------------------------------------------------------------------


class Asked:
    """A socket that keeps what is set."""

    def __init__(self, family: int = socket.AF_INET, refuses: int = -1) -> None:
        self.family = family
        self.refuses = refuses
        self.set: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, name: int, value: int) -> None:
        if name == self.refuses:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.set.append((level, name, value))

    def tuned(self, **options: Any) -> list[tuple[int, int, int]]:
        os_sockets.tune(transport_of(self), Options(**options))
        return self.set


def transport_of(sock: object, **info: Any) -> asyncio.Transport:
    return cast("asyncio.Transport", SimpleNamespace(get_extra_info={"socket": sock, **info}.get))


NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, [NODELAY]),
        (
            {"sndbuf": 1, "rcvbuf": 2},
            [(socket.SOL_SOCKET, socket.SO_SNDBUF, 1), (socket.SOL_SOCKET, socket.SO_RCVBUF, 2), NODELAY],
        ),
        ({"sndbuf": 0, "rcvbuf": 0, "tcp_keepalive_idle": 0, "tcp_keepalive_cnt": 0, "tcp_maxrt": 0}, [NODELAY]),
        ({"tos": 8}, [NODELAY, (socket.IPPROTO_IP, socket.IP_TOS, 8)]),
        ({"tcp_keepalive": 0}, [NODELAY, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)]),
        (
            {"tcp_keepalive": 1, "tcp_keepalive_idle": 1, "tcp_keepalive_cnt": 3, "tcp_keepalive_intvl": 4, "tcp_maxrt": 5},
            [
                NODELAY,
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
                (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 4),
                (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5),
            ],
        ),
    ],
)
@LINUX
def test_trn_06_a_connection_has_the_options_that_were_set_and_never_waits_to_send(
    options: dict[str, Any], settings: list[tuple[int, int, int]]
) -> None:
    assert Asked().tuned(**options) == settings


@LINUX
def test_options_of_tcp_are_not_those_of_ipc_and_ipv6_has_one_more() -> None:
    assert Asked(socket.AF_UNIX).tuned(sndbuf=1, tos=8, tcp_keepalive=1) == [(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)]
    assert Asked(socket.AF_INET6).tuned(tos=8)[1:] == [
        (socket.IPPROTO_IP, socket.IP_TOS, 8),
        (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 8),
    ]
    os_sockets.tune(transport_of(None), Options(tos=8))


@LINUX
def test_an_option_that_the_system_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="the system refuses TCP_KEEPCNT 300: Invalid argument") as refused:
        Asked(refuses=socket.TCP_KEEPCNT).tuned(tcp_keepalive_cnt=300)
    assert refused.value.errno == errno.EINVAL
    monkeypatch.delattr(socket, "TCP_KEEPCNT")
    assert Asked().tuned(tcp_keepalive_cnt=300) == [NODELAY]


@LINUX
async def test_what_waits_in_the_system_is_known(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "s")):
        server, theirs, ours = await connected(path=path)
        end = theirs.transport
        assert [os_sockets.unread(end), os_sockets.peer_has_ended(end)] == [0, False]
        end.pause_reading()
        ours.transport.write(bytes(40_001))
        ours.transport.write_eof()
        await eventually(lambda: os_sockets.unread(end) >= 40_001 and os_sockets.peer_has_ended(end))  # noqa: B023
        assert (os_sockets.unread(end), os_sockets.peer_has_ended(end)) == (40_001, True)
        await ended(server, ours, theirs)
    assert os_sockets.unread(transport_of(None)) == os_sockets.unacknowledged(transport_of(None)) == 0
    assert not os_sockets.peer_has_ended(transport_of(None))


@LINUX
def test_bytes_that_the_peer_has_not_acknowledged_are_counted(opened: list[socket.socket]) -> None:
    ours, theirs = socket.socketpair()
    opened += [ours, theirs]
    assert os_sockets.unacknowledged(transport_of(ours)) == 0
    ours.send(bytes(1000))
    assert os_sockets.unacknowledged(transport_of(ours)) >= 1000
    ours.close()
    closed = transport_of(ours)
    assert (os_sockets.unacknowledged(closed), os_sockets.unread(closed), os_sockets.peer_has_ended(closed)) == (0, 0, False)
    with open(os.devnull, "rb") as no_socket:
        assert os_sockets.unacknowledged(transport_of(no_socket)) == 0


@LINUX
def test_the_system_is_asked_without_waiting_whatever_the_number_of_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    asked: list[tuple[int, bytes]] = []
    polled: list[int] = []

    def ioctl(number: int, _: int, argument: bytes) -> bytes:
        asked.append((number, argument))
        return (700_000).to_bytes(4, sys.byteorder)

    class Poll:
        def register(self, number: int, _: int) -> None:
            polled.append(number)

        def poll(self, timeout_ms: int) -> list[int]:
            return [timeout_ms]

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(select, "poll", Poll)
    first = transport_of(SimpleNamespace(fileno=lambda: 0))  # a daemon may have closed its standard streams
    assert [os_sockets.unread(first), os_sockets.unacknowledged(first)] == [700_000, 700_000]
    assert (asked, os_sockets.peer_has_ended(first), polled) == ([(0, bytes(4))] * 2, True, [0])
    monkeypatch.setattr(Poll, "poll", lambda _, timeout_ms: [1] * timeout_ms)
    assert not os_sockets.peer_has_ended(first)


def test_a_system_that_does_not_tell_says_nothing(monkeypatch: pytest.MonkeyPatch, opened: list[socket.socket]) -> None:
    ours, theirs = socket.socketpair()
    opened += [ours, theirs]
    ours.send(bytes(1000))
    monkeypatch.setattr(os_sockets, "sys", SimpleNamespace(platform="plan9", byteorder=sys.byteorder))
    assert os_sockets.unacknowledged(transport_of(ours)) == 0
    monkeypatch.setattr(os_sockets, "os", SimpleNamespace(name="nt"))
    assert os_sockets.unread(transport_of(theirs)) == 0
    monkeypatch.delattr(select, "POLLRDHUP")
    ours.close()
    assert not os_sockets.peer_has_ended(transport_of(theirs))


def test_a_descriptor_is_that_of_the_socket(opened: list[socket.socket]) -> None:
    opened.append(socket.socket())
    assert os_sockets.descriptor(transport_of(opened[0])) == opened[0].fileno()
    assert os_sockets.descriptor(None) == os_sockets.descriptor(transport_of(None)) == -1


def test_zap_10_a_peer_has_an_address_or_a_process(monkeypatch: pytest.MonkeyPatch, opened: list[socket.socket]) -> None:
    ours, theirs = socket.socketpair()
    opened += [ours, theirs]
    assert os_sockets.peer_address(transport_of(ours, peername=("::1", 5, 0, 0))) == "::1"
    ids = (7, 8, 9)
    asked = SimpleNamespace(family=socket.AF_UNIX, getsockopt=lambda *_: struct.pack("3i", *ids))
    assert os_sockets.peer_address(transport_of(asked, peername="")) == ":8:9:7"
    assert os_sockets.peer_address(transport_of(SimpleNamespace(family=socket.AF_INET), peername=None)) == ""
    assert os_sockets.peer_address(transport_of(None)) == ""
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    assert os_sockets.peer_address(transport_of(ours, peername="")) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "itself"),
    [
        (("127.0.0.1", 5), ("127.0.0.1", 5), True),
        (("127.0.0.1", 5), ("127.0.0.1", 6), False),
        ("", "", False),  # ipc, without names
        (None, None, False),
    ],
)
def test_zmtp_87_a_connection_to_itself_has_one_address(ours: Any, theirs: Any, itself: bool) -> None:
    assert os_sockets.is_self_connect(transport_of(None, sockname=ours, peername=theirs)) is itself


# --- through a proxy ----------------------------------------------------------------------------------------------------------


class Scripted:
    """A SOCKS proxy that says what the test says, and the end of the socket that asks it."""

    async def start(self, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> None:
        self.server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.options = Options(socks_proxy=f"127.0.0.1:{port}")

    async def open(self) -> Peer:
        return await open_tcp(cast("TcpConnect", parse_connect("tcp://far.example:5555")), self.options, Peer)

    async def end(self) -> None:
        self.server.close()
        await self.server.wait_closed()


async def test_opt_08_what_comes_behind_the_word_of_the_proxy_is_of_the_peer() -> None:
    heard = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(100))
        writer.write(b"\x05\x00")
        heard.extend(await reader.read(100))
        writer.write(b"\x05\x00\x00\x01" + bytes(6) + b"first")
        await reader.read()
        writer.close()

    proxy = Scripted()
    await proxy.start(talk)
    peer = await proxy.open()
    assert peer.octets == b"first"
    assert heard[-2:] == (5555).to_bytes(2, "big")
    peer.transport.close()
    await peer.lost.wait()
    await proxy.end()


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"\x04\x00", "not a SOCKS 5 proxy"),
        (b"\x05\x00\x05\x05\x00\x01\x00", "connection refused"),
        (b"\x05", "it has closed the connection"),
    ],
    ids=["another version", "a refusal", "half an answer"],
)
async def test_opt_08_a_proxy_that_says_something_else_is_left(octets: bytes, reason: str) -> None:
    closed = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(octets)
        if len(octets) == 1:
            writer.write_eof()
        with suppress(ConnectionError):
            while await reader.read(100):
                writer.write(b"more of it")
        closed.set()
        writer.close()

    proxy = Scripted()
    await proxy.start(talk)
    with pytest.raises(OSError, match=reason):
        await proxy.open()
    await closed.wait()
    await proxy.end()


async def test_opt_08_an_attempt_through_a_proxy_that_is_given_up_leaves_nothing() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        closed.set()
        writer.close()

    proxy = Scripted()
    await proxy.start(talk)
    opening = asyncio.ensure_future(proxy.open())
    await asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await closed.wait()
    await proxy.end()


async def test_opt_08_what_comes_as_an_attempt_is_given_up_is_of_nobody() -> None:
    loop, made = asyncio.get_running_loop(), []

    def session() -> Peer:
        made.append(Peer())
        return made[-1]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = Options(socks_proxy=f"127.0.0.1:{listening.getsockname()[1]}")
        connect = cast("TcpConnect", parse_connect("tcp://far.example:5555"))
        opening = asyncio.ensure_future(open_tcp(connect, options, session))
        listening.setblocking(False)
        proxy, _ = await loop.sock_accept(listening)
        with proxy:
            await loop.sock_recv(proxy, 100)
            await loop.sock_sendall(proxy, b"\x05\x00")
            await loop.sock_recv(proxy, 100)
            proxy.send(b"\x05\x00\x00\x01" + bytes(6))
            loop.call_soon(opening.cancel)
            with pytest.raises(asyncio.CancelledError):
                await opening
    for one in made:  # by a loop that has read before
        await one.lost.wait()
