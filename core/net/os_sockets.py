"""Stream sockets of the operating system: listening sockets and connections (TRN-02..06, TRN-10, TRN-11)."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES, ENOENT, ENOSPC, ENOTDIR, EPERM, EROFS
from functools import partial
from itertools import count, zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from core.address import HostKind, IpcBind, IpcConnect, TcpBind, TcpConnect, parse_proxy, tcp_endpoint
from core.errors import EADDRINUSE, EHOSTUNREACH, EINVAL, ENODEV, EPROTONOSUPPORT, AddressInUse, EndpointError
from core.machine.backoff import backoff_s
from core.machine.socks import SocksError, SocksHandshake
from core.net.names.lookups import addresses, addresses_now
from core.net.names.zones import host_of, socket_address
from core.runtime import runtime, supervision
from core.runtime.supervision import ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core.options import Options

P = TypeVar("P", bound=asyncio.Protocol)

_Address = tuple[socket.AddressFamily, Any]  # as `connect` takes it
_Source = tuple[str, int] | None  # local side
# After so long without an answer the next address of a name is tried too (RFC 8305).
NEXT_ADDRESS_S: Final = 0.25
# Checking and binding a path takes microseconds; a directory that is locked for longer is locked by another program.
FOLDER_WAIT_S: Final = 0.5
FOLDER_RETRY_S: Final = 0.005
# What to do when a path cannot be listened on.
_IPC_FIXES: Final = {
    ENOENT: "make its directory, or choose another path",
    ENOTDIR: "a part of its path is a file; choose another path",
    EACCES: "this user may make no file in its directory; choose another path",
    EPERM: "this user may make no file in its directory; choose another path",
    EROFS: "choose a path on another file system",
    ENOSPC: "free some space, or choose a path on another file system",
    EADDRINUSE: "end the program that listens there, or choose another path",
}
SIOCGIFADDR: Final = 0x8915  # Linux: IPv4 address of an interface
TIOCOUTQ: Final = 0x5411  # Linux: bytes of the send queue
_PEER_CREDENTIALS: Final = struct.Struct("3i")  # Linux: pid, uid, gid


@dataclass(frozen=True, slots=True)
class Listening:
    """A socket that listens."""

    sock: socket.socket
    endpoint: str  # numeric and resolved, as LAST_ENDPOINT reports it (TRN-03)
    path: str = ""  # file to leave or remove, "" if there is none
    temporary: bool = False  # the file and its directory were made for this socket (`ipc://*`)


def _interface_address(name: str) -> str | None:
    """Return the IPv4 address of a network interface, None if there is none, or on Windows."""
    try:
        import fcntl
    except ImportError:
        return None
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _bind_host(bind: TcpBind, ipv6: bool) -> tuple[socket.AddressFamily, str]:
    if bind.kind is HostKind.ANY:
        return (socket.AF_INET6, "::") if ipv6 else (socket.AF_INET, "0.0.0.0")
    if bind.kind is HostKind.IPV4:
        return socket.AF_INET, bind.host
    if bind.kind is HostKind.IPV6:
        return socket.AF_INET6, bind.host
    address = _interface_address(bind.host)
    if address is not None:
        return socket.AF_INET, address
    try:
        found = [*addresses_now(bind.host, bind.port, socket.AF_UNSPEC if ipv6 else socket.AF_INET)]
    except OSError as error:
        raise EndpointError(ENODEV, f"no interface or host {bind.host!r} to bind to: {error.strerror}", endpoint=bind.endpoint) from error
    family, _, _, _, address_info = found[0]
    return family, host_of(address_info)


def _system_error(error: OSError, endpoint: str) -> EndpointError:
    advice = f"; {_IPC_FIXES.get(error.errno or 0, 'choose another path')}" if endpoint.startswith("ipc://") else ""
    if error.errno == EADDRINUSE:
        return AddressInUse(EADDRINUSE, f"{endpoint} is in use{advice}", endpoint=endpoint)
    return EndpointError(error.errno or EINVAL, f"{endpoint}: {error.strerror or error}{advice}", endpoint=endpoint)


def listen_tcp(bind: TcpBind, options: Options) -> Listening:
    """Bind and listen; raises AddressInUse (TRN-06), ENODEV without such an interface or host, or another EndpointError."""
    family, host = _bind_host(bind, bool(options.ipv6))
    with _new_socket(family, bind.endpoint) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # as libzmq: every address takes IPv4 too, and one may be mapped
        if options.bindtodevice:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, options.bindtodevice)
        _listen_on(sock, socket_address(host, bind.port), options)
    name = sock.getsockname()
    return Listening(sock, tcp_endpoint(host_of(name), int(name[1])))


@contextmanager
def _new_socket(family: socket.AddressFamily, endpoint: str) -> Iterator[socket.socket]:
    """Make a socket; what fails in the block is raised as an `EndpointError`, and closes it."""
    sock = None
    try:
        sock = runtime.current().stream_socket(family)
        yield sock
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _system_error(error, endpoint) from error


def _listen_on(sock: socket.socket, address: tuple[Any, ...] | str, options: Options) -> None:
    _size_buffers(sock, options)
    sock.bind(address)
    sock.listen(options.backlog)
    sock.setblocking(False)


def _clear_path(path: str, endpoint: str, exclusive: bool) -> None:
    """Remove a socket file, with `exclusive` only one that no process listens on; refuse any other file (TRN-11)."""
    try:
        mode = runtime.current().files.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _system_error(error, endpoint) from error
    if not stat.S_ISSOCK(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a file that is no socket"
        raise AddressInUse(EADDRINUSE, f"{endpoint}: {what} stands there, and is left alone; choose another path", endpoint=endpoint)
    if exclusive and _is_served(path):
        text = f"{endpoint} is in use: another process listens on it; {_IPC_FIXES[EADDRINUSE]}"
        raise AddressInUse(EADDRINUSE, text, endpoint=endpoint)
    runtime.current().files.unlink(path)


def _is_served(path: str) -> bool:
    with runtime.current().stream_socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # its backlog is full
        except OSError:
            return False
    return True


@contextmanager
def _alone_in(folder: str, endpoint: str) -> Iterator[None]:
    """Lock a directory, so that no other process of this library takes the path between the check and the bind.

    Raises EndpointError if it does not exist, or another process has locked it for `FOLDER_WAIT_S`.
    """
    if os.name == "nt":  # Windows refuses a second bind itself
        yield
        return
    system = runtime.current()
    try:
        handle = system.files.open(folder or ".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _system_error(error, endpoint) from error
    try:
        give_up_at = system.monotonic() + FOLDER_WAIT_S
        while True:
            try:
                system.lock_file(handle)
                break
            except BlockingIOError:
                if system.monotonic() >= give_up_at:
                    text = f"{endpoint}: another process has locked its directory; end it, or choose another directory"
                    raise AddressInUse(EADDRINUSE, text, endpoint=endpoint) from None
                system.pause(FOLDER_RETRY_S)
        yield
    finally:
        system.files.close(handle)  # releases the lock


def listen_ipc(bind: IpcBind, options: Options, exclusive: bool = False) -> Listening:
    """Bind a Unix socket and listen; with `exclusive`, refuse a path in use, which libzmq takes over."""
    endpoint, address, path = bind.endpoint, bind.address, ""
    if not hasattr(socket, "AF_UNIX"):
        raise EndpointError(EPROTONOSUPPORT, f"{endpoint}: this system has no ipc", endpoint=endpoint)
    if bind.wildcard:
        try:
            import tempfile  # imports half a megabyte of archive formats

            address = os.path.join(tempfile.mkdtemp(prefix="zmq-"), "socket")
        except OSError as error:
            raise _system_error(error, endpoint) from error
        endpoint = f"ipc://{address}"
    if bind.abstract:
        return Listening(_bound_ipc(address, endpoint, options), endpoint, path, bind.wildcard)
    path = address
    with _alone_in(os.path.dirname(path), endpoint):
        _clear_path(path, endpoint, exclusive)
        return Listening(_bound_ipc(address, endpoint, options), endpoint, path, bind.wildcard)


def _bound_ipc(address: str, endpoint: str, options: Options) -> socket.socket:
    with _new_socket(socket.AF_UNIX, endpoint) as sock:
        _listen_on(sock, address, options)
    return sock


async def open_tcp(connect: TcpConnect, options: Options, factory: Callable[[], P]) -> P:
    """Connect; a name is resolved for each attempt, and each of its addresses is tried (OPT-05)."""
    if options.socks_proxy:
        return await _open_through_proxy(connect, options, factory)
    way = await _way_to(connect, _source(connect), options)
    _, session = await asyncio.get_running_loop().create_connection(factory, **way)
    return session


def _source(connect: TcpConnect) -> _Source:
    """Return the local side that the endpoint names; an interface by its address."""
    source = connect.source
    if source is None:
        return None
    host = source.host
    if source.kind is HostKind.NAME:
        host = _interface_address(host) or host
    return host, source.port


async def _way_to(target: TcpConnect, source: _Source, options: Options) -> dict[str, Any]:
    """Return arguments of `create_connection`: an address, or a socket connected to one of the addresses of a name."""
    family = socket.AF_UNSPEC if options.ipv6 or target.kind is HostKind.IPV6 else socket.AF_INET
    if target.kind is not HostKind.NAME:
        return {"host": target.host, "port": target.port, "family": family, "local_addr": source}
    found = list(dict.fromkeys((one[0], one[4]) for one in await addresses(target.host, target.port, family)))
    timeout_ms = options.connect_timeout
    delay_s = NEXT_ADDRESS_S if not timeout_ms else min(NEXT_ADDRESS_S, timeout_ms / 1000 / (len(found) + 1))
    return {"sock": await _Addresses(source).first(_by_turns(found), delay_s)}


def _by_turns(found: list[_Address]) -> list[_Address]:
    """Return addresses in their order, but IPv6 and IPv4 by turns: one of both may lead nowhere (RFC 8305)."""
    kinds = [[one for one in found if one[0] is family] for family in dict.fromkeys(one[0] for one in found)]
    return [one for turn in zip_longest(*kinds) for one in turn if one is not None]


class _Addresses:
    """Connects to the addresses of one name until one answers (RFC 8305).

    The next one is tried when one has failed, or has not answered for a moment: a machine that is off does not answer at all.
    """

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._opened: list[socket.socket] = []
        self._errors: list[OSError] = []

    async def first(self, found: list[_Address], delay_s: float) -> socket.socket:
        """Return the first socket that is connected; raises OSError when no address is left."""
        attempts: set[asyncio.Task[None]] = set()
        winner: socket.socket | None = None
        try:
            try:
                await self._until_one_answers(found, delay_s, attempts)
            finally:
                await supervision.cancel_all(attempts)  # which may be cancelled too: then no one has won
            winner = self._opened[0]
            return winner
        finally:
            for sock in self._opened:
                if sock is not winner:
                    sock.close()

    async def _until_one_answers(self, found: list[_Address], delay_s: float, attempts: set[asyncio.Task[None]]) -> None:
        supervisor = supervision.current()
        for number, address in enumerate(found, 1):
            supervisor.task("core connector address", partial(self._connect, address), restart=ONCE, among=attempts)
            failed, is_last = len(self._errors), number == len(found)
            while attempts and not self._opened and (is_last or len(self._errors) == failed):
                if not (await asyncio.wait(attempts, timeout=None if is_last else delay_s, return_when="FIRST_COMPLETED"))[0]:
                    break
            if self._opened:
                return
        raise self._failure()

    async def _connect(self, address: _Address) -> None:
        family, target = address
        sock = runtime.current().stream_socket(family)
        try:
            sock.setblocking(False)
            if self._source is not None:
                sock.bind(socket_address(*self._source))
            await asyncio.get_running_loop().sock_connect(sock, target)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            self._errors.append(error)
        else:
            self._opened.append(sock)

    def _failure(self) -> OSError:
        if not self._errors:
            return OSError(EHOSTUNREACH, "no address of the name could be tried")
        # "refused" must be true of all of them: it may end the attempts (OPT-07).
        return next((error for error in self._errors if not isinstance(error, ConnectionRefusedError)), self._errors[0])


class _ThroughProxy(asyncio.Protocol):
    """Asks a SOCKS proxy for the connection, and then gives the transport to the session."""

    def __init__(self, handshake: SocksHandshake, factory: Callable[[], asyncio.Protocol], opened: asyncio.Future[Any]) -> None:
        self._handshake = handshake
        self._factory = factory
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        if self._opened.done():
            return
        try:
            octets = self._handshake.receive(data)
        except SocksError as error:
            self._opened.set_exception(error)
            return
        if not self._handshake.done:
            self._transport.write(octets)
            return
        session = self._factory()
        self._transport.set_protocol(session)
        session.connection_made(self._transport)
        if octets:
            session.data_received(octets)
        self._opened.set_result(session)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(SocksError("it has closed the connection"))


async def _open_through_proxy(connect: TcpConnect, options: Options, factory: Callable[[], P]) -> P:
    """Connect through the proxy of SOCKS_PROXY, which resolves the name."""
    loop = asyncio.get_running_loop()
    proxy = parse_proxy(options.socks_proxy.decode("utf-8", "surrogateescape"))
    handshake = SocksHandshake(connect.host, connect.port, options.socks_username, options.socks_password)
    opened: asyncio.Future[P] = loop.create_future()
    way = await _way_to(proxy, _source(connect), options)
    transport, _ = await loop.create_connection(lambda: _ThroughProxy(handshake, factory, opened), **way)
    try:
        return await opened
    except BaseException:
        transport.abort()
        raise


async def open_ipc(connect: IpcConnect, factory: Callable[[], P]) -> P:
    loop = asyncio.get_running_loop()
    if not hasattr(socket, "AF_UNIX"):
        raise EndpointError(EPROTONOSUPPORT, "this system has no ipc", endpoint=connect.endpoint)
    # uvloop truncates an abstract name at its NUL; a socket connected here works with both loops.
    sock = runtime.current().stream_socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        await _connect_unix(loop, sock, connect.address)
        _, session = await loop.create_unix_connection(factory, sock=sock)
    except BaseException:
        sock.close()
        raise
    return session


async def _connect_unix(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: str) -> None:
    """Connect without blocking; tries again while the backlog of the listener is full."""
    for refusals in count():
        try:
            sock.connect(address)
        except BlockingIOError:
            await asyncio.sleep(backoff_s(0.001, 0.1, refusals))
        else:
            return


def _size_buffers(sock: socket.socket, options: Options) -> None:
    if options.sndbuf > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.sndbuf)
    if options.rcvbuf > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.rcvbuf)


def tune(transport: asyncio.Transport, options: Options) -> None:
    """Set the socket options of a new connection; TCP_NODELAY is always on (TRN-06). Raises OSError: the system refuses one."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    _size_buffers(sock, options)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.tos:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, options.tos)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, options.tos)
    if options.tcp_keepalive >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options.tcp_keepalive)
    for value, name in (
        (options.tcp_keepalive_idle, "TCP_KEEPIDLE"),
        (options.tcp_keepalive_cnt, "TCP_KEEPCNT"),
        (options.tcp_keepalive_intvl, "TCP_KEEPINTVL"),
        (options.tcp_maxrt, "TCP_USER_TIMEOUT"),
    ):
        number = getattr(socket, name, None)
        if value > 0 and number is not None:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, number, value)
            except OSError as error:
                raise OSError(error.errno, f"the system refuses {name} {value}: {error.strerror}") from error


