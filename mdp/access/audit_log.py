"""Audit log: one line per refusal, at a bounded rate."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from core.machine.log_rate import LogRate
from mdp.wire.commands import printable

if TYPE_CHECKING:
    from mdp.broker.authorization import Refusal

# More lines than a person reads, few enough not to fill a disk: 100 a second are 1 GB a day.
LINES_PER_S: Final = 100

log = logging.getLogger("mdp.audit")


class AuditLog:
    """Log of refusals."""

    def __init__(self) -> None:
        self._rate = LogRate(1.0, LINES_PER_S, LINES_PER_S)

    @property
    def left_out(self) -> int:
        """Refusals without a line; the next line has their number in `left_out`, and the broker's counters include them."""
        return self._rate.untold(None)

    def refused(self, refusal: Refusal, now: float) -> None:
        self._write(
            "refused by the rules", now, peer=refusal.peer.hex(), user=refusal.user, verb=refusal.verb, service=printable(refusal.service)
        )

    def ballot_named(self, peer: bytes, user: str | None, named: str, ours: str, now: float) -> None:
        """Log that a client of a paired broker named a higher ballot than ours, which has no effect by itself."""
        self._write("a ballot named by a client is not believed", now, peer=peer.hex(), user=user, named=named, ours=ours)

    def _write(self, what: str, now: float, **fields: object) -> None:
        left_out = self._rate.admit(None, now)
        if left_out is None:
            return
        if left_out:
            fields["left_out"] = left_out
        log.warning(what, extra=fields)
