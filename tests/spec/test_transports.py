"""Rules TRN-06 to TRN-13: binding, unbinding, leaving and coming back on tcp, ipc and inproc (zmq_tcp, zmq_ipc, zmq_inproc)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket as system
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

import core
from benchmarks.process import free_endpoint
from core.net import os_sockets
from core.net.session import Session
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


@pytest.fixture
def later(anywhere: str) -> str:
    """An endpoint nobody has bound yet, to connect to first."""
    if not anywhere.startswith("tcp"):
        return anywhere
    return free_endpoint()


@pytest.fixture
def libzmq() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def fill(push: core.Socket | zmq.Socket[bytes], limit: int) -> int:
    """Send until the queue is full, at most `limit` messages; returns how many were taken."""
    for sent in range(limit):
        try:
            push.send(b"x", core.NOBLOCK)
        except (core.Again, zmq.Again):
            return sent
    return limit


# -- TRN-06


async def test_trn_06_an_address_in_use_is_eaddrinuse(make: Make) -> None:
    first = make(core.PULL, bind=TCP)
    second = make(core.PULL)
    with pytest.raises(core.AddressInUse) as refused:
        second.bind(first.last_endpoint)
    assert refused.value.errno == core.EADDRINUSE
    assert refused.value.endpoint == first.last_endpoint
    with pytest.raises(core.AddressInUse):
        first.bind(first.last_endpoint)


async def test_trn_06_so_it_is_when_libzmq_has_the_address_and_the_other_way_round(
    make: Make, libzmq: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with libzmq.socket(zmq.PULL) as theirs:
        theirs.bind(TCP)
        with pytest.raises(core.AddressInUse):
            make(core.PULL, bind=theirs.getsockopt_string(zmq.LAST_ENDPOINT))
        ours = make(core.PULL, bind=TCP)
        with pytest.raises(zmq.ZMQError) as refused:
            theirs.bind(ours.last_endpoint)
        assert refused.value.errno == core.EADDRINUSE


async def test_trn_06_nothing_waits_in_either_direction(make: Make) -> None:
    """TCP_NODELAY on the accepted and on the connected side."""
    router = make(core.ROUTER, bind=TCP)
    watch = Watch(router)
    dealer = make(core.DEALER, connect=router.last_endpoint)
    await watch.peers()
    await eventually(lambda: any(session.ready for session in dealer._endpoints.sessions))
    for end in (router, dealer):
        (session,) = end._endpoints.sessions
        assert isinstance(session, Session)
        assert session.transport is not None
        connection = session.transport.get_extra_info("socket")
        assert connection.getsockopt(system.IPPROTO_TCP, system.TCP_NODELAY)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_opt_the_type_of_service_is_that_of_the_family(make: Make, host: str) -> None:
    """IPv6 has a field of its own: as with libzmq both are set."""
    router = make(core.ROUTER, bind=f"tcp://{host}:*", tos=0x28, ipv6=1)
    watch = Watch(router)
    dealer = make(core.DEALER, connect=router.last_endpoint, tos=0x48, ipv6=1)
    await watch.peers()
    await eventually(lambda: any(session.ready for session in dealer._endpoints.sessions))
    for end, octet in ((router, 0x28), (dealer, 0x48)):
        (session,) = end._endpoints.sessions
        assert isinstance(session, Session)
        assert session.transport is not None
        connection = session.transport.get_extra_info("socket")
        assert connection.getsockopt(system.IPPROTO_IP, system.IP_TOS) == octet
        if host == "[::1]":
            assert connection.getsockopt(system.IPPROTO_IPV6, system.IPV6_TCLASS) == octet


# -- TRN-07


async def test_trn_07_unbind_stops_listening_and_connections_stay(make: Make, anywhere: str) -> None:
    router = make(core.ROUTER, bind=anywhere)
    endpoint = router.last_endpoint
    dealer = make(core.DEALER, connect=endpoint, identity=b"old")
    await dealer.send(b"before")
    assert await router.recv_multipart() == [b"old", b"before"]
    router.unbind(endpoint)
    newcomer = make(core.DEALER, identity=b"new")
    watch = Watch(newcomer)
    newcomer.connect(endpoint)
    if not endpoint.startswith("inproc"):
        await watch.until(core.EVENT_CONNECT_RETRIED)
    await newcomer.send(b"nobody hears")
    await dealer.send(b"after")
    assert await router.recv_multipart() == [b"old", b"after"]
    await router.send_multipart([b"old", b"answer"])
    assert await dealer.recv() == b"answer"
    assert not router.readable()


async def test_trn_07_what_had_come_before_unbind_can_be_read(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    push = make(core.PUSH, connect=pull.last_endpoint)
    for number in range(3):
        await push.send(b"%d" % number)
    await eventually(lambda: sum(len(pipe.inbox) for pipe in pull.pattern.pipes) == 3)
    pull.unbind(pull.last_endpoint)
    push.close()
    await push.wait_closed()
    assert [await pull.recv() for _ in range(3)] == [b"0", b"1", b"2"]


async def test_trn_07_a_second_unbind_is_enoent(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    pull.unbind(pull.last_endpoint)
    with pytest.raises(core.EndpointNotFound) as unknown:
        pull.unbind(pull.last_endpoint)
    assert unknown.value.errno == core.ENOENT


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:9", "ipc:///nowhere", "inproc://nobody"])
async def test_trn_07_leaving_what_was_never_joined_is_enoent(make: Make, endpoint: str) -> None:
    dealer = make(core.DEALER)
    for leave in (dealer.unbind, dealer.disconnect):
        with pytest.raises(core.EndpointNotFound) as unknown:
            leave(endpoint)
        assert unknown.value.errno == core.ENOENT


async def test_trn_03_unbind_takes_a_host_name_as_it_was_given_to_bind(make: Make, free_port: int) -> None:
    pull, given = make(core.PULL), f"tcp://localhost:{free_port}"
    for text in (given, f"tcp://127.0.0.1:{free_port}"):
        pull.bind(given)
        assert pull.last_endpoint == f"tcp://127.0.0.1:{free_port}"
        pull.unbind(text)
        with pytest.raises(core.EndpointNotFound):
            pull.unbind(given)


@pytest.mark.parametrize("given", [TCP, "tcp://127.0.0.1:0"])
async def test_trn_03_unbind_wants_the_resolved_endpoint(make: Make, given: str) -> None:
    pull = make(core.PULL, bind=given)
    with pytest.raises(core.EndpointNotFound):
        pull.unbind(given)
    pull.unbind(pull.last_endpoint)


# -- TRN-08


async def test_trn_08_disconnect_ends_both_directions(make: Make, anywhere: str) -> None:
    stays = make(core.ROUTER, bind=TCP)
    leaves = make(core.ROUTER, bind=anywhere)
    dealer = make(core.DEALER, connect=stays.last_endpoint, identity=b"d")
    dealer.connect(leaves.last_endpoint)
    for _ in range(2):
        await dealer.send(b"hello")
    assert [(await end.recv_multipart())[1] for end in (stays, leaves)] == [b"hello", b"hello"]
    dealer.disconnect(leaves.last_endpoint)
    for number in range(4):
        await dealer.send(b"%d" % number)
    assert [(await stays.recv_multipart())[1] for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    await leaves.send_multipart([b"d", b"too late"])
    await stays.send_multipart([b"d", b"in time"])
    assert await dealer.recv() == b"in time"
    assert not leaves.readable()
    with pytest.raises(core.EndpointNotFound):
        dealer.disconnect(leaves.last_endpoint)


async def test_trn_08_what_is_queued_still_leaves_within_linger(make: Make, later: str) -> None:
    if later.startswith("inproc"):
        later = f"ipc://@trn-08-{os.getpid()}"
    push = make(core.PUSH, connect=later, linger=10_000)
    await push.send(b"queued")
    push.disconnect(later)
    with pytest.raises(core.Again):
        push.send(b"nobody left", core.NOBLOCK)
    pull = make(core.PULL, bind=later)
    assert await pull.recv() == b"queued"


# -- TRN-09


async def test_trn_09_connect_before_bind(make: Make, later: str) -> None:
    dealer = make(core.DEALER, connect=later)
    await dealer.send(b"early")
    router = make(core.ROUTER, bind=later)
    peer, body = await router.recv_multipart()
    assert body == b"early"
    await router.send_multipart([peer, b"answer"])
    assert await dealer.recv() == b"answer"


# -- TRN-10, TRN-11


async def test_trn_10_a_relative_path_is_below_the_working_directory(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pull = make(core.PULL, bind="ipc://here")
    assert stat.S_ISSOCK((tmp_path / "here").stat().st_mode)
    push = make(core.PUSH, connect="ipc://here")
    await push.send(b"x")
    assert await pull.recv() == b"x"


async def test_trn_10_an_abstract_name_leaves_no_file(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pull = make(core.PULL, bind=f"ipc://@abstract-{os.getpid()}")
    push = make(core.PUSH, connect=f"ipc://@abstract-{os.getpid()}")
    await push.send(b"x")
    assert await pull.recv() == b"x"
    assert not list(tmp_path.iterdir())


async def test_trn_10_a_wildcard_is_a_fresh_file_that_goes_with_its_listener(make: Make) -> None:
    pull = make(core.PULL, bind="ipc://*")
    first = pull.last_endpoint
    pull.bind("ipc://*")
    assert first != pull.last_endpoint
    for endpoint in (first, pull.last_endpoint):
        push = make(core.PUSH, connect=endpoint)
        await push.send(endpoint.encode())
        assert await pull.recv() == endpoint.encode()
    paths = [Path(endpoint.removeprefix("ipc://")) for endpoint in (first, pull.last_endpoint)]
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in paths)
    pull.unbind(first)
    assert not paths[0].parent.exists()
    pull.close()
    await pull.wait_closed()
    assert not paths[1].parent.exists()


async def test_trn_11_a_second_binder_has_the_name_from_then_on(make: Make, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 's'}"
    first = make(core.PULL, bind=endpoint)
    early = make(core.PUSH, connect=endpoint)
    await early.send(b"to the first")
    assert await first.recv() == b"to the first"
    second = make(core.PULL, bind=endpoint)
    late = make(core.PUSH, connect=endpoint)
    await late.send(b"to the second")
    assert await second.recv() == b"to the second"
    await early.send(b"still to the first")
    assert await first.recv() == b"still to the first"
    first.close()
    await first.wait_closed()
    third = make(core.PUSH, connect=endpoint)  # the file is the second's, and the first left it alone
    await third.send(b"to the second too")
    assert await second.recv() == b"to the second too"


async def test_trn_11_a_context_may_refuse_a_path_that_is_served(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 's'}"
    async with core.Context(exclusive_ipc=True) as one, core.Context(exclusive_ipc=True) as two:
        first, second = one.socket(core.PULL), two.socket(core.PULL)
        first.bind(endpoint)
        with pytest.raises(core.AddressInUse, match="another process listens on it"):
            second.bind(endpoint)
        push = two.socket(core.PUSH)
        push.connect(endpoint)
        await push.send(b"to the first")
        assert await first.recv() == b"to the first"
        first.close()
        await first.wait_closed()
        second.bind(endpoint)  # what a process has left behind is no process
        await push.send(b"to the second")
        assert await second.recv() == b"to the second"


async def test_trn_11_the_file_stays_and_may_be_bound_again(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "s"
    for body in (b"one", b"two"):
        pull = make(core.PULL, bind=f"ipc://{path}")
        push = make(core.PUSH, connect=f"ipc://{path}")
        await push.send(body)
        assert await pull.recv() == body
        for end in (push, pull):
            end.close()
            await end.wait_closed()
        assert stat.S_ISSOCK(path.stat().st_mode)


async def test_trn_11_what_is_no_socket_is_not_unlinked(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(core.AddressInUse) as refused:
        make(core.PULL, bind=f"ipc://{path}")
    assert str(refused.value) == f"ipc://{path}: a file that is no socket stands there, and is left alone; choose another path"
    assert path.read_text() == "data"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(core.AddressInUse):
        make(core.PULL, bind=f"ipc://{tmp_path / 'link'}")
    assert os.path.islink(tmp_path / "link")


async def test_trn_11_no_such_directory_is_the_systems_error(make: Make, tmp_path: Path) -> None:
    with pytest.raises(core.ZMQError) as refused:
        make(core.PULL, bind=f"ipc://{tmp_path / 'absent' / 's'}")
    assert refused.value.errno == core.ENOENT


async def test_trn_11_each_obstacle_is_named_with_what_to_do(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    cases = [
        (tmp_path, core.EADDRINUSE, ": a directory stands there, and is left alone; choose another path"),
        (tmp_path / "file" / "s", errno.ENOTDIR, ": Not a directory; a part of its path is a file; choose another path"),
        (tmp_path / "absent" / "s", core.ENOENT, ": No such file or directory; make its directory, or choose another path"),
    ]
    for path, number, said in cases:
        with pytest.raises(core.EndpointError) as refused:
            make(core.PULL, bind=f"ipc://{path}")
        assert (refused.value.errno, str(refused.value)) == (number, f"ipc://{path}{said}")
    with pytest.raises(core.InvalidEndpoint, match=r"path of 108 bytes in .* at most 107 are possible; choose a shorter one"):
        make(core.PULL, bind="ipc:///" + 107 * "x")
    if sys.platform == "linux":
        taken = f"ipc://@taken-{os.getpid()}"  # the names of all programs of the machine are in one place
        make(core.PULL, bind=taken)
        with pytest.raises(core.AddressInUse, match=f"{taken} is in use; end the program that listens there, or choose another path"):
            make(core.PULL, bind=taken)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "Permission denied; this user may make no file in its directory; choose another path"),
        (errno.EROFS, "Read-only file system; choose a path on another file system"),
        (errno.ELOOP, "Too many levels of symbolic links; choose another path"),
    ],
)
async def test_trn_11_what_the_system_refuses_is_named_with_what_to_do(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os_sockets, "_listen_on", refuse)
    with pytest.raises(core.EndpointError) as refused:
        make(core.PULL, bind=f"ipc://{tmp_path / 's'}")
    assert (refused.value.errno, str(refused.value)) == (number, f"ipc://{tmp_path / 's'}: {said}")


# -- TRN-12, TRN-13


@pytest.mark.parametrize(("sndhwm", "rcvhwm", "room"), [(5, 7, 12), (1, 1, 2), (0, 7, 3000), (5, 0, 3000)])
@pytest.mark.parametrize("binder", ["sender", "receiver"])
async def test_trn_12_marks_of_both_ends_add_up(
    make: Make, libzmq: zmq.Context[zmq.Socket[bytes]], sndhwm: int, rcvhwm: int, room: int, binder: str
) -> None:
    pull, push = make(core.PULL, rcvhwm=rcvhwm), make(core.PUSH, sndhwm=sndhwm)
    with libzmq.socket(zmq.PULL) as their_pull, libzmq.socket(zmq.PUSH) as their_push:
        their_pull.rcvhwm, their_push.sndhwm = rcvhwm, sndhwm
        for receiver, sender in ((pull, push), (their_pull, their_push)):
            first, second = (sender, receiver) if binder == "sender" else (receiver, sender)
            first.bind("inproc://marks")
            second.connect("inproc://marks")
            assert fill(sender, 3000) == room


async def test_trn_12_room_comes_back_when_the_receiver_has_read(make: Make) -> None:
    pull, push = make(core.PULL, bind="inproc://room", rcvhwm=2), make(core.PUSH, connect="inproc://room", sndhwm=1)
    assert fill(push, 10) == 3
    waiting = push.send(b"fourth")
    assert not waiting.done()
    for _ in range(3):
        assert await pull.recv() == b"x"
    await waiting
    assert await pull.recv() == b"fourth"


async def test_trn_12_names_belong_to_a_context_and_to_one_binder(make: Make) -> None:
    make(core.PULL, bind="inproc://mine")
    with pytest.raises(core.AddressInUse) as refused:
        make(core.PULL, bind="inproc://mine")
    assert refused.value.errno == core.EADDRINUSE
    async with core.Context() as other:
        elsewhere = other.socket(core.PULL)
        elsewhere.bind("inproc://mine")
        assert elsewhere.last_endpoint == "inproc://mine"


async def test_trn_12_identity_is_announced_and_no_security_asked_for(make: Make) -> None:
    router = make(core.ROUTER, bind="inproc://open", plain_server=1)
    dealer = make(core.DEALER, connect="inproc://open", identity=b"me")
    await dealer.send(b"hello")
    assert await router.recv_multipart() == [b"me", b"hello"]


async def test_trn_12_a_binder_that_left_is_not_looked_for_again(make: Make) -> None:
    pull = make(core.PULL, bind="inproc://once")
    push = make(core.PUSH, connect="inproc://once")
    await push.send(b"x")
    assert await pull.recv() == b"x"
    pull.close()
    again = make(core.PULL, bind="inproc://once")
    with pytest.raises(core.Again):
        push.send(b"nobody", core.NOBLOCK)
    assert not again.readable()


async def test_trn_13_the_name_and_new_connections_work_after_the_binder_left(make: Make) -> None:
    for body in (b"one", b"two"):
        pull = make(core.PULL, bind="inproc://again")
        push = make(core.PUSH, connect="inproc://again")
        await push.send(body)
        assert await pull.recv() == body
        pull.close()


async def test_trn_13_a_connecter_that_left_is_forgotten_by_the_binder(make: Make) -> None:
    push = make(core.PUSH, bind="inproc://left")
    pull = make(core.PULL, connect="inproc://left")
    await push.send(b"x")
    assert await pull.recv() == b"x"
    pull.close()
    assert not push.pattern.pipes
    with pytest.raises(core.Again):
        push.send(b"nobody", core.NOBLOCK)


async def test_trn_13_a_connecter_that_left_before_the_bind_is_not_joined(make: Make) -> None:
    make(core.PUSH, connect="inproc://gone").close()
    pull = make(core.PULL, bind="inproc://gone")
    assert not pull.pattern.pipes


# -- binding again


async def test_an_endpoint_that_was_unbound_can_be_bound_at_once(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    endpoint = pull.last_endpoint
    pull.unbind(endpoint)  # before the loop has turned since bind()
    pull.bind(endpoint)
    push = make(core.PUSH, connect=endpoint)
    await push.send(b"first")
    assert await pull.recv() == b"first"
    pull.unbind(endpoint)
    await asyncio.sleep(0)
    other = make(core.PULL, bind=endpoint)
    newcomer = make(core.PUSH, connect=endpoint)
    await newcomer.send(b"second")
    assert await other.recv() == b"second"
