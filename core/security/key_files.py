"""Files with keys and passwords: read strictly, and refused if others could have read or changed them.

    secret key     one line, 40 Z85 characters, as `zmtp keygen --secret-file` writes it
    public key     the same; not secret, so every user may read it
    authorized     one client per line: its public key, a space, its name
    users          one user per line: name, space, password
    password       one line

Empty lines are ignored, and in files with several lines those that begin with `#` and are not a key.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from core.runtime.cold_files import remedy
from core.security.authenticator import parse_authorized_keys
from core.security.curve_keys import is_low_order, parse_key
from core.zmtp import z85

if TYPE_CHECKING:
    from pathlib import Path

# A hundred thousand keys; a gigabyte given by mistake must not be read into memory.
FILE_BYTES_MAX: Final = 8 * 1024 * 1024
# What PLAIN can carry (RFC 24): one byte of length before each.
CREDENTIAL_BYTES_MAX: Final = 255
# No access for others, no writing by the group. The group may read: systemd's credentials and a service's own group need it.
_TOO_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP


class KeyFileError(Exception):
    """A key file cannot be used."""

    def __init__(self, path: str | os.PathLike[str], reason: str, advice: str, line: int = 0) -> None:
        self.path = os.fspath(path)
        self.line = line  # where in it, 0 for all of it
        self.reason = reason  # one clause
        self.advice = advice  # how to fix it
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.reason}; {self.advice}"


def _read(path: str | Path, *, secret: bool) -> str:
    """Return the text of a file, after checking the permissions of the opened file."""
    try:
        with open(path, "rb") as file:
            if secret and os.name == "posix":
                _check_owner(path, os.fstat(file.fileno()))
            octets = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        advice = "check the path; zmtp keygen makes keys" if missing else "check the path and its permissions"
        raise KeyFileError(path, error.strerror or "cannot be read", remedy(error, advice)) from None
    if len(octets) > FILE_BYTES_MAX:
        raise KeyFileError(path, f"more than {FILE_BYTES_MAX} bytes", "is this the right file?")
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise KeyFileError(path, "not UTF-8", "save the file as UTF-8", line) from None


def _check_owner(path: str | Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(path, f"belongs to user {status.st_uid}", "it must belong to the user of the program, or to root")
    if status.st_mode & _TOO_OPEN:
        raise KeyFileError(path, f"others may use it (mode {stat.S_IMODE(status.st_mode):04o})", f"chmod 600 {os.fspath(path)}")


def _one_line(path: str | Path, what: str, *, secret: bool) -> str:
    lines = [line for line in _read(path, secret=secret).splitlines() if line.strip()]
    if len(lines) != 1:
        raise KeyFileError(path, f"{len(lines)} lines", f"it must hold one, the {what}")
    return lines[0]


def read_secret_key(path: str | Path) -> bytes:
    """Return the 32 bytes of a secret CURVE key; raises KeyFileError, also if others may read it."""
    return _key(path, "secret key", secret=True)


def read_key(path: str | Path) -> bytes:
    """Return the 32 bytes of a public CURVE key; raises KeyFileError."""
    return _key(path, "public key", secret=False)


def _key(path: str | Path, what: str, *, secret: bool) -> bytes:
    key = parse_key(_one_line(path, what, secret=secret).strip())
    if key is None:
        raise KeyFileError(path, "not a CURVE key of 40 Z85 characters", "make one with: zmtp keygen --secret-file FILE", 1)
    return key


def check_authorized_keys(path: str | Path) -> None:
    """Refuse an authorized-keys file before it is used; raises KeyFileError with the first malformed line.

    Its permissions must not let others write, because a line lets a client in; reading is allowed, because the keys are public.
    """
    text = _read(path, secret=False)
    status = os.stat(path)
    if os.name == "posix" and status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise KeyFileError(path, f"others may change it (mode {stat.S_IMODE(status.st_mode):04o})", f"chmod go-w {os.fspath(path)}")
    keys, wrong = parse_authorized_keys(text)
    if wrong:
        raise KeyFileError(path, "neither a key nor a comment", "write: PUBLIC-KEY NAME, or begin it with '# '", wrong[0])
    weak = next((key for key in keys if is_low_order(key)), None)
    if weak is not None:
        number = next(n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(z85.encode(weak).decode()))
        raise KeyFileError(path, "a key of low order, whose secret is publicly known", "have its owner make another", number)


def read_users(path: str | Path) -> dict[str, str]:
    """Return PLAIN users and their passwords; raises KeyFileError, also if others may read it."""
    users: dict[str, str] = {}
    for number, line in enumerate(_read(path, secret=True).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, password = text.partition(" ")
        password = password.strip()
        if not password:
            raise KeyFileError(path, "a user without a password", "write: NAME PASSWORD", number)
        if name in users:
            raise KeyFileError(path, f"user {name} is there twice", "remove one of the lines", number)
        _check_credential(path, name, number)
        _check_credential(path, password, number)
        users[name] = password
    return users


def _check_credential(path: str | Path, text: str, line: int) -> None:
    if len(text.encode()) > CREDENTIAL_BYTES_MAX:
        raise KeyFileError(path, f"longer than {CREDENTIAL_BYTES_MAX} bytes", "PLAIN cannot carry it; shorten it", line)


def read_password(path: str | Path) -> str:
    """Return the only line of a file; raises KeyFileError, also if others may read it."""
    password = _one_line(path, "password", secret=True)
    _check_credential(path, password, 1)
    return password
