"""core.net.os_sockets: where sockets listen, and what the system refuses (TRN-02, TRN-03, TRN-06, TRN-10, TRN-11)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
import tempfile
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from core.address import IpcBind, IpcConnect, TcpBind, parse_bind, parse_connect
from core.net import os_sockets
from core.net.os_sockets import listen_ipc, listen_tcp, open_ipc
from core.options import Options
from core.runtime import runtime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.scripted_system import System

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what Linux alone tells of its sockets and interfaces")


def tcp(host: str, port: str = "*", *, ipv6: bool = True) -> TcpBind:
    return cast("TcpBind", parse_bind(f"tcp://{host}:{port}", ipv6=ipv6))


def ipc(path: object) -> IpcBind:
    return cast("IpcBind", parse_bind(f"ipc://{path}"))


# --- where to listen ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "ipv6", "family", "address"),
    [
        ("*", 0, socket.AF_INET, "0.0.0.0"),
        ("*", 1, socket.AF_INET6, "::"),
        ("127.0.0.1", 0, socket.AF_INET, "127.0.0.1"),
        ("127.0.0.1", 1, socket.AF_INET, "127.0.0.1"),
        ("[::1]", 1, socket.AF_INET6, "::1"),
        ("[::ffff:127.0.0.1]", 1, socket.AF_INET6, "::ffff:127.0.0.1"),
        pytest.param("lo", 0, socket.AF_INET, "127.0.0.1", marks=LINUX),
        pytest.param("lo", 1, socket.AF_INET, "127.0.0.1", marks=LINUX),
    ],
)
def test_trn_02_an_address_or_interface_is_listened_on_without_a_question_to_the_resolver(
    host: str, ipv6: int, family: socket.AddressFamily, address: str, system: System
) -> None:
    listening = listen_tcp(tcp(host), Options(ipv6=ipv6))
    with closing(listening.sock) as sock:
        name = sock.getsockname()
        assert (sock.family, name[0]) == (family, address)
        assert listening.endpoint == (f"tcp://[{address}]:{name[1]}" if ":" in address else f"tcp://{address}:{name[1]}")
        assert (listening.path, listening.temporary, system.asked) == ("", False, [])
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        if host == "*" and ipv6:
            assert not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


@pytest.mark.parametrize(("ipv6", "family"), [(0, socket.AF_INET), (1, socket.AF_UNSPEC)])
def test_trn_02_a_name_is_listened_on_at_its_first_address(ipv6: int, family: socket.AddressFamily, system: System) -> None:
    system.found = [(socket.AF_INET, 1, 6, "", ("127.0.0.3", 5)), (socket.AF_INET, 1, 6, "", ("127.0.0.4", 5))]
    listening = listen_tcp(tcp("ours.test"), Options(ipv6=ipv6))
    with closing(listening.sock) as sock:
        assert sock.getsockname()[0] == "127.0.0.3"
    assert system.asked == [("ours.test", 0, family)]


def test_trn_02_neither_an_interface_nor_a_host_is_enodev(system: System) -> None:
    with pytest.raises(core.EndpointError, match="no interface or host 'nobody' to bind to") as refused:
        listen_tcp(tcp("nobody"), Options())
    assert (refused.value.errno, refused.value.endpoint, system.made) == (errno.ENODEV, "tcp://nobody:*", [])


@LINUX
def test_the_name_of_an_interface_has_15_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    asked: list[bytes] = []

    def ioctl(_: int, request: int, argument: bytes) -> bytes:
        assert request == 0x8915
        asked.append(argument)
        return bytes(20) + bytes([127, 0, 0, 9]) + bytes(232)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with closing(listen_tcp(tcp("an-interface-of-long-name"), Options()).sock) as sock:
        assert sock.getsockname()[0] == "127.0.0.9"
    assert asked == [b"an-interface-of".ljust(256, b"\0")]


def test_where_interfaces_cannot_be_asked_for_a_name_is_resolved(monkeypatch: pytest.MonkeyPatch, system: System) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    system.found = [(socket.AF_INET, 1, 6, "", ("127.0.0.3", 5))]
    with closing(listen_tcp(tcp("lo"), Options()).sock) as sock:
        assert sock.getsockname()[0] == "127.0.0.3"


@LINUX
def test_a_socket_may_be_bound_to_a_device() -> None:
    with closing(listen_tcp(tcp("127.0.0.1"), Options()).sock) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == b""
    with pytest.raises(core.EndpointError):
        listen_tcp(tcp("127.0.0.1"), Options(bindtodevice=b"absent0"))


@pytest.mark.parametrize("bound", [tcp("127.0.0.1"), ipc("@sizes-of-buffers")], ids=["tcp", "ipc"])
def test_buffers_have_the_sizes_that_were_asked_for(bound: Any) -> None:
    listen: Any = listen_tcp if isinstance(bound, TcpBind) else listen_ipc
    with closing(listen(bound, Options()).sock) as usual:
        sizes = [usual.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    with closing(listen(bound, Options(sndbuf=1)).sock) as small:
        smallest = small.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert smallest < sizes[0]
        assert small.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == sizes[1]
    with closing(listen(bound, Options(rcvbuf=1)).sock) as small:
        assert small.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < sizes[1]
        assert small.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == sizes[0]


def test_trn_06_a_socket_that_cannot_listen_is_closed(system: System) -> None:
    with closing(listen_tcp(tcp("127.0.0.1"), Options()).sock) as first:
        taken = tcp("127.0.0.1", str(first.getsockname()[1]))
        with pytest.raises(core.AddressInUse, match=f"^{taken.endpoint} is in use$"):
            listen_tcp(taken, Options())
        assert [one.fileno() >= 0 for one in system.made] == [True, False]


@pytest.mark.parametrize(("number", "text"), [(errno.EMFILE, "Too many open files"), (0, "no number")])
def test_a_system_without_sockets_says_why(number: int, text: str, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.AddressFamily) -> socket.socket:
        raise OSError(number, text) if number else OSError(text)

    monkeypatch.setattr(system, "stream_socket", refuse)
    with pytest.raises(core.EndpointError) as refused:
        listen_tcp(tcp("127.0.0.1", "5"), Options())
    assert (refused.value.errno, str(refused.value)) == (number or errno.EINVAL, f"tcp://127.0.0.1:5: {text}")


# --- Unix sockets -------------------------------------------------------------------------------------------------------------


def test_trn_11_a_path_is_refused_while_its_directory_is_locked_for_long(tmp_path: Path, system: System) -> None:
    bind = ipc(tmp_path / "s")
    waited: list[float] = []

    def pause(seconds: float) -> None:  # of a machine that is busy
        waited.append(seconds)
        system.now += 0.25

    system.pause = pause
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        system.lock_file(holder)
        with pytest.raises(core.AddressInUse, match="another process has locked its directory; end it, or choose another directory"):
            listen_ipc(bind, Options())
        assert (system.now, waited) == (50.5, [0.005, 0.005])
        assert [*tmp_path.iterdir()] == []
        system.pause = lambda _: os.close(holder)
        listen_ipc(bind, Options()).sock.close()
    finally:
        with suppress(OSError):
            os.close(holder)
    again = os.open(tmp_path, os.O_RDONLY)
    system.lock_file(again)  # nobody has it
    os.close(again)


def test_trn_11_windows_refuses_a_second_bind_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_sockets, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))
    holder = os.open(tmp_path, os.O_RDONLY)
    runtime.SYSTEM.lock_file(holder)
    with closing(listen_ipc(ipc(tmp_path / "s"), Options()).sock) as sock:
        assert sock.getsockname() == str(tmp_path / "s")
    os.close(holder)


def test_trn_11_a_directory_is_locked_while_its_path_is_looked_at_and_bound(tmp_path: Path, system: System) -> None:
    class Files:
        """The system's, which looks whether the directory is locked when a path in it is asked for."""

        def __init__(self) -> None:
            self.flags = 0
            self.locked: list[bool] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: str, flags: int) -> int:
            self.flags = flags
            return os.open(path, flags)

        def stat(self, path: str) -> os.stat_result:
            other = os.open(tmp_path, os.O_RDONLY)
            try:
                runtime.SYSTEM.lock_file(other)
            except BlockingIOError:
                self.locked.append(True)
            else:
                self.locked.append(False)
            finally:
                os.close(other)
            return os.stat(path)

    files = Files()
    system.files = cast("Any", files)
    listen_ipc(ipc(tmp_path / "s"), Options()).sock.close()
    assert (files.flags, files.locked) == (os.O_RDONLY | os.O_CLOEXEC, [True])


