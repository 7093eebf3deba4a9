"""The conversion of request options into the extras of a record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.broker.requests.records import RequestExtras
from mdp.wire.options import KEY_ALONE, NO_REQUEST_OPTIONS, is_key_alone

if TYPE_CHECKING:
    from mdp.wire.options import RequestOptions


def key_extras(options: bytes) -> RequestExtras | None:
    """Return the extras of options that are a key only, as data pipelines send them; None for other options."""
    if not is_key_alone(options):
        return None
    extras = RequestExtras()
    extras.options = options
    extras.key = options[len(KEY_ALONE) + 1 :]
    return extras


def owner_prefix(name: str) -> bytes:
    """Return the prefix of a user's idempotency keys; no prefix begins with another one."""
    octets = name.encode(errors="backslashreplace")
    return len(octets).to_bytes(2, "big") + octets


def extras_of(wish: RequestOptions, options: bytes, now: float) -> RequestExtras | None:
    """Return the extras of decoded request options, None if they ask for nothing special."""
    if wish is NO_REQUEST_OPTIONS:
        return None
    extras = RequestExtras()
    extras.options = options
    extras.once = wish.once
    extras.wait = wish.wait
    extras.key = wish.key
    extras.priority = wish.priority
    extras.progress = wish.progress
    if wish.deadline_ms is not None:
        extras.deadline = now + wish.deadline_ms / 1000
    return extras
