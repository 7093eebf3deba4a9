"""The life of a request in the broker: its states, and what may follow what.

Pure. The record of a request (`mdp.records.Request`) is in one of these states. The machine stores them
(`mdp.broker.requests.request_table`, `request_ends`, `idempotency`) and does not look the table up while it
works: the store costs nothing that can be measured, a look would. Every test with a broker holds each store against the table, and
`mdp.broker.requests.invariants` each state against where the record is.

                                                   +---- its worker was lost ----+
                                                   v                             |
    ACCEPTED --nobody has credit-------------> QUEUED --credit comes back----> GIVEN --FINAL, ERROR--> ANSWERED
       |   |                                      |                            |  ^ |
       |   +---a worker has credit----------------|----------------------------+  | +--its client is gone, its key is kept--> UNCLAIMED
       |                                          |                               +---a client comes with the key-----------+   |
       |                                          |                                                                             v
       +---its key is executed already--> FOLLOWING --+--> ANSWERED, WITHDRAWN, EXPIRED, REFUSED, LOST, DEAD_LETTERED        FORGOTTEN
                                                      +--> MERGED

A request with an idempotency key that is executed already is FOLLOWING: it has a place in no queue and with no worker. When the client of
the executed record leaves, the first that follows takes that record over: the record stays where it is, QUEUED or GIVEN, and is the other's
request from then on, whose own record is MERGED.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

__all__ = ["AFTER", "END_OF_CODE", "OPEN", "RequestState"]


class RequestState(Enum):
    """Where a request is, or how it ended."""

    ACCEPTED = auto()  # counted, not placed yet; nobody sees it so between two calls of the machine
    QUEUED = auto()  # in the queue of its service
    GIVEN = auto()  # held by one worker
    FOLLOWING = auto()  # waits for the answer of another one with its key
    UNCLAIMED = auto()  # held by a worker and of no client; its answer is kept for whoever asks with its key
    ANSWERED = auto()  # by a worker, with a reply or an error
    WITHDRAWN = auto()  # cancelled, or its client is gone
    EXPIRED = auto()  # its deadline or its time in the queue is over
    REFUSED = auto()  # the queue was full, an operator or the rules took it out, the broker stopped, it or its reply is too large
    LOST = auto()  # with its worker, or with the broker, while it ran
    DEAD_LETTERED = auto()  # after the loss of too many workers
    MERGED = auto()  # it goes on in the record it followed
    FORGOTTEN = auto()  # was of no client when its worker ended with it


_S = RequestState
_ENDS = frozenset({_S.ANSWERED, _S.WITHDRAWN, _S.EXPIRED, _S.REFUSED, _S.LOST, _S.DEAD_LETTERED})

# What may follow each state. A state is not entered twice in a row.
AFTER: Final[dict[RequestState, frozenset[RequestState]]] = {
    _S.ACCEPTED: frozenset({_S.QUEUED, _S.GIVEN, _S.FOLLOWING, _S.MERGED, _S.REFUSED}),
    _S.QUEUED: frozenset({_S.GIVEN, _S.WITHDRAWN, _S.EXPIRED, _S.REFUSED}),
    _S.GIVEN: frozenset({_S.QUEUED, _S.UNCLAIMED}) | _ENDS,
    _S.FOLLOWING: frozenset({_S.MERGED}) | _ENDS,
    _S.UNCLAIMED: frozenset({_S.GIVEN, _S.FORGOTTEN}),
    **{state: frozenset() for state in (*_ENDS, _S.MERGED, _S.FORGOTTEN)},
}

# States of requests that are accepted and not closed.
OPEN: Final = frozenset({_S.QUEUED, _S.GIVEN, _S.FOLLOWING})

# How a request ends that the broker ends with a code of its own.
END_OF_CODE: Final[dict[str, RequestState]] = {
    "BUSY": _S.REFUSED,
    "CANCELLED": _S.WITHDRAWN,
    "CLIENT_GONE": _S.WITHDRAWN,
    "DEAD_LETTER": _S.DEAD_LETTERED,
    "DEADLINE_EXCEEDED": _S.EXPIRED,
    "FORBIDDEN": _S.REFUSED,
    "NO_SERVICE": _S.EXPIRED,
    "TIMEOUT": _S.EXPIRED,
    "TOO_LARGE": _S.REFUSED,
    "WORKER_LOST": _S.LOST,
}
