"""One DEALER connection to a broker, used once: when it is lost it is closed, and another one takes its place.

A socket of `core` would reconnect by itself and keep what was queued; clients and workers of Majordomo must know about every new
connection (READY comes first on it, MDP-15; requests are sent again, BEY-04), so what was meant for the old one goes with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import core
from bstar.machine.ballot import NO_BALLOT
from core.runtime import supervision
from core.sockets.futures import DONE
from core.zmtp.decoder import Encoded
from mdp.wire.commands import EMPTY, MDPC01, V01, V03, client_request
from mdp.wire.failover import PAIR_SERVICE, RETRY_S_USUAL, Membership, ballot_text, parse_membership

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from bstar.machine.ballot import Ballot
    from core.net.socket_port import Express
    from core.zmtp.decoder import Message
    from core.zmtp.limits import PeerLimits
    from mdp.wire.commands import Dialect

__all__ = ["DIALECT_SERVICE", "PROBE_S", "SILENCES_MAX", "Connection", "Probe"]

# What answers which dialects a broker speaks (specs/mdp.md); a broker that does not know it answers 501 or not at all.
DIALECT_SERVICE = b"mmi.protocol"
# A broker that took the connection and is silent for so long is one that takes `mmi.protocol` for a service nobody offers. But not one that
# has told its limits at the hello: that one knows the question, and answers as soon as it can.
PROBE_S = 1.0
# So often such a broker may be silent for so long before another connection is tried: nobody may have been told that this one is broken.
SILENCES_MAX = 8

SILENT = "it took the connection and does not answer"
PASSIVE = "the one that answers is the passive one of its pair"

_TROUBLES = (
    core.EVENT_CLOSED | core.EVENT_HANDSHAKE_FAILED_NO_DETAIL | core.EVENT_HANDSHAKE_FAILED_PROTOCOL | core.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """A connection that is being made, is up, or is closed.

    Args:
        context: makes the socket.
        endpoint: of the broker.
        options: socket options (CURVE keys and so on).
        on_joined: called when the connection is up; it may send.
        on_batch: called with `[[frame, …], …]`.
        on_lost: called once when a connection that was up is gone; then `close`.
        on_refused: called for each attempt to connect that fails.

    Attributes:
        trouble: why the last attempt to connect failed, for people; empty for no reason known.

    Raises:
        core.ZMQError: the endpoint or an option is not valid.
    """

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        options: Mapping[str, Any],
        *,
        on_joined: Callable[[], None],
        on_batch: Callable[[list[Message]], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[], None] | None = None,
        express: Express | None = None,
    ) -> None:
        self.trouble = ""
        self._on_refused = on_refused
        self._on_joined = on_joined
        self._on_lost = on_lost
        # No marks: what is in flight is bounded by the window of the client and by the credit of the worker.
        self._socket = context.socket(core.DEALER, **{"linger": 0, "sndhwm": 0, "rcvhwm": 0, "tell_limits": 1, **options})
        self._socket.on_event(self._note_trouble, _TROUBLES)
        self._socket.set_receiver(on_batch, on_peer=self._peer_changed, express=express)
        self._socket.connect(endpoint)

    @property
    def limits(self) -> PeerLimits | None:
        """What the broker has told that it takes, None if nothing."""
        return self._socket.peer_limits()

    def send(self, messages: Sequence[Message | bytes]) -> Awaitable[None]:
        """Send messages, in order, encoded ones (`bytes`) as they are; acts at once, and the awaitable says when there is room for more."""
        try:
            for message in messages:
                if type(message) is not bytes:
                    break
            else:
                self._socket.send_octets(b"", messages)  # type: ignore[arg-type]  # all of them are bytes
                return DONE
            return self._socket.send_many([[Encoded(m)] if type(m) is bytes else m for m in messages])  # type: ignore[misc]  # see above
        except (core.ContextTerminated, core.SocketClosed):
            return DONE  # the owner of the context has ended it: there is nobody left to say anything to

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was sent and has not left is dropped, unless it gets some time."""
        self._socket.close(linger_ms)

    async def wait_closed(self) -> None:
        """Wait until nothing of a closed connection is left."""
        await self._socket.wait_closed()

    def _peer_changed(self, _: bytes, joined: bool) -> None:
        if joined:
            self.trouble = ""
            self._on_joined()
        else:
            self._on_lost()

    def _note_trouble(self, event: core.MonitorEvent) -> None:
        if event.reason:
            self.trouble = event.reason
        if self._on_refused is not None:
            self._on_refused()


