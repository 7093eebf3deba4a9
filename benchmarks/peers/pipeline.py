"""One way on pyzmq: a PUSH that sends as fast as it can and a PULL that counts.

``blocking`` uses send_multipart/recv_multipart, ``frames`` the faster send/recv that fit messages of one frame.

The high-water mark is larger than the default of 1000 for small messages (that helps pyzmq) and bounded in bytes for
large ones.
"""

from __future__ import annotations

import zmq
import zmq.asyncio

from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop
from benchmarks.works.limits import chunk_for, high_water_for


def push_blocking(options: Options) -> None:
    """Send whole messages until the harness ends this program."""
    push = zmq.Context().socket(zmq.PUSH)
    push.sndhwm = high_water_for(options.size)
    push.connect(options.endpoint)
    ready()
    message, send = [body_of(options.size)], push.send_multipart
    while True:
        send(message)


def pull_blocking(options: Options) -> None:
    """Count the whole messages that arrive."""
    pull = zmq.Context().socket(zmq.PULL)
    pull.rcvhwm = high_water_for(options.size)
    pull.bind(options.endpoint)
    ready()
    recv, chunk = pull.recv_multipart, chunk_for(options.size)
    assert recv() == [body_of(options.size)]
    meter = Meter(options)
    while meter.add(chunk):
        for _ in range(chunk):
            recv()
    report(meter.figures())


def push_frames(options: Options) -> None:
    """Send single frames until the harness ends this program."""
    push = zmq.Context().socket(zmq.PUSH)
    push.sndhwm = high_water_for(options.size)
    push.connect(options.endpoint)
    ready()
    body, send = body_of(options.size), push.send
    while True:
        send(body)


def pull_frames(options: Options) -> None:
    """Count the single frames that arrive."""
    pull = zmq.Context().socket(zmq.PULL)
    pull.rcvhwm = high_water_for(options.size)
    pull.bind(options.endpoint)
    ready()
    recv, chunk = pull.recv, chunk_for(options.size)
    assert recv() == body_of(options.size)
    meter = Meter(options)
    while meter.add(chunk):
        for _ in range(chunk):
            recv()
    report(meter.figures())


def push_asyncio(options: Options) -> None:
    """Send until the harness ends this program."""

    async def push_all() -> None:
        push = zmq.asyncio.Context().socket(zmq.PUSH)
        push.sndhwm = high_water_for(options.size)
        push.connect(options.endpoint)
        ready()
        body = body_of(options.size)
        while True:
            await push.send(body)

    run_on_loop(push_all())


def pull_asyncio(options: Options) -> None:
    """Count what arrives."""

    async def pull_all() -> None:
        pull = zmq.asyncio.Context().socket(zmq.PULL)
        pull.rcvhwm = high_water_for(options.size)
        pull.bind(options.endpoint)
        ready()
        chunk = chunk_for(options.size)
        assert await pull.recv() == body_of(options.size)
        meter = Meter(options)
        while meter.add(chunk):
            for _ in range(chunk):
                await pull.recv()
        report(meter.figures())

    run_on_loop(pull_all())


if __name__ == "__main__":
    main(
        {
            "push-blocking": push_blocking,
            "pull-blocking": pull_blocking,
            "push-frames": push_frames,
            "pull-frames": pull_frames,
            "push-asyncio": push_asyncio,
            "pull-asyncio": pull_asyncio,
        }
    )
