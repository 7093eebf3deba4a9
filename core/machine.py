"""What every protocol machine looks like from outside.

A machine decides and never acts: it awaits nothing, reads no clock, opens nothing. Its shell calls `receive` with what arrived
and `tick` when `deadline()` has come, and carries out the effects it gets back. `receive` differs from machine to machine in
what arrives, so it is not part of this interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Machine"]

Effect = TypeVar("Effect", covariant=True)


class Machine(Protocol[Effect]):
    """A state machine driven by time."""

    def tick(self, now: float) -> Sequence[Effect]:
        """Do what is due at `now` (monotonic seconds); return what the shell must carry out."""
        ...

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next, None for not before something is received."""
        ...
