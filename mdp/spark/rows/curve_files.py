"""CURVE keys for clients on executors: a job carries the paths, each executor reads the files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.security.curve_keys import public_key
from core.security.key_files import read_key, read_secret_key

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """Paths of an executor's keys, each a file with 40 Z85 characters; only its owner may read the secret one.

    Attributes:
        secret: file with the client's secret key, as `zmtp keygen --secret-file` writes it; its public key follows from it.
        server: file with the broker's public key.
    """

    secret: str
    server: str

    def socket_options(self) -> dict[str, Any]:
        """Read the files and return the options of a CURVE client's socket.

        Raises:
            KeyFileError: a file is missing, not readable, readable for others or has no key.
        """
        secret = read_secret_key(self.secret)
        return {"curve_secretkey": secret, "curve_publickey": public_key(secret), "curve_serverkey": read_key(self.server)}
