"""File work of coroutines: small, seldom used files, without waiting for the disk on the event loop.

By aiofiles, which does it in the loop's pool of threads. The journal, the mirror, the event log and the ballots have threads of their own.
What a program reads before its loop runs needs none of this.
"""

from __future__ import annotations

import os
from errno import EIO, EMFILE, ENFILE, ENOMEM
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

P = ParamSpec("P")
T = TypeVar("T")

# Files of a client are not for others.
_FILE_MODE: Final = 0o600
# What to do about errors that are not those of the path, or of the file's permissions.
_REMEDIES: Final = {
    EMFILE: "raise the limit of open files (ulimit -n)",
    ENFILE: "the machine has no open files left; raise its limit (fs.file-max)",
    ENOMEM: "free some memory",
    EIO: "check the disk",
}


async def off_loop(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a plain function that reads or writes files, and return its result.

    If this is cancelled, the call still completes.
    It runs in another thread and must not touch what belongs to the loop.
    """
    import aiofiles.os  # here, because it imports a megabyte of archive formats, and most programs never read a file this way

    return await aiofiles.os.wrap(function)(*args, **named)


def remedy(error: Exception, otherwise: str) -> str:
    """Return what to do about an error of a file: what process, machine or disk need, or else `otherwise`."""
    return _REMEDIES.get(getattr(error, "errno", None) or 0, otherwise)


async def status(path: str | os.PathLike[str]) -> os.stat_result:
    return await off_loop(os.stat, path)


async def read_text(path: str | os.PathLike[str]) -> str:
    return await off_loop(_text_of, path)


def _text_of(path: str | os.PathLike[str]) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


async def append(path: str | os.PathLike[str], octets: bytes) -> None:
    """Append some bytes to a file of this user in one piece, also if cancelled; raises as `write_whole`."""
    await off_loop(append_now, path, octets)


def append_now(path: str | os.PathLike[str], octets: bytes) -> None:
    """Do what `append` does; blocks."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, _FILE_MODE)

    with open(path, "ab", buffering=0, opener=private) as file:
        write_whole(file, octets)


def write_whole(file: FileIO, octets: bytes) -> None:
    """Write all bytes to a file without a buffer; raises OSError, when a part of them may be there."""
    left = memoryview(octets)
    while left:
        left = left[file.write(left) :]  # less than all where the disk becomes full, which is no error yet
