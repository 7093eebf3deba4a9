"""core.net.listener: whom it admits, what it reports, and its end while a connection is being accepted."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import resource
import socket
import sys
import warnings
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from core.net.listener import AcceptedSession, Listener
from core.net.os_sockets import Listening
from core.options import Options
from core.zmtp.connection import Connection
from tests.scenes.builds import replaces_names, stands_in
from tests.scenes.driven_session import HeldTransport
from tests.scenes.fault_injection import sabotaged
from tests.scenes.raw_octets import GREETING_NULL, ready
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.net.session import Session


def until_it_ends(newcomer: socket.socket) -> None:
    """Read to the end of the stream, or to a reset."""
    newcomer.settimeout(10)
    with suppress(ConnectionResetError):
        while newcomer.recv(100):
            pass


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_the_listener_closes_is_ended_and_leaves_nothing(turns: int) -> None:
    """Close the listener in each loop iteration between the kernel's accept and the session."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with core.Context() as context:
            router = context.socket(core.ROUTER, linger=0)
            router.bind("tcp://127.0.0.1:*")
            dealer = context.socket(core.DEALER, linger=0)
            dealer.connect(router.last_endpoint)
            await dealer.send(b"listening")
            await router.recv_multipart()
            host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port))) as newcomer:
                for _ in range(turns):
                    await asyncio.sleep(0)
                endpoint = router.last_endpoint
                router.close()
                again = context.socket(core.ROUTER, linger=0)
                again.bind(endpoint)  # the port is free at once
                await router.wait_closed()
                await asyncio.to_thread(until_it_ends, newcomer)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


class Door:
    """A listener of a PULL socket that has not started, and the connections that come to it.

    Attributes:
        gone: connections that have ended.
    """

    def __init__(self, owner: core.Socket, **options: Any) -> None:
        self.owner = owner
        self.watch = Watch(owner)
        self.gone: list[Session] = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        listening = Listening(self.sock, "tcp://127.0.0.1:5")
        self.listener = Listener(cast("Any", owner), listening, Options(**options), self._ended)

    def _ended(self, session: Session) -> None:
        self.gone.append(session)
        self.owner._endpoints.sessions.pop(session, None)  # as the socket would

    def comes(self, address: str | None, sock: socket.socket | None = None) -> tuple[AcceptedSession, HeldTransport]:
        """Let a peer connect."""
        session = AcceptedSession(cast("Any", self.owner), self.listener)
        transport = HeldTransport(sock, (("127.0.0.1", 5), (address, 7) if address else ""))
        transport.set_protocol(cast("Any", session))
        session.connection_made(transport)
        return session, transport

    def greets(self, address: str | None) -> tuple[AcceptedSession, HeldTransport]:
        """Let a peer connect that sends a whole greeting, and nothing more."""
        session, transport = self.comes(address)
        if transport.said:
            session.data_received(GREETING_NULL)
        return session, transport

    def admitted(self, *addresses: str | None) -> list[bool]:
        """Let peers connect; tell which of them were greeted."""
        return [bool(self.greets(address)[1].said) for address in addresses]


@asynccontextmanager
async def door(**options: Any) -> AsyncIterator[Door]:
    async with core.Context() as context:
        made = Door(context.socket(core.PULL, linger=0), **options)
        try:
            yield made
        finally:
            for session in [*made.listener.sessions]:
                session.close(0)
                cast("AcceptedSession", session).connection_lost(None)
            assert not made.listener.sessions
            assert not made.listener._pending
            assert made.listener._permit_clock.when is None
            assert not context.supervisor.faults
            made.listener.close()
            made.sock.close()


FULL_SHAKE = GREETING_NULL + ready(b"PUSH")


@in_virtual_time
async def test_zmtp_75_connections_beyond_the_limit_are_closed_without_a_word_until_one_ends() -> None:
    async with door(max_connections=2) as made:
        first, _ = made.comes("10.0.0.1")
        assert made.admitted("10.0.0.1") == [True]
        session, transport = made.comes("10.0.0.1")
        assert (transport.said, transport.end, made.owner.counters.refused_connections) == (b"", "aborted", 1)
        session.connection_lost(None)
        assert made.admitted("10.0.0.1") == [False]
        first.connection_lost(None)
        assert made.gone == [first]
        assert made.admitted("10.0.0.1", "10.0.0.1") == [True, False]
        assert made.owner.counters.refused_connections == 3


