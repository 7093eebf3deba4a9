"""The process that started this one as one of several, as this one sees it: a channel over which it reports and notices the other's end.

The channel is a socket whose descriptor is in the environment. It carries one JSON object per line, from the child to its parent only. Its
end counts as a signal to stop: nobody is left to restart this process or to end it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, MutableMapping

__all__ = ["PARENT_FD", "READY", "Parent"]

PARENT_FD: Final = "MAJORDOMO_PARENT_FD"  # environment variable: the descriptor of the channel
READY: Final = "ready"  # key of the message that the daemon serves
_READ_BYTES: Final = 4096


class Parent:
    """The child's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the parent that the environment names, and remove it from there, so that no grandchild takes it for its own.

        None without a parent, or if the descriptor is no open socket.
        """
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

    def watch(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        """Call a function when the parent has ended."""
        self._loop = loop
        loop.add_reader(self._channel.fileno(), self._read, on_end)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; it is left out when the parent does not read or has ended, because nothing here may wait for it."""
        line = json.dumps(message).encode() + b"\n"
        try:
            sent = self._channel.send(line)
        except OSError:
            return
        if sent < len(line):
            self.close()  # half a line would spoil the next one

    def close(self) -> None:
        """Close the channel."""
        if self._loop is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._loop = None
        self._channel.close()

    def _read(self, on_end: Callable[[], None]) -> None:
        try:
            received = self._channel.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = b""
        if not received:
            self.close()
            on_end()
