"""Sockets that were bound and connected before an event loop ran, and the context they share."""

from __future__ import annotations

import asyncio

import pytest

import core


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
