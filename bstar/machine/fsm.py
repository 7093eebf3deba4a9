"""The Binary Star state machine: two tables, and nothing else.

Source: zguide chapter 4 (bstar.c, figure 61), rules BST-01, BST-08, BST-13, BST-14, BST-25 of `specs/bstar.md`.

Theory
======
Two servers watch each other; clients ask one of them. Each tells the other its state once a heartbeat. A server becomes active
when *three* see the same thing: it hears nothing of its peer, and a client that cannot reach the peer either asks it. That
client request is a **vote**.

                      hears BACKUP, or a vote
       PRIMARY  ------------------------------------.
      (waiting)                                     v
          |                                      ACTIVE  <----.
          | hears ACTIVE                            |         | hears PRIMARY or BACKUP (the peer was
          v                                         |         | restarted), or a vote
       PASSIVE  <--- loses its right to serve ------'         |
          ^   |      (ballot mode only)                       |
          |   '-----------------------------------------------'
          | hears ACTIVE
          |
        BACKUP      (a backup that never heard an active peer serves nobody, whatever clients say: BST-13)
      (waiting)

`GUIDE` is the machine of the guide, all 24 cells. Between two stock members it is what runs. Two of its cells kill: ACTIVE
that hears ACTIVE, and PASSIVE that hears PASSIVE. An exhaustive search finds two masters a few steps from the start, and both
servers dead after one of them was merely suspended and resumed.

`BALLOT` is the machine of this project. Whoever wants to serve draws a **ballot** (counter, node id) higher than all it has
seen, writes it to disk, has a witness grant a lease on it where there is a witness, and only then becomes active: that is a
*claim*, and WON is its event. Two actives are told apart by their ballots and the lower steps down; two passives wait for a
client to choose. Neither is fatal. What kills is a wrong configuration only, and never the server that is serving.

Invariants of a state
=====================
    PRIMARY   configured primary; nobody known to be active; on-active and on-passive were not called since the start
    BACKUP    the same of the configured backup
    ACTIVE    on-active was the last callback; in ballot mode the ballot is on disk, and with a witness it was granted
    PASSIVE   on-passive was the last callback

Every (state, event) cell is written, the ones that change nothing too. Pure; knows neither time nor the wire (`member.py` has
the timers).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BALLOT", "GUIDE", "Cell", "Effect", "Event", "Fault", "State", "Verdict", "mermaid", "step"]


class State(IntEnum):
    """State of a server; the value is the digit on the wire."""

    PRIMARY = 1
    BACKUP = 2
    ACTIVE = 3
    PASSIVE = 4


class Event(IntEnum):
    """What happens to a server. The first six are the guide's; the others exist in ballot mode only."""

    PEER_PRIMARY = 1  # the peer waits, as primary
    PEER_BACKUP = 2  # the peer waits, as backup
    PEER_ACTIVE = 3  # the peer is active; in ballot mode: under a ballot higher than ours, or it has none (a stock member)
    PEER_PASSIVE = 4
    REQUEST = 5  # a client request while the peer is heard
    VOTE = 6  # a client request after two silent heartbeats

    PEER_LOWER = 7  # the peer is active under a lower ballot: it has yet to hear of ours
    PEER_YIELDS = 8  # the peer is passive by order of its operator, and asks us to take over
    REQUEST_IDLE = 9  # a client request while the peer is heard, and says that it is passive
    WON = 10  # the claim is on disk, and granted where there is a witness
    LAPSED = 11  # the lease ran out
    OUTBID = 12  # there is a higher ballot than ours: the witness says so, or a client whom what the peer or the witness said bears out
    SWITCHOVER = 13  # the operator hands the active role to the peer
    STALLED = 14  # this process stood still for as long as its peer needs to take over


class Effect(Enum):
    """What the shell has to do besides remembering the state."""

    ON_ACTIVE = "call on-active"
    ON_PASSIVE = "call on-passive"
    CLAIM = "begin a claim, unless one is under way"
    DROP = "drop the claim under way"
    RELEASE = "give the lease back to the witness"
    YIELD = "ask the peer to take over"


class Verdict(Enum):
    """What becomes of the request that was the event."""

    ACCEPT = "accept"
    REJECT = "reject"
    HOLD = "hold until the claim is decided"


class Fault(Enum):
    """Why a server stops for good (BST-06)."""

    DUAL_ACTIVE = "dual active"
    DUAL_PASSIVE = "dual passive"
    DOUBLE_PRIMARY = "both servers are configured as primary"
    DOUBLE_BACKUP = "both servers are configured as backup"
    SAME_NODE = "the peer has our node id"


