"""Whose a socket is: it belongs to the thread and the event loop of its first use, and is refused to any other (`WrongOwner`).

Asking at every call would cost a tenth of a message over inproc. So sends and receives go through a guard that asks, until a burst of them
has come in one turn of the loop: the rest of that turn is not asked, and the next one begins with the guard again. Measured: nothing in a
burst, a hundredth of a message that somebody waits for.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from core.errors import WrongOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.decoder import Message

__all__ = ["Owned"]

BURST: Final = 64  # sends after which the rest of the turn is not asked: it has to be worth a callback of the loop


class Owned:
    """What a socket takes messages with and puts them into its pattern with, guarded.

    Args:
        take: the next message, None when there is none.
        put: sends a message, False when there is no room.
        waiting: not empty while there is something to take.
    """

    if not TYPE_CHECKING:  # see `SocketBase`
        __slots__ = ("_ended", "_loop", "_put", "_put_now", "_puts", "_take", "_take_now", "_thread", "_unguarded", "_waiting")

    def __init__(self, take: Callable[[], Message | None], put: Callable[[Message], bool], waiting: Collection[object]) -> None:
        self._ended = False  # closed, or the context is
        self._loop: asyncio.AbstractEventLoop | None = None  # it is used on
        self._thread = 0  # of that loop; 0 before, and after the end
        self._puts = 0  # since the guard is up
        self._unguarded = False
        self._waiting = waiting
        self._take_now = take
        self._put_now = put
        self._take: Callable[[], Message | None] = self._take_guarded
        self._put: Callable[[Message], bool] = self._put_guarded

    if TYPE_CHECKING:

        @property
        def scheduler(self) -> WriteScheduler:
            """See `SocketBase`."""

    def follow_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to the loop of whoever comes first, until it is closed: another one would never hear of a message."""
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise WrongOwner(msg="this socket is used on another event loop; make one for each loop")
            self._loop = loop
            if not self._ended:
                self._thread = get_ident()

    def enter(self) -> None:
        """Be used by a thread that is not the owner's, as far as is known.

        Raises:
            WrongOwner: it is another one.
        """
        if self._ended:
            self._refuse()
        loop = asyncio._get_running_loop()  # None before any runs: what is sent then waits for it
        if loop is not None:
            self.follow_loop(loop)
        elif self._loop is not None and not self._loop.is_closed():
            raise WrongOwner(msg="this socket is used on another thread; make one for each thread")

    def _refuse(self, *_: Any) -> Any:
        """See `Socket`."""
        raise WrongOwner

    def use_to_take(self, take: Callable[[], Message | None]) -> None:
        """Take messages with this from now on."""
        self._take_now = take
        if self._unguarded:
            self._take = take

    def use_to_put(self, put: Callable[[Message], bool]) -> None:
        """Send messages with this from now on."""
        self._put_now = put
        if self._unguarded:
            self._put = put

    def use_nothing(self) -> None:
        """Refuse every call from now on."""
        self._ended = True
        self._thread = 0
        self._unguarded = False
        self._take = self._take_now = self._put = self._put_now = self._refuse

    def guard(self) -> None:
        """A turn has ended: ask again."""
        self._puts = 0
        if self._unguarded:
            self._unguarded = False
            self._take = self._take_guarded
            self._put = self._put_guarded

    def _unguard(self) -> None:
        """Ask no more in this turn, if one runs."""
        if asyncio._get_running_loop() is not None and not self._ended:
            self.scheduler.guard_later(self)
            self._unguarded = True
            self._take = self._take_now
            self._put = self._put_now

    def _take_guarded(self) -> Message | None:
        if get_ident() != self._thread:
            self.enter()
        message = self._take_now()
        if message is not None and self._waiting:
            self._unguard()
        return message

    def _put_guarded(self, frames: Message) -> bool:
        if get_ident() != self._thread:
            self.enter()
        self._puts += 1
        if self._puts == BURST:
            self._unguard()
        return self._put_now(frames)
