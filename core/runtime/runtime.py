"""The system as a part of a program sees it: clocks, randomness, threads, sockets and files.

Nothing else asks the system for them:

    self._now = runtime.current().monotonic      # looked up once, at construction: no cost per call
    self._queue = runtime.current().queue()

`current` returns the runtime of this part of a program. Unless `scope` has set another one it is `SYSTEM`, whose attributes are the
system's own functions; a simulation sets one per simulated process. Tasks, timers and supervised threads inherit it, as all context
variables.
Time of an event loop is `loop.time()`, connections are made by the loop, and tasks and timers by `core.runtime.supervision`.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Path = str | os.PathLike[str]


class Files(Protocol):
    """Calls on files, with the names and meanings of the module `os`; that module is the system's."""

    def open(self, path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def read(self, fd: int, length: int, /) -> bytes: ...
    def write(self, fd: int, data: bytes, /) -> int: ...
    def lseek(self, fd: int, position: int, whence: int, /) -> int: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | memoryview, offset: int, /) -> int: ...
    def pwritev(self, fd: int, buffers: Any, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def stat(self, path: Path) -> os.stat_result: ...
    def listdir(self, path: int) -> list[str]: ...
    def makedirs(self, name: Path, mode: int = 0o777, exist_ok: bool = False) -> None: ...
    def rename(self, src: Path, dst: Path, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None: ...
    def replace(self, src: Path, dst: Path) -> None: ...
    def unlink(self, path: Path, *, dir_fd: int | None = None) -> None: ...


def _boot_clock() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _lock_file(fd: int, *, shared: bool = False) -> None:
    if sys.platform == "win32":
        import msvcrt  # neither module exists on every system

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


class Runtime:
    """The system as one part of a program sees it. A simulation has a subclass.

    Attributes:
        monotonic: seconds of a clock that never goes back; it may stand still while the machine is suspended.
        boot_clock: the same with suspended time, where the system has such a clock (T2).
        pause: blocks the calling thread for some seconds.
        random_bytes: so many bytes that nobody can guess.
        lock_file: locks an open file for this process, without waiting; raises OSError if another process has locked it.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    boot_clock: Callable[[], float] = staticmethod(_boot_clock)
    pause: Callable[[float], None] = staticmethod(time.sleep)
    random_bytes: Callable[[int], bytes] = staticmethod(os.urandom)
    files: Files = os
    lock_file: Callable[..., None] = staticmethod(_lock_file)

    def wall_ns(self) -> int:
        return time.time_ns()

    def chance(self, seed: int | None = None) -> random.Random:
        """Return a source of random numbers for jitter and the like; with a seed it is reproducible."""
        return random.Random(seed)

    def random_bits(self, bits: int) -> int:
        """Return an integer of so many bits that nobody can guess."""
        return int.from_bytes(self.random_bytes((bits + 7) // 8)) >> -bits % 8

    def thread(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """Start a thread that does not keep the program from ending. Only `core.runtime.supervision` calls this."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, threads: int, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(threads, name)

    def queue(self) -> SimpleQueue[Any]:
        return SimpleQueue()

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that its thread may take again: a collection of garbage may call anything at any allocation."""
        return threading.RLock()

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def event(self) -> threading.Event:
        return threading.Event()

    def stream_socket(self, family: socket.AddressFamily) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM)

    def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
        """Resolve a host name; raises OSError."""
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)


SYSTEM: Final = Runtime()
_CURRENT: Final[ContextVar[Runtime]] = ContextVar("core.runtime.runtime", default=SYSTEM)

current = _CURRENT.get


@contextmanager
def scope(runtime: Runtime) -> Iterator[Runtime]:
    """Make a runtime the current one within the block, and in tasks and threads started there."""
    token = _CURRENT.set(runtime)
    try:
        yield runtime
    finally:
        _CURRENT.reset(token)
