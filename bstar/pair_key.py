"""Pair key: given, or derived from a CURVE key that the members share (BST-46)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar.machine.signing import PairKey, Trust
from core.security.credentials import Curve

if TYPE_CHECKING:
    from core.security.credentials import Secured

__all__ = ["trust_of_server", "trust_of_witness"]


def trust_of_server(given: bytes | None, security: Secured | None, endpoint: str) -> Trust:
    """Return the trust of a server in its peer or the witness at an endpoint.

    If the CURVE key expected there is our own, both sides have the secret.
    """
    if given is not None:
        return Trust(PairKey(given), required=True)
    shared = security.shared_with(endpoint) if isinstance(security, Curve) else None
    return Trust(None if shared is None else PairKey.derived(shared), required=False)


def trust_of_witness(given: bytes | None, security: Secured | None) -> Trust:
    """Return the trust of a witness; the first signed message shows it that the servers have its CURVE key."""
    if given is not None:
        return Trust(PairKey(given), required=True)
    secret = security.lasting_secret if isinstance(security, Curve) else None
    return Trust(None if secret is None else PairKey.derived(secret), required=False)
