"""Ownership: a socket belongs to the thread and event loop of its first use; any other is refused (`WrongOwner`).

Checking every call would cost a tenth of a message over inproc. So sends and receives go through a guard that checks, until a burst of
them has come in one loop iteration: the rest of that iteration is not checked, and the next one begins with the guard again. Measured:
nothing in a burst, a hundredth of a message that a receiver waits for.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from core.errors import WrongOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.frames import Message

# See `SocketBase`.
_SLOTS: Final = ("_ended", "_loop", "_owner_thread", "_put", "_put_now", "_puts", "_take", "_take_now", "_unguarded", "_waiting")
_THREAD: Final = get_ident  # compiled, a constant of the module costs less than a name that it imports
BURST: Final = 64  # sends after which the rest of the iteration is not checked; below, the callback of the loop costs more


@mypyc_attr(allow_interpreted_subclasses=True)
class Owned:
    """The calls by which a socket receives from its pattern and sends to it, guarded."""

    __slots__ = _SLOTS

    def __init__(self, take: Callable[[], Message | None], put: Callable[[Message], bool], waiting: Collection[object]) -> None:
        self._ended = False  # the socket or its context is closed
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first use
        self._owner_thread = 0  # of that loop; 0 before the first use, and after the end
        self._puts = 0  # sends since the guard was set
        self._unguarded = False
        self._waiting = waiting  # not empty while there are messages
        self._take_now = take  # returns the next message, None when there is none
        self._put_now = put  # sends a message; returns False when it has to wait
        self._take: Callable[[], Message | None] = self._take_guarded
        self._put: Callable[[Message], bool] = self._put_guarded

    @property
    @abstractmethod
    def scheduler(self) -> WriteScheduler:
        """See `SocketBase`."""

    def follow_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to the first loop that uses the socket, until that loop is closed."""
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise WrongOwner(msg="this socket is used on another event loop; make one for each loop")
            self._loop = loop
            if not self._ended:
                self._owner_thread = _THREAD()

    def enter(self) -> None:
        """Check a call from a thread not known as the owner; raises WrongOwner if another one is."""
        if self._ended:
            self._refuse()
        loop = asyncio._get_running_loop()  # None before a loop runs: what is sent then waits for it
        if loop is not None:
            self.follow_loop(loop)
        elif self._loop is not None and not self._loop.is_closed():
            raise WrongOwner(msg="this socket is used on another thread; make one for each thread")

    def check_loop(self) -> None:
        """Raise WrongOwner while the loop of the socket runs on another thread."""
        loop = self._loop
        if loop is not None and loop.is_running() and asyncio._get_running_loop() is not loop:
            raise WrongOwner(msg="this socket is used on another thread; make one for each thread")

    def _refuse(self, *_: Any) -> Any:
        raise WrongOwner

    def use_to_take(self, take: Callable[[], Message | None]) -> None:
        self._take_now = take
        if self._unguarded:
            self._take = take

    def use_to_put(self, put: Callable[[Message], bool]) -> None:
        self._put_now = put
        if self._unguarded:
            self._put = put

    def use_nothing(self) -> None:
        self._ended = True
        self._owner_thread = 0
        self._unguarded = False
        self._take = self._take_now = self._put = self._put_now = self._refuse

    def guard(self) -> None:
        self._puts = 0
        if self._unguarded:
            self._unguarded = False
            self._take = self._take_guarded
            self._put = self._put_guarded

    def _unguard(self) -> None:
        """Remove the guard for the rest of this loop iteration, if a loop runs."""
        if asyncio._get_running_loop() is not None and not self._ended:
            self.scheduler.guard_later(self)
            self._unguarded = True
            self._take = self._take_now
            self._put = self._put_now

    def _take_guarded(self) -> Message | None:
        if _THREAD() != self._owner_thread:
            self.enter()
        message = self._take_now()
        if message is not None and self._waiting:
            self._unguard()
        return message

    def _put_guarded(self, frames: Message) -> bool:
        if _THREAD() != self._owner_thread:
            self.enter()
        self._puts += 1
        if self._puts == BURST:
            self._unguard()
        return self._put_now(frames)
