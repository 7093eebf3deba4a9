"""Closed sockets and connections are freed, in both builds: daemons connect again for months."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter

import pytest

import core
from tests.scenes.waiting import PATIENCE_S, Watch

KINDS = (
    (core.DEALER, core.ROUTER),
    (core.REQ, core.REP),
    (core.SUB, core.PUB),
    (core.XSUB, core.XPUB),
    (core.PULL, core.PUSH),
    (core.PAIR, core.PAIR),
)


def connections() -> Counter[str]:
    """Count the objects of connections."""
    return Counter(
        name for each in gc.get_objects() if (name := type(each).__name__) in {"AcceptedSession", "ConnectedSession", "Connection"}
    )


@pytest.mark.parametrize(("kind", "other"), KINDS)
async def test_what_is_closed_is_freed(kind: int, other: int) -> None:
    """Neither the application nor the context refers to it."""
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        gc.collect()
        before = connections()
        server, client = context.socket(other, linger=0), context.socket(kind, linger=0)
        watch = Watch(client)
        server.bind("tcp://127.0.0.1:*")
        client.connect(server.last_endpoint)
        await watch.peers()
        kept = [weakref.ref(server), weakref.ref(client)]
        for each in (client, server):
            each.close()
            await each.wait_closed()
        del server, client, each, watch
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert [reference() for reference in kept] == [None, None]
        assert connections() <= before
