"""Directory of a mirror: repeats the disk calls of the store, and takes over whole files (specs/titanic.md §10).

A mirror in step has made every call of the store in the same order, so at any moment its directory is one that a crash of the store could
have left, and can be opened as one. While it catches up, files arrive under other names; they are put in place together, and a mark says so
until that is on the disk.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

import msgpack

from core.machine.peer_text import decimal
from titanic.errors import JournalError, VersionTooNew
from titanic.journal.inspection import MANIFEST_NAME, read_file, size_of
from titanic.journal.manifest import Manifest
from titanic.journal.ownership import MARK_NAME, Mark, Step, check_is_of_no_pair, read_mark, write_mark
from titanic.mirror.succession import Answer, Lineage, LineageKind, judge, lineage_of
from titanic.wire.mirror_frames import COPY_SUFFIX, EPOCH_JUMP_MAX, OWN_NAMES, PIECE_BYTES, BadCall, Call, Hello, Swap, check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from titanic.journal.disk import Disk


class Refused(Exception):
    """The mirror must not follow this store."""


def lineage_at(disk: Disk) -> Lineage:
    """Return the lineage of a directory; raises JournalError, OSError.

    Without a mark an unreadable manifest is an error: the store the files belong to is unknown, so they must not be replaced.
    """
    mark, held = read_mark(disk), b""
    if MANIFEST_NAME in disk.names():
        try:
            held = Manifest.decode(read_file(disk, MANIFEST_NAME), MANIFEST_NAME).store
        except VersionTooNew:
            raise
        except JournalError:
            if mark is None or not mark.store:
                raise
            held = mark.store
    return lineage_of(mark, held)


def used_octets(data: bytes) -> int:
    """Return the number of bytes before the zeros at the end; in pieces, so that other threads can run."""
    end = len(data)
    while end:
        start = max(0, end - PIECE_BYTES)
        if used := len(data[start:end].rstrip(b"\0")):
            return start + used
        end = start
    return 0


def describe(disk: Disk, name: str) -> tuple[int, int, int]:
    """Return (size, bytes before the zeros at the end, their CRC-32) of a file, to compare two copies."""
    data = read_file(disk, name)
    used = used_octets(data)
    return len(data), used, crc32(memoryview(data)[:used])


class Replica:
    """Carries out calls of a store on one directory, in one thread; with `take_over`, replaces a store. Raises OSError, JournalError."""

    def __init__(self, disk: Disk, take_over: bool = False, paired: bool = False) -> None:
        self.disk = disk  # locked by the caller
        self._handles: dict[str, int] = {}
        self._paired = paired  # half of a pair, which is the store at other times: its contents stay until better data is complete
        if not paired:
            check_is_of_no_pair(disk)
        mark = read_mark(disk)
        self.lineage = lineage_at(disk) if paired else Lineage()
        if paired:
            mark = mark or Mark("store" if self.lineage.store else "mirror", 0, Step.IN_STEP if self.lineage.store else Step.EMPTY)
        elif mark is None or mark.role != "mirror":
            if MANIFEST_NAME in disk.names() and not take_over:
                raise JournalError(MARK_NAME, "this directory holds a store; --take-over makes a mirror of it", "MIRROR")
            mark = Mark("mirror", mark.epoch if mark else 0, Step.EMPTY)
            write_mark(disk, mark)
        self.mark = mark

    def _set_mark(self, mark: Mark) -> None:
        if mark != self.mark:
            write_mark(self.disk, mark)
            self.mark = mark
            self.lineage = lineage_of(mark, mark.store)

    def do(self, call: bytes, arguments: Sequence[bytes]) -> bytes:
        """Do one call; return the detail of its answer.

        Raises BadCall, Refused for a hello of a store this mirror must not follow, and OSError: nothing of this session can be trusted.
        """
        try:
            match Call(call), arguments:
                case Call.HELLO, _:
                    return self._hello(self.check_hello(arguments))
                case Call.COPY, [name, offset, octets]:
                    self._copy(_name(name), _number(offset), octets)
                case Call.SWAP, [swap]:
                    self._swap(Swap.decode(swap))
                case known, _:
                    self._live(known, arguments)
        except OSError:
            if self.mark.role == "mirror":  # the files of a store are still untouched
                with suppress(OSError):  # found again at the next call
                    self._set_mark(self.mark._replace(doubt=True))
            self.end()
            raise
        except ValueError as error:
            raise BadCall(str(error)) from error
        return b""

    def end(self) -> None:
        for handle in self._handles.values():
            self.disk.close(handle)
        self._handles.clear()

    # ---- catching up

    def check_hello(self, arguments: Sequence[bytes]) -> Hello:
        """Return a hello of the store to follow; changes nothing, so any thread may ask. Raises BadCall, Refused."""
        if len(arguments) != 1:
            raise BadCall(f"hello with {len(arguments)} arguments")
        hello, mark = Hello.decode(arguments[0]), self.mark
        if mark.store and mark.store != hello.store and mark.step != Step.EMPTY:
            raise Refused("this mirror is of another store")
        self._check_epoch(hello.epoch)
        if hello.epoch < mark.epoch:
            raise Refused(f"STALE this mirror is of epoch {mark.epoch}, the store of {hello.epoch}: another was promoted since")
        theirs = Lineage(hello.epoch, LineageKind.SOLE if hello.alone else LineageKind.WHOLE, hello.store)
        if self._paired and judge(self.lineage, theirs) is not Answer.FOLLOW:
            kind = self.lineage.kind.name.lower()
            raise Refused(f"STALE this half is {kind} at epoch {mark.epoch}: its data must not be replaced by yours")
        return hello

    def _hello(self, hello: Hello) -> bytes:
        """Return the files here: name -> [size, used, crc]; sealed segments of the same history by size only."""
        mark = self.mark
        self.end()
        for name in self.disk.names():
            if name.endswith(COPY_SUFFIX):
                self.disk.unlink(name)
        if hello.alone and mark.role == "mirror" and mark.step == Step.IN_STEP:
            self._set_mark(mark._replace(step=Step.BEHIND))
        if mark.doubt or mark.step in (Step.EMPTY, Step.CHANGING):
            return bytes(msgpack.packb({}))
        names = [name for name in self.disk.names() if name not in OWN_NAMES]
        same = mark.role == "mirror" and hello.epoch == mark.epoch and hello.store == mark.store
        sealed = set(sorted(name for name in names if name.endswith(".seg"))[:-1]) if same else set()
        return bytes(msgpack.packb({name: [size_of(self.disk, name)] if name in sealed else describe(self.disk, name) for name in names}))

    def _check_epoch(self, epoch: int) -> None:
        """Refuse an implausible epoch: a mark with it would refuse every store from then on."""
        mark = self.mark
        if mark.store and mark.step != Step.EMPTY and epoch > mark.epoch + EPOCH_JUMP_MAX:
            raise Refused(
                f"this mirror is of epoch {mark.epoch}, the store of {epoch}: that is not believed; if it is right, empty this directory"
            )

    def _copy(self, name: str, offset: int, octets: bytes) -> None:
        name += COPY_SUFFIX
        if offset == 0:
            for last in tuple(self._handles):
                self._finish(last)  # not all of them in the swap: the store does not wait for so long
            self._create(name)
        self.disk.write(self._handle(name), [octets], offset)

    def _swap(self, swap: Swap) -> None:
        """Put the copies in place and remove everything else."""
        self._check_epoch(swap.epoch)
        for name in swap.copied:
            handle = self._handle(name + COPY_SUFFIX)
            if self.disk.size(handle) < swap.sizes[name]:
                self.disk.preallocate(handle, swap.sizes[name])
            self.disk.truncate(handle, swap.sizes[name])
            self._finish(name + COPY_SUFFIX)
        for name in swap.sizes.keys() - set(swap.copied):
            self._finish(name)  # an equal file may have been written but not synced before a crash
        self._set_mark(Mark("mirror", swap.epoch, Step.CHANGING, store=swap.store, paired=self._paired))
        self.end()
        for name in swap.copied:
            self.disk.rename(name + COPY_SUFFIX, name)
        for name in self.disk.names():
            if name not in swap.sizes and name not in OWN_NAMES:
                self.disk.unlink(name)
        self.disk.sync_directory()
        self._set_mark(self.mark._replace(step=Step.IN_STEP))

    # ---- in step

    def _live(self, call: Call, arguments: Sequence[bytes]) -> None:
        # Hot path: once per call of the store's disk.
        disk = self.disk
        if call is Call.SYNC_DIRECTORY:
            disk.sync_directory()
            return
        if not arguments:
            raise BadCall(f"{call.value.decode()} without a file name")
        name = _name(arguments[0])
        match call, arguments[1:]:
            case Call.WRITE, [offset, octets]:
                disk.write(self._handle(name), [octets], _number(offset))
            case Call.SYNC, []:
                disk.sync(self._handle(name))
            case Call.CREATE, []:
                self._create(name)
            case Call.PREALLOCATE, [size]:
                disk.preallocate(self._handle(name), _number(size))
            case Call.TRUNCATE, [size]:
                disk.truncate(self._handle(name), _number(size))
            case Call.RENAME, [new]:
                self._rename(name, _name(new))
            case Call.UNLINK, []:
                self._close(name)
                disk.unlink(name)
            case Call.CLOSE, []:
                self._close(name)
            case _:
                raise BadCall(f"{call.value.decode()} with {len(arguments)} arguments")

    def _create(self, name: str) -> None:
        self._close(name)
        self.disk.unlink(name)
        self._handles[name] = self.disk.create(name)

    def _handle(self, name: str) -> int:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self.disk.open(name)
        return handle

    def _finish(self, name: str) -> None:
        """Sync and close a file; so there may be more of them than a process can have open."""
        self.disk.sync(self._handle(name))
        self._close(name)

    def _close(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            self.disk.close(handle)

    def _rename(self, old: str, new: str) -> None:
        self.disk.rename(old, new)
        self._close(new)
        if old in self._handles:
            self._handles[new] = self._handles.pop(old)


def _name(frame: bytes) -> str:
    return check_name(frame.decode("ascii", "replace"))


def _number(frame: bytes) -> int:
    number = decimal(frame)
    if number is None:
        raise BadCall("not a number")
    return number
