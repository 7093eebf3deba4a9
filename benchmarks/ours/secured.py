"""CURVE for our programs, if the harness asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import core
from benchmarks.keys import CLIENT_SECRET, SERVER_PUBLIC, SERVER_SECRET

if TYPE_CHECKING:
    from benchmarks.program import Options

__all__ = ["client_security", "server_security"]


def server_security(options: Options) -> core.Curve | None:
    """Return the security of a server, None for none."""
    return core.Curve(secret_key=SERVER_SECRET, any_key=True) if options.curve else None


def client_security(options: Options) -> core.Curve | None:
    """Return the security of a client, None for none."""
    return core.Curve(secret_key=CLIENT_SECRET, server_key=SERVER_PUBLIC) if options.curve else None
