"""Requests that wait for a shard wait for the broker when it gets another number of shards.

Rules of specs/mdp.md: SHD-06.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from mdp.shards.front import Front
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_FINAL_03, CLIENT_REQUEST_03
from mdp.wire.shards import shard_of
from tests.scenes.mdp_requester import connected, final, requester, sent, submit
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SERVICE = next(name for name in (b"service-%d" % number for number in range(1000)) if shard_of(name, 3) == 2 and shard_of(name, 2) == 1)


def sent_to_be_cancelled(client: mdp.Client, kind: str) -> Callable[[], object]:
    """Send a request and return what cancels it."""
    if kind == "future":
        return client.request(SERVICE.decode(), b"2").cancel
    if kind == "window":
        window = client.open_window(SERVICE.decode(), lambda: None)
        window.send([b"2"])
        return lambda: asyncio.ensure_future(window.withdraw())
    return asyncio.ensure_future(anext(client.stream(SERVICE.decode(), b"2"))).cancel


@pytest.mark.parametrize("kind", ["future", "window", "stream"])
async def test_a_request_that_waited_for_a_former_shard_is_cancelled_and_ends_as_any_other(tmp_path: Path, kind: str) -> None:
    endpoint = f"ipc://{tmp_path}/b"
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        shards = [context.socket(core.ROUTER, linger=0) for _ in range(3)]
        for number, shard in enumerate(shards):
            shard.bind(f"{endpoint}.{number}")

        async def asked() -> tuple[bytes, bytes, bytes]:
            """Return connection, command and request number of the next message at a shard of the service."""
            while True:
                name, head, *_ = await shards[shard_now].recv_multipart()
                if head != b"MDPC03\x06":  # a HEARTBEAT
                    return name, head[:7], head[7:]

        shard_now = 2
        async with mdp.Client(endpoint, dialect="auto", window=1, timeout=PATIENCE_S) as client:
            async with Front(3) as front:
                front.bind(endpoint)
                await eventually(lambda: len(client._shards.engines) == 3 and all(one.machine.connected for one in client._shards.engines))
                in_flight, cancel = client.request(SERVICE.decode(), b"1"), sent_to_be_cancelled(client, kind)
                await asyncio.sleep(0)  # a stream is sent by its task
                streaming = client.stream(SERVICE.decode(), b"3")
                part = asyncio.ensure_future(anext(streaming))
                direct, _, first = await asked()
            shard_now = 1
            async with Front(2) as front:
                front.bind(endpoint)
                name, command, cancelled = await asked()
                assert command == CLIENT_REQUEST_03
                cancel()
                assert await asked() == (name, CLIENT_CANCEL_03, cancelled)
                name, command, streamed = await asked()
                assert command == CLIENT_REQUEST_03
                # The reply to the cancelled request and that to another come in one read.
                await shards[1].send_many([[name, CLIENT_FINAL_03 + each, b"reply"] for each in (cancelled, streamed)])
                assert await part == [b"reply"]
                await shards[2].send_multipart([direct, CLIENT_FINAL_03 + first, b"reply"])
                assert await in_flight == [b"reply"]


def test_time_limits_go_with_the_requests() -> None:
    former, machine = requester(), connected()
    pending, other = submit(former), submit(machine)
    machine.take_over(former)
    assert former.tick(1.0) == machine.tick(1.0) == []
    assert (len(sent(former)), len(sent(machine))) == (0, 3)  # `pending` once, and `other` twice
    assert machine.receive([final(pending), final(other)], 1.5) == [pending, other]
    assert former.tick(100.0) == machine.tick(100.0) == []
