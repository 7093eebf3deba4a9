"""Mirrored disk: every call goes to the directory and to the mirror, and a sync returns when both have synced.

    writer thread:   create, write, truncate ...  -> line (does not wait)  + directory
                     sync                         -> line, directory, then wait for the mirror

While the mirror is away a sync waits for it (`go_on` False), or returns without it after recording that on the disk; in a pair not before
the mirror's lease has ended (`titanic.mirror.succession`). A mirror that returns catches up in two parts: files are copied while work
continues (`copy_ahead`, any thread), and what has changed since is copied between two syncs (`join`, the writer thread).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

from core.runtime import runtime
from titanic.errors import MirrorAway
from titanic.journal.inspection import read_file, size_of
from titanic.journal.ownership import Mark, read_mark, write_mark
from titanic.mirror.replica_directory import used_octets
from titanic.wire.mirror_frames import COPIES_MAX, OWN_NAMES, PIECE_BYTES, Call, Hello, Swap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from titanic.journal.disk import Disk

WAIT_S: Final = 1.0  # maximum time between two checks of a waiting writer


class ReplicaLink(Protocol):
    """Connection to the mirror, used from several threads."""

    live: bool  # the mirror is in step: send it every call
    ready: int  # the session whose `copy_ahead` is done, so that `join` may be called; 0 without one
    ending: bool  # the store is being closed: do not wait for a mirror
    stale: bool  # the mirror has a later epoch: another store was promoted, and this one must stop

    # Send a call, in this session only if one is given; return its number, which `wait` takes.
    def post(self, call: Call, *arguments: bytes, session: int = 0) -> int: ...
    # Wait until the mirror has done this call and all before it; return False if the session of the call has ended.
    def wait(self, number: int) -> bool: ...
    def wait_change(self, timeout_s: float) -> None: ...  # wait until an attribute may have changed
    def joined(self, session: int, live: bool) -> None: ...  # report that the mirror is in step, or that this session failed to get there


class Copying(NamedTuple):
    """Files that one session has brought to its mirror.

    The next one begins anew, perhaps while the writer thread still works on this.
    """

    session: int
    there: dict[str, tuple[int, ...]]  # files of the mirror by name: (size,) or (size, used, crc)
    copies: dict[str, tuple[int, ...]]  # the same for files sent as copies
    final: set[str]  # of both: sealed segments that were compared, which can only be cut off or removed from then on


class MirroredDisk:
    """A `Disk` over another one and a mirror."""

    def __init__(self, disk: Disk, link: ReplicaLink, go_on: bool, may_go_alone: Callable[[], bool] | None = None) -> None:
        self.disk = disk
        self.go_on = go_on  # whether to acknowledge without the mirror while it is away
        self._may_go_alone = may_go_alone  # in a pair: whether the mirror may no longer take over. Called in the writer thread.
        self.attached = False  # calls go to the mirror too; False during recovery, whose result the mirror gets as files
        self.copied_bytes = 0  # bytes sent to mirrors that were catching up
        self._link = link
        self._names: dict[int, str] = {}
        self._made: set[int] = set()  # handles the mirror may also have open
        self._mark = Mark()
        self._copying = Copying(0, {}, {}, set())  # of the newest session
        self._reading = runtime.current().lock()  # held while a file is read to be copied ahead
        self._released = False  # nothing is read any longer
        self.lock = disk.lock
        self.names, self.read, self.size = disk.names, disk.read, disk.size

    def unlock(self) -> None:
        """Release the directory, after the file that is being copied ahead was read."""
        with self._reading:
            self._released = True
            self.disk.unlock()

    # ---- catching up

    def attach(self, store: bytes) -> None:
        """Start mirroring, after recovery: no sync returns without the mirror unless that is recorded. Raises OSError, JournalError."""
        mark = read_mark(self.disk) or Mark()
        self._set_mark(mark._replace(store=store))
        self.attached = True

    def _set_mark(self, mark: Mark) -> None:
        write_mark(self.disk, mark)
        self._mark = mark

    def hello(self) -> bytes:
        """Return the argument of hello; `alone` if the store may acknowledge before this mirror is in step.

        The mirror of a pair takes over only with a lease, and this hello ends it.
        """
        alone = self._mark.alone or (self.go_on and self._may_go_alone is None)
        return Hello(self._mark.store, self._mark.epoch, alone).encode()

    def copy_ahead(self, session: int, there: dict[str, tuple[int, ...]]) -> bool:
        """Send what the mirror lacks by its answer to hello, while files change; return False if the session ended."""
        # The mirror names those by their size that were sealed when it followed this history.
        copying = self._copying = Copying(session, there, {}, {name for name, numbers in there.items() if len(numbers) == 1})
        with self._reading:
            if self._released:
                return False
            names = self._shared_names()
        sealed = [name for name in names if name.endswith(".seg")][:-1]
        for name in names:
            try:
                if not self._bring(name, copying, self._reading):
                    return False
            except FileNotFoundError:
                continue  # removed meanwhile
            if name in sealed:
                copying.final.add(name)
        return True

    def _shared_names(self) -> list[str]:
        return [name for name in self.disk.names() if name not in OWN_NAMES]

    def _bring(self, name: str, copying: Copying, reading: AbstractContextManager[object] = nullcontext()) -> bool:  # noqa: B008 - it has no state
        there, copied = copying.there.get(name), copying.copies.get(name)
        known = copied or there
        with reading:
            if self._released:
                return False
            if known is not None and name in copying.final and known[0] == size_of(self.disk, name):
                return True
            data = read_file(self.disk, name)
        used = memoryview(data)[: used_octets(data)]
        now = (len(data), len(used), crc32(used))
        if now == known:
            return True
        begun = copied[1] if copied is not None and crc32(memoryview(data)[: copied[1]]) == copied[2] else 0
        if not self._send_copy(copying.session, name, used, begun):
            return False
        copying.copies[name] = now
        return True

    def _send_copy(self, session: int, name: str, data: memoryview, begun: int) -> bool:
        """Send a file from byte `begun` on, a few pieces at a time."""
        link, numbers = self._link, []
        for offset in range(begun, max(len(data), begun + 1), PIECE_BYTES):
            piece = bytes(data[offset : offset + PIECE_BYTES])
            numbers.append(link.post(Call.COPY, name.encode(), b"%d" % offset, piece, session=session))
            self.copied_bytes += len(piece)
            if len(numbers) > COPIES_MAX and not link.wait(numbers[-COPIES_MAX]):
                return False
        return link.wait(numbers[-1])

    def join(self) -> bool:
        """Bring a mirror that is ready in step; return whether it is. Call it in the writer thread."""
        link, copying = self._link, self._copying
        session = copying.session
        if not session or link.ready != session:
            return link.live
        names = self._shared_names()
        done = all(self._bring(name, copying) for name in names)
        if done:
            sizes = {name: size_of(self.disk, name) for name in names}
            copied = [name for name in names if name in copying.copies]
            swap = Swap(sizes, copied, self._mark.epoch, self._mark.store)
            done = link.wait(link.post(Call.SWAP, swap.encode(), session=session))
        if done and self._mark.alone:
            # Before the mirror gets a lease: the two halves must never both be SOLE.
            self._set_mark(self._mark._replace(alone=False))
        link.joined(session, done)
        return done

    # ---- in step

    def _settled(self, number: int) -> None:
        """Return when a sync is done on the mirror or may be acknowledged without it; raises MirrorAway on closing."""
        if not self.attached or (number and self._link.wait(number)):
            return
        while not self.join():
            link = self._link
            if self.go_on and not link.stale and (self._may_go_alone is None or self._may_go_alone()):
                if not self._mark.alone:
                    self._set_mark(self._mark._replace(alone=True))
                return
            if link.ending:
                raise MirrorAway("the store was closed while it waited for its mirror")
            link.wait_change(WAIT_S)

    def _post(self, call: Call, *arguments: bytes) -> int:
        return self._link.post(call, *arguments) if self._link.live else 0

    def sync(self, handle: int) -> None:
        number = self._post(Call.SYNC, self._names[handle].encode())
        self.disk.sync(handle)
        self._settled(number)

    def sync_directory(self) -> None:
        number = self._post(Call.SYNC_DIRECTORY)
        self.disk.sync_directory()
        self._settled(number)

    def write(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        if self._link.live:
            self._link.post(Call.WRITE, self._names[handle].encode(), b"%d" % offset, b"".join(buffers))
        self.disk.write(handle, buffers, offset)

    def create(self, name: str) -> int:
        handle = self.disk.create(name)
        self._names[handle] = name
        self._made.add(handle)
        self._tell(Call.CREATE, name)
        return handle

    def _tell(self, call: Call, name: str, *arguments: bytes) -> None:
        if name not in OWN_NAMES:
            self._post(call, name.encode(), *arguments)

    def open(self, name: str) -> int:
        """Open here; the mirror opens the file when it is written to."""
        handle = self.disk.open(name)
        self._names[handle] = name
        return handle

    def close(self, handle: int) -> None:
        # Before it is closed: another thread may get the same handle for another file at once.
        name = self._names.pop(handle)
        made = handle in self._made
        self._made.discard(handle)
        self.disk.close(handle)
        if made:
            self._tell(Call.CLOSE, name)

    def preallocate(self, handle: int, size: int) -> None:
        self.disk.preallocate(handle, size)
        self._tell(Call.PREALLOCATE, self._names[handle], b"%d" % size)

    def truncate(self, handle: int, size: int) -> None:
        self.disk.truncate(handle, size)
        self._tell(Call.TRUNCATE, self._names[handle], b"%d" % size)

    def rename(self, old: str, new: str) -> None:
        self.disk.rename(old, new)
        for handle, name in list(self._names.items()):
            if name == old:
                self._names[handle] = new
        self._tell(Call.RENAME, old, new.encode())

    def unlink(self, name: str) -> None:
        self.disk.unlink(name)
        self._tell(Call.UNLINK, name)
