"""Pair key: given, or derived from a CURVE key that the members share (BST-46)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bstar.machine.signing import PairKey, Trust
from core.security.credentials import Curve

if TYPE_CHECKING:
    from core.security.credentials import Secured


def trust_of(given: bytes | None, security: Secured | None, endpoint: str | None) -> Trust:
    """Return the trust of a server in the program at an endpoint; with None, of a witness in its servers.

    If the CURVE key expected at the endpoint is our own, both sides have the secret. To a witness the first signed message shows that the
    servers have its CURVE key.
    """
    if given is not None:
        return Trust(PairKey(given), required=True)
    secret = None
    if isinstance(security, Curve):
        secret = security.lasting_secret if endpoint is None else security.shared_with(endpoint)
    return Trust(None if secret is None else PairKey.derived(secret), required=False)
