"""One stored request in the index, its state, and what is remembered of it after its close. Pure.

States, with the method of `RequestIndex` on each edge:

    accept -> STORING --stored--> WAITING --answered------> ANSWERED --closed--> forgotten (its key stays as `ClosedKey`)
                 |                   '------dead_lettered--> DEAD ----closed--> forgotten
                 '--abandon--> forgotten

    STORING      nothing is durable: `request` is None, clients know nothing of it, and a repeated key waits for it
    WAITING      `request` is durable: acknowledged, delivered until it ends
                 `ending`: the journal has a REPLY or DEAD, again if it refused it; `closing`: CLOSEs are being written
    ANSWERED     `reply` is the place of the REPLY: can be fetched, never delivered again; a late reply is discarded
    DEAD         `reply` is the place of the DEAD
    forgotten    the CLOSE is durable; its key is remembered for `key_age_ms`
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias

from mypy_extensions import mypyc_attr

from titanic.journal.manifest import OPEN
from titanic.journal.record import Location  # noqa: TC001 - compiled: a field names it


class State(enum.IntEnum):
    """State of a stored request; see the module."""

    STORING = 0
    WAITING = 1
    ANSWERED = 2
    DEAD = 3


# Looked up once: a member of an enumeration costs as much as a call.
STORING: Final = State.STORING
WAITING: Final = State.WAITING
ANSWERED: Final = State.ANSWERED
DEAD: Final = State.DEAD

Scope: TypeAlias = "bytes | tuple[bytes, bytes]"
"""Idempotency key with its owner; the bare key where there is no owner."""


def scope_of(owner: bytes, key: bytes) -> Scope:
    return (owner, key) if owner else key


@mypyc_attr(acyclic=True)  # no work for the collector, and 16 bytes less
class Entry:
    """One stored request.

    Attributes:
        owner: user that submitted it, b"" for none: without security, or stored before owners were recorded.
        state: see the module.
        accepted_ms, not_before_ms, expires_ms: times of its REQUEST; 0 for none.
        ended_ms: when it was answered or given up.
        ending: a REPLY or DEAD was given to the journal; there is at most one.
        closing: CLOSEs being written; no other record of this UUID may follow them.
        attempts, attempts_max: failed attempts so far, and at most; 0 for the store's limit.
        key, digest: idempotency key and the digest of its request, b"" for none.
        request: place of the REQUEST, None until it is durable.
        reply: place of the REPLY, or of the DEAD.
        size: bytes of its records, as counted against the quota.
        lowest: first segment that may hold a record of it.
        kept, kept_bytes: frames in memory, with the size of their record; see `titanic.store.bodies`.
    """

    __slots__ = (
        "accepted_ms", "attempts", "attempts_max", "closing", "digest", "ended_ms", "ending", "expires_ms", "kept", "kept_bytes", "key",
        "lowest", "not_before_ms", "owner", "reply", "request", "service", "size", "state", "uuid",
    )  # fmt: skip

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        self.owner = self.service = self.key = self.digest = b""
        self.state: State = STORING
        self.accepted_ms = self.not_before_ms = self.expires_ms = self.ended_ms = 0
        self.ending = False
        self.closing = self.attempts = self.attempts_max = self.size = self.kept_bytes = 0
        self.kept: list[bytes] | None = None
        self.request: Location | None = None
        self.reply: Location | None = None
        self.lowest = OPEN


class ClosedKey(NamedTuple):
    """Closed request that had a key: enough to answer a repeated submit."""

    uuid: bytes
    digest: bytes
    closed_ms: int
    close: Location
