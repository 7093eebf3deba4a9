"""Certificate files of CURVE keys, as ZeroMQ's other bindings write them: `NAME.key` and `NAME.key_secret`.

The text is ZPL (RFC 4): a section `curve` with `public-key = "…"` and, in the secret file, `secret-key = "…"`, in Z85.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.security.authenticator import curve_keypair
from core.security.curve_keys import parse_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["create_certificates", "load_certificate", "load_certificates"]

FILE_BYTES_MAX: Final = 64 * 1024  # a certificate has some hundred bytes
_PUBLIC_BANNER: Final = "#   ZeroMQ CURVE public certificate.\n#   Give it to the peers over a channel they trust.\n\n"
_SECRET_BANNER: Final = "#   ZeroMQ CURVE **secret** certificate.\n#   Do not give it to others, and do not change its permissions.\n\n"


def _text(public: bytes, secret: bytes | None, metadata: Mapping[str, str]) -> str:
    lines = ["metadata", *(f"    {name} = {value}" for name, value in metadata.items())]
    lines += ["curve", f'    public-key = "{public.decode()}"']
    if secret is not None:
        lines.append(f'    secret-key = "{secret.decode()}"')
    return "\n".join(lines) + "\n"


def create_certificates(key_dir: str | os.PathLike[str], name: str, metadata: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Make a CURVE key pair and write its two certificates; only the owner may read the secret one.

    Args:
        key_dir: folder, which must exist.
        name: of the files, without their suffixes.
        metadata: names and values to write into both.

    Returns:
        The paths of the public and of the secret certificate.

    Raises:
        OSError: a file cannot be written.
    """
    public, secret = curve_keypair()
    folder = Path(key_dir)
    public_file, secret_file = folder / f"{name}.key", folder / f"{name}.key_secret"
    public_file.write_text(_PUBLIC_BANNER + _text(public, None, metadata or {}), encoding="utf-8")
    secret_file.unlink(missing_ok=True)  # an old file would keep its permissions
    descriptor = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(_SECRET_BANNER + _text(public, secret, metadata or {}))
    return str(public_file), str(secret_file)


def load_certificate(filename: str | os.PathLike[str]) -> tuple[bytes, bytes | None]:
    """Return the public key and the secret key of a certificate, in Z85.

    The secret key is None in a public certificate.

    Raises:
        OSError: no such file.
        ValueError: no public key in it.
    """
    keys: dict[str, bytes] = {}
    try:
        with open(filename, encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        raise OSError(f"no certificate file {os.fspath(filename)}") from None
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        name = name.strip()
        if equals and name in ("public-key", "secret-key"):
            keys.setdefault(name, value.strip(" \t'\"").encode())
    public = keys.get("public-key")
    if public is None or parse_key(public) is None:
        raise ValueError(f"no public key in {os.fspath(filename)}")
    return public, keys.get("secret-key")


def load_certificates(directory: str | os.PathLike[str] = ".") -> dict[bytes, bool]:
    """Return the public keys of all certificates `*.key` of a folder, each with True.

    Raises:
        OSError: no such folder.
        ValueError: a file without a public key.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise OSError(f"no folder {folder}")
    return {load_certificate(file)[0]: True for file in sorted(folder.glob("*.key"))}