class Cell(NamedTuple):
    """One cell of a table: the next state and what goes with it."""

    state: State
    effects: tuple[Effect, ...] = ()
    verdict: Verdict | None = None
    fault: Fault | None = None


PRIMARY, BACKUP, ACTIVE, PASSIVE = State
ON_ACTIVE, ON_PASSIVE, CLAIM, DROP, RELEASE, YIELD = Effect
ACCEPT, REJECT, HOLD = Verdict

Table = dict[State, dict[Event, Cell]]

GUIDE: Final[Mapping[State, Mapping[Event, Cell]]] = {
    PRIMARY: {
        Event.PEER_PRIMARY: Cell(PRIMARY),
        Event.PEER_BACKUP: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.PEER_ACTIVE: Cell(PASSIVE, (ON_PASSIVE,)),
        Event.PEER_PASSIVE: Cell(PRIMARY),
        Event.REQUEST: Cell(PRIMARY, verdict=REJECT),
        Event.VOTE: Cell(ACTIVE, (ON_ACTIVE,), ACCEPT),
    },
    BACKUP: {
        Event.PEER_PRIMARY: Cell(BACKUP),
        Event.PEER_BACKUP: Cell(BACKUP),
        Event.PEER_ACTIVE: Cell(PASSIVE, (ON_PASSIVE,)),
        Event.PEER_PASSIVE: Cell(BACKUP),
        Event.REQUEST: Cell(BACKUP, verdict=REJECT),
        Event.VOTE: Cell(BACKUP, verdict=REJECT),
    },
    ACTIVE: {
        Event.PEER_PRIMARY: Cell(ACTIVE),
        Event.PEER_BACKUP: Cell(ACTIVE),
        Event.PEER_ACTIVE: Cell(ACTIVE, fault=Fault.DUAL_ACTIVE),
        Event.PEER_PASSIVE: Cell(ACTIVE),
        Event.REQUEST: Cell(ACTIVE, verdict=ACCEPT),
        Event.VOTE: Cell(ACTIVE, verdict=ACCEPT),
    },
    PASSIVE: {
        Event.PEER_PRIMARY: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.PEER_BACKUP: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.PEER_ACTIVE: Cell(PASSIVE),
        Event.PEER_PASSIVE: Cell(PASSIVE, fault=Fault.DUAL_PASSIVE),
        Event.REQUEST: Cell(PASSIVE, verdict=REJECT),
        Event.VOTE: Cell(ACTIVE, (ON_ACTIVE,), ACCEPT),
    },
}

