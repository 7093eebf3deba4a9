"""What a connection needs of the socket it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from core.zmtp.decoder import Decoder, Message

if TYPE_CHECKING:
    from core.errors import HandshakeError
    from core.net.session import Session
    from core.options import Options
    from core.pattern.fair_queue import FairQueue
    from core.pattern.pipe import Pipe
    from core.runtime.write_scheduler import Turn
    from core.zmtp.decoder import Message
    from core.zmtp.mechanism import Mechanism
    from core.zmtp.zap import ZapReply, ZapRequest

__all__ = ["Express", "Muted", "NO_DECODER", "Owner", "feed_nothing", "write_nothing"]

Express: TypeAlias = Callable[[bytes, bytes, int], int]  # (routing id, octets, longest message) -> octets taken


class Owner(Protocol):
    """What a session needs of its socket."""

    inbound: FairQueue
    type_name: bytes
    split: int | None
    express: Express | None

    @property
    def turn(self) -> Turn:
        """The turn of the running loop."""

    def new_mechanism(self, options: Options, peer_address: str) -> Mechanism:
        """Return our side of the security handshake for a new connection."""

    def new_pipe(self, endpoint: str, *, connecting: bool = False) -> Pipe:
        """Make the queues of a peer."""

    def session_opened(self, session: Session) -> None:
        """A transport is up."""

    def peer_ready(self, session: Session) -> bool:
        """Attach the session's pipe; False refuses the peer."""

    def peer_gone(self, session: Session) -> None:
        """The connection of a ready session has ended."""

    def failed(self, session: Session) -> None:
        """The peer broke a rule and is being cut."""

    def received(self, pipe: Pipe, messages: list[Message], octets: int) -> None:
        """Take messages from the wire."""

    def room(self, pipe: Pipe) -> None:
        """The pipe's outbox was emptied."""

    def emit(self, event: int, value: int, endpoint: str, reason: str = "", *, peer: str = "", identity: bytes = b"") -> None:
        """Tell the monitor."""

    def ask_authenticator(
        self,
        request: ZapRequest,
        *,
        enforce_domain: bool,
        answer: Callable[[ZapReply | HandshakeError], None],
        revoke: Callable[[str], None],
    ) -> Callable[[], None]:
        """Have credentials judged; returns what to call when the connection is gone."""


NO_DECODER = Decoder(on_command=lambda _: None)  # decodes nothing, fails never


def feed_nothing(data: bytes) -> list[Message]:
    """Read and forget."""
    return []


def write_nothing(octets: bytes) -> None:
    """There is no transport."""


class Muted:
    """A socket, for a session whose messages it does not take any more; everything else is the socket's business as before.

    Args:
        owner: the socket.
        dropped: called with the number of messages that came.
    """

    def __init__(self, owner: Owner, dropped: Callable[[int], None]) -> None:
        self._owner = owner
        self._dropped = dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def received(self, pipe: Pipe, messages: list[Message], octets: int) -> None:
        """Drop messages from the wire."""
        self._dropped(len(messages))