@in_virtual_time
async def test_w7_handshakes_that_are_not_complete_are_limited_in_all_and_by_address() -> None:
    """For IPv6 by network; those that are complete or over do not count."""
    async with door(max_pending_handshakes=3, max_pending_handshakes_per_ip=2) as made:
        one, _ = made.greets("2001:db8::1")
        two, _ = made.greets("2001:db8::2")
        assert made.admitted("2001:db8::3", "10.0.0.1", "10.0.0.2") == [False, True, False]
        one.data_received(ready(b"PUSH"))
        assert one.ready
        assert made.admitted("2001:db8::3", "2001:db8::4") == [True, False]
        one.connection_lost(None)  # counted once
        assert made.admitted("2001:db8::3") == [False]
        two.connection_lost(None)
        two.connection_lost(None)
        assert made.admitted("2001:db8::3", "2001:db8::4") == [True, False]


@in_virtual_time
async def test_peers_without_an_address_share_no_limit_of_one() -> None:
    async with door(max_pending_handshakes=3, max_pending_handshakes_per_ip=1) as made:
        assert made.admitted(None, None, None, None) == [True, True, True, False]


def ended(*peers: tuple[AcceptedSession, HeldTransport]) -> list[bool]:
    return [transport.is_closing() for _, transport in peers]


@in_virtual_time
async def test_w7_the_oldest_that_says_nothing_makes_way_for_a_newcomer() -> None:
    """The newcomer has its place at once; one that has begun to speak stays."""
    async with door(max_pending_handshakes=3) as made:
        speaks, *silent = peers = [made.comes(f"10.0.0.{number}") for number in range(3)]
        speaks[0].data_received(GREETING_NULL[:10])
        peers.append(made.comes("10.0.0.3"))
        assert ended(*peers) == [False, True, False, False]
        peers.append(made.comes("10.0.0.4"))
        assert ended(*peers) == [False, True, True, False, False]
        assert (made.owner.counters.refused_connections, made.owner.counters.handshakes_failed) == (0, 2)
        assert "its place was needed" in str(silent[0][0].failure)


