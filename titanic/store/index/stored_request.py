"""One stored request in the index, its state, and what is remembered of it after its close. Pure.

States, with the method of `RequestIndex` on each edge:

    accept -> STORING --stored--> WAITING --answered------> ANSWERED --closed--> forgotten (its key stays as `ClosedKey`)
                 |                   '------dead_lettered--> DEAD ----closed--> forgotten
                 '--abandon--> forgotten

    STORING      nothing is durable: `request` is None, clients know nothing of it, and a repeated key waits for it
    WAITING      `request` is durable: acknowledged, delivered until it ends
                 `ending`: a REPLY or DEAD is being written, `closing`: CLOSEs are being written
    ANSWERED     `reply` is the place of the REPLY: can be fetched, never delivered again; a late reply is discarded
    DEAD         `reply` is the place of the DEAD
    forgotten    the CLOSE is durable; its key is remembered for `key_age_ms`
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from titanic.journal.manifest import OPEN

if TYPE_CHECKING:
    from titanic.journal.record import Location

__all__ = ["ANSWERED", "DEAD", "STORING", "WAITING", "ClosedKey", "Entry", "Scope", "State", "scope_of"]


class State(enum.IntEnum):
    """State of a stored request; see the module."""

    STORING = 0
    WAITING = 1
    ANSWERED = 2
    DEAD = 3


# Looked up once: a member of an enumeration costs as much as a call.
STORING, WAITING, ANSWERED, DEAD = State

Scope: TypeAlias = "bytes | tuple[bytes, bytes]"
"""Idempotency key with its owner; the bare key where there is no owner."""


def scope_of(owner: bytes, key: bytes) -> Scope:
    return (owner, key) if owner else key


@dataclass(slots=True, eq=False)
class Entry:
    """One stored request."""

    uuid: bytes
    owner: bytes = b""  # user that submitted it, b"" for none: without security, or stored before owners were recorded
    service: bytes = b""
    state: State = State.STORING
    accepted_ms: int = 0
    not_before_ms: int = 0
    expires_ms: int = 0
    ended_ms: int = 0  # when it was answered or given up
    ending: bool = False  # a REPLY or DEAD is being written; there is at most one
    closing: int = 0  # CLOSEs being written; no other record of this UUID may follow them
    attempts: int = 0
    attempts_max: int = 0
    key: bytes = b""
    digest: bytes = b""
    request: Location | None = None
    reply: Location | None = None  # of the REPLY, or of the DEAD
    size: int = 0  # bytes of its records, as counted against the quota
    lowest: int = OPEN  # first segment that may hold a record of it


class ClosedKey(NamedTuple):
    """Closed request that had a key: enough to answer a repeated submit."""

    uuid: bytes
    digest: bytes
    closed_ms: int
    close: Location