class Probe:
    """Asks a broker which dialect it speaks, on a connection of its own, so that READY stays the first message on a worker's.

    Args:
        context: makes the socket.
        endpoint: of the broker.
        options: socket options.
        on_reached: called with whether the broker took the connection or dropped it.
        on_dialect: called once with the answer, in a turn of its own: 0.3, or 0.1 for anything else and for silence of a broker that has
            not told its limits; and the ballot of one of a pair of brokers, `NO_BALLOT` for any other.
        on_refused: called instead, likewise, for one of a pair that does not serve us, and one of ours that was silent for long: with the
            seconds until it may, and why.
        on_unreachable: called for each attempt to connect that fails, and each time one of ours has been silent for `PROBE_S`.
        seen: highest ballot a connection was made under.
        votes: we are a client: a broker of a pair that does not serve is told that somebody wants to be served (BST-10).
    """

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        options: Mapping[str, Any],
        *,
        on_reached: Callable[[bool], None],
        on_dialect: Callable[[Dialect, Ballot], None],
        on_refused: Callable[[float, str], None],
        on_unreachable: Callable[[], None],
        seen: Ballot,
        votes: bool,
    ) -> None:
        self._seen = seen
        self._may_vote = votes
        self._on_refused = on_refused
        self._on_unreachable = on_unreachable
        self._silences = 0
        self._due = 0.0  # when the answer was to be there
        self._loop = asyncio.get_running_loop()
        self._on_reached = on_reached
        self._on_dialect = on_dialect
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = supervision.current()
        self._answered = False
        self.connection = Connection(
            context,
            endpoint,
            options,
            on_joined=self._joined,
            on_batch=self._received,
            on_lost=self._lost,
            on_refused=on_unreachable,
        )

    def close(self) -> None:
        """Give the question up."""
        self._answered = True
        self._cancel_timer()
        self.connection.close()

    def _joined(self) -> None:
        self._on_reached(True)
        self.connection.send([client_request(V01, DIALECT_SERVICE, [V03.encode()])])
        self._silences = 0
        self._wait_on()

    def _wait_on(self) -> None:
        self._due = self._loop.time() + PROBE_S
        self._later(PROBE_S, self._silent)

    def _silent(self) -> None:
        """Take silence for MDP/0.1, where the broker has not told its limits and we have not stood still ourselves."""
        told = self.connection.limits is not None
        if not told and self._loop.time() < self._due + PROBE_S / 2:
            self._answer(V01, NO_BALLOT)
            return
        self._silences += told
        if self._silences >= SILENCES_MAX:
            self._refuse(RETRY_S_USUAL, SILENT)
            return
        self._wait_on()
        if told:
            self.connection.trouble = SILENT
            self._on_unreachable()

    def _lost(self) -> None:
        # The socket connects anew by itself; the question is asked again then.
        self._cancel_timer()
        self._on_reached(False)

    def _received(self, batch: list[Message]) -> None:
        for message in batch:
            if message[:2] != [EMPTY, MDPC01] or message[2:3] not in ([DIALECT_SERVICE], [PAIR_SERVICE]):
                continue
            self._cancel_timer()
            member = parse_membership(message[3:])
            # Not from within the socket's own turn: the answer closes the socket.
            if member is not None:
                self._heard_of(member, answers_us=message[2] == PAIR_SERVICE)
            elif message[2] == PAIR_SERVICE:
                self._later(0, self._refuse, RETRY_S_USUAL)
            else:
                self._later(0, self._answer, V03 if message[3:] == [b"200"] else V01, NO_BALLOT)
            return

    def _heard_of(self, member: Membership, *, answers_us: bool) -> None:
        """Take the word of one of a pair: it serves, or it refuses; then a client insists once, and tells what it has seen.

        One that serves under a lower ballot than we have seen is asked by a worker too, which is no vote. If it says that it serves
        though it was told what we have seen, that ballot is gone for good: the broker has asked the other one, or the witness.
        """
        if member.active and (member.ballot >= self._seen or answers_us):
            self._later(0, self._answer, V03, member.ballot)
        elif not answers_us and (self._may_vote or member.active):
            self.connection.send([client_request(V01, PAIR_SERVICE, [ballot_text(self._seen)])])
            self._later(PROBE_S, self._refuse, RETRY_S_USUAL)
        else:
            self._later(0, self._refuse, member.retry_s or RETRY_S_USUAL)

    def _later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Go on after a time; a fault is a refusal, so that the question is asked again and not waited for for ever."""
        self._timer = self._supervisor.later("mdp probe", delay_s, call, *arguments, failed=lambda _: self._refuse(RETRY_S_USUAL))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self, dialect: Dialect, ballot: Ballot) -> None:
        if not self._answered:
            self._answered = True
            self._on_dialect(dialect, ballot)

    def _refuse(self, retry_s: float, why: str = PASSIVE) -> None:
        if not self._answered:
            self._answered = True
            self._on_refused(retry_s, why)
