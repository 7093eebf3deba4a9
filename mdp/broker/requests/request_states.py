"""The states of a request in the broker, and their allowed transitions.

Pure. The record of a request (`mdp.broker.requests.records.Request`) is in one of these states. The machine sets them
(`mdp.broker.requests.request_table`, `request_ends`, `idempotency`) and does not consult the table at run time, because setting a state
costs nothing measurable and a lookup would. Every test with a broker checks each transition against the table, and
`mdp.broker.requests.invariants` checks each state against the place of the record.

                                                   +---- its worker was lost ----+
                                                   v                             |
    ACCEPTED --no worker has credit----------> QUEUED --a worker has credit--> GIVEN --FINAL, ERROR--> ANSWERED
       |   |                                      |                            ^  ^ |
       |   +---a worker has credit----------------|----------------------------+  | +--its client left, its key is kept----> UNCLAIMED
       |                                          |                               +---a client sends the key again----------+   |
       |                                          |                                                                             v
       +---its key is being executed----> FOLLOWING --+--> ANSWERED, WITHDRAWN, EXPIRED, REFUSED, LOST, DEAD_LETTERED        FORGOTTEN
                                                      +--> MERGED

A request whose idempotency key is being executed is FOLLOWING: it is in no queue and with no worker. When the client of the executed
record leaves, the first follower takes that record over: the record stays in its place, QUEUED or GIVEN, and is the request of the
follower from then on; the follower's own record is MERGED.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class RequestState(Enum):
    """The place of a request, or how it ended."""

    ACCEPTED = auto()  # counted, not placed yet; never seen between two calls of the machine
    QUEUED = auto()  # in the queue of its service
    GIVEN = auto()  # in flight at one worker
    FOLLOWING = auto()  # waits for the answer of another request with its key
    UNCLAIMED = auto()  # in flight at a worker, without a client; its answer is kept for later requests with its key
    ANSWERED = auto()  # by a worker, with a reply or an error
    WITHDRAWN = auto()  # cancelled, or its client has left
    EXPIRED = auto()  # its deadline or its time in the queue is over
    REFUSED = auto()  # the queue was full, an operator or the rules removed it, the broker stopped, it or its reply is too large
    LOST = auto()  # with its worker, or with the broker, while it ran
    DEAD_LETTERED = auto()  # after the loss of too many workers
    MERGED = auto()  # it continues in the record it followed
    FORGOTTEN = auto()  # had no client when its worker finished with it


_S = RequestState
_ENDS = frozenset({_S.ANSWERED, _S.WITHDRAWN, _S.EXPIRED, _S.REFUSED, _S.LOST, _S.DEAD_LETTERED})

# Allowed next states. A state does not follow itself.
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

# The final state of a request that the broker ends with a code of its own.
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
