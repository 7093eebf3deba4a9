"""An MDP/0.1 worker on blocking pyzmq, written from RFC 7: a DEALER that echoes, with heartbeats."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

import zmq

from benchmarks.peers.mdp_broker import DISCONNECT, HEARTBEAT, READY, REPLY, REQUEST, WORKER
from benchmarks.peers.secured import as_client
from benchmarks.program import Options, main, ready

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["serve_echo"]

HEARTBEAT_S = 2.5
LIVENESS = 3


def serve_echo(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, service: bytes, stopped: Callable[[], bool] = lambda: False) -> None:
    """Answer every request of `service` with its own body until `stopped()`, reconnecting as RFC 7 asks."""
    while not stopped():
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.rcvtimeo = int(HEARTBEAT_S * 1000)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", WORKER, READY, service])
        try:
            _until_disconnected(dealer, stopped)
        finally:
            dealer.close()


def _until_disconnected(dealer: zmq.Socket[bytes], stopped: Callable[[], bool]) -> None:
    recv, send = dealer.recv_multipart, dealer.send_multipart
    heard_at = beat_at = monotonic()
    while not stopped():
        try:
            frames = recv()
        except zmq.Again:
            frames = []
        now = monotonic()
        if frames:
            heard_at = now
            command = frames[2]
            if command == REQUEST:
                send([b"", WORKER, REPLY, frames[3], b"", *frames[5:]])
            elif command == DISCONNECT:
                return
        elif now - heard_at > HEARTBEAT_S * LIVENESS:
            return
        if now - beat_at > HEARTBEAT_S:
            send([b"", WORKER, HEARTBEAT])
            beat_at = now


def serve(options: Options) -> None:
    """Be one worker of the service ``echo`` until the harness ends this program."""
    context: zmq.Context[zmq.Socket[bytes]] = as_client(zmq.Context(), options)
    ready()
    serve_echo(context, options.endpoint, b"echo")


if __name__ == "__main__":
    main({"serve": serve})