@in_virtual_time
async def test_w7_the_oldest_of_an_address_makes_way_for_a_newcomer_of_that_address() -> None:
    async with door(max_pending_handshakes_per_ip=2) as made:
        peers = [made.comes(address) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.1")]
        assert ended(*peers) == [False, True, False, False]


@in_virtual_time
async def test_w7_a_handshake_makes_way_that_takes_a_second_and_none_that_waits_here() -> None:
    """Else those that wait for the authenticator would begin anew, again and again."""
    async with door(max_pending_handshakes=3, zap_domain="x") as made:
        handler = made.owner.context.socket(core.REP, linger=0)
        handler.bind("inproc://zeromq.zap.01")
        asks, slow = made.greets("10.0.0.1"), made.comes("10.0.0.2")
        slow[0].data_received(GREETING_NULL[:10])
        await handler.recv_multipart()
        await asyncio.sleep(0.5)
        young = made.greets("10.0.0.3")
        await asyncio.sleep(0.25)
        assert made.admitted("10.0.0.4") == [False]
        await asyncio.sleep(0.25)
        assert made.admitted("10.0.0.4", "10.0.0.5") == [True, False]
        assert ended(asks, slow, young) == [False, True, False]


@in_virtual_time
async def test_w8_a_silent_peer_makes_way_where_there_are_as_many_connections_as_allowed() -> None:
    """The newcomer is refused, and tries again when that one has ended."""
    async with door(max_connections=2) as made:
        silent, speaks = made.comes("10.0.0.1"), made.greets("10.0.0.2")
        assert made.admitted("10.0.0.3") == [False]
        assert ended(silent, speaks) == [True, False]
        silent[0].connection_lost(None)
        assert made.admitted("10.0.0.3") == [True]


@replaces_names
@in_virtual_time
async def test_w8_a_newcomer_costs_as_much_where_a_thousand_have_greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one look at each of them for each newcomer that finds no place."""
    looks = 0
    is_silent: Any = Connection.is_silent

    def look(connection: Connection) -> Any:
        nonlocal looks
        looks += 1
        return is_silent.__get__(connection)

    async with door(max_pending_handshakes=1000, max_pending_handshakes_per_ip=1000) as made:
        assert all(made.admitted(*["10.0.0.1"] * 1000))
        monkeypatch.setattr(Connection, "is_silent", property(look))
        assert not any(made.admitted(*["10.0.0.2"] * 1000))
        assert looks <= 2000


@pytest.mark.skipif(sys.platform != "linux", reason="a descriptor of this number is made as on Linux")
@in_virtual_time
async def test_p5_the_oldest_that_is_silent_or_slow_in_its_handshake_makes_way_for_a_file() -> None:
    """The newcomer is refused and tries again; peers whose handshake is complete, or has just begun, stay."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with door() as made:
        with socket.socket() as low, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, files - files // 8)) as spare:

            def refused() -> list[bool]:
                assert made.comes("10.0.0.2", spare)[1].end == "aborted"
                return [transport.is_closing() for _, transport in (known, greeted, *silent)]

            known, greeted, *silent = (made.comes("10.0.0.1") for _ in range(4))
            known[0].data_received(FULL_SHAKE)
            greeted[0].data_received(GREETING_NULL)
            assert refused() == [False, False, True, False]
            assert refused() == [False, False, True, True]
            assert refused() == [False, False, True, True]
            await asyncio.sleep(1)
            assert refused() == [False, True, True, True]
        failed = [event for event in made.watch.events if event.event == core.EVENT_ACCEPT_FAILED]
        assert [(event.value, event.reason) for event in failed] == [(errno.EMFILE, "Too many open files")] * 4
        assert (made.owner.counters.refused_connections, made.owner.counters.handshakes_failed) == (4, 3)


@in_virtual_time
async def test_a_connection_is_reported_with_its_peer_as_it_is_admitted() -> None:
    async with door(max_connections=1) as made:
        made.admitted("10.0.0.1", "10.0.0.2")
        accepted = [event for event in made.watch.events if event.event == core.EVENT_ACCEPTED]
        assert [(event.value, event.endpoint, event.peer) for event in accepted] == [(-1, "tcp://127.0.0.1:5", "10.0.0.1")]


@in_virtual_time
async def test_a_closed_listener_admits_nobody_and_keeps_those_it_has() -> None:
    async with door() as made:
        session, transport = made.comes("10.0.0.1")
        made.listener.close()
        made.listener.close()
        closed = [event for event in made.watch.events if event.event == core.EVENT_CLOSED]
        assert [(event.value >= 0, event.endpoint) for event in closed] == [(True, "tcp://127.0.0.1:5")]
        assert made.sock.fileno() == -1
        assert made.admitted("10.0.0.1") == [False]
        session.data_received(FULL_SHAKE)
        assert (session.ready, transport.end) == (True, "")


@in_virtual_time
async def test_c3_steps_of_accepted_connections_wait_for_their_turn() -> None:
    async with door() as made:
        session, _ = made.comes("10.0.0.1")
        assert session.connection is not None
        assert session.connection.gated


@stands_in
@in_virtual_time
async def test_c3_an_address_does_not_wait_for_another_that_has_spent_its_share() -> None:
    async with door(max_key_agreements=100, max_key_agreements_per_ip=10) as made:
        loop, permitted = asyncio.get_running_loop(), list[float]()
        began = loop.time()

        class Asking(AcceptedSession):
            def permit(self) -> None:
                permitted.append(round(loop.time() - began, 2))

        for address, count in (("10.0.0.1", 7), ("10.0.0.2", 1)):
            for _ in range(count):
                session = Asking(cast("Any", made.owner), made.listener)
                session.connection_made(HeldTransport(None, (("127.0.0.1", 5), (address, 7))))
                made.listener.queue(session, address, 2)
            await asyncio.sleep(0.05)
        assert permitted == [*[0.0] * 6, 0.05]
        await asyncio.sleep(1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a queue may be")
@pytest.mark.parametrize(("asked", "found"), [(7, 7), (2, 2), (1, 1), (0, 1)])
async def test_the_queue_of_the_system_is_as_long_as_asked(asked: int, found: int) -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, backlog=asked)
        watch = Watch(pull)
        pull.bind("tcp://127.0.0.1:*")
        async with core.Context() as other:
            other.socket(core.PUSH, linger=0).connect(pull.last_endpoint)
            await watch.peers()
        (listening,) = [event.value for event in watch.events if event.event == core.EVENT_LISTENING]
        with socket.socket(fileno=os.dup(listening)) as sock:
            told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert int.from_bytes(told[28:32], sys.byteorder) == found


async def test_trn_11_an_endpoint_of_any_name_leaves_nothing() -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL)
        pull.bind("ipc://*")
        path = Path(pull.last_endpoint.removeprefix("ipc://"))
        assert path.is_socket()
        push = context.socket(core.PUSH)
        push.connect(pull.last_endpoint)
        await push.send(b"x")
        assert await pull.recv() == b"x"
    assert not path.parent.exists()


