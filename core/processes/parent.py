"""Channel to the process that started this one as one of several.

It is a socket whose descriptor is in the environment. The child sends one JSON object per line. The parent sends `STOP`: not by a signal,
because a service manager may signal all processes at once, and a second signal ends a daemon without a drain. The end of the channel counts
as a signal: no process is left to restart this one or to end it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, MutableMapping

PARENT_FD: Final = "MAJORDOMO_PARENT_FD"  # environment variable: the descriptor of the channel
STOP: Final = b"stop\n"  # message of the parent
READY: Final = "ready"  # key of the message that the daemon serves
_READ_BYTES: Final = 4096


class Parent:
    """The child's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent = b""

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the channel that the environment names, None without one; removes it from there, because children do not inherit it."""
        fd = environment.pop(PARENT_FD, "")
        if not fd.isdigit():
            return None
        try:
            channel = socket.socket(fileno=int(fd))
        except OSError:
            return None
        os.set_inheritable(channel.fileno(), False)
        channel.setblocking(False)
        return cls(channel)

    def watch(self, loop: asyncio.AbstractEventLoop, on_stop: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Call a function when the parent says so, and another one when it has ended."""
        self._loop = loop
        loop.add_reader(self._channel.fileno(), self._read, on_stop, on_end)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message without waiting; it is dropped while an earlier one has not been read."""
        if not self._unsent and self._loop is not None:
            self._unsent = json.dumps(message).encode() + b"\n"
            self._flush()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._loop = None
        self._channel.close()

    def _flush(self) -> None:
        if self._loop is None:
            return
        try:
            sent = self._channel.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the parent has ended; reading notices that
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._channel.fileno())

    def _read(self, on_stop: Callable[[], None], on_end: Callable[[], None]) -> None:
        try:
            received = self._channel.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = b""
        if received:
            on_stop()
        else:
            self.close()
            on_end()
