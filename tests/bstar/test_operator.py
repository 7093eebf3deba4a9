"""Answers to an operator's questions that no server of ours gives."""

from __future__ import annotations

import asyncio

import pytest

import core
from bstar.errors import MalformedMessage
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestKind, encode_reply_header
from bstar.operator import order
from tests.scenes.bstar_sockets import PATIENT


@pytest.mark.parametrize("kind", [ReplyKind.REPLY, ReplyKind.NOT_ACTIVE])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"1", b"\xff", b"[" * 100_000])
async def test_an_answer_that_is_no_json_object_is_malformed(kind: ReplyKind, content: bytes) -> None:
    async with core.Context() as context, context.socket(core.ROUTER, linger=0) as server:
        server.bind("tcp://127.0.0.1:*")
        asked = asyncio.ensure_future(order(server.last_endpoint, RequestKind.STATUS, PATIENT))
        peer, *_ = await server.recv_multipart()
        await server.send_multipart([peer, b"", encode_reply_header(ReplyHeader(kind, 1)), content])
        with pytest.raises(MalformedMessage):
            await asked
