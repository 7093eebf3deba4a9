"""Lookups of host names, each in a thread of its own.

Where name servers do not answer, a lookup takes half a minute, and an attempt to connect gives up long before. In the loop's pool, the
lookups of one name would soon take all threads, and nothing else there would be done: ballots would not be written. So all that ask for a
name share one lookup for as long as it takes, and no program waits for a lookup at its end.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor, Future, wait
from errno import EAGAIN, EINTR, EINVAL
from typing import TYPE_CHECKING, Any, Final

from core.runtime import runtime, supervision

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

LISTEN_S: Final = 5.0  # that a program which listens on a name waits for its address; what it calls blocks its loop
# A handler of signals may run within the wait that it ends, so it only says so, and takes no lock: the wait looks for it.
LOOK_S: Final = 0.05
LOOKUPS_MAX: Final = 64  # at a time; a program connects to fewer names, and a thread takes some tens of KiB


class _SharedCalls(Executor):
    """Makes each call in a thread of its own, unless the same call is being made: then that is returned."""

    def __init__(self) -> None:
        self._made: dict[object, Future[Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Raise OSError if there are no more threads."""
        key = os.getpid(), fn, args  # after a fork no thread is left
        made = self._made.get(key)
        if made is not None:
            return made
        if len(self._made) >= LOOKUPS_MAX:
            raise OSError(EAGAIN, "too many host names are being resolved")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a waiter that is cancelled leaves it to the others
        self._made[key] = future

        def work() -> None:
            try:
                result = fn(*args)
            except OSError as error:
                fail(error)
            else:
                del self._made[key]
                future.set_result(result)

        def fail(error: Exception) -> None:
            del self._made[key]
            future.set_exception(error if isinstance(error, OSError) else OSError(EINVAL, f"not resolved: {error}"))

        try:
            supervision.current().thread("core name lookup", work, restart=None, failed=fail)
        except RuntimeError as error:  # of the system
            fail(OSError(EAGAIN, str(error)))
        return future


_CALLS: Final = _SharedCalls()
_WAITS: Final = set[object]()  # of `addresses_now`


async def addresses(host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
    """Return what the system's `getaddrinfo` returns; raises OSError. Cancel-safe, and then the lookup goes on."""
    return await asyncio.get_running_loop().run_in_executor(_CALLS, runtime.current().addresses, host, port, family)


def addresses_now(host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
    """Do the same for a name to listen on; blocks, for up to `LISTEN_S` or until `end_waits`."""
    this_wait, left_s = object(), LISTEN_S
    _WAITS.add(this_wait)
    try:
        lookup: Future[Any] = _CALLS.submit(runtime.current().addresses, host, port, family)
        while this_wait in _WAITS and left_s > 0 and not lookup.done():
            wait((lookup,), min(left_s, LOOK_S))
            left_s -= LOOK_S
        if lookup.done():
            found: Iterable[tuple[Any, ...]] = lookup.result()
            return found
        if this_wait in _WAITS:
            raise OSError(EAGAIN, f"name servers have not answered for {LISTEN_S:g} s")
        raise OSError(EINTR, "ended by a signal")
    finally:
        _WAITS.discard(this_wait)


def end_waits() -> bool:
    """End all waits of `addresses_now`, from any thread or a handler of signals; return whether there was one."""
    waits = bool(_WAITS)
    _WAITS.clear()
    return waits
