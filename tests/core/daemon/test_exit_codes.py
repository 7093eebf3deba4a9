"""core.daemon.exit_codes: errors become those with an exit code."""

from __future__ import annotations

import errno
import os

import pytest

from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits, file_problem


@pytest.mark.parametrize("error,code", [(KeyError("a"), Unreachable), (LookupError("b"), RequestFailed), (ValueError("c"), BadConfig)])
def test_the_first_kind_that_fits_decides(error: Exception, code: type[Exception]) -> None:
    with pytest.raises(code) as ended, exits({KeyError: Unreachable, LookupError: RequestFailed, ValueError: BadConfig}):
        raise error
    assert str(ended.value) == str(error)


def test_other_errors_pass() -> None:
    with pytest.raises(OSError, match="disk"), exits({ValueError: BadConfig}):
        raise OSError("disk")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOENT, "No such file or directory; check the path"),
        (errno.ENOTDIR, "Not a directory; a part of the path is a file; check the path"),
        (errno.EACCES, "Permission denied; check the permissions of it and of its directory"),
        (errno.EEXIST, "File exists; it stays as it is; choose another path, or remove it"),
        (errno.EROFS, "Read-only file system; choose another path"),
        (errno.EIO, "Input/output error; check the path and the disk"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(number: int, said: str) -> None:
    assert file_problem(OSError(number, os.strerror(number), "a.key")) == f"a.key: {said}"
    assert file_problem(OSError(number, os.strerror(number)), "b.key") == f"b.key: {said}"
