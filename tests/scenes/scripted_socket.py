"""Sockets of a script: they keep what a shell does with them, and tests do what peers would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import core

if TYPE_CHECKING:
    from collections.abc import Callable


class ScriptedSocket:
    """One socket; `full` refuses to send."""

    def __init__(self, kind: int, options: dict[str, Any]) -> None:
        self.kind = kind
        self.options = options
        self.set: list[tuple[int, Any]] = []
        self.endpoints: list[tuple[str, str]] = []
        self.sent: list[list[bytes]] = []
        self.flags: list[int] = []
        self.full = False
        self.closed = False
        self.linger: int | None = None
        self.waited = False
        self.refuses = ""  # an endpoint
        self._receiver: Callable[[list[list[bytes]]], None] | None = None
        self._on_peer: Callable[[bytes, bool], None] | None = None
        self._on_event: Callable[[Any], None] | None = None

    @property
    def last_endpoint(self) -> str:
        return self.endpoints[-1][1]

    def setsockopt(self, option: int, value: Any) -> None:
        self.set.append((option, value))

    def set_receiver(self, receiver: Callable[[list[list[bytes]]], None], on_peer: Callable[[bytes, bool], None] | None = None) -> None:
        self._receiver, self._on_peer = receiver, on_peer

    def on_event(self, call: Callable[[Any], None], events: int) -> None:
        self._on_event = call

    def bind(self, endpoint: str) -> None:
        self._join("bind", endpoint)

    def connect(self, endpoint: str) -> None:
        self._join("connect", endpoint)

    def _join(self, how: str, endpoint: str) -> None:
        if endpoint == self.refuses:
            raise core.AddressInUse(endpoint=endpoint)
        self.endpoints.append((how, endpoint))

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        assert not self.closed
        self.flags.append(flags)
        if self.full:
            raise core.Again
        self.sent.append(list(frames))

    def close(self, linger: int | None = None) -> None:
        self.closed, self.linger = True, linger

    async def wait_closed(self) -> None:
        assert self.closed
        self.waited = True

    def deliver(self, *batch: list[bytes]) -> None:
        """Receive these messages in one read."""
        assert self._receiver is not None
        self._receiver([list(frames) for frames in batch])

    def peer(self, *, joined: bool) -> None:
        assert self._on_peer is not None
        self._on_peer(b"", joined)

    def fail_to_connect(self) -> None:
        assert self._on_event is not None
        self._on_event(None)

    def taken(self) -> list[list[bytes]]:
        """Return what was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class ScriptedContext:
    """Makes such sockets, in the order in which a shell asks for them."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.sockets: list[ScriptedSocket] = []

    def socket(self, kind: int, **options: Any) -> ScriptedSocket:
        made = ScriptedSocket(kind, options)
        made.refuses = self.refuses
        self.sockets.append(made)
        return made
