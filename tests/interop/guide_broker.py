"""A foreign MDP/0.1 broker for our clients and workers: that of the benchmarks, on blocking pyzmq, in a thread."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

from benchmarks.peers.mdp_broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["guide_broker"]

LOOK_MS = 20
"""How often the thread looks whether it should stop."""


@contextmanager
def guide_broker(endpoint: str = "tcp://127.0.0.1:*", heartbeat_s: float = 2.5, liveness: int = 3) -> Iterator[str]:
    """Run the broker; yields its endpoint. Leaving kills it without a word to anybody."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.rcvtimeo = LOOK_MS
    router.bind(endpoint)
    bound = router.get_string(zmq.LAST_ENDPOINT)
    over = threading.Event()
    thread = threading.Thread(target=Broker(router, heartbeat_s, liveness).serve, args=(over.is_set,))
    thread.start()
    try:
        yield bound
    finally:
        over.set()
        thread.join()
        router.close()
        context.term()
