"""The question to a broker for its dialect, on a connection of its own."""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from bstar.machine.ballot import NO_BALLOT
from core.runtime import supervision
from mdp.session.connection import Connection
from mdp.wire.commands import EMPTY, MDPC01, V01, V03, client_request
from mdp.wire.failover import PAIR_SERVICE, RETRY_S_USUAL, Membership, ballot_text, parse_membership
from mdp.wire.shards import parse_greeting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import core
    from bstar.machine.ballot import Ballot
    from core.zmtp.scan import Batch
    from mdp.wire.commands import Dialect

# Service that answers which dialects a broker speaks (specs/mdp.md); a broker without it answers 501 or not at all.
DIALECT_SERVICE: Final = b"mmi.protocol"
# A broker that accepts the connection and is silent for so long, or longer where it is far, queues `mmi.protocol` for a service without
# workers. A broker that has announced its limits knows the question, and answers as soon as it can.
PROBE_S: Final = 1.0
# Silences of such a broker before another connection is tried: this one may be broken without notice.
SILENCES_MAX: Final = 8
SOON_S: Final = 0.0  # in the next loop iteration: an answer closes the socket, which is calling us

SILENT: Final = "it accepted the connection and does not answer"
PASSIVE: Final = "it is the passive broker of its pair"


@dataclass(eq=False, repr=False)  # socket options may hold keys
class Probe:
    """Asks a broker for its dialect, on a separate connection, so that READY stays a worker's first message."""

    context: core.Context
    endpoint: str
    options: Mapping[str, Any]
    _: KW_ONLY
    on_reached: Callable[[bool], None]  # called with whether the broker accepted the connection or dropped it
    # Called once, in its own loop iteration, with the dialect: 0.3, or 0.1 for any other answer and for silence of a broker that has not
    # announced its limits; with the ballot of a broker of a pair, else `NO_BALLOT`; and with the number of its shards, 0 for none.
    on_dialect: Callable[[Dialect, Ballot, int], None]
    # Called instead of `on_dialect` when a broker of a pair does not serve, or one that knows the question is silent for long: with the
    # seconds after which to retry, and the reason. Called once, in its own loop iteration.
    on_refused: Callable[[float, str], None]
    # Called for each failed attempt to connect, and each time a broker that knows the question is silent.
    on_unreachable: Callable[[], None]
    seen: Ballot  # highest ballot of any connection so far
    votes: bool  # we are a client: our request for service counts as a vote at the passive broker of a pair (BST-10)
    slowness: float = 1.0  # how many times longer than a near broker it may take

    def __post_init__(self) -> None:
        self._silences: int  # since the broker was asked
        self._due: float  # when the answer was due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = supervision.current()
        self._answered = False
        self.connection = Connection(
            self.context,
            self.endpoint,
            self.options,
            on_joined=self._joined,
            on_batch=self._received,
            on_lost=self._lost,
            on_refused=self.on_unreachable,
        )

    @property
    def _answer_s(self) -> float:
        return PROBE_S * self.slowness

    def close(self) -> None:
        self._cancel_timer()
        self.connection.close()

    def _joined(self) -> None:
        self.on_reached(True)
        self.connection.send([client_request(V01, DIALECT_SERVICE, [V03.encode()])])
        self._silences = 0
        self._await_answer()

    def _await_answer(self) -> None:
        self._due = self._loop.time() + self._answer_s
        self._schedule(self._answer_s, self._silent)

    def _silent(self) -> None:
        """Take silence for MDP/0.1, if the broker has not announced its limits and our own loop was not blocked."""
        knows_probe = self.connection.limits is not None
        if not knows_probe and self._loop.time() < self._due + self._answer_s / 2:
            self._answer(V01, NO_BALLOT, 0)
            return
        self._silences += knows_probe
        if self._silences >= SILENCES_MAX:
            self._refuse(RETRY_S_USUAL, SILENT)
            return
        self._await_answer()
        if knows_probe:
            self.connection.trouble = SILENT
            self.on_unreachable()

    def _lost(self) -> None:
        # The socket reconnects by itself; the question is sent again then.
        self._cancel_timer()
        self.on_reached(False)

    def _received(self, batch: Batch) -> None:
        for message in batch.messages():
            if message[:2] != [EMPTY, MDPC01] or message[2:3] not in ([DIALECT_SERVICE], [PAIR_SERVICE]):
                continue
            self._cancel_timer()
            member = parse_membership(message[3:])
            if member is not None:
                self._take_membership(member, answers_us=message[2] == PAIR_SERVICE)
            elif message[2] == PAIR_SERVICE:
                self._schedule(SOON_S, self._refuse, RETRY_S_USUAL)
            else:
                shards = parse_greeting(message[3:])
                self._schedule(SOON_S, self._answer, V03 if shards or message[3:] == [b"200"] else V01, NO_BALLOT, shards)
            return

    def _take_membership(self, member: Membership, *, answers_us: bool) -> None:
        """Accept a broker of a pair that serves; ask one that refuses once more, with the ballot we have seen.

        A worker asks too when the broker serves under a lower ballot than it has seen; this is no vote. A broker that still says that it
        serves has asked the other one or the witness, and the higher ballot is gone for good.
        """
        if member.active and (member.ballot >= self.seen or answers_us):
            self._schedule(SOON_S, self._answer, V03, member.ballot, 0)
        elif not answers_us and (self.votes or member.active):
            self.connection.send([client_request(V01, PAIR_SERVICE, [ballot_text(self.seen)])])
            self._schedule(self._answer_s, self._refuse, RETRY_S_USUAL)
        else:
            self._schedule(SOON_S, self._refuse, member.retry_s or RETRY_S_USUAL)

    def _schedule(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call later; an error counts as a refusal: the question is asked again.

        A refusal with an error is repeated after a while.
        """
        then_s = RETRY_S_USUAL if call == self._refuse else SOON_S
        self._timer = self._supervisor.later(
            "mdp probe", delay_s, call, *arguments, failed=lambda _: self._schedule(then_s, self._refuse, RETRY_S_USUAL)
        )

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, dialect: Dialect, ballot: Ballot, shards: int) -> None:
        if not self._answered:
            self.on_dialect(dialect, ballot, shards)
            self._answered = True  # not where that failed: then it is a refusal, and the broker is asked again

    def _refuse(self, retry_s: float, why: str = PASSIVE) -> None:
        if not self._answered:
            self.on_refused(retry_s, why)
            self._answered = True  # as above
