"""Exit codes, each owned by an exception; the numbers are those of sysexits where they exist.

    0 done    1 RequestFailed    2 click's usage errors    69 Unreachable    74 DiskFailed    78 BadConfig    130 Interrupted

Raised anywhere in a command, they end it with one line on stderr and their code. Their text may quote a peer, so it is escaped.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR, EPERM, EROFS
from typing import IO, TYPE_CHECKING, Any, Final

import click

from core.daemon.logs import printable
from core.runtime.cold_files import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What to do about a file or directory that cannot be used.
_FILE_FIXES: Final = {
    ENOENT: "check the path",
    ENOTDIR: "a part of the path is a file; check the path",
    EISDIR: "name a file in it",
    EEXIST: "it stays as it is; choose another path, or remove it",
    EACCES: "check the permissions of it and of its directory",
    EPERM: "check the permissions of it and of its directory",
    EROFS: "choose another path",
    ENAMETOOLONG: "choose a shorter path",
    ENOSPC: "free some space or choose another path",
    EDQUOT: "free some space or choose another path",
}


class ExitError(click.ClickException):
    """End the command with one line on stderr and `exit_code`."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))
        self.program = ""  # set by the group

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{self.program}: {self.message}" if self.program else self.message, file=file, err=file is None)


class RequestFailed(ExitError):
    """The request was sent and failed."""

    exit_code = 1


class Unreachable(ExitError):
    """No peer answers at the endpoint, or it cannot be listened on."""

    exit_code = 69


class DiskFailed(ExitError):
    """Reading or writing a file failed."""

    exit_code = 74


class BadConfig(ExitError):
    """A value in configuration file or environment is invalid; the text names file and line or variable, and a fix."""

    exit_code = 78


class Interrupted(ExitError):
    """The user ended the command."""

    exit_code = 130


@contextmanager
def exits(codes: Mapping[type[Exception], type[click.ClickException]]) -> Iterator[None]:
    """Turn errors of the block into the first kind that fits, with its exit code and the same text."""
    try:
        yield
    except tuple(codes) as error:
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
        raise code(str(error)) from None


def file_problem(error: OSError, path: str | os.PathLike[str] = "") -> str:
    """Return one line for a file or directory that cannot be used: its path, the reason, and what to do."""
    named = os.fspath(path) or error.filename or "a file"
    advice = remedy(error, _FILE_FIXES.get(error.errno or 0, "check the path and the disk"))
    return f"{named}: {error.strerror or error}; {advice}"
