"""One stored request as the ledger keeps it, how far it has come, and what is remembered of it once it is closed. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from titanic.journal.manifest import OPEN

if TYPE_CHECKING:
    from titanic.journal.record import Location

__all__ = ["ANSWERED", "DEAD", "STORING", "WAITING", "ClosedKey", "Entry", "Owned", "Scope", "State", "scope_of"]


class State(enum.IntEnum):
    """How far a request has come."""

    STORING = 0
    WAITING = 1
    ANSWERED = 2
    DEAD = 3


# Looked up once: a member of an enumeration costs as much as a call.
STORING, WAITING, ANSWERED, DEAD = State

Scope: TypeAlias = "bytes | tuple[bytes, bytes]"
"""Under which a key is known: a key of nobody's by itself, one of a user's together with the user."""


def scope_of(owner: bytes, key: bytes) -> Scope:
    """Return under which a key of an owner is known."""
    return (owner, key) if owner else key


class Entry:
    """One request. `lowest` is the first segment that may hold a record of it."""

    __slots__ = (
        "accepted_ms",
        "attempts",
        "attempts_max",
        "closing",
        "digest",
        "ended_ms",
        "ending",
        "expires_ms",
        "key",
        "lowest",
        "not_before_ms",
        "owner",
        "reply",
        "request",
        "service",
        "size",
        "state",
        "uuid",
    )

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        self.owner = b""  # the user who sent it, b"" for nobody: without security, or stored before there were owners
        self.service = b""
        self.state = State.STORING
        self.accepted_ms = 0
        self.not_before_ms = 0
        self.expires_ms = 0
        self.ended_ms = 0  # when it was answered or given up
        self.ending = False  # a REPLY or DEAD is on its way to the disk; there is at most one
        self.closing = 0  # CLOSEs on their way to the disk; no other record of this UUID may follow them
        self.attempts = 0
        self.attempts_max = 0
        self.key = b""
        self.digest = b""
        self.request: Location | None = None
        self.reply: Location | None = None  # of the REPLY, or of the DEAD
        self.size = 0  # octets of its records, as counted against the quota
        self.lowest = OPEN


class Owned(dict[bytes, Entry]):
    """The requests of one user by UUID, and how many octets their records take."""

    __slots__ = ("octets",)

    def __init__(self) -> None:
        super().__init__()
        self.octets = 0


class ClosedKey(NamedTuple):
    """What is remembered of a closed request that had a key: enough to answer a repeated submit."""

    uuid: bytes
    digest: bytes
    closed_ms: int
    close: Location