def descriptor(transport: asyncio.Transport | None) -> int:
    """Return the file descriptor, -1 when there is none, or no longer."""
    sock = None if transport is None else transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())


def peer_has_ended(transport: asyncio.Transport) -> bool:
    """Return whether the peer has ended its stream, even with bytes unread; False if the system cannot tell.

    A write to a peer that has closed resets the connection and loses its unread bytes. So a connection that is not being read is checked
    before each write.
    """
    number = descriptor(transport)
    if number < 0 or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


def unacknowledged(transport: asyncio.Transport) -> int:
    """Return how many sent bytes the peer's system has not acknowledged; 0 where the system does not tell."""
    return _queued(transport, TIOCOUTQ) if sys.platform == "linux" else 0


def unread(transport: asyncio.Transport) -> int:
    """Return how many received bytes wait in the system; 0 where the system does not tell."""
    if os.name != "posix":
        return 0
    import termios

    return _queued(transport, termios.FIONREAD)


def _queued(transport: asyncio.Transport, request: int) -> int:
    import fcntl

    number = descriptor(transport)
    if number < 0:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(number, request, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def peer_address(transport: asyncio.Transport) -> str:
    """Return the peer's numeric address, or `:uid:gid:pid` for ipc where the system tells (ZAP-10)."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return str(peer[0])
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return ""
    pid, uid, gid = _PEER_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size))
    return f":{uid}:{gid}:{pid}"


def is_self_connect(transport: asyncio.Transport) -> bool:
    """Return whether a connection has the same address at both ends: it is connected to itself (ZMTP-87)."""
    ours = transport.get_extra_info("sockname")
    return isinstance(ours, tuple) and ours == transport.get_extra_info("peername")