@pytest.mark.parametrize("backlog", [0, 100])
def test_trn_11_a_path_that_is_served_is_refused_only_with_exclusive(backlog: int, tmp_path: Path, opened: list[socket.socket]) -> None:
    bind = ipc(tmp_path / "s")
    first = listen_ipc(bind, Options(backlog=backlog))
    opened.append(first.sock)
    assert (first.endpoint, first.path, first.temporary) == (bind.endpoint, str(tmp_path / "s"), False)
    assert not first.sock.getblocking()
    for _ in range(2):  # with a backlog of 0 the second one finds it full
        opened.append(socket.socket(socket.AF_UNIX))
        opened[-1].setblocking(False)
        with suppress(BlockingIOError):
            opened[-1].connect(bind.address)
    with pytest.raises(core.AddressInUse, match="is in use: another process listens on it; end the program that listens there"):
        listen_ipc(bind, Options(), exclusive=True)
    opened.append(listen_ipc(bind, Options()).sock)
    for one in opened:
        one.close()
    assert stat.S_ISSOCK((tmp_path / "s").stat().st_mode)
    opened.append(listen_ipc(bind, Options(), exclusive=True).sock)


def test_trn_10_a_wildcard_is_in_a_new_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    listening = listen_ipc(ipc("*"), Options())
    listening.sock.close()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("zmq-")
    assert (listening.path, listening.temporary) == (str(folder / "socket"), True)
    assert listening.endpoint == f"ipc://{folder}/socket"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(core.EndpointError) as refused:
        listen_ipc(ipc("*"), Options())
    assert refused.value.errno == errno.ENOENT


async def test_a_system_without_unix_sockets_has_no_ipc(monkeypatch: pytest.MonkeyPatch) -> None:
    bind, connect = ipc("@name"), cast("IpcConnect", parse_connect("ipc://@name"))
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(core.EndpointError, match="this system has no ipc") as refused:
        listen_ipc(bind, Options())
    assert refused.value.errno == errno.EPROTONOSUPPORT
    with pytest.raises(core.EndpointError, match="this system has no ipc") as refused:
        await open_ipc(connect, asyncio.Protocol)
    assert refused.value.errno == errno.EPROTONOSUPPORT
