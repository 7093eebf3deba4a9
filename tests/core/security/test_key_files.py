"""core.security.key_files: content and permissions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.security.authenticator import curve_keypair
from core.security.curve_keys import parse_key
from core.security.key_files import (
    CREDENTIAL_BYTES_MAX,
    FILE_BYTES_MAX,
    KeyFileError,
    check_authorized_keys,
    read_key,
    read_password,
    read_secret_key,
    read_users,
)
from core.zmtp import z85

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PUBLIC, SECRET = (key.decode() for key in curve_keypair())


def put(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_keys_and_passwords_are_read(tmp_path: Path) -> None:
    assert read_secret_key(put(tmp_path / "s", SECRET + "\n")) == z85.decode(SECRET)
    assert read_key(put(tmp_path / "p", f"\n  {PUBLIC}  \n", 0o666)) == z85.decode(PUBLIC)
    assert read_password(put(tmp_path / "w", "correct horse\n")) == "correct horse"
    assert read_users(put(tmp_path / "u", "# users\n\nann  a b c\nbob\tx y\n".replace("\t", " "))) == {"ann": "a b c", "bob": "x y"}
    assert parse_key(PUBLIC) == z85.decode(PUBLIC)
    assert parse_key("~" * 40) is parse_key("short") is None


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o666])
@pytest.mark.parametrize("read", [read_secret_key, read_password, read_users])
def test_a_secret_others_may_use_is_refused_with_the_remedy(tmp_path: Path, read: Callable[[Path], object], mode: int) -> None:
    path = put(tmp_path / "secret", SECRET, mode)
    with pytest.raises(KeyFileError, match="others may use it") as caught:
        read(path)
    assert str(caught.value).endswith(f"chmod 600 {path}")
    assert SECRET not in str(caught.value)


def test_a_credential_of_systemd_is_taken(tmp_path: Path) -> None:
    assert read_secret_key(put(tmp_path / "credential", SECRET, 0o440)) == z85.decode(SECRET)


def test_a_secret_of_somebody_else_is_refused_and_one_of_root_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "secret", SECRET)
    real = os.fstat

    def of(uid: int) -> Callable[[int], os.stat_result]:
        return lambda number: os.stat_result((*real(number)[:4], uid, *real(number)[5:10]))

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", of(1001))
    with pytest.raises(KeyFileError, match="belongs to user 1001"):
        read_secret_key(path)
    for uid in (0, 1000):
        monkeypatch.setattr(os, "fstat", of(uid))
        assert read_secret_key(path) == z85.decode(SECRET)


@pytest.mark.parametrize(
    "read,text,line",
    [
        (read_secret_key, "", 0),
        (read_secret_key, "too short", 1),
        (read_secret_key, SECRET + "\n" + SECRET, 0),
        (read_secret_key, "~" * 40, 1),
        (read_secret_key, b"\xff" * 40, 1),
        (read_key, "x", 1),
        (read_password, "one\ntwo", 0),
        (read_password, "x" * 256, 1),
        (read_users, "ann", 1),
        (read_users, "# x\nann a\nann b", 3),
        (read_users, "ann " + "x" * 256, 1),
        (check_authorized_keys, f"{PUBLIC} ann\nnonsense\n", 2),
        (check_authorized_keys, f"# all\n{'0' * 40} everybody\n", 2),
    ],
    ids=[f"case {n}" for n in range(13)],  # keys are new in every process
)
def test_what_says_nothing_is_refused_with_its_line(tmp_path: Path, read: Callable[[Path], object], text: str | bytes, line: int) -> None:
    path = put(tmp_path / "file", text)
    with pytest.raises(KeyFileError) as caught:
        read(path)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_a_list_of_keys_may_be_read_by_everybody_and_written_by_nobody_else(tmp_path: Path) -> None:
    check_authorized_keys(put(tmp_path / "keys", f"{PUBLIC} ann\n# {PUBLIC} bob\n", 0o644))
    with pytest.raises(KeyFileError, match="others may change it"):
        check_authorized_keys(put(tmp_path / "keys", f"{PUBLIC} ann\n", 0o664))


def test_a_fault_is_named_with_its_line_and_the_first_of_several(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="not UTF-8") as caught:
        read_password(put(tmp_path / "w", b"\n\xff"))
    assert caught.value.line == 2
    with pytest.raises(KeyFileError, match="neither a key nor a comment") as caught:
        check_authorized_keys(put(tmp_path / "a", f"{PUBLIC} ann\nwrong\nwrong too\n"))
    assert caught.value.line == 2


def test_the_longest_names_and_passwords_are_taken(tmp_path: Path) -> None:
    longest = "n" * CREDENTIAL_BYTES_MAX
    assert read_users(put(tmp_path / "u", f"{longest} {longest}\n")) == {longest: longest}
    for line in (f"{longest}n x", f"x {longest}n"):
        with pytest.raises(KeyFileError, match="longer than 255 bytes") as caught:
            read_users(put(tmp_path / "u", f"ann pw\n{line}\n"))
        assert caught.value.line == 2


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    file = put(tmp_path / "a", b"# " + b"x" * (FILE_BYTES_MAX - 2))
    check_authorized_keys(file)
    assert file.stat().st_size == FILE_BYTES_MAX


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        read_users(tmp_path / "none")
    with pytest.raises(KeyFileError, match="right file"):
        read_users(put(tmp_path / "large", b"#" * (9 * 2**20)))


@given(st.binary(max_size=200))
def test_whatever_is_in_a_file_it_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Fault X1."""
    path = put(tmp_path_factory.mktemp("keys") / "file", content)
    for read in (read_users, read_password, read_secret_key, check_authorized_keys):
        outcome = "read"
        try:
            read(path)
        except KeyFileError as error:
            outcome = error.advice
        assert outcome
