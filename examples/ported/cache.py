"""A publisher with a last-value cache for late subscribers: a program of pyzmq with asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import core as zmq
import core.asyncio as zmq_asyncio

TOPICS = (b"air", b"rain", b"wind")


async def cache(frontend: Any, backend: Any) -> None:
    """Pass values on, and send the last one of a topic to each new subscriber."""
    values: dict[bytes, bytes] = {}
    poller = zmq_asyncio.Poller()
    poller.register(frontend, zmq.POLLIN)
    poller.register(backend, zmq.POLLIN)
    while True:
        ready = dict(await poller.poll())
        if frontend in ready:
            topic, value = await frontend.recv_multipart()
            values[topic] = value
            await backend.send_multipart([topic, value])
        if backend in ready:
            event = await backend.recv()
            topic = event[1:]
            if event[0] == 1 and topic in values:
                await backend.send_multipart([topic, values[topic]])


async def main() -> None:
    """Publish once, subscribe afterwards, and print what the cache had kept."""
    context = zmq_asyncio.Context()
    publisher = context.socket(zmq.PUB)
    publisher.bind("inproc://source")
    frontend = context.socket(zmq.SUB)
    frontend.connect("inproc://source")
    frontend.subscribe(b"")
    backend = context.socket(zmq.XPUB)
    backend.setsockopt(zmq.XPUB_VERBOSE, 1)
    backend.bind("inproc://cache")
    running = asyncio.ensure_future(cache(frontend, backend))
    early = context.socket(zmq.SUB)
    early.connect("inproc://cache")
    for topic in TOPICS:
        early.setsockopt(zmq.SUBSCRIBE, topic)
    for number in range(1000):  # until the subscriptions are known: nothing is said before
        await publisher.send_multipart([TOPICS[number % 3], b"%d" % number])
        if await early.poll(1):
            break
    for topic in TOPICS:
        await publisher.send_multipart([topic, b"last of " + topic])
    seen: set[bytes] = set()
    while len(seen) < len(TOPICS):
        _, value = await early.recv_multipart()
        if value.startswith(b"last"):
            seen.add(value)
    late = context.socket(zmq.SUB)
    late.connect("inproc://cache")
    for topic in TOPICS:
        late.setsockopt(zmq.SUBSCRIBE, topic)
    found = sorted([(await late.recv_multipart())[1] for _ in TOPICS])
    print(", ".join(value.decode() for value in found))
    running.cancel()
    for socket in (publisher, frontend, backend, early, late):
        socket.close(linger=0)
    context.term()


if __name__ == "__main__":
    asyncio.run(main())
