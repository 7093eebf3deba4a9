"""core.daemon.exit_codes: errors become those with an exit code."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from core.daemon.config import ConfigFile
from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits, file_problem
from core.security.key_files import KeyFileError, check_authorized_keys, read_secret_key, read_users
from mdp.access.rules_file import load_policies, load_rules

if TYPE_CHECKING:
    from collections.abc import Callable


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
        (errno.EIO, "Input/output error; check the disk"),
        (errno.ELOOP, "Too many levels of symbolic links; check the path and the disk"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(number: int, said: str) -> None:
    assert file_problem(OSError(number, os.strerror(number), "a.key")) == f"a.key: {said}"
    assert file_problem(OSError(number, os.strerror(number)), "b.key") == f"b.key: {said}"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, "Too many open files; raise the limit of open files (ulimit -n)"),
        (errno.ENFILE, "Too many open files in system; the machine has no open files left; raise its limit (fs.file-max)"),
        (errno.ENOMEM, "Cannot allocate memory; free some memory"),
        (errno.EIO, "Input/output error; check the disk"),
    ],
)
@pytest.mark.parametrize("read", [load_rules, load_policies, ConfigFile, read_users, read_secret_key, check_authorized_keys])
def test_a_file_that_cannot_be_read_for_want_of_something_else_has_the_right_path(
    read: Callable[[str], object], number: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises((BadConfig, KeyFileError)) as refused:
        read("a.file")
    monkeypatch.undo()
    assert str(refused.value) == f"a.file: {said}"
