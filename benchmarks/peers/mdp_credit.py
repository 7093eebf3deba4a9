"""Majordomo on blocking pyzmq with credit: the broker of `mdp_broker`, whose workers hold up to `CREDIT` requests each.

The messages are those of MDP/0.1, of which a reply names its client. It is the same idea as the credit of MDP/0.3, without its request ids,
so that like is compared with like: what is left is the cost of the sockets and of the broker. It receives as many messages as there are
before it polls again.
"""

from __future__ import annotations

from time import monotonic

import zmq

from benchmarks.peers.mdp_broker import CLIENT, DISCONNECT, READY, REPLY, REQUEST, WORKER, Broker, Service, Worker
from benchmarks.program import Options, main, ready

__all__ = ["CREDIT", "CreditBroker"]

CREDIT = 1000
"""Requests of a worker at once, as in `benchmarks.ours.mdp_peers`."""


class CreditBroker(Broker):
    """The broker, with a count of open requests for each worker."""

    def __init__(self, router: zmq.Socket[bytes], heartbeat_s: float = 2.5) -> None:
        super().__init__(router, heartbeat_s)
        self._open: dict[bytes, int] = {}
        self._socket = router

    def serve_batches(self) -> None:
        """Receive everything that is there without waiting, then wait for more."""
        recv, poll = self._socket.recv_multipart, self._socket.poll
        wait_ms = int(self._heartbeat_s * 1000)
        while True:
            self._now = monotonic()
            try:
                while True:
                    self._receive(recv(zmq.NOBLOCK))
            except zmq.Again:
                if not poll(wait_ms):
                    self._beat()

    def _reply(self, worker: Worker, frames: list[bytes]) -> None:
        self._send([frames[4], b"", CLIENT, worker.service.name, *frames[6:]])
        self._open[worker.routing_id] -= 1
        self._wait(worker)

    def _dispatch(self, service: Service) -> None:
        opened = self._open
        while service.requests and service.idle:
            routing_id, worker = next(iter(service.idle.items()))
            client, body = service.requests.popleft()
            self._send([routing_id, b"", WORKER, REQUEST, client, b"", *body])
            opened[routing_id] = opened.get(routing_id, 0) + 1
            if opened[routing_id] >= CREDIT:
                del service.idle[routing_id]
            else:
                service.idle.move_to_end(worker.routing_id)


def serve(options: Options) -> None:
    """Serve until the harness ends this program."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.sndhwm = router.rcvhwm = 0
    router.bind(options.endpoint)
    ready()
    CreditBroker(router, options.heartbeat_ms / 1000).serve_batches()


def work(options: Options) -> None:
    """Be a worker that holds many requests: receive all that is there, answer each."""
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.sndhwm = dealer.rcvhwm = 0
    dealer.connect(options.endpoint)
    dealer.send_multipart([b"", WORKER, READY, b"echo"])
    ready()
    recv, send = dealer.recv_multipart, dealer.send_multipart
    while True:
        frames = recv()
        if frames[2] == REQUEST:
            send([b"", WORKER, REPLY, frames[3], b"", *frames[5:]])
        elif frames[2] == DISCONNECT:
            return


if __name__ == "__main__":
    main({"serve": serve, "work": work})
