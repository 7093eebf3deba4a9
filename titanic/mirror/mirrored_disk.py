"""A disk that is kept twice: every call goes to the directory and to the mirror, and a sync returns when both have synced.

    writer thread:   create, write, truncate ...  -> line (does not wait)  + directory
                     sync                         -> line, directory, then wait for the mirror

While the mirror is away a sync waits for it (`go_on` False: nothing is acknowledged without it), or goes on alone and notes so on the
disk first; the store of a pair not before its mirror's promise has run out (`titanic.mirror.succession`). A mirror that comes back is
brought over in two parts: what can be copied while work goes on (`copy_ahead`, any thread), and what has changed since, between two syncs
(`join`, the writer thread).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from titanic.errors import MirrorAway
from titanic.journal.inspection import read_file
from titanic.mirror.replica_directory import read_mark, used_octets, write_mark
from titanic.wire.mirror_frames import COPIES_MAX, OWN_NAMES, PIECE_BYTES, Call, Hello, Mark, Swap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from titanic.journal.disk import Disk

__all__ = ["Line", "MirroredDisk"]

TURN_S: Final = 1.0  # a waiting writer looks up so often at the latest


class Line(Protocol):
    """The way to the mirror, used from several threads.

    Attributes:
        live: the mirror is in step, calls are to be sent.
        ready: the mirror has said hello and `copy_ahead` is done; `join` may be called.
        ending: nobody is to wait for a mirror any more.
        stale: the mirror is of a later epoch: another store was promoted, and this one must not go on.
    """

    live: bool
    ready: bool
    ending: bool
    stale: bool

    def post(self, call: Call, *arguments: bytes) -> int:
        """Send a call; returns its number."""

    def wait(self, number: int) -> bool:
        """Wait until the mirror has done this call and all before it; False if the session is over."""

    def wait_change(self, timeout_s: float) -> None:
        """Wait until something of the attributes may have changed."""

    def joined(self, live: bool) -> None:
        """Tell that the mirror is in step, or that this session did not get there."""


class MirroredDisk:
    """A `titanic.disk.Disk` over another one and a line.

    Args:
        disk: the directory.
        line: to the mirror.
        go_on: whether to acknowledge without the mirror when it is away.
        may_go_alone: of the store of a pair: whether its mirror has no right any more to take over. Called in the writer thread.

    Attributes:
        attached: calls go to the mirror too; False during recovery, whose result the mirror gets as files.
        copied_bytes: octets sent to bring mirrors over.
    """

    def __init__(self, disk: Disk, line: Line, go_on: bool, may_go_alone: Callable[[], bool] | None = None) -> None:
        self.disk = disk
        self.go_on = go_on
        self._may_go_alone = may_go_alone
        self.attached = False
        self.copied_bytes = 0
        self._line = line
        self._names: dict[int, str] = {}
        self._made: set[int] = set()  # handles the mirror may have open too
        self._mark = Mark()
        self._ahead: dict[str, tuple[int, ...]] = {}  # what the mirror holds, by name: (size,) or (size, used, crc)
        self._copies: dict[str, tuple[int, ...]] = {}  # the same of what was sent as copies
        self.lock, self.unlock = disk.lock, disk.unlock
        self.names, self.read, self.size = disk.names, disk.read, disk.size

    # ---- catching up

    def attach(self, store: bytes) -> None:
        """Recovery is over: from now on nothing is acknowledged without the mirror, or it is noted. Raises OSError, JournalError."""
        mark = read_mark(self.disk) or Mark()
        self._set_mark(mark._replace(store=store))
        self.attached = True

    def _set_mark(self, mark: Mark) -> None:
        write_mark(self.disk, mark)
        self._mark = mark

    def hello(self) -> bytes:
        """Return what to say to a mirror first; who may go on alone may do so before this mirror is in step.

        The mirror of a pair need not take that for granted: it takes over only with a promise, and this hello ends it.
        """
        alone = self._mark.alone or (self.go_on and self._may_go_alone is None)
        return Hello(self._mark.store, self._mark.epoch, alone).encode()

    def copy_ahead(self, there: dict[str, tuple[int, ...]]) -> bool:
        """Send what the mirror does not hold, while files grow and go; False if the session ended.

        Args:
            there: what the mirror said to its hello.
        """
        self._ahead, self._copies = dict(there), {}
        for name in self._shared_names():
            try:
                if not self._bring(name):
                    return False
            except FileNotFoundError:
                continue  # removed meanwhile
        return True

    def _shared_names(self) -> list[str]:
        return [name for name in self.disk.names() if name not in OWN_NAMES]

    def _bring(self, name: str) -> bool:
        """Make the mirror hold a file as it is now: there already, or as a copy."""
        there, copied = self._ahead.get(name), self._copies.get(name)
        if there is not None and len(there) == 1 and copied is None and there[0] == self._size_of(name):
            return True
        data = read_file(self.disk, name)
        used = memoryview(data)[: used_octets(data)]
        now = (len(data), len(used), crc32(used))
        if now == (copied or there):
            return True
        begun = copied[1] if copied is not None and crc32(memoryview(data)[: copied[1]]) == copied[2] else 0
        if not self._send_copy(name, used, begun):
            return False
        self._copies[name] = now
        return True

    def _size_of(self, name: str) -> int:
        handle = self.disk.open(name)
        try:
            return self.disk.size(handle)
        finally:
            self.disk.close(handle)

    def _send_copy(self, name: str, data: memoryview, begun: int) -> bool:
        """Send a file from octet `begun` on, a few pieces at a time."""
        line, numbers = self._line, []
        for offset in range(begun, max(len(data), begun + 1), PIECE_BYTES):
            piece = bytes(data[offset : offset + PIECE_BYTES])
            numbers.append(line.post(Call.COPY, name.encode(), b"%d" % offset, piece))
            self.copied_bytes += len(piece)
            if len(numbers) > COPIES_MAX and not line.wait(numbers[-COPIES_MAX]):
                return False
        return line.wait(numbers[-1])

    def join(self) -> bool:
        """Bring a mirror that is ready in step; whether it is. For the thread that makes the other calls."""
        line = self._line
        if not line.ready:
            return line.live
        names = self._shared_names()
        done = all(self._bring(name) for name in names)
        if done:
            sizes = {name: self._size_of(name) for name in names}
            copied = [name for name in names if name in self._copies]
            done = line.wait(line.post(Call.SWAP, Swap(sizes, copied, self._mark.epoch, self._mark.store).encode()))
        if done and self._mark.alone:
            # Before the mirror may promise anything: of two that both take themselves for the only one, one would be wrong.
            self._set_mark(self._mark._replace(alone=False))
        line.joined(done)
        return done

    # ---- in step

    def _settled(self, number: int) -> None:
        """Return when a sync holds on the mirror too, or when it is allowed to do without.

        Raises:
            MirrorAway: the store is being closed.
        """
        if not self.attached or (number and self._line.wait(number)):
            return
        while not self.join():
            line = self._line
            if self.go_on and not line.stale and (self._may_go_alone is None or self._may_go_alone()):
                if not self._mark.alone:
                    self._set_mark(self._mark._replace(alone=True))
                return
            if line.ending:
                raise MirrorAway("the store was closed while it waited for its mirror")
            line.wait_change(TURN_S)

    def _post(self, call: Call, *arguments: bytes) -> int:
        return self._line.post(call, *arguments) if self._line.live else 0

    def sync(self, handle: int) -> None:
        """Sync here and there, at the same time."""
        number = self._post(Call.SYNC, self._names[handle].encode())
        self.disk.sync(handle)
        self._settled(number)

    def sync_directory(self) -> None:
        """Sync here and there."""
        number = self._post(Call.SYNC_DIRECTORY)
        self.disk.sync_directory()
        self._settled(number)

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write here and there."""
        if self._line.live:
            self._line.post(Call.WRITE, self._names[handle].encode(), b"%d" % offset, b"".join(buffers))
        self.disk.write(handle, buffers, offset)

    def create(self, name: str) -> int:
        """Create here and there."""
        handle = self.disk.create(name)
        self._names[handle] = name
        self._made.add(handle)
        self._tell(Call.CREATE, name)
        return handle

    def _tell(self, call: Call, name: str, *arguments: bytes) -> None:
        if name not in OWN_NAMES:
            self._post(call, name.encode(), *arguments)

    def open(self, name: str) -> int:
        """Open here; there it is opened when it is written to."""
        handle = self.disk.open(name)
        self._names[handle] = name
        return handle

    def close(self, handle: int) -> None:
        """Close here and there."""
        # Before it is closed: the number may be another file's in another thread at once.
        name = self._names.pop(handle)
        made = handle in self._made
        self._made.discard(handle)
        self.disk.close(handle)
        if made:
            self._tell(Call.CLOSE, name)

    def preallocate(self, handle: int, size: int) -> None:
        """Take room here and there."""
        self.disk.preallocate(handle, size)
        self._tell(Call.PREALLOCATE, self._names[handle], b"%d" % size)

    def truncate(self, handle: int, size: int) -> None:
        """Cut here and there."""
        self.disk.truncate(handle, size)
        self._tell(Call.TRUNCATE, self._names[handle], b"%d" % size)

    def rename(self, old: str, new: str) -> None:
        """Rename here and there."""
        self.disk.rename(old, new)
        for handle, name in list(self._names.items()):
            if name == old:
                self._names[handle] = new
        self._tell(Call.RENAME, old, new.encode())

    def unlink(self, name: str) -> None:
        """Remove here and there."""
        self.disk.unlink(name)
        self._tell(Call.UNLINK, name)
