"""Binary Star state machine: two tables. Pure.

Source: zguide chapter 4 (bstar.c, figure 61), rules BST-01, BST-08, BST-13, BST-14, BST-25 of `specs/bstar.md`.

Theory
======
Two servers watch each other; clients send requests to one of them. Each sends its state to the other once a heartbeat. A server becomes
active when two observers agree: it receives nothing from its peer, and a client that cannot reach the peer either sends it a request. That
request is a **vote**.

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
        BACKUP      (a backup that never heard an active peer does not serve, even after votes: BST-13)
      (waiting)

`GUIDE` is the machine of the guide, all 24 cells, used between stock members. Two of its cells are fatal: ACTIVE that hears ACTIVE, and
PASSIVE that hears PASSIVE. An exhaustive search finds two masters a few steps from the start, and both servers dead after one of them was
suspended and resumed.

`BALLOT` is the machine of this project. To serve, a server draws a **ballot** (counter, node id) higher than all it has seen, writes it to
disk, asks the witness (if there is one) for a lease on it, and only then becomes active: that is a *claim*, and WON is its event. Of two
active servers the one with the lower ballot steps down; two passive ones wait for a client to choose. Neither is fatal. Only a wrong
configuration is, and never for the active server.

Invariants of a state
=====================
    PRIMARY   configured primary; no active server known; on-active and on-passive were not called since the start
    BACKUP    the same for the configured backup
    ACTIVE    on-active was the last callback; in ballot mode the ballot is on disk, and with a witness it was granted
    PASSIVE   on-passive was the last callback

Every (state, event) cell is written, including those that change nothing. No time and no wire here: `member.py` has the timers.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(IntEnum):
    """State of a server; the value is the digit on the wire."""

    PRIMARY = 1
    BACKUP = 2
    ACTIVE = 3
    PASSIVE = 4


class Event(IntEnum):
    """Event of a server. The first six are those of the guide; the others exist in ballot mode only."""

    PEER_PRIMARY = 1  # the peer waits, as primary
    PEER_BACKUP = 2  # the peer waits, as backup
    PEER_ACTIVE = 3  # the peer is active; in ballot mode: under a ballot higher than ours, or it has none (a stock member)
    PEER_PASSIVE = 4
    REQUEST = 5  # a client request while the peer is alive
    VOTE = 6  # a client request after two silent heartbeats

    PEER_LOWER = 7  # the peer is active under a lower ballot: it has not received ours yet
    PEER_YIELDS = 8  # the peer is passive by order of its operator, and asks us to take over
    REQUEST_IDLE = 9  # a client request while the peer is alive and passive
    WON = 10  # the claim is on disk, and granted where there is a witness
    LAPSED = 11  # the lease ended
    OUTBID = 12  # there is a higher ballot, by the witness, or by a client and confirmed by peer or witness
    SWITCHOVER = 13  # the operator hands the active role to the peer
    STALLED = 14  # this process was suspended for as long as its peer needs to take over


class Effect(Enum):
    """Action that goes with a change of state."""

    ON_ACTIVE = "call on-active"
    ON_PASSIVE = "call on-passive"
    CLAIM = "begin a claim, unless one is running"
    DROP = "drop the running claim"
    RELEASE = "release the lease at the witness"
    YIELD = "ask the peer to take over"


class Verdict(Enum):
    """Decision about the request that was the event."""

    ACCEPT = "accept"
    REJECT = "reject"
    HOLD = "hold until the claim is decided"


class Fault(Enum):
    """Reason why a server stops permanently (BST-06)."""

    DUAL_ACTIVE = "dual active"
    DUAL_PASSIVE = "dual passive"
    DOUBLE_PRIMARY = "both servers are configured as primary"
    DOUBLE_BACKUP = "both servers are configured as backup"
    SAME_NODE = "the peer has our node id"


class Cell(NamedTuple):
    """One cell of a table: next state, effects, verdict and fault."""

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


def step(role: State, state: State, event: Event, table: Mapping[State, Mapping[Event, Cell]] = GUIDE) -> Cell:
    """Look up a cell; `role` is PRIMARY or BACKUP, as configured.

    A peer that waits in *our* role means a wrong configuration in any state (BST-08). In the machine of the guide that is always fatal. In
    ballot mode an ACTIVE server continues: the other one stops, and stopping the active one too would cause an outage.
    """
    if int(event) == int(role) and (table is GUIDE or state is not ACTIVE):  # PEER_PRIMARY and PEER_BACKUP are the roles' digits
        return Cell(state, fault=Fault.DOUBLE_PRIMARY if role is PRIMARY else Fault.DOUBLE_BACKUP)
    return table[state][event]
