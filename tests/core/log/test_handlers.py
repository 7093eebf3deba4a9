"""core.log.handlers: what a handler publishes for each record, and how it fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import core
import core.blocking as zmq
from core.log.handlers import PUBHandler, TopicLogger

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
