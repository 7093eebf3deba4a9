"""core.rpc.control_socket: operators' requests over a ROUTER."""

from __future__ import annotations

import asyncio

import pytest

import core
from core.rpc.control_socket import ControlSocket, asking


class Echo(ControlSocket):
    """Answers with the request."""

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            self._socket.send_multipart(frames)


async def test_requests_are_answered_at_the_bound_endpoint() -> None:
    async with core.Context() as context:
        control = Echo(context, "tcp://127.0.0.1:*", maxmsgsize=100)
        async with asyncio.timeout(100), context.socket(core.REQ) as client:
            client.connect(control.endpoint)
            await client.send_multipart([b"STATUS", b"x"])
            assert await client.recv_multipart() == [b"STATUS", b"x"]
            await control.close()
            assert not context._closing  # it was waited for, with its connection


async def test_a_question_is_answered_within_its_time_or_ends() -> None:
    async with core.Context() as context:
        control = Echo(context, "tcp://127.0.0.1:*")
        async with asking(core.REQ, control.endpoint, 100.0, None) as client:
            await client.send(b"STATUS")
            assert await client.recv() == b"STATUS"
            assert client.getsockopt(core.LINGER) == 0  # its end does not wait for a question that nobody reads
        await control.close()
        with pytest.raises(TimeoutError):
            async with asking(core.DEALER, control.endpoint, 0.0, None) as client:
                await client.recv()


async def test_an_endpoint_in_use_leaves_no_socket_behind() -> None:
    async with core.Context() as context:
        control = Echo(context, "tcp://127.0.0.1:*")
        with pytest.raises(core.AddressInUse):
            Echo(context, control.endpoint)
        context.max_sockets = 2
        context.socket(core.REQ).close()
        await control.close()
        await Echo(context, control.endpoint).close()
