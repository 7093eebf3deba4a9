"""Effects of a step, to be carried out by the shell in the given order. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bstar.machine.ballot import Ballot
    from bstar.machine.fsm import Event, Fault


@dataclass(frozen=True, slots=True)
class Announce:
    """Publish the state message now."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the counter to disk, then call `persisted` with it."""

    counter: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the witness for the lease; `holding` when it is a renewal. Call `granted` or `refused` with the answer."""

    ballot: Ballot
    holding: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Release the lease for this ballot at the witness."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BecameActive:
    """Serve: call on-active, then answer held requests. `ballot` is `NO_BALLOT` in compatible mode."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BecamePassive:
    """Stop serving, because of an event: refuse held requests, call on-passive."""

    event: Event


@dataclass(frozen=True, slots=True)
class ClaimDropped:
    """Refuse held requests."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop permanently (BST-06)."""

    fault: Fault


ShellEffect = Announce | Persist | Ask | Release | BecameActive | BecamePassive | ClaimDropped | Halt
