"""Where `core` and libzmq are meant to differ.

The rows of the table in `docs/core.md`, and how each is known in a programme.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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


LOSSES: Final = ("kill", "restart", "close", "cut", "disconnect", "flash")
READABLE: Final = 1
WRITABLE: Final = 2


def _events(found: Difference) -> dict[str, tuple[int, int]]:
    """Sockets whose events differ: (libzmq's, ours)."""
    if found.what != "events" or not isinstance(found.libzmq, dict) or not isinstance(found.ours, dict):
        return {}
    return {who: (found.libzmq[who], found.ours[who]) for who in found.libzmq if found.libzmq[who] != found.ours[who]}


def _names(found: Difference) -> set[str]:
    """Sockets in which the two worlds differ."""
    return set(_events(found)) or {found.step.who}


def _kinds(found: Difference) -> set[str]:
    """Their kinds."""
    return {found.programme.kind(who) for who in _names(found)}


def _did(found: Difference, *verbs: str) -> bool:
    return any(step.verb in verbs for step in found.programme.steps[: found.at + 1])


def _option(found: Difference, who: str, name: str, default: Any = None) -> Any:
    return found.programme.options.get(who, {}).get(name, default)


def _peers(found: Difference, *names: str) -> set[str]:
    """Sockets that these have ever had a connection with, or have one with after this step."""
    after = deepcopy(found.plan)
    if found.step.verb != "recv" and after.allows(found.step):
        after.apply(found.step)
    return {peer.partition(".")[0] for plan in (found.plan, after) for who in names for peer in plan.peers.get(who, ())}


def _more(found: Difference, world: int, bit: int) -> bool:
    """Whether exactly one bit differs, set in one world only (0 libzmq, 1 ours), in all sockets that differ."""
    events = _events(found)
    return bool(events) and all(seen[world] & bit and seen[world] ^ seen[1 - world] == bit for seen in events.values())


def _refused(found: Difference) -> bool:
    """It is about a socket that has had a peer too many, or about one of its peers."""
    refusing = found.plan.refusing_sockets
    return bool(_names(found) & (refusing | _peers(found, *refusing)))


def _same_name(found: Difference) -> bool:
    """A REP has had two connections with peers of one name, and it or its peers differ."""
    for who in found.programme.options:
        if found.programme.kind(who) == "REP":
            peers = _peers(found, who)
            names = [_option(found, peer, "identity") for peer in peers if _option(found, peer, "identity")]
            if (len(names) > len(set(names)) or (found.plan.twice and names)) and _names(found) & {who, *peers}:
                return True
    return False


def _unread_id(found: Difference) -> bool:
    """A peer of a ROUTER or REP went; the ROUTER differs, or one of its named peers."""
    if not _did(found, *LOSSES):
        return False
    for who in found.programme.options:
        if found.programme.kind(who) in ("ROUTER", "REP"):
            named = {peer for peer in _peers(found, who) if _option(found, peer, "identity")}
            if (_names(found) & {who, *named} and named) or (_names(found) == {who} and _more(found, 0, WRITABLE)):
                return True
    return False


def _handed_over(found: Difference) -> bool:
    """Over inproc, somebody took the routing id of another: in one world the other can send no more."""
    if not found.plan.inproc or not (_more(found, 0, WRITABLE) or _more(found, 1, WRITABLE)):
        return False
    for who in found.programme.options:
        peers = _peers(found, who)
        if _option(found, who, "router_handover") and _names(found) <= peers:
            names = [_option(found, peer, "identity") for peer in peers if _option(found, peer, "identity")]
            if len(names) > len(set(names)):
                return True
    return False


def _conflating_inproc(found: Difference) -> bool:
    """One end of an inproc connection conflates, and the one that differs is at it."""
    names = _names(found)
    concerned = names | _peers(found, *names)
    return found.plan.inproc and found.what in ("received", "events") and any(_option(found, who, "conflate") for who in concerned)


def _topics(found: Difference) -> bool:
    """A subscriber has asked for more topics than its SNDHWM, and it or its publishers differ."""
    for who in found.programme.options:
        asked = sum(step.who == who and step.verb in ("subscribe", "unsubscribe") for step in found.programme.steps[: found.at + 1])
        if found.programme.kind(who) in ("SUB", "XSUB") and asked > _option(found, who, "sndhwm", asked):
            if _names(found) & {who, *_peers(found, who)}:
                return True
    return False


def _room(found: Difference) -> bool:
    """A sender has filled a queue, and some of it has been read: it differs, or a peer of it."""
    steps = found.programme.steps[: found.at + 1]
    for who in found.programme.options:
        full = sum(step.verb == "send" and step.who == who for step in steps) > _option(found, who, "sndhwm", len(steps))
        peers = _peers(found, who)
        if full and any(step.verb == "recv" and step.who in peers for step in steps) and _names(found) & {who, *peers}:
            return found.programme.kind(who) not in ("SUB", "XSUB")
    return False


def _first_request(found: Difference) -> bool:
    """A REP has taken a request in both worlds, of different peers."""
    if found.what != "received" or found.programme.kind(found.step.who) != "REP":
        return False
    took = [set(seen[0]) for seen in (found.libzmq, found.ours) if isinstance(seen, tuple)]
    return len(took) == 2 and all(took) and took[0] != took[1]


def _skipped(found: Difference) -> bool:
    """libzmq alone says that a REP or REQ can be read, and it has been sent what it skips."""
    if not _more(found, 0, READABLE) or not _kinds(found) <= {"REP", "REQ"}:
        return False
    steps = found.programme.steps[: found.at + 1]
    for who in _names(found):
        peers = _peers(found, who)
        undelimited = any(_option(found, peer, "probe_router") for peer in peers) or any(step.verb == "flash" for step in steps)
        unasked = any(step.verb == "send" and step.who in peers for step in steps)
        if not undelimited and not (unasked and found.programme.kind(who) == "REQ"):
            return False
    return True


def _malformed_reply(found: Difference) -> bool:
    if found.programme.kinds != ("REQ", "ROUTER"):
        return False
    steps = found.programme.steps[: found.at + 1]
    for who in [name for name in found.programme.options if name[0] == "A"]:
        peers = _peers(found, who)
        probed = any(_option(found, peer, "probe_router") for peer in peers)
        unasked = any(step.verb in ("send", "flash") and step.who in peers for step in steps)
        if (probed or unasked) and _names(found) & {who, *peers}:
            return True
    return False


def _former_pair(found: Difference) -> bool:
    return found.programme.kinds == ("PAIR", "PAIR") and _did(found, *LOSSES) and found.what in ("events", "received", "outcome")


def _immediate(found: Difference) -> bool:
    """An end that differs, or a peer of it, is IMMEDIATE or conflating, and has lost a connection."""
    names = _names(found)
    concerned = names | _peers(found, *names)
    return any(_option(found, who, "immediate") or _option(found, who, "conflate") for who in concerned) and _did(found, *LOSSES)


def _disconnected(found: Difference) -> bool:
    """libzmq has lost what came before a `disconnect` of the one that differs or of its peers."""
    if found.what not in ("received", "events"):
        return False
    names = _names(found)
    concerned = names | _peers(found, *names)
    return any(step.verb == "disconnect" and step.who in concerned for step in found.programme.steps[: found.at + 1])


def _looked_at(found: Difference) -> bool:
    """A SUB that has unsubscribed, or conflates: polling has taken a message from libzmq's queue."""
    names = _names(found)
    if _kinds(found) != {"SUB"} or found.what not in ("received", "events"):
        return False
    left = {step.who for step in found.programme.steps[: found.at + 1] if step.verb == "unsubscribe"}
    return all(_option(found, who, "conflate") or who in left for who in names)


def _after_a_loss(found: Difference) -> bool:
    """One that takes turns has had several peers and lost one: it differs, or those it sends to."""
    takers = [who for who in found.programme.options if found.programme.kind(who) in ("PUSH", "DEALER", "REQ")]
    for who in takers:
        several = len(found.plan.peers.get(who, ())) > 1 or len(found.plan.connected.get(who, ())) > 1
        if several and _names(found) & {who, *_peers(found, who)} and _did(found, *LOSSES):
            return found.what in ("received", "events", "outcome")
    return False


def _conflated_probe(found: Difference) -> bool:
    names = _names(found)
    return found.plan.inproc and any(
        _option(found, who, "conflate") and _option(found, who, "probe_router") for who in names | _peers(found, *names)
    )


def _at_its_mark(found: Difference) -> bool:
    """A socket with RCVHWM differs, or a peer of it: it notices an end later, or, publishing, a topic."""
    names = _names(found)
    marked = {who for who in names | _peers(found, *names) if _option(found, who, "rcvhwm")}
    if found.what in ("connections", "outcome"):
        return bool(marked)
    return any(found.programme.kind(who) == "XPUB" for who in marked) or (bool(marked) and _did(found, *LOSSES))


ROWS = (
    Row("a peer that cannot be accepted", _refused),
    Row("a REP and two peers with one routing id", _same_name),
    Row("POLLIN of a REP or REQ", _skipped),
    Row("a REQ that received a reply without its delimiter", _malformed_reply),
    Row("the routing id of a disconnected peer", _unread_id),
    Row("the former holder of a routing id over inproc", _handed_over),
    Row("CONFLATE over inproc", _conflating_inproc),
    Row("messages received before an IMMEDIATE or conflating connection ended", _immediate),
    Row("messages received before a `disconnect`", _disconnected),
    Row("a message after a poll", _looked_at),
    Row("the next peer after a peer has left", _after_a_loss),
    Row("the probe of a conflating DEALER over inproc", _conflated_probe),
    Row("unread messages of the former peer of a PAIR", _former_pair),
    Row("a socket at its high-water mark", _at_its_mark),
    Row("a subscriber's topics", _topics),
    Row("the request that a REP receives first", _first_request),
    Row("free capacity in a full queue", _room),
)


def explain(found: Difference) -> Row | None:
    """Return the row a difference belongs to, None if nobody has explained it."""
    return next((row for row in ROWS if row.fits(found)), None)
