"""pirate.client: what a server sees of each attempt, and what is logged, counted and left when an attempt ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

import core
import pirate
from core.runtime import supervision
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOG = "pirate.client"


class Server:
    """A ROUTER that keeps what comes, and who leaves."""

    def __init__(self, context: core.Context) -> None:
        self.inbox: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.peers: set[bytes] = set()
        self._socket = context.socket(core.ROUTER, linger=0)
        self._socket.set_receiver(self._take, on_peer=self._note_peer)
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.last_endpoint

    def _take(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            self.inbox.put_nowait(frames)

    def _note_peer(self, peer: bytes, joined: bool) -> None:
        (self.peers.add if joined else self.peers.discard)(peer)

    async def next(self) -> list[bytes]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.inbox.get()

    async def answer(self, *body: bytes) -> list[bytes]:
        """Answer the next request; return its frames without the routing id."""
        peer, *frames = await self.next()
        self._socket.send_multipart([peer, *frames[: frames.index(b"") + 1], *body])
        return frames

    async def serve(self, reply: asyncio.Future[list[bytes]]) -> list[bytes]:
        """Answer until the client has a reply; it is impatient, and the machine may be busy."""
        while not reply.done():
            await asyncio.sleep(0.001)
            if not self.inbox.empty():
                await self.answer(b"y")
        return await reply

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


@pytest.fixture
async def server(context: core.Context) -> Server:
    return Server(context)


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    found = [(record.levelno, record.getMessage(), record.endpoint) for record in caplog.records if record.name == LOG]  # type: ignore[attr-defined]
    caplog.clear()
    return found


def test_numbers_and_names_that_mean_nothing_are_refused() -> None:
    for endpoints, options, why in (
        ([], {}, "there is no endpoint"),
        ("tcp://a:1", {"timeout": 0.0}, "must be positive"),
        ("tcp://a:1", {"attempts": 0}, "must be positive"),
        ("tcp://a:1", {"policy": "random"}, "there is no policy 'random'"),
    ):
        with pytest.raises(ValueError, match=why):
            pirate.Client(endpoints, **options)
    pirate.Client("tcp://a:1", timeout=0.1, attempts=1)


async def test_a_request_needs_a_frame_an_open_client_and_no_other_request(server: Server) -> None:
    client = pirate.Client(server.endpoint, timeout=PATIENCE_S)
    with pytest.raises(pirate.ClientClosed):
        await client.request(b"early")
    async with client:
        with pytest.raises(ValueError, match="a request has at least one frame"):
            await client.request()
        reply = asyncio.ensure_future(client.request(b"x"))
        await asyncio.sleep(0)
        with pytest.raises(pirate.Busy):
            await client.request(b"y")
        assert await server.answer(b"z") == [b"", b"x"]
        assert await reply == [b"z"]
        assert client.counters == {"sent": 1, "answered": 1}
        last = asyncio.ensure_future(client.request(b"last"))
        await server.next()
    with pytest.raises(pirate.ClientClosed):
        await last
    with pytest.raises(pirate.ClientClosed):
        await client.request(b"late")
    await eventually(lambda: not server.peers)


async def test_a_socket_is_kept_while_its_server_answers_and_each_attempt_without_an_answer_has_another(
    server: Server, context: core.Context, caplog: pytest.LogCaptureFixture
) -> None:
    """LPP-02, LPP-04."""
    caplog.set_level(logging.INFO, LOG)
    async with pirate.Client(server.endpoint, timeout=PATIENCE_S, context=context) as client:
        for _ in range(2):
            reply = asyncio.ensure_future(client.request(b"x"))
            await server.answer(b"y")
            assert await reply == [b"y"]
        assert len(server.peers) == 1
        assert messages(caplog) == [(logging.INFO, "connecting to server...", server.endpoint)]
    async with pirate.Client(server.endpoint, timeout=0.02, attempts=1000, context=context) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        first, second = await server.next(), await server.next()
        assert (first[0] != second[0], first[1:]) == (True, second[1:])
        await eventually(lambda: first[0] not in server.peers)  # while the client lives
        reply.cancel()
        await asyncio.wait([reply])
        messages(caplog)
        await eventually(lambda: not server.peers)
    async with pirate.Client(server.endpoint, timeout=0.01, attempts=2, context=context) as client:
        with pytest.raises(pirate.NoReply):
            await client.request(b"x")
        no_response = logging.WARNING, "no response from server, retrying...", server.endpoint
        assert messages(caplog) == [(logging.INFO, "connecting to server...", server.endpoint), no_response] * 2
        assert (client.counters["timeout"], client.counters["gave_up"]) == (2, 1)


async def test_a_relaxed_client_keeps_its_socket_and_numbers_its_requests(server: Server) -> None:
    """BEY-02."""
    async with pirate.Client(server.endpoint, timeout=0.02, attempts=1000, relaxed=True) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        first, second = await server.next(), await server.next()
        assert first[0] == second[0]
        assert [(len(number), empty, body) for _, number, empty, body in (first, second)] == [(4, b"", b"x")] * 2
        assert first[1] != second[1]
        assert await server.serve(reply) == [b"y"]


@pytest.mark.parametrize("relaxed", [False, True])
async def test_socket_options_are_those_of_the_caller(server: Server, relaxed: bool) -> None:
    given = {"routing_id": b"me"}
    async with pirate.Client(server.endpoint, timeout=PATIENCE_S, relaxed=relaxed, socket_options=given) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        assert len(await server.answer(b"y")) == 2 + relaxed
        assert server.peers == {b"me"}
        await reply
    assert given == {"routing_id": b"me"}


async def test_a_cancelled_request_is_forgotten_and_the_next_has_a_new_socket(server: Server) -> None:
    async with pirate.Client(server.endpoint, timeout=PATIENCE_S) as client:
        cancelled = asyncio.ensure_future(client.request(b"x"))
        peer, *_ = await server.next()
        (socket,) = client._engine._open_sockets()
        assert (socket.linger, socket.immediate) == (0, 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await eventually(lambda: not server.peers)
        reply = asyncio.ensure_future(client.request(b"y"))
        while not server.peers:
            await asyncio.sleep(0)
        assert server.peers != {peer}
        assert await server.answer(b"z") == [b"", b"y"]
        assert await reply == [b"z"]


async def test_the_request_goes_to_the_server_that_comes_late_and_once_again_where_it_returns(context: core.Context) -> None:
    """Nothing is queued for a server that is absent."""
    first = Server(context)
    async with pirate.Client(first.endpoint, timeout=PATIENCE_S, socket_options={"reconnect_ivl": 20}) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        await first.answer(b"y")
        await reply
        (peer,) = first.peers
        first._socket.cut(peer)
        await eventually(lambda: not client._engine.machine._connected)
        reply = asyncio.ensure_future(client.request(b"z"))
        assert await first.answer(b"y") == [b"", b"z"]
        await reply


@pytest.mark.faults
async def test_a_check_that_fails_is_logged_and_the_reply_does_not_match(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with pirate.Client(
        server.endpoint, timeout=PATIENCE_S, relaxed=True, check=lambda request, reply: 1 // len(reply[0]) == 1
    ) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        peer, number, _, _ = await server.next()
        server.send(peer, number, b"", b"")
        await eventually(lambda: client.counters["reply_mismatch"])
        assert not reply.done()
        reply.cancel()
    assert supervision.current().faults["pirate client check"]
    assert "pirate client check: ZeroDivisionError" in caplog.text


async def test_a_reply_that_does_not_match_is_logged_and_waited_on(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """LPP-03."""
    asked: list[Any] = []

    def check(request: list[bytes], reply: list[bytes]) -> bool:
        asked.append((request, reply))
        return reply == [b"right"]

    async with pirate.Client(server.endpoint, timeout=PATIENCE_S, relaxed=True, check=check) as client:
        reply = asyncio.ensure_future(client.request(b"x"))
        peer, number, _, _ = await server.next()
        server.send(peer, number, b"", b"wrong")
        await eventually(lambda: client.counters["reply_mismatch"])
        assert not reply.done()
        assert asked == [([b"x"], [b"wrong"])]
        assert messages(caplog) == [(logging.WARNING, "malformed reply from server", server.endpoint)]
        reply.cancel()


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("wrong", [{"sndhwm": -5}, {"plain_username": b"ann", "curve_server": 1}], ids=["option", "security"])
async def test_a_server_that_cannot_be_asked_fails_the_request_and_the_next_may_be_made(
    context: core.Context, relaxed: bool, wrong: dict[str, Any]
) -> None:
    async with pirate.Client("tcp://127.0.0.1:9", relaxed=relaxed, context=context, socket_options=wrong) as client:
        for _ in range(2):
            with pytest.raises(core.ZMQError):
                await client.request(b"x")
        await eventually(lambda: not context._sockets)  # while the client lives


@pytest.mark.parametrize("relaxed", [False, True])
async def test_a_client_that_got_no_socket_begins_anew_with_the_next_request(server: Server, context: core.Context, relaxed: bool) -> None:
    async with pirate.Client(server.endpoint, relaxed=relaxed, timeout=PATIENCE_S, attempts=1, context=context) as client:
        most, context.max_sockets = context.max_sockets, 0
        with pytest.raises(core.ZMQError):
            await client.request(b"x")
        context.max_sockets = most
        reply = asyncio.ensure_future(client.request(b"x"))
        assert await server.serve(reply) == [b"y"]


async def test_a_socket_that_is_lost_again_blocks_no_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pirate.Client(server.endpoint, timeout=0.02, attempts=1000) as client:
        with monkeypatch.context() as broken:

            def blocked(*_: Any) -> None:
                broken.undo()
                raise core.Again

            broken.setattr(core.Socket, "send_multipart", blocked)
            reply = asyncio.ensure_future(client.request(b"x"))
            await eventually(lambda: client.counters["send_blocked"])
        assert await server.serve(reply) == [b"y"]
        assert client.counters["send_blocked"] == 1
        assert client.counters["timeout"] >= 1


async def test_what_a_socket_says_after_its_attempt_or_its_client_does_not_count(server: Server) -> None:
    async with pirate.Client(server.endpoint, timeout=PATIENCE_S) as client:
        engine = client._engine
        cancelled = asyncio.ensure_future(client.request(b"x"))
        await server.next()
        (old,) = engine._open_sockets()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        reply = asyncio.ensure_future(client.request(b"y"))
        await asyncio.sleep(0)  # it is not connected yet
        engine._peer_changed(server.endpoint, old, b"", True)
        engine._receive(server.endpoint, old, [[b"late"]])
        assert not reply.done()
        assert await server.answer(b"z") == [b"", b"y"]
        assert await reply == [b"z"]
        (present,) = engine._open_sockets()
        engine._peer_changed(server.endpoint, old, b"", False)
        reply = asyncio.ensure_future(client.request(b"y"))
        await server.answer(b"z")  # on the connection that is up
        assert await reply == [b"z"]
    engine._receive(server.endpoint, present, [[b"late"]])
    assert client.counters == {"sent": 3, "answered": 2}
