"""What a step of the machine asks its shell to do; one class per thing, carried out in the order given. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bstar.machine.ballot import Ballot
    from bstar.machine.fsm import Fault

__all__ = [
    "Announce",
    "Ask",
    "BecameActive",
    "BecamePassive",
    "ClaimDropped",
    "Halt",
    "Persist",
    "Release",
    "ShellEffect",
]


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
    """Tell the witness that this ballot is not used any more."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BecameActive:
    """Serve: answer what was held, call on-active. `ballot` is `NO_BALLOT` in compatible mode."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BecamePassive:
    """Stop serving: refuse what was held, call on-passive."""


@dataclass(frozen=True, slots=True)
class ClaimDropped:
    """Refuse what was held."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop for good (BST-06)."""

    fault: Fault


ShellEffect = Announce | Persist | Ask | Release | BecameActive | BecamePassive | ClaimDropped | Halt
