"""Where `core` and libzmq are meant to differ: the rows of the table in `docs/core.md`, and how each is known in a programme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.differential.lockstep import Difference

__all__ = ["ROWS", "Row", "explain"]


@dataclass(frozen=True)
class Row:
    """One kind of difference.

    Attributes:
        name: first column of the table in `docs/core.md`.
        fits: whether a difference is of this kind.
    """

    name: str
    fits: Callable[[Difference], bool]


def _kinds(found: Difference) -> set[str]:
    """Kinds of the sockets in which the two worlds differ."""
    if isinstance(found.libzmq, dict) and isinstance(found.ours, dict) and found.what == "events":
        names = [who for who in found.libzmq if found.libzmq[who] != found.ours.get(who)]
    else:
        names = [found.step.who]
    return {found.programme.kind(who) for who in names}


def _did(found: Difference, *verbs: str) -> bool:
    return any(step.verb in verbs for step in found.programme.steps[: found.at + 1])


def _refused(found: Difference) -> bool:
    return found.plan.refusing


def _unread_id(found: Difference) -> bool:
    named = any("identity" in options for options in found.programme.options.values())
    return named and "ROUTER" in found.programme.kinds and _did(found, "kill", "restart", "close", "cut", "disconnect", "flash")


def _malformed_request(found: Difference) -> bool:
    return found.what == "events" and _kinds(found) <= {"REP", "REQ"}


def _malformed_reply(found: Difference) -> bool:
    steps = found.programme.steps[: found.at + 1]
    probes = any(options.get("probe_router") for who, options in found.programme.options.items() if who[0] == "B")
    unasked = any(step.verb == "send" and step.who[0] == "B" for step in steps)
    return found.programme.kinds == ("REQ", "ROUTER") and (probes or unasked)


def _relaxed(found: Difference) -> bool:
    return "REQ" in _kinds(found) and any(options.get("req_relaxed") for options in found.programme.options.values())


def _former_pair(found: Difference) -> bool:
    return found.programme.kinds == ("PAIR", "PAIR") and _did(found, "kill", "restart", "close", "cut", "disconnect", "flash")


def _immediate(found: Difference) -> bool:
    immediate = any("immediate" in options or "conflate" in options for options in found.programme.options.values())
    return immediate and _did(found, "kill", "restart", "close", "cut")


def _disconnected(found: Difference) -> bool:
    return found.what in ("received", "events") and _did(found, "disconnect")


def _looked_at(found: Difference) -> bool:
    conflating = bool(found.programme.options.get(found.step.who, {}).get("conflate"))
    return found.programme.kind(found.step.who) == "SUB" and (_did(found, "unsubscribe") or conflating)


def _after_a_loss(found: Difference) -> bool:
    plan, kinds = found.plan, found.programme.kinds
    senders = [who for who in found.programme.options if found.programme.kind(who) in ("PUSH", "DEALER", "REQ")]
    several = any(len(plan.peers.get(who, ())) > 1 or len(plan.connected.get(who, ())) > 1 for who in senders)
    lost = _did(found, "kill", "restart", "close", "cut", "disconnect", "flash")
    return several and lost and "PAIR" not in kinds and found.what in ("received", "events", "outcome")


def _conflated_probe(found: Difference) -> bool:
    return found.plan.inproc and any(
        options.get("conflate") and options.get("probe_router") for options in found.programme.options.values()
    )


def _at_its_mark(found: Difference) -> bool:
    return any("rcvhwm" in options for options in found.programme.options.values()) and found.what in ("connections", "outcome")


ROWS = (
    Row("a peer that cannot be taken", _refused),
    Row("the routing id of a peer that has gone", _unread_id),
    Row("POLLIN of a REP or REQ", _malformed_request),
    Row("a REQ that has got a reply without its delimiter", _malformed_reply),
    Row("a relaxed REQ whose send finds no room", _relaxed),
    Row("what came before an IMMEDIATE or conflating connection ended", _immediate),
    Row("what came before a `disconnect`", _disconnected),
    Row("a message that was polled for", _looked_at),
    Row("whose turn it is after a peer has left", _after_a_loss),
    Row("the probe of a conflating DEALER over inproc", _conflated_probe),
    Row("what the former peer of a PAIR left unread", _former_pair),
    Row("a socket at its high-water mark", _at_its_mark),
)


def explain(found: Difference) -> Row | None:
    """Return the row a difference belongs to, None if nobody has explained it."""
    return next((row for row in ROWS if row.fits(found)), None)
