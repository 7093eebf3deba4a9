"""core.blocking.poll: pollers, select and proxies of blocking sockets."""

from __future__ import annotations

import os
import threading

import pytest

import core
import core.blocking as zmq
from tests.scenes.waiting import PATIENCE_S


def test_sockets_of_two_contexts_and_files_are_polled_together() -> None:
    reading, writing = os.pipe()
    with zmq.Context() as one, zmq.Context() as two, one.socket(zmq.PULL) as pull, two.socket(zmq.PUSH) as push:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        poller = zmq.Poller()
        poller.register(pull, zmq.POLLIN)
        poller.register(push, zmq.POLLOUT)
        poller.register(reading, zmq.POLLIN)
        assert poller.poll(0) == []
        push.connect(f"tcp://127.0.0.1:{port}")
        assert poller.poll(PATIENCE_S * 1000) == [(push, zmq.POLLOUT)]
        poller.modify(push, 0)
        os.write(writing, b"x")
        assert poller.poll(PATIENCE_S * 1000) == [(reading, zmq.POLLIN)]
    os.close(reading)
    os.close(writing)


def test_a_closed_socket_ends_a_poll() -> None:
    with zmq.Context() as context:
        socket = context.socket(zmq.PULL)
        poller = zmq.Poller()
        poller.register(socket)
        threading.Timer(0.05, socket.close).start()
        with pytest.raises(zmq.SocketClosed):
            poller.poll()


async def test_a_poller_of_asyncio_watches_blocking_sockets_too() -> None:
    async with core.Context() as context:
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind("inproc://own")
        push.connect("inproc://own")
        blocking = zmq.Context()
        theirs, other = blocking.socket(zmq.PULL), blocking.socket(zmq.PUSH)
        theirs.bind("inproc://other")
        other.connect("inproc://other")
        poller = core.Poller()
        poller.register(pull, core.POLLIN)
        poller.register(theirs, core.POLLIN)
        assert await poller.poll(5) == []
        other.send(b"x")
        assert await poller.poll(PATIENCE_S * 1000) == [(theirs, core.POLLIN)]
        assert theirs.recv() == b"x"
        await push.send(b"y")
        assert await poller.poll() == [(pull, core.POLLIN)]
        theirs.close()
        other.close(0)
        blocking.term()


def test_files_alone_need_no_context() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        assert zmq.select([file], [writing], [], 0) == ([], [writing], [])
        os.close(writing)
        assert zmq.select([file], [], [], PATIENCE_S) == ([reading], [], [])


def test_device_is_a_proxy_and_a_rep_can_answer_itself() -> None:
    with zmq.Context() as context:
        rep, req = context.socket(zmq.REP), context.socket(zmq.REQ)
        rep.bind("inproc://echo")
        req.connect("inproc://echo")
        ended: list[type[BaseException]] = []

        def echo() -> None:
            try:
                zmq.device(zmq.QUEUE, rep)
            except zmq.ZMQError as error:
                ended.append(type(error))

        thread = threading.Thread(target=echo)
        thread.start()
        for word in (b"one", b"two"):
            req.send(word)
            assert req.recv() == word
        req.close()
        rep.close()
        thread.join(PATIENCE_S)
        assert ended == [zmq.SocketClosed]
