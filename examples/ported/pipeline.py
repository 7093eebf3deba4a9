"""Ventilator, workers and sink in threads, with a poller and a control socket: a program of pyzmq."""

from __future__ import annotations

import threading
from typing import Any

import core.blocking as zmq

TASKS = 100
WORKERS = 3


def ventilator(context: Any) -> None:
    """Send numbers to whichever worker is free."""
    sender = context.socket(zmq.PUSH)
    sender.bind("inproc://tasks")
    for number in range(TASKS):
        sender.send_json({"number": number})
    sender.close()


def worker(context: Any, name: str) -> None:
    """Square numbers until the control socket says stop."""
    receiver = context.socket(zmq.PULL)
    receiver.connect("inproc://tasks")
    sender = context.socket(zmq.PUSH)
    sender.connect("inproc://results")
    control = context.socket(zmq.SUB)
    control.connect("inproc://control")
    control.setsockopt(zmq.SUBSCRIBE, b"")
    poller = zmq.Poller()
    poller.register(receiver, zmq.POLLIN)
    poller.register(control, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if receiver in ready:
            task = receiver.recv_json()
            sender.send_multipart([name.encode(), str(task["number"] ** 2).encode()])
        if control in ready:
            control.recv()
            break
    for socket in (receiver, sender, control):
        socket.close(linger=0)


def main() -> None:
    """Run all parts; print the sum of the squares, and that every worker has ended."""
    context = zmq.Context()
    sink = context.socket(zmq.PULL)
    sink.bind("inproc://results")
    control = context.socket(zmq.PUB)
    control.bind("inproc://control")
    threads = [threading.Thread(target=ventilator, args=(context,))]
    threads += [threading.Thread(target=worker, args=(context, f"worker-{number}")) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    total = 0
    for _ in range(TASKS):
        _, square = sink.recv_multipart()
        total += int(square)
    while any(thread.is_alive() for thread in threads):
        control.send(b"stop")  # again, for those whose subscription is on its way
        for thread in threads:
            thread.join(0.01)
    print(f"{TASKS} squares, sum {total}")
    sink.close()
    control.close()
    context.term()


if __name__ == "__main__":
    main()
