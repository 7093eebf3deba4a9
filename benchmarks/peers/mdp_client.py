"""MDP/0.1 clients on blocking pyzmq, from RFC 7: REQ, DEALER with `window` in flight, a burst."""

from __future__ import annotations

from time import perf_counter

import zmq

from benchmarks.peers.mdp_broker import CLIENT
from benchmarks.peers.secured import as_client
from benchmarks.program import Meter, Options, body_of, main, ready, report

CHUNK = 20
"""Requests between two looks at the clock: one takes over 100 microseconds."""


def one_at_a_time(options: Options) -> None:
    """Send and receive with REQ, which writes the empty delimiter itself."""
    req = as_client(zmq.Context(), options).socket(zmq.REQ)
    req.connect(options.endpoint)
    ready()
    body = body_of(options.size)
    message, expected = [CLIENT, b"echo", body], [CLIENT, b"echo", body]
    recv, send = req.recv_multipart, req.send_multipart
    meter = Meter(options)
    while meter.add(1):
        before = perf_counter()
        send(message)
        reply = recv()
        if meter.measuring:
            meter.trips.append(perf_counter() - before)
        assert reply == expected
    report(meter.figures())


def pipelined(options: Options) -> None:
    """Keep `window` requests in flight with DEALER, which needs an explicit empty delimiter."""
    dealer = as_client(zmq.Context(), options).socket(zmq.DEALER)
    dealer.sndhwm = dealer.rcvhwm = 0
    dealer.connect(options.endpoint)
    ready()
    message = [b"", CLIENT, b"echo", body_of(options.size)]
    recv, send = dealer.recv_multipart, dealer.send_multipart
    for _ in range(options.window):
        send(message)
    assert recv() == message  # an echo: the reply looks like the request
    send(message)
    meter = Meter(options)
    while meter.add(CHUNK):
        for _ in range(CHUNK):
            recv()
            send(message)
    report(meter.figures())


def burst(options: Options) -> None:
    """Send `count` requests at once, then collect every reply."""
    dealer = as_client(zmq.Context(), options).socket(zmq.DEALER)
    dealer.sndhwm = dealer.rcvhwm = 0
    dealer.connect(options.endpoint)
    ready()
    message = [b"", CLIENT, b"echo", body_of(options.size)]
    begun = perf_counter()
    for _ in range(options.count):
        dealer.send_multipart(message)
    for _ in range(options.count):
        dealer.recv_multipart()
    report({"rate": options.count / (perf_counter() - begun), "total": options.count})


if __name__ == "__main__":
    main({"one": one_at_a_time, "pipelined": pipelined, "burst": burst})
