"""Echo on pyzmq: a ROUTER that echoes, and DEALER clients with `window` messages in flight.

Three variants: ``blocking`` uses recv_multipart/send_multipart as most programs do; ``frames`` calls recv/send for each frame, which
works only because the number of frames is known (pyzmq's multipart calls are Python and cost several microseconds); ``asyncio`` is
zmq.asyncio on uvloop.
"""

from __future__ import annotations

from time import perf_counter

import zmq
import zmq.asyncio

from benchmarks.peers.secured import as_client, as_server
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

CHUNK = 100
"""Messages between two looks at the clock."""


def bound_router(context: zmq.Context[zmq.Socket[bytes]], options: Options) -> zmq.Socket[bytes]:
    """A ROUTER bound where the harness wants it."""
    router = context.socket(zmq.ROUTER)
    router.bind(options.endpoint)
    return router


def connected_dealer(context: zmq.Context[zmq.Socket[bytes]], options: Options) -> zmq.Socket[bytes]:
    """A DEALER connected to the server."""
    dealer = context.socket(zmq.DEALER)
    dealer.connect(options.endpoint)
    return dealer


def serve_blocking(options: Options) -> None:
    """Whole messages, blocking."""
    router = bound_router(as_server(zmq.Context(), options), options)
    ready()
    recv, send = router.recv_multipart, router.send_multipart
    while True:
        send(recv())


def serve_frames(options: Options) -> None:
    """Echo routing id and body separately, blocking."""
    router = bound_router(as_server(zmq.Context(), options), options)
    ready()
    recv, send, more = router.recv, router.send, int(zmq.SNDMORE)
    while True:
        send(recv(), more)
        send(recv())


def serve_asyncio(options: Options) -> None:
    """Whole messages on zmq.asyncio."""

    async def serve() -> None:
        router = as_server(zmq.asyncio.Context(), options).socket(zmq.ROUTER)
        router.bind(options.endpoint)
        ready()
        while True:
            await router.send_multipart(await router.recv_multipart())

    run_on_loop(serve())


def flood_blocking(options: Options) -> None:
    """Keep `window` messages in flight and count the replies."""
    dealer = connected_dealer(as_client(zmq.Context(), options), options)
    message = [body_of(options.size)]
    ready()
    recv, send = dealer.recv_multipart, dealer.send_multipart
    send(message)
    assert recv() == message
    for _ in range(options.window):
        send(message)
    meter = Meter(options)
    while meter.add(CHUNK):
        for _ in range(CHUNK):
            recv()
            send(message)
    report(meter.figures())


def flood_frames(options: Options) -> None:
    """The same with one call per frame."""
    dealer = connected_dealer(as_client(zmq.Context(), options), options)
    body = body_of(options.size)
    ready()
    recv, send = dealer.recv, dealer.send
    send(body)
    assert recv() == body
    for _ in range(options.window):
        send(body)
    meter = Meter(options)
    while meter.add(CHUNK):
        for _ in range(CHUNK):
            recv()
            send(body)
    report(meter.figures())


def flood_asyncio(options: Options) -> None:
    """The same on zmq.asyncio."""

    async def flood() -> None:
        dealer = as_client(zmq.asyncio.Context(), options).socket(zmq.DEALER)
        dealer.connect(options.endpoint)
        message = [body_of(options.size)]
        ready()
        await dealer.send_multipart(message)
        assert await dealer.recv_multipart() == message
        for _ in range(options.window):
            await dealer.send_multipart(message)
        meter = Meter(options)
        while meter.add(CHUNK):
            for _ in range(CHUNK):
                await dealer.recv_multipart()
                await dealer.send_multipart(message)
        report(meter.figures())

    run_on_loop(flood())


def trip_blocking(options: Options) -> None:
    """Send one message at a time: the time of a round trip."""
    dealer = connected_dealer(as_client(zmq.Context(), options), options)
    message = [body_of(options.size)]
    ready()
    recv, send = dealer.recv_multipart, dealer.send_multipart
    meter = Meter(options)
    while meter.add(1):
        before = perf_counter()
        send(message)
        recv()
        if meter.measuring:
            meter.trips.append(perf_counter() - before)
    report(meter.figures())


def trip_asyncio(options: Options) -> None:
    """The same on zmq.asyncio."""

    async def trip() -> None:
        dealer = as_client(zmq.asyncio.Context(), options).socket(zmq.DEALER)
        dealer.connect(options.endpoint)
        message = [body_of(options.size)]
        ready()
        meter = Meter(options)
        while meter.add(1):
            before = perf_counter()
            await dealer.send_multipart(message)
            await dealer.recv_multipart()
            if meter.measuring:
                meter.trips.append(perf_counter() - before)
        report(meter.figures())

    run_on_loop(trip())


if __name__ == "__main__":
    main(
        {
            "serve-blocking": serve_blocking,
            "serve-frames": serve_frames,
            "serve-asyncio": serve_asyncio,
            "flood-blocking": flood_blocking,
            "flood-frames": flood_frames,
            "flood-asyncio": flood_asyncio,
            "trip-blocking": trip_blocking,
            "trip-asyncio": trip_asyncio,
        }
    )
