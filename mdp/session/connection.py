"""One DEALER connection to a broker, never reconnected: a lost connection is closed and replaced by a new one.

A socket of `core` would reconnect by itself and keep its queue. Clients and workers of Majordomo must know about each new connection (READY
is its first message, MDP-15; requests are sent again, BEY-04), so the queue of a lost connection is dropped with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

import core
from bstar.machine.ballot import NO_BALLOT
from core.rpc.connect_times import with_connect_times
from core.runtime import supervision
from core.sockets.results.futures import DONE
from core.zmtp.decoder import Encoded
from mdp.wire.commands import EMPTY, MDPC01, V01, V03, client_request
from mdp.wire.failover import PAIR_SERVICE, RETRY_S_USUAL, Membership, ballot_text, parse_membership
from mdp.wire.shards import parse_greeting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from bstar.machine.ballot import Ballot
    from core.zmtp.decoder import Message
    from core.zmtp.limits import PeerLimits
    from mdp.wire.commands import Dialect

__all__ = ["DIALECT_SERVICE", "LOG_INTERVAL_S", "PROBE_S", "SILENCES_MAX", "Connection", "Probe"]

# A broker that cannot be reached is logged at once, and then at this interval.
LOG_INTERVAL_S: Final = 30.0
# Service that answers which dialects a broker speaks (specs/mdp.md); a broker without it answers 501 or not at all.
DIALECT_SERVICE = b"mmi.protocol"
# A broker that accepts the connection and is silent for so long queues `mmi.protocol` for a service without workers. A broker that has
# announced its limits knows the question, and answers as soon as it can.
PROBE_S = 1.0
# Silences of such a broker before another connection is tried: this one may be broken without notice.
SILENCES_MAX = 8

SILENT = "it accepted the connection and does not answer"
NO_GREETING = "it accepted the connection and has not begun to speak ZMTP"
PASSIVE = "it is the passive broker of its pair"

_TROUBLES = (
    core.EVENT_CLOSED | core.EVENT_HANDSHAKE_FAILED_NO_DETAIL | core.EVENT_HANDSHAKE_FAILED_PROTOCOL | core.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """A connection that is being opened, is up, or is closed.

    Raises core.ZMQError: the endpoint or an option is not valid.
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
        spare: tuple[int, int] = (0, 0),
    ) -> None:
        self.trouble = ""  # why the last attempt to connect failed, for people; empty when unknown
        self.refused = False  # whether the broker refused our security then
        self._on_refused = on_refused  # called for each failed attempt to connect
        self._on_joined = on_joined  # called when the connection is up; it may send
        self._on_lost = on_lost  # called once when a connection that was up is lost; then call `close`
        # No high-water marks: messages in flight are limited by the client's window and the worker's credit.
        self._socket = context.socket(
            core.DEALER, **{"linger": 0, "sndhwm": 0, "rcvhwm": 0, "tell_limits": 1, **with_connect_times(options)}
        )
        # Frames and bytes that are added to each message, beyond the limits of the options.
        self._socket.set("max_parts", self._socket.max_parts + spare[0])
        self._socket.set("max_message_bytes", self._socket.max_message_bytes + spare[1])
        self._socket.on_event(self._note_trouble, _TROUBLES)
        self._socket.on_event(self._note_connected, core.EVENT_CONNECTED)
        self._socket.set_receiver(on_batch, on_peer=self._peer_changed)
        self._socket.connect(endpoint)

    @property
    def limits(self) -> PeerLimits | None:
        return self._socket.peer_limits()

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Properties that the broker announced in the handshake, lower-case name to value."""
        return next((pipe.metadata for pipe in self._socket.pattern.pipes), {})

    def send(self, messages: Sequence[Message | bytes]) -> Awaitable[None]:
        """Send messages in order, encoded ones (`bytes`) unchanged; acts at once, and the awaitable waits for capacity."""
        try:
            for message in messages:
                if type(message) is not bytes:
                    break
            else:
                self._socket.send_octets(b"", messages)  # type: ignore[arg-type]  # all of them are bytes
                return DONE
            return self._socket.send_many([[Encoded(m)] if type(m) is bytes else m for m in messages])  # type: ignore[misc]  # see above
        except (core.ContextTerminated, core.SocketClosed):
            return DONE  # the owner of the context has closed it

    def abandon(self) -> None:
        """Do nothing: no other worker uses the connection; see `Channel`."""

    def silent(self) -> None:
        """Do nothing, as `abandon`."""

    def close(self, linger_ms: int = 0) -> None:
        """Close; messages that have not left after `linger_ms` are dropped."""
        self._socket.close(linger_ms)

    async def wait_closed(self) -> None:
        await self._socket.wait_closed()

    def _peer_changed(self, _: bytes, joined: bool) -> None:
        if joined:
            self.trouble = ""
            self._on_joined()
        else:
            self._on_lost()

    def _note_connected(self, event: core.MonitorEvent) -> None:
        self.trouble = self.trouble or NO_GREETING

    def _note_trouble(self, event: core.MonitorEvent) -> None:
        if event.reason:
            self.trouble = event.reason
        self.refused = event.event == core.EVENT_HANDSHAKE_FAILED_AUTH or (
            event.event == core.EVENT_HANDSHAKE_FAILED_PROTOCOL and event.value == core.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
        )
        if self._on_refused is not None:
            self._on_refused()


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
    # Called instead, likewise, when a broker of a pair does not serve, or one that knows the question is silent for long: with the seconds
    # after which to retry, and the reason.
    on_refused: Callable[[float, str], None]
    # Called for each failed attempt to connect, and each time a broker that knows the question is silent for `PROBE_S`.
    on_unreachable: Callable[[], None]
    seen: Ballot  # highest ballot of any connection so far
    votes: bool  # we are a client: our request for service counts as a vote at the passive broker of a pair (BST-10)

    def __post_init__(self) -> None:
        self._silences = 0
        self._due = 0.0  # when the answer was due
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

    def close(self) -> None:
        self._answered = True
        self._cancel_timer()
        self.connection.close()

    def _joined(self) -> None:
        self.on_reached(True)
        self.connection.send([client_request(V01, DIALECT_SERVICE, [V03.encode()])])
        self._silences = 0
        self._await_answer()

    def _await_answer(self) -> None:
        self._due = self._loop.time() + PROBE_S
        self._schedule(PROBE_S, self._silent)

    def _silent(self) -> None:
        """Take silence for MDP/0.1, if the broker has not announced its limits and our own loop was not blocked."""
        knows_probe = self.connection.limits is not None
        if not knows_probe and self._loop.time() < self._due + PROBE_S / 2:
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

    def _received(self, batch: list[Message]) -> None:
        for message in batch:
            if message[:2] != [EMPTY, MDPC01] or message[2:3] not in ([DIALECT_SERVICE], [PAIR_SERVICE]):
                continue
            self._cancel_timer()
            member = parse_membership(message[3:])
            # Later, because the answer closes the socket, which is calling us.
            if member is not None:
                self._take_membership(member, answers_us=message[2] == PAIR_SERVICE)
            elif message[2] == PAIR_SERVICE:
                self._schedule(0, self._refuse, RETRY_S_USUAL)
            else:
                shards = parse_greeting(message[3:])
                self._schedule(0, self._answer, V03 if shards or message[3:] == [b"200"] else V01, NO_BALLOT, shards)
            return

    def _take_membership(self, member: Membership, *, answers_us: bool) -> None:
        """Accept a broker of a pair that serves; ask one that refuses once more, with the ballot we have seen.

        A worker asks too when the broker serves under a lower ballot than it has seen; this is no vote. A broker that still says that it
        serves has asked the other one or the witness, and the higher ballot is gone for good.
        """
        if member.active and (member.ballot >= self.seen or answers_us):
            self._schedule(0, self._answer, V03, member.ballot, 0)
        elif not answers_us and (self.votes or member.active):
            self.connection.send([client_request(V01, PAIR_SERVICE, [ballot_text(self.seen)])])
            self._schedule(PROBE_S, self._refuse, RETRY_S_USUAL)
        else:
            self._schedule(0, self._refuse, member.retry_s or RETRY_S_USUAL)

    def _schedule(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call later; an error counts as a refusal, so that the question is asked again."""
        self._timer = self._supervisor.later("mdp probe", delay_s, call, *arguments, failed=lambda _: self._refuse(RETRY_S_USUAL))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self, dialect: Dialect, ballot: Ballot, shards: int) -> None:
        if not self._answered:
            self._answered = True
            self.on_dialect(dialect, ballot, shards)

    def _refuse(self, retry_s: float, why: str = PASSIVE) -> None:
        if not self._answered:
            self._answered = True
            self.on_refused(retry_s, why)