BALLOT: Final[Mapping[State, Mapping[Event, Cell]]] = {
    PRIMARY: {
        Event.PEER_PRIMARY: Cell(PRIMARY),
        Event.PEER_BACKUP: Cell(PRIMARY, (CLAIM,)),
        Event.PEER_ACTIVE: Cell(PASSIVE, (DROP, ON_PASSIVE)),
        Event.PEER_LOWER: Cell(PASSIVE, (DROP, ON_PASSIVE)),
        Event.PEER_PASSIVE: Cell(PRIMARY),
        Event.PEER_YIELDS: Cell(PRIMARY, (CLAIM,)),
        Event.REQUEST: Cell(PRIMARY, verdict=REJECT),
        Event.REQUEST_IDLE: Cell(PRIMARY, (CLAIM,), HOLD),
        Event.VOTE: Cell(PRIMARY, (CLAIM,), HOLD),
        Event.WON: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.LAPSED: Cell(PRIMARY),
        Event.OUTBID: Cell(PRIMARY),
        Event.SWITCHOVER: Cell(PRIMARY),
        Event.STALLED: Cell(PRIMARY),
    },
    BACKUP: {
        Event.PEER_PRIMARY: Cell(BACKUP),
        Event.PEER_BACKUP: Cell(BACKUP),
        Event.PEER_ACTIVE: Cell(PASSIVE, (DROP, ON_PASSIVE)),
        Event.PEER_LOWER: Cell(PASSIVE, (DROP, ON_PASSIVE)),
        Event.PEER_PASSIVE: Cell(BACKUP),
        Event.PEER_YIELDS: Cell(BACKUP, (CLAIM,)),
        Event.REQUEST: Cell(BACKUP, verdict=REJECT),
        Event.REQUEST_IDLE: Cell(BACKUP, verdict=REJECT),
        Event.VOTE: Cell(BACKUP, verdict=REJECT),
        Event.WON: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.LAPSED: Cell(BACKUP),
        Event.OUTBID: Cell(BACKUP),
        Event.SWITCHOVER: Cell(BACKUP),
        Event.STALLED: Cell(BACKUP),
    },
    ACTIVE: {
        Event.PEER_PRIMARY: Cell(ACTIVE),
        Event.PEER_BACKUP: Cell(ACTIVE),
        Event.PEER_ACTIVE: Cell(PASSIVE, (RELEASE, ON_PASSIVE)),
        Event.PEER_LOWER: Cell(ACTIVE),
        Event.PEER_PASSIVE: Cell(ACTIVE),
        Event.PEER_YIELDS: Cell(ACTIVE),
        Event.REQUEST: Cell(ACTIVE, verdict=ACCEPT),
        Event.REQUEST_IDLE: Cell(ACTIVE, verdict=ACCEPT),
        Event.VOTE: Cell(ACTIVE, verdict=ACCEPT),
        Event.WON: Cell(ACTIVE),
        Event.LAPSED: Cell(PASSIVE, (RELEASE, ON_PASSIVE)),
        Event.OUTBID: Cell(PASSIVE, (RELEASE, ON_PASSIVE)),
        Event.SWITCHOVER: Cell(PASSIVE, (RELEASE, YIELD, ON_PASSIVE)),
        Event.STALLED: Cell(PASSIVE, (RELEASE, YIELD, ON_PASSIVE)),
    },
    PASSIVE: {
        Event.PEER_PRIMARY: Cell(PASSIVE, (CLAIM,)),
        Event.PEER_BACKUP: Cell(PASSIVE, (CLAIM,)),
        Event.PEER_ACTIVE: Cell(PASSIVE, (DROP,)),
        Event.PEER_LOWER: Cell(PASSIVE, (DROP,)),
        Event.PEER_PASSIVE: Cell(PASSIVE),
        Event.PEER_YIELDS: Cell(PASSIVE, (CLAIM,)),
        Event.REQUEST: Cell(PASSIVE, verdict=REJECT),
        Event.REQUEST_IDLE: Cell(PASSIVE, (CLAIM,), HOLD),
        Event.VOTE: Cell(PASSIVE, (CLAIM,), HOLD),
        Event.WON: Cell(ACTIVE, (ON_ACTIVE,)),
        Event.LAPSED: Cell(PASSIVE),
        Event.OUTBID: Cell(PASSIVE),
        Event.SWITCHOVER: Cell(PASSIVE),
        Event.STALLED: Cell(PASSIVE),
    },
}


def step(
    role: State,
    state: State,
    event: Event,
    table: Mapping[State, Mapping[Event, Cell]] = GUIDE,
) -> Cell:
    """Look up what a server does.

    The cells for a peer that waits in *our* role are a wrong configuration in any state (BST-08). In the guide's machine they
    are fatal everywhere. In ballot mode a server that is ACTIVE goes on: whoever was started wrongly stops, and stopping the
    one that serves would turn a slip into an outage.

    Args:
        role: PRIMARY or BACKUP, as configured.
        state: where the server is.
        event: what happened.
        table: `GUIDE` or `BALLOT`.
    """
    if int(event) == int(role) and (table is GUIDE or state is not ACTIVE):  # PEER_PRIMARY and PEER_BACKUP are the roles' digits
        return Cell(state, fault=Fault.DOUBLE_PRIMARY if role is PRIMARY else Fault.DOUBLE_BACKUP)
    return table[state][event]


def mermaid(table: Mapping[State, Mapping[Event, Cell]]) -> str:
    """Draw a table as a Mermaid state diagram: one arrow for each cell that leads elsewhere, claims or stops the server."""
    lines = ["stateDiagram-v2", "    [*] --> PRIMARY: configured primary", "    [*] --> BACKUP: configured backup"]
    for state, row in table.items():
        for event, cell in row.items():
            label = event.name.replace("_", " ").lower()
            if cell.fault:
                lines.append(f"    {state.name} --> [*]: {label}, fatal")
            elif cell.state is not state:
                lines.append(f"    {state.name} --> {cell.state.name}: {label}")
            elif CLAIM in cell.effects:
                lines.append(f"    {state.name} --> {state.name}: {label}, claims")
    return "\n".join(lines) + "\n"
