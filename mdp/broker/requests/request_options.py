"""The conversion of request options into the terms of a record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.broker.requests.records import Terms
from mdp.wire.options import KEY_ALONE, NO_REQUEST_OPTIONS, is_key_alone

if TYPE_CHECKING:
    from mdp.wire.options import RequestOptions

__all__ = ["key_terms", "terms_of"]


def key_terms(options: bytes) -> Terms | None:
    """Return the terms of options that are a key only, as data pipelines send them; None for other options."""
    if not is_key_alone(options):
        return None
    terms = Terms()
    terms.options = options
    terms.key = options[len(KEY_ALONE) + 1 :]
    return terms


def terms_of(wish: RequestOptions, options: bytes, now: float) -> Terms | None:
    """Return the terms of decoded request options, None if they ask for nothing special."""
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
