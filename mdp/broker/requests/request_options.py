"""What a client has asked for in the options of a request, as the terms of its record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.broker.requests.records import Terms
from mdp.wire.options import KEY_ALONE, NO_REQUEST_OPTIONS, is_key_alone

if TYPE_CHECKING:
    from mdp.wire.options import RequestOptions

__all__ = ["key_terms", "terms_of"]


def key_terms(options: bytes) -> Terms | None:
    """Return what a client has asked for in options that are a key only, the usual ones of data pipelines; None for any other."""
    if not is_key_alone(options):
        return None
    terms = Terms()
    terms.options = options
    terms.key = options[len(KEY_ALONE) + 1 :]
    return terms


def terms_of(wish: RequestOptions, options: bytes, now: float) -> Terms | None:
    """Return what a client has asked for in the options of a request, None for nothing special."""
    if wish is NO_REQUEST_OPTIONS:
        return None
    terms = Terms()
    terms.options = options
    terms.once = wish.once
    terms.wait = wish.wait
    terms.key = wish.key
    if wish.deadline_ms is not None:
        terms.deadline = now + wish.deadline_ms / 1000
    return terms
