"""A request as a worker's handler sees it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from mdp.wire.options import NO_REQUEST_OPTIONS, decode_request_options
from mdp.wire.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.wire.options import RequestOptions

__all__ = ["Request"]


@mypyc_attr(free_list_len=1)  # a round trip uses the same memory again
class Request:
    """One request, passed to a handler.

    Attributes:
        service: name of the service that was asked.
        body: body frames, one or more, as the client sent them.
        cancelled: the request was cancelled, or the worker ends; only handlers in a thread need to check it, others are cancelled.
        expires_at: deadline in monotonic seconds (the event loop's time), None for no deadline.
    """

    # Hot path: one slotted record per request; options are decoded on first use.
    __slots__ = ("_address", "_execution", "_options", "_owner", "_task", "_token", "body", "cancelled", "expires_at", "service")

    def __init__(self, service: str, body: list[bytes], token: bytes, address: bytes, owner: Any) -> None:
        self.service = service
        self.body = body
        self.cancelled = False
        self.expires_at: float | None = None
        self._token = token  # key in the worker's session
        self._address = address  # to answer to
        self._owner = owner  # the session it came through
        self._task: Any = None  # of its runner
        self._execution: Any = None  # that others with its key wait for (IDM-07)
        self._options: RequestOptions | bytes = NO_REQUEST_OPTIONS  # bytes are valid, and decoded on first use

    def __repr__(self) -> str:
        # No payload in logs.
        return f"<Request of {self.service!r}, {len(self.body)} frames, {sum(map(len, self.body))} bytes>"

    @property
    def _decoded(self) -> RequestOptions:
        options = self._options
        if isinstance(options, bytes):
            options = self._options = decode_request_options(options, amended=True)
        return options

    @property
    def key(self) -> bytes | None:
        """Idempotency key of the client, None for none: two requests with the same key are one request."""
        return self._decoded.key

    @property
    def user(self) -> str | None:
        """Name of the client in the broker's authenticator: of the PLAIN user or of the CURVE key.

        A client cannot set it. None without security, for a client without a name, and at a worker whose rules lack `see_users`.
        """
        return self._decoded.user or None

    @property
    def owner(self) -> bytes | None:
        """Digest of whose key it is, 16 bytes; None where the broker does not tell users apart (BEY-11)."""
        return self._decoded.owner

    @property
    def once(self) -> bool:
        """Whether the client asked for execution at most once."""
        return self._decoded.once

    @property
    def delivery(self) -> int:
        """Number of this delivery: more than 1 after a worker was lost with the request, which it may have executed."""
        return self._decoded.delivery

    @property
    def trace(self) -> Mapping[str, Any] | None:
        """Trace context of the client, None for none."""
        return self._decoded.trace

    @property
    def headers(self) -> Mapping[str, str]:
        """Small texts by name that the client has sent with the request.

        Empty without any, and from clients of MDP/0.1 and 0.2.
        """
        return self._decoded.headers or {}

    def progress(self, done: float | None = None, text: str = "") -> None:
        """Tell the caller how far the request is, if it asked for that (`progress=` of `mdp.Client.request`); else do nothing.

        May be called in any thread and as often as wanted: the newest report is sent, up to 20 times a second.

        Args:
            done: share of the work that is done, 0.0 to 1.0.
            text: one line for people.

        Raises:
            ValueError, TypeError: as `Progress`.
        """
        report = Progress(done, text)
        if self._decoded.reports and self._owner.reports is not None:
            self._owner.reports.put(self, report)

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a deadline."""
        return None if self.expires_at is None else max(0.0, self.expires_at - now)
