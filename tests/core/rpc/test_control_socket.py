"""core.rpc.control_socket: operators' requests over a ROUTER."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import core
from core.rpc.control_socket import ControlSocket, NoAnswer, asking
from core.security.authenticator import curve_keypair
from tests.scenes.hanging_names import hanging

PUBLIC, SECRET = curve_keypair()


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


async def test_a_question_to_a_silent_or_absent_server_says_so() -> None:
    async with core.Context() as context, context.socket(core.ROUTER) as silent:
        silent.bind("tcp://127.0.0.1:*")
        for endpoint, trouble in ((silent.last_endpoint, ""), ("ipc://nobody-here", ": .*No such file or directory")):
            with pytest.raises(NoAnswer, match=f"^nothing heard from {endpoint} within 0.1 s{trouble}$") as raised:
                async with asking(core.DEALER, endpoint, 0.1, None) as client:
                    await client.recv()
            assert not raised.value.refused


async def test_a_question_to_a_host_whose_name_servers_do_not_answer_says_what_it_waited_for() -> None:
    with hanging(), pytest.raises(NoAnswer, match=r"within 0.2 s: no connection within 0.1 s, or its name is not resolved$"):
        async with asking(core.DEALER, "tcp://slow.test:5555", 0.2, None) as client:
            await client.recv()


@pytest.mark.parametrize(
    ("theirs", "ours", "trouble"),
    [
        (core.Curve(secret_key=SECRET, any_key=True), None, "peer has mechanism 'CURVE', we have 'NULL'"),
        (core.Curve(secret_key=SECRET, keys={PUBLIC: "ann"}), core.Curve(server_key=PUBLIC), "400"),
        (core.Plain(users={"ann": "right"}), core.Plain(user="ann", password="wrong"), "400"),
        (None, core.Curve(server_key=PUBLIC), "peer has mechanism 'NULL', we have 'CURVE'"),
    ],
    ids=["no-keys", "key-in-no-list", "password", "server-without"],
)
async def test_a_question_whose_security_does_not_fit_ends_at_once_and_says_so(theirs: Any, ours: Any, trouble: str) -> None:
    """It was *nothing heard*, after the whole time."""
    async with core.Context(security=theirs) as context, context.socket(core.ROUTER) as server:
        server.bind("tcp://127.0.0.1:*")
        with pytest.raises(NoAnswer, match=f"wants other security options: .*{trouble}") as raised:
            async with asking(core.DEALER, server.last_endpoint, 1000.0, ours) as client:
                await client.recv()
        assert (raised.value.refused, raised.value.endpoint) == (True, server.last_endpoint)
        assert isinstance(raised.value, TimeoutError)


async def test_an_endpoint_in_use_leaves_no_socket_behind() -> None:
    async with core.Context() as context:
        control = Echo(context, "tcp://127.0.0.1:*")
        with pytest.raises(core.AddressInUse):
            Echo(context, control.endpoint)
        context.max_sockets = 2
        context.socket(core.REQ).close()
        await control.close()
        await Echo(context, control.endpoint).close()
