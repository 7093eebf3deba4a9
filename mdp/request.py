"""A request as a worker's handler sees it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdp.wire.options import NO_REQUEST_OPTIONS, decode_request_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.wire.options import RequestOptions

__all__ = ["Request"]


class Request:
    """One request, given to a handler.

    Attributes:
        service: name of the service that was asked.
        body: body frames, one or more, as the client sent them.
        cancelled: the answer is not wanted any more, or the worker ends; only handlers that run in a thread need to look at it, others
            are cancelled.
        expires_at: monotonic seconds (the event loop's time) after which nobody waits for the answer, None for no deadline.
    """

    # A slotted record made once per request on the worker's hot path; what it does not need at once is computed when asked for.
    __slots__ = ("_address", "_options", "_owner", "_task", "_token", "body", "cancelled", "expires_at", "service")

    def __init__(self, service: str, body: list[bytes], token: bytes, address: bytes, owner: Any) -> None:
        self.service = service
        self.body = body
        self.cancelled = False
        self.expires_at: float | None = None
        self._token = token  # under which the worker's session has it in hand
        self._address = address  # to answer with
        self._owner = owner  # the session it came through
        self._task: Any = None  # who works on it
        self._options: RequestOptions | bytes = NO_REQUEST_OPTIONS  # octets that were found right are read when somebody asks

    def __repr__(self) -> str:
        # Payload stays out of logs.
        return f"<Request of {self.service!r}, {len(self.body)} frames, {sum(map(len, self.body))} octets>"

    @property
    def _wish(self) -> RequestOptions:
        options = self._options
        if isinstance(options, bytes):
            options = self._options = decode_request_options(options)
        return options

    @property
    def key(self) -> bytes | None:
        """Idempotency key the client gave, None for none: two requests with one key are one request."""
        return self._wish.key

    @property
    def user(self) -> str | None:
        """Who asks, as the broker's authenticator calls it: name of the PLAIN user or of the CURVE key. A client cannot set it.

        None without security, for a peer without a name, and at a worker whom the broker's rules do not let see users (`see_users`).
        """
        return self._wish.user or None

    @property
    def once(self) -> bool:
        """Whether the client asked for execution at most once."""
        return self._wish.once

    @property
    def delivery(self) -> int:
        """Which delivery of this request this is: more than 1 when a worker was lost with it, which may have executed it."""
        return self._wish.delivery

    @property
    def trace(self) -> Mapping[str, Any] | None:
        """Trace context of the client, None for none."""
        return self._wish.trace

    def left_s(self, now: float) -> float | None:
        """Return seconds until the deadline, not below 0; None when there is none."""
        return None if self.expires_at is None else max(0.0, self.expires_at - now)
