"""Reasons why a server cannot serve or ignores a message: for the log, the status and readiness.

Nothing here decides what a server does: `Ceiling` (`ballot.py`) bounds plausible counters, the machine does the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bstar import errors
from bstar.machine.ballot import COUNTER_MAX
from bstar.machine.fsm import Event, Fault, State
from bstar.machine.member_values import Claim
from core.daemon.logs import RateLimitedLog

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from bstar.errors import PairFault
    from bstar.machine.ballot import Ballot, Ceiling
    from bstar.machine.driver import Machine
    from bstar.net.ballot_writer import BallotWriter
    from bstar.net.lease_client import LeaseClient

log = logging.getLogger(__name__)

# How long the status shows a past reason, unless the server serves before.
SHOWN_S: Final = 60.0

_FAULTS: Final[dict[Fault, type[PairFault]]] = {
    Fault.DUAL_ACTIVE: errors.DualActive,
    Fault.DUAL_PASSIVE: errors.DualPassive,
}
_REMEDIES: Final = {
    Fault.DOUBLE_PRIMARY: "both servers are configured as primary: start one of them as backup",
    Fault.DOUBLE_BACKUP: "both servers are configured as backup: start one of them as primary",
    Fault.SAME_NODE: "the peer has our node id: remote is our own address, or the ballot file was copied from the other server",
}


# Why a server is passive. PEER_LOWER is for one that waited: the peer is active all the same.
PASSIVE_REASONS: Final = {
    Event.PEER_ACTIVE: "the peer is active",
    Event.PEER_LOWER: "the peer is active",
    Event.LAPSED: "the witness did not renew the lease",
    Event.OUTBID: "a higher ballot was drawn",
    Event.SWITCHOVER: "it handed over",
    Event.STALLED: "this process stood still for two heartbeats or more",
}


def fault_error(fault: Fault) -> PairFault:
    """Return the exception that reports a fault which stops a server for good (BST-06)."""
    return _FAULTS[fault]() if fault in _FAULTS else errors.Misconfigured(_REMEDIES[fault])


class Troubles:
    """Problems of one server, in words."""

    def __init__(self, writer: BallotWriter, ceiling: Ceiling, counters: Counter[str], clock: Callable[[], float]) -> None:
        self.odd_heartbeat_ms = 0  # heartbeat of the peer if it differs from ours, else 0
        self._writer = writer
        self._ceiling = ceiling
        self._counters = counters
        self._clock = clock
        self._log = RateLimitedLog(log)
        self._short_lease = ""  # what is wrong with the leases that the witness grants, "" for nothing
        self._latest = ""
        self._latest_at = float("-inf")

    def is_plausible(self, counter: int, who: str) -> bool:
        """Return whether a received counter is plausible; log and count one that is not."""
        most = self._ceiling.at(self._clock())
        if counter <= most:
            return True
        self._counters["ballot_too_far"] += 1
        self._log.warning(
            ("too far", who), "a ballot nobody can have drawn is not believed", who=who, counter=counter, highest_believed=most
        )
        self._note(f"{who} names counter {counter}, which no pair can have come to")
        return False

    def note_claim(self, seen: Ballot, ours: Ballot, *, asks: bool) -> None:
        self._counters["ballots_named"] += 1
        self._counters["ballots_asked_about"] += asks
        self._log.warning("named", "a client names a higher ballot than ours; peer and witness are asked", named=str(seen), ours=str(ours))

    def check_heartbeat(self, heartbeat_ms: int, ours_ms: int) -> None:
        """Compare the heartbeat of the peer with ours (BST-15); 0 if it sent a digit."""
        if heartbeat_ms not in (0, ours_ms, self.odd_heartbeat_ms):
            self.odd_heartbeat_ms = heartbeat_ms
            self._counters["heartbeat_mismatch"] += 1
            self._log.warning("heartbeat", "the peer has another heartbeat", ours_ms=ours_ms, its_ms=heartbeat_ms)

    def check_lease(self, granted_ms: int, asked_ms: int) -> None:
        """Compare the length of a lease with that we have asked for, which the heartbeat of the witness limits."""
        if granted_ms >= asked_ms - 1:  # rounded down on its way
            self._short_lease = ""
        elif not self._short_lease:
            self._short_lease = f"the witness grants leases of {granted_ms} ms, not of {asked_ms} ms: give it the same heartbeat"
            self._counters["heartbeat_mismatch"] += 1
            self._log.warning("lease", "the witness has a shorter heartbeat", ours_ms=asked_ms // 2, its_ms=granted_ms // 2)

    def lapsed(self) -> None:
        """Note why a lease has ended, if it was too short to be renewed."""
        if self._short_lease:
            self._note(self._short_lease)

    def claim_ended(self, machine: Machine, lease_client: LeaseClient | None, *, writing: bool) -> None:
        """Log why a claim failed, unless the other server serves."""
        now, one = self._clock(), machine.member
        if one.state is State.ACTIVE or (one.peer_state is State.ACTIVE and now < one.peer_until):
            return
        reason = self._reason(machine, lease_client, now)
        if not reason and writing:
            reason = "writing the ballot takes longer than two heartbeats"
        if not reason and lease_client is not None:
            reason = lease_client.trouble or lease_client.delay_reason(now)
        self._counters["claims_failed"] += 1
        reason = reason or "no client has asked again within two heartbeats"
        self._log.warning(("claim", reason), "a claim came to nothing", reason=reason)
        if not self._writer.trouble:  # shown anyway while it lasts
            self._note(reason)

    def clear(self) -> None:
        self._latest = ""

    def text(self, machine: Machine, lease_client: LeaseClient | None) -> str:
        """Return the present problem, or one of the last minute; "" for none."""
        now = self._clock()
        reason = self._reason(machine, lease_client, now)
        return reason or (self._latest if now < self._latest_at + SHOWN_S else "")

    def _note(self, reason: str) -> None:
        self._latest, self._latest_at = reason, self._clock()

    def _reason(self, machine: Machine, lease_client: LeaseClient | None, now: float) -> str:
        one = machine.member
        if self._writer.trouble:
            return f"the ballot file cannot be written: {self._writer.trouble}"
        if one.counter >= COUNTER_MAX and one.state is not State.ACTIVE:
            return "no counter is left for a higher ballot"
        if lease_client is None:
            return ""
        if one.claim is Claim.ACQUIRING:
            return lease_client.trouble or lease_client.delay_reason(now)
        return lease_client.trouble if one.state is State.ACTIVE else ""
