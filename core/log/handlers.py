"""Logging handler that publishes records over a PUB socket: `[topic][text]`, where the topic is ROOT.LEVEL.SUBTOPIC.

    handler = PUBHandler("tcp://127.0.0.1:5557", root_topic="billing")
    logging.getLogger().addHandler(handler)
    logging.getLogger().warning("orders.late::order 17 is late")      # billing.WARNING.orders.late

Sending never waits: a subscriber that is too slow loses records, as with every PUB socket, and so does a program that logs faster than its
event loop sends (`UNSENT_MAX`).
"""

from __future__ import annotations

import logging
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from core.blocking.context import Context
from core.blocking.socket import Socket
from core.constants import PUB
from core.errors import ZMQError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from core.sockets.socket import Socket as AsynchronousSocket

__all__ = ["TOPIC_DELIM", "UNSENT_MAX", "PUBHandler", "TopicLogger"]

TOPIC_DELIM: Final = "::"  # between a subtopic and the text of a message
UNSENT_MAX: Final = 1000  # records on their way to the event loop of a blocking socket: as many as a PUB keeps for a subscriber
_LEVELS: Final = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_PLACE: Final = "%(levelname)s %(filename)s:%(lineno)d - %(message)s\n"


class PUBHandler(logging.Handler):
    """Publishes log records.

    Args:
        interface_or_socket: endpoint to bind to, or a PUB socket that is bound or connected. A blocking socket may be used from any thread,
            a `core.Socket` only from its own.
        context: of the socket that is made for an endpoint; a new one when left out.
        root_topic: first part of every topic.

    Attributes:
        ctx: context of the socket.
        socket: as given or made.
        formatters: of each level; see `setFormatter`.
        dropped: records that were not sent, because `UNSENT_MAX` others were not yet.
    """

    def __init__(
        self, interface_or_socket: str | Socket | AsynchronousSocket, context: Context | None = None, root_topic: str | bytes = ""
    ) -> None:
        super().__init__()
        self.root_topic = root_topic
        self.formatters: dict[int, logging.Formatter | None] = {level: logging.Formatter(_PLACE) for level in _LEVELS}
        self.formatters[logging.INFO] = logging.Formatter("%(message)s\n")
        self.dropped = 0
        self._unsent: deque[Future[None]] = deque()  # the oldest first
        self.ctx: Any
        self.socket: Any
        if isinstance(interface_or_socket, str):
            self.ctx = context or Context()
            self.socket = self.ctx.socket(PUB)
            self.socket.bind(interface_or_socket)
        else:
            self.socket = interface_or_socket
            self.ctx = self.socket.context

    @property
    def root_topic(self) -> str:
        """The first part of every topic."""
        return self._root_topic

    @root_topic.setter
    def root_topic(self, value: str | bytes) -> None:
        self._root_topic = value.decode("utf-8") if isinstance(value, bytes) else value

    def setRootTopic(self, root_topic: str | bytes) -> None:
        """Set the first part of every topic."""
        self.root_topic = root_topic

    def setFormatter(self, fmt: logging.Formatter | None, level: int = logging.NOTSET) -> None:
        """Set the formatter of one level, or of all.

        Args:
            fmt: the formatter, None for the default of `logging`.
            level: such as `logging.DEBUG`; NOTSET for all.
        """
        for one in _LEVELS if level == logging.NOTSET else (level,):
            self.formatters[one] = fmt

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, by the formatter of its level."""
        formatter = self.formatters.get(record.levelno)
        return super().format(record) if formatter is None else formatter.format(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Publish a record; an error goes to `handleError`, as in every handler."""
        subtopic, delimiter, text = str(record.msg).partition(TOPIC_DELIM)
        if delimiter:
            record = copy(record)
            record.msg = text
        parts = [self.root_topic, record.levelname, subtopic if delimiter else ""]
        # A record may come from the event loop of the blocking sockets, or while that waits for the lock of this handler.
        try:
            topic = ".".join(part for part in parts if part).encode("utf-8", "replace")
            message = [topic, self.format(record).encode("utf-8", "replace")]
            if isinstance(self.socket, Socket):
                self._send_later(self.socket, message)
            else:
                self.socket.send_multipart(message)
        except (ZMQError, ValueError, TypeError, KeyError):  # an argument that does not fit the text, or a closed socket
            self.handleError(record)

    def _send_later(self, socket: Socket, message: list[bytes]) -> None:
        unsent = self._unsent
        while unsent and unsent[0].done():
            unsent.popleft()
        if len(unsent) < UNSENT_MAX:
            unsent.append(socket.send_later(message))
        else:
            self.dropped += 1


class TopicLogger(logging.Logger):
    """Logger whose methods take a subtopic before the message: `logger.info("orders.late", "order %d is late", 17)`."""

    def _log(self, level: int, msg: object, args: Any, *more: Any, **options: Any) -> None:
        text, *values = args or ("",)
        options["stacklevel"] = options.get("stacklevel", 1) + 1  # the caller's line, not this one
        super()._log(level, f"{msg}{TOPIC_DELIM}{text}", tuple(values), *more, **options)
