"""CURVE keys for clients on executors: the paths travel with the job, the keys are read where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.security.curve import public_key
from core.security.key_files import read_key, read_secret_key

if TYPE_CHECKING:
    from typing import Any

__all__ = ["CurveFiles"]


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """Where an executor finds its keys; one key of 40 Z85 characters a file, the secret one for its owner only.

    Attributes:
        secret: file with the client's secret key, as `zmtp keygen --secret-file` writes it; its public key follows from it.
        server: file with the broker's public key.
    """

    secret: str
    server: str

    def socket_options(self) -> dict[str, Any]:
        """Read the files and return the options of a CURVE client's socket.

        Raises:
            KeyFileError: a file is not there, not readable, readable for others or holds no key.
        """
        secret = read_secret_key(self.secret)
        return {"curve_secretkey": secret, "curve_publickey": public_key(secret), "curve_serverkey": read_key(self.server)}
