"""Status and metrics of a running pair. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bstar.machine.fsm import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bstar.machine.driver import Machine


class PairSnapshot(NamedTuple):
    """State of a pair at one moment."""

    machine: Machine  # with its member and settings
    now: float  # monotonic seconds
    serving: bool  # whether an answer may leave
    guard: str  # `witness`, `fenced` or `none` (BST-37)
    heard_at: float | None  # time of the last message of the peer, None for none
    witness_at: float | None  # when the newest answered question to the witness was sent, None for none
    peer_heartbeat_ms: int  # heartbeat of the peer if it differs from ours, else 0
    held: int  # requests that wait for a claim
    running: int  # requests with handlers
    counters: Mapping[str, int]
    changes: Sequence[dict[str, Any]]  # latest changes of state, oldest first
    trouble: str  # why this server cannot serve, "" for nothing


def status(pair: PairSnapshot) -> dict[str, Any]:
    """Return the status for operators.

    `safe` is true if two masters are impossible, which needs a witness. Ages and remaining times are in seconds, None if unknown.
    """
    settings, one, now = pair.machine.settings, pair.machine.member, pair.now
    heard = now < one.peer_until and one.peer_state is not None
    heartbeat_ms = round(settings.heartbeat_s * 1000)
    return {
        "role": settings.role.name.lower(),
        "state": one.state.name.lower(),
        "serving": pair.serving,
        "guard": pair.guard,
        "safe": pair.guard == "witness",
        "ballot": str(pair.machine.ballot),
        "highest": one.counter,
        "node": f"{settings.node:016x}",
        "incarnation": settings.incarnation,
        "heartbeat_ms": heartbeat_ms,
        "peer": {
            "state": one.peer_state.name.lower() if heard and one.peer_state else "silent",
            "age_s": _age(pair.heard_at, now),
            "node": f"{one.peer.node:016x}" if one.peer.node else "",
            "heartbeat_ms": pair.peer_heartbeat_ms or (heartbeat_ms if one.peer.node else 0),
        },
        "claim": one.claim.name.lower(),
        "trouble": pair.trouble or None,
        "lease_left_s": round(max(0.0, one.lease_until - now), 3) if settings.lease_s else None,
        "witness_age_s": _age(pair.witness_at, now),
        "held": pair.held,
        "running": pair.running,
        "stale": pair.machine.stale,
        "changes": [
            {"event": change["event"], "ballot": change["ballot"], "age_s": _age(change["at"], now), "reason": change["reason"]}
            for change in pair.changes
        ],
        "counters": dict(pair.counters),
    }


def metrics(pair: PairSnapshot) -> dict[str, float]:
    """Return metrics by name. Unknown values are left out; counters end in `_total`."""
    settings, one, now = pair.machine.settings, pair.machine.member, pair.now
    numbers: dict[str, float] = {
        "bstar_state": int(one.state),
        "bstar_active": int(one.state is State.ACTIVE),
        "bstar_serving": int(pair.serving),
        "bstar_safe": int(pair.guard == "witness"),
        "bstar_ballot": pair.machine.ballot.counter,
        "bstar_ballot_highest": one.counter,
        "bstar_peer_heard": int(now < one.peer_until and one.peer_state is not None),
        "bstar_held": pair.held,
        "bstar_running": pair.running,
        "bstar_trouble": int(bool(pair.trouble)),
    }
    if settings.lease_s:
        numbers["bstar_lease_left_seconds"] = max(0.0, one.lease_until - now)
    for name, at in (("bstar_peer_age_seconds", pair.heard_at), ("bstar_witness_age_seconds", pair.witness_at)):
        if at is not None:
            numbers[name] = now - at
    return numbers | {f"bstar_{name}_total": count for name, count in pair.counters.items()} | {"bstar_stale_total": pair.machine.stale}


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)
