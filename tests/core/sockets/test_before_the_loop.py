"""Sockets that were bound and connected before an event loop ran, and the context they share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.waiting import PATIENCE_S, Watch

if TYPE_CHECKING:
    from pathlib import Path


def test_all_sockets_of_a_context_start_when_one_is_used() -> None:
    """A DEALER that binds waits for a peer, which is not used before: it starts too."""
    context = core.Context()
    dealer, router = context.socket(core.DEALER, linger=0), context.socket(core.ROUTER, linger=0)
    port = dealer.bind_to_random_port("tcp://127.0.0.1")
    router.connect(f"tcp://127.0.0.1:{port}")
    never = context.socket(core.PULL)
    never.connect(f"tcp://127.0.0.1:{port}")
    never.close()

    async def main() -> bytes:
        async with context:
            await dealer.send(b"x")
            return (await router.recv_multipart())[1]

    assert asyncio.run(main()) == b"x"


async def test_the_instance_of_a_process() -> None:
    context = core.Context.instance()
    assert core.asyncio.Context.instance() is context
    await context.aclose()
    other = core.Context.instance()
    assert other is not context
    await other.aclose()


def test_a_class_of_its_own_may_share_or_not() -> None:
    class Same(core.Context):
        pass

    class Own(core.Context):
        _instance = None

    shared = core.Context.instance()
    assert Same.instance() is shared
    assert type(Own.instance()) is Own
    shared.term()
    Own.instance().term()


def test_capabilities_and_what_is_left_out() -> None:
    assert core.pyzmq_version_info() >= (17,)
    assert core.pyzmq_version() == ".".join(map(str, core.pyzmq_version_info()))
    assert core.IPC_PATH_MAX_LEN in (0, 103, 107)
    for name, advice in (("AFFINITY", "threads"), ("CLIENT", "DEALER"), ("GSSAPI_SERVER", "CURVE"), ("WSS_HOSTNAME", "tcp")):
        with pytest.raises(AttributeError, match=advice):
            getattr(core, name)
    assert not hasattr(core, "no_such_name")


def test_an_endpoint_that_was_left_before_the_loop_is_not_used(tmp_path: Path) -> None:
    """No message goes to it, and nothing listens or connects there."""
    context = core.Context()
    pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    gone = pull.bind_to_random_port("tcp://127.0.0.1")
    seen = [(socket, Watch(socket)) for socket in (pull, push)]
    pull.unbind(f"tcp://127.0.0.1:{gone}")
    endpoint = f"ipc://{tmp_path}/stays"
    pull.bind(endpoint)
    for one in (f"tcp://127.0.0.1:{gone}", endpoint):
        push.connect(one)
    push.disconnect(f"tcp://127.0.0.1:{gone}")

    async def main() -> list[bytes]:
        async with context, asyncio.timeout(PATIENCE_S):
            await push.send_many([[b"%d" % number] for number in range(4)])
            return [await pull.recv() for _ in range(4)]

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3"]
    (_, bound), (_, connected) = seen
    assert [(one.event, one.endpoint == endpoint) for one in bound.events][:2] == [(core.EVENT_CLOSED, False), (core.EVENT_LISTENING, True)]
    assert {one.endpoint for one in connected.events if one.event != core.EVENT_MONITOR_STOPPED} == {endpoint}


def test_options_of_an_endpoint_are_those_of_its_connect_before_the_loop_too(tmp_path: Path) -> None:
    """SOCK-07."""
    context = core.Context()
    router = context.socket(core.ROUTER, linger=0, router_mandatory=1)
    dealers = {}
    for name in (b"a", b"b"):
        dealers[name] = context.socket(core.DEALER, linger=0)
        dealers[name].bind(f"ipc://{tmp_path}/{name.decode()}")
        router.connect_routing_id, router.hello_msg = name, b"hello " + name
        router.connect(f"ipc://{tmp_path}/{name.decode()}")
    router.hello_msg = b""

    async def main() -> list[tuple[bytes, bytes]]:
        async with context, asyncio.timeout(PATIENCE_S):
            for name in dealers:
                await router.send_multipart([name, b"to " + name])
            return [(await dealer.recv(), await dealer.recv()) for dealer in dealers.values()]

    assert asyncio.run(main()) == [(b"hello a", b"to a"), (b"hello b", b"to b")]
