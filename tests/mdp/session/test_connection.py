"""mdp.session.connection: the options of its socket, and what it says about a broker that cannot be reached."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.session.connection import NO_GREETING, Connection
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOBODY = "inproc://nobody"


@asynccontextmanager
async def connected(endpoint: str, said: list[Any] | None = None, *, refusals: bool = True, **options: Any) -> AsyncIterator[Connection]:
    """Connect; `said` gets what the connection calls."""
    calls: list[Any] = [] if said is None else said
    spare = options.pop("spare", (0, 0))
    async with core.Context() as context:
        connection = Connection(
            context,
            endpoint,
            options,
            on_joined=lambda: calls.append("joined"),
            on_batch=lambda batch: calls.append(batch.messages()),
            on_lost=lambda: calls.append("lost"),
            on_refused=(lambda: calls.append("refused")) if refusals else None,
            spare=spare,
        )
        try:
            yield connection
        finally:
            connection.close()
            await connection.wait_closed()


async def test_nothing_waits_in_the_socket_and_limits_are_announced() -> None:
    async with connected(NOBODY) as plain, connected(NOBODY, spare=(3, 70), sndhwm=5) as spare:
        assert (plain.trouble, plain.refused, plain.limits) == ("", False, None)
        socket, other = plain._socket, spare._socket
        assert (socket.linger, socket.sndhwm, socket.rcvhwm, socket.tell_limits) == (0, 0, 0, 1)
        assert (other.sndhwm, other.max_parts, other.max_message_bytes) == (5, socket.max_parts + 3, socket.max_message_bytes + 70)
        async with core.Context() as context:
            usual = context.socket(core.DEALER)
            assert (socket.max_parts, socket.max_message_bytes) == (usual.max_parts, usual.max_message_bytes)


async def test_what_accepts_a_connection_and_says_nothing_is_named_until_there_is_a_better_reason() -> None:
    ends: list[asyncio.StreamWriter] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        await reader.read(1)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    said: list[Any] = []
    async with server, connected(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", said, reconnect_ivl=1) as connection:
        await eventually(lambda: connection.trouble == NO_GREETING)
        server.close()
        await eventually(lambda: ends)
        ends[0].close()
        await eventually(lambda: "refused" in said)
        await eventually(lambda: connection.trouble not in ("", NO_GREETING))
        assert not connection.refused
        connection._note_connected(core.MonitorEvent(core.Event.CONNECTED, 3, ""))
        assert connection.trouble not in ("", NO_GREETING)


async def test_a_broker_that_is_there_ends_the_trouble() -> None:
    said: list[Any] = []
    async with StandIn() as broker, connected(broker.endpoint, said) as connection:
        connection.trouble = "was away"
        await eventually(lambda: said == ["joined"])
        assert connection.trouble == ""
        connection.send([b"\0\1x", [b"y", b"z"]])
        peer, frames = await broker.next()
        assert frames == [b"x"]
        assert await broker.next() == (peer, [b"y", b"z"])
        broker.send(peer, b"answer")
        await eventually(lambda: said[1:] == [[[b"answer"]]])
        broker.cut(peer)
        await eventually(lambda: said[2:3] == ["lost"])


@pytest.mark.parametrize(
    ("event", "value", "refused"),
    [
        (core.Event.HANDSHAKE_FAILED_AUTH, 400, True),
        (core.Event.HANDSHAKE_FAILED_PROTOCOL, core.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, True),
        (core.Event.HANDSHAKE_FAILED_PROTOCOL, core.PROTOCOL_ERROR_ZMTP_UNSPECIFIED, False),
        (core.Event.CLOSED, core.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, False),
        (core.Event.HANDSHAKE_FAILED_NO_DETAIL, 0, False),
    ],
)
@pytest.mark.parametrize("refusals", [True, False])
async def test_security_that_a_broker_refuses_is_known_from_other_failures(
    event: core.Event, value: int, refused: bool, refusals: bool
) -> None:
    said: list[Any] = []
    async with connected(NOBODY, said, refusals=refusals) as connection:
        connection._note_trouble(core.MonitorEvent(event, value, "", "why"))
        why = "wants other security options: why" if refused else "why"
        assert (connection.trouble, connection.refused, said) == (why, refused, ["refused"] * refusals)
        connection._note_trouble(core.MonitorEvent(core.Event.CLOSED, -1, "", ""))
        assert (connection.trouble, connection.refused) == (why, False)


async def test_a_message_after_the_end_is_dropped() -> None:
    """By the owner of the context."""
    async with connected(NOBODY) as connection, asyncio.timeout(PATIENCE_S):
        connection.close()
        await connection.send([b"\0\1x"])
        await connection.send([[b"x"]])
        await connection.wait_closed()
        assert connection.limits is None
