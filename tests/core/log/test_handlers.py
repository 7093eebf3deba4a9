"""core.log.handlers: what a handler publishes for each record, and how it fails."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING

import core
import core.blocking as zmq
from core.blocking.shared_loop import LOOP
from core.log.handlers import UNSENT_MAX, PUBHandler, TopicLogger

if TYPE_CHECKING:
    import pytest


def test_topics_levels_and_formats() -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        handler = PUBHandler("inproc://records", context=context)
        sub.connect("inproc://records")
        sub.subscribe("")
        logger = TopicLogger("orders")
        logger.addHandler(handler)
        logger.info("late", "order %d", 17)
        handler.setRootTopic(b"shop")
        logger.error("lost", "order %s", "18")
        handler.setFormatter(logging.Formatter("%(levelname)s!"))
        logger.debug("any", "thing")
        received = [sub.recv_multipart() for _ in range(3)]
        assert received[0] == [b"INFO.late", b"order 17\n"]
        assert received[1][0] == b"shop.ERROR.lost"
        assert received[1][1].startswith(b"ERROR test_handlers.py:")
        assert received[2] == [b"shop.DEBUG.any", b"DEBUG!"]
        handler.socket.close()


def test_errors_go_to_the_handler_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[logging.LogRecord] = []
    monkeypatch.setattr(PUBHandler, "handleError", lambda _, record: failed.append(record))
    with zmq.Context() as context:
        handler = PUBHandler("inproc://errors", context=context)
        logger = logging.Logger("wrong")
        logger.addHandler(handler)
        logger.info("%d", "no number")
        handler.socket.close()
        logger.info("after the end")
    assert len(failed) == 2


async def test_a_socket_of_asyncio_can_be_used_on_its_loop() -> None:
    async with core.Context() as context:
        pub, sub = context.socket(core.PUB), context.socket(core.SUB)
        pub.bind("inproc://async")
        sub.subscribe("")
        sub.connect("inproc://async")
        handler = PUBHandler(pub, root_topic="root")
        assert (handler.socket, handler.ctx) == (pub, context)
        handler.emit(logging.LogRecord("name", logging.INFO, __file__, 1, "text", (), None))
        assert await sub.recv_multipart() == [b"root.INFO", b"text\n"]


def test_what_the_event_loop_of_blocking_sockets_logs_is_published_too() -> None:
    """It waited for itself, and all blocking sockets of the program stood still."""
    logger = logging.getLogger("core.socket")
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.PULL) as pull:
        handler = PUBHandler("inproc://own", context=context)
        sub.connect("inproc://own")
        sub.subscribe("")
        logger.addHandler(handler)
        try:
            port = pull.bind_to_random_port("tcp://127.0.0.1")
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
                topic, text = sub.recv_multipart()
        finally:
            logger.removeHandler(handler)
        assert topic == b"WARNING"
        assert b"peer speaks HTTP" in text
        handler.socket.close()


def test_publishing_a_record_waits_for_nothing() -> None:
    """The event loop may wait for the lock of the handler, which logs."""
    gate = threading.Event()
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        handler = PUBHandler("inproc://busy", context=context)
        sub.connect("inproc://busy")
        sub.subscribe("")
        LOOP.soon(gate.wait)
        logger = logging.Logger("busy")
        logger.addHandler(handler)
        for number in range(3):
            logger.info("%d", number)
        gate.set()
        assert [sub.recv_multipart() for _ in range(3)] == [[b"INFO", b"%d\n" % number] for number in range(3)]
        handler.socket.close()


def test_records_beyond_those_that_may_be_unsent_are_dropped_and_counted() -> None:
    """A program that logs faster than its event loop sends keeps no more of them."""
    gate = threading.Event()
    with zmq.Context() as context, context.socket(zmq.SUB, rcvhwm=0) as sub:
        handler = PUBHandler("inproc://many", context=context)
        sub.connect("inproc://many")
        sub.subscribe("")
        logger = logging.Logger("many")
        logger.addHandler(handler)
        LOOP.soon(gate.wait)
        for number in range(UNSENT_MAX + 3):
            logger.info("%d", number)
        assert handler.dropped == 3
        gate.set()
        assert [sub.recv_multipart()[1] for _ in range(UNSENT_MAX)] == [b"%d\n" % number for number in range(UNSENT_MAX)]
        logger.info("later")
        assert sub.recv_multipart() == [b"INFO", b"later\n"]
        handler.socket.close()