@in_virtual_time
async def test_trn_11_a_socket_file_that_is_removed_or_bound_over_is_reported_until_it_is_bound_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Peers that are connected stay, and no other one can come, of which the system says nothing."""
    path = tmp_path / "socket"
    gone, taken = "its socket file is gone (No such file or directory)", "another file has taken its path"
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0)
        watch = Watch(pull)

        def reasons() -> list[tuple[int, str]]:
            failed = [event for event in watch.events if event.event == core.EVENT_ACCEPT_FAILED]
            watch.events.clear()
            return [(event.value, event.reason) for event in failed]

        pull.bind(f"ipc://{path}")
        await asyncio.sleep(25)
        assert reasons() == []
        path.unlink()
        await asyncio.sleep(20)
        assert reasons() == [(errno.ENOENT, f"{gone}; bind again, or restart")] * 2
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            await asyncio.sleep(70)
        assert reasons() == [(errno.EADDRINUSE, f"{taken}; bind again, or restart")] * 7
        lines = [record for record in caplog.records if record.name == "core.net.listener"]
        assert [vars(line)["reason"][:10] for line in lines] == [gone[:10], taken[:10]]
        pull.unbind(f"ipc://{path}")
        pull.bind(f"ipc://{path}")
        path.touch()  # the same file
        await asyncio.sleep(100)
        assert reasons() == []


@in_virtual_time
async def test_a_socket_file_is_looked_at_again_after_a_fault(tmp_path: Path) -> None:
    with sabotaged("core socket file"):
        async with core.Context() as context:
            pull = context.socket(core.PULL, linger=0)
            watch = Watch(pull)
            pull.bind(f"ipc://{tmp_path}/socket")
            (tmp_path / "socket").unlink()
            await watch.until(core.EVENT_ACCEPT_FAILED)


def test_an_endpoint_is_free_after_its_loop() -> None:
    async def bound() -> core.Socket:
        pull = core.Context().socket(core.PULL)
        pull.bind("tcp://127.0.0.1:*")
        await asyncio.sleep(0.01)
        return pull

    pull = asyncio.run(bound())
    pull.close()
    host, _, port = pull.last_endpoint.removeprefix("tcp://").rpartition(":")
    socket.create_server((host, int(port))).close()


@in_virtual_time
async def test_failures_to_accept_are_events_and_a_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with door() as made:
        for pause_s in (0, 59.75, 0.25, 59.0, 2.0):
            await asyncio.sleep(pause_s)
            made.listener._accept_failed(OSError(24, "Too many open files"))
        made.listener._accept_failed(OSError("without a number"))
        failed = [event for event in made.watch.events if event.event == core.EVENT_ACCEPT_FAILED]
        assert [(event.value, event.reason) for event in failed] == [(24, "Too many open files")] * 5 + [(0, "without a number")]
        assert [vars(record)["reason"] for record in caplog.records if record.name == "core.net.listener"] == ["Too many open files"] * 3


@stands_in
@in_virtual_time
async def test_c3_key_agreements_are_allowed_one_after_the_other() -> None:
    async with door(max_key_agreements=100, max_key_agreements_per_ip=10) as made:
        permitted: list[float] = []
        loop = asyncio.get_running_loop()
        began = loop.time()

        class Asking(AcceptedSession):
            def permit(self) -> None:
                permitted.append(round(loop.time() - began, 2))

        asking = [Asking(cast("Any", made.owner), made.listener) for _ in range(12)]
        for session in asking:
            made.listener.admit(session, "10.0.0.1", -1)
            made.listener.queue(session, "10.0.0.1", 2)
        await asyncio.sleep(10)
        assert permitted == [*[0.0] * 6, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
        assert made.owner.counters.handshakes_deferred == 8
        for session in asking:
            made.listener.queue(session, "10.0.0.1", 5)
            made.listener.finished(session, "10.0.0.1")
            made.listener.sessions.pop(session)
        assert made.listener._permit_clock.when is None
        await asyncio.sleep(10)
        assert len(permitted) == 12  # no connection that has gone
        assert made.admitted("10.0.0.1") == [True]
