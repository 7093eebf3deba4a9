"""One way over inproc on pyzmq: two threads with blocking sockets, and two tasks on zmq.asyncio.

``blocking`` uses send_multipart/recv_multipart, ``frames`` the faster send/recv that fit messages of one frame.
"""

from __future__ import annotations

import asyncio
import threading

import zmq
import zmq.asyncio

from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop
from benchmarks.works.limits import chunk_for

ENDPOINT = "inproc://one-way"


def blocking(options: Options) -> None:
    """A thread pushes whole messages, the main thread pulls and counts."""
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind(ENDPOINT)
    message = [body_of(options.size)]

    def push_all() -> None:
        push = context.socket(zmq.PUSH)
        push.connect(ENDPOINT)
        send = push.send_multipart
        while True:
            send(message)

    threading.Thread(target=push_all, daemon=True).start()
    ready()
    recv, chunk = pull.recv_multipart, chunk_for(options.size)
    assert recv() == message
    meter = Meter(options)
    while meter.add(chunk):
        for _ in range(chunk):
            recv()
    report(meter.figures())


def frames(options: Options) -> None:
    """A thread pushes single frames, the main thread pulls and counts."""
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind(ENDPOINT)
    body = body_of(options.size)

    def push_all() -> None:
        push = context.socket(zmq.PUSH)
        push.connect(ENDPOINT)
        send = push.send
        while True:
            send(body)

    threading.Thread(target=push_all, daemon=True).start()
    ready()
    recv, chunk = pull.recv, chunk_for(options.size)
    assert recv() == body
    meter = Meter(options)
    while meter.add(chunk):
        for _ in range(chunk):
            recv()
    report(meter.figures())


def on_asyncio(options: Options) -> None:
    """A task pushes, another pulls and counts."""

    async def both() -> None:
        context = zmq.asyncio.Context()
        pull = context.socket(zmq.PULL)
        pull.bind(ENDPOINT)
        push = context.socket(zmq.PUSH)
        push.connect(ENDPOINT)
        body = body_of(options.size)

        async def push_all() -> None:
            while True:
                await push.send(body)

        pusher = asyncio.create_task(push_all())
        ready()
        chunk = chunk_for(options.size)
        assert await pull.recv() == body
        meter = Meter(options)
        while meter.add(chunk):
            for _ in range(chunk):
                await pull.recv()
        pusher.cancel()
        report(meter.figures())

    run_on_loop(both())


if __name__ == "__main__":
    main({"blocking": blocking, "frames": frames, "asyncio": on_asyncio})
