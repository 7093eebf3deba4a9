"""bstar.net.control: an operator's orders, over a scripted ROUTER."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, cast

import pytest

import core
from bstar.errors import NotActive
from bstar.machine.ballot import Ballot
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestHeader, RequestKind, decode_reply_header, encode_request_header
from bstar.net.control import Control
from tests.scenes.scripted_socket import ScriptedContext

KNOWN = Ballot(3, 7)


class Server:
    """The server that is asked."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.fails: Exception | None = None
        self.go = asyncio.Event()
        self.orders = 0
        self.ended = 0

    def known(self) -> Ballot:
        return KNOWN

    def status(self) -> dict[str, Any]:
        return {"state": "active", "orders": self.orders}

    async def switchover(self) -> None:
        self.orders += 1
        try:
            await self.go.wait()
        finally:
            self.ended += 1
        if self.fails is not None:
            raise self.fails


class Scene:
    """A control socket of a server."""

    def __init__(self) -> None:
        context = ScriptedContext()
        self.server = Server()
        self.control = Control(cast("Any", context), "inproc://control", self.server, {"maxmsgsize": 9})
        (self.socket,) = context.sockets

    def order(self, kind: RequestKind, sequence: int) -> None:
        self.socket.deliver([b"id", b"", encode_request_header(RequestHeader(kind, 1, sequence))])

    def answers(self) -> list[tuple[ReplyHeader, dict[str, Any]]]:
        found = []
        for identity, empty, header, content in self.socket.taken():
            assert (identity, empty) == (b"id", b"")
            found.append((decode_reply_header(header), json.loads(content)))
        return found


async def iterations(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_status_is_answered_at_once() -> None:
    scene = Scene()
    assert (scene.socket.kind, scene.socket.endpoints) == (core.ROUTER, [("bind", "inproc://control")])
    assert scene.socket.options["maxmsgsize"] == 9
    scene.order(RequestKind.STATUS, 5)
    assert scene.answers() == [(ReplyHeader(ReplyKind.REPLY, 5, KNOWN), {"state": "active", "orders": 0})]


async def test_nonsense_is_counted_and_what_follows_is_answered() -> None:
    scene = Scene()
    good = encode_request_header(RequestHeader(RequestKind.STATUS, 1, 6))
    scene.socket.deliver(
        [b"id", good],
        [b"id", b"", good, b""],
        [b"id", b"x", good],
        [b"id", b"", good[:-1]],
        [b"id", b"", encode_request_header(RequestHeader(RequestKind.REQUEST, 1, 7))],
        [b"id", b"", good],
    )
    assert [header.sequence for header, _ in scene.answers()] == [6]
    assert scene.server.counters == {"control_malformed": 5}
    assert scene.server.orders == 0


async def test_a_switchover_is_answered_when_it_is_done() -> None:
    scene = Scene()
    scene.order(RequestKind.SWITCHOVER, 1)
    await iterations()
    scene.order(RequestKind.STATUS, 2)
    assert scene.answers() == [(ReplyHeader(ReplyKind.REPLY, 2, KNOWN), {"state": "active", "orders": 1})]
    scene.server.go.set()
    await iterations()
    assert scene.answers() == [(ReplyHeader(ReplyKind.REPLY, 1, KNOWN), {"state": "active", "orders": 1})]


async def test_a_switchover_that_is_refused_is_answered() -> None:
    scene = Scene()
    scene.server.go.set()
    scene.server.fails = NotActive("no peer", active="backup")
    scene.order(RequestKind.SWITCHOVER, 1)
    await iterations()
    content = {"reason": "no peer", "active": "backup", "state": "active", "orders": 1}
    assert scene.answers() == [(ReplyHeader(ReplyKind.NOT_ACTIVE, 1, KNOWN), content)]


@pytest.mark.faults
async def test_a_fault_of_a_switchover_is_answered() -> None:
    scene = Scene()
    scene.server.go.set()
    scene.server.fails = LookupError()
    scene.order(RequestKind.SWITCHOVER, 1)
    await iterations()
    content = {"reason": "a fault of this server: LookupError", "state": "active", "orders": 1}
    assert scene.answers() == [(ReplyHeader(ReplyKind.NOT_ACTIVE, 1, KNOWN), content)]


async def test_a_control_socket_that_closes_ends_its_orders() -> None:
    scene = Scene()
    scene.order(RequestKind.SWITCHOVER, 1)
    await iterations()
    await scene.control.close()
    assert (scene.server.ended, scene.socket.closed, scene.socket.waited, scene.answers()) == (1, True, True, [])
