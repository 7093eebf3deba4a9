"""The log entry of a failed handler, and the error for its client.

An unexpected exception is a fault of the handler: it is logged as ERROR with message and traceback, at most `LINES_MAX` times in
`INTERVAL_S` seconds; the client gets its type and an id that leads to the log entry. A `HandlerError` is raised on purpose, because of the
caller's request: it is logged as INFO with code and text, which the client gets too. Payloads are logged with the worker's option
`log_payloads`, or where the author puts them into an error's message.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from core.machine.log_rate import LogRate
from core.runtime import runtime
from mdp.errors import HandlerError
from mdp.typed.calls import BAD_ARGUMENTS, BAD_RESULT
from mdp.wire.commands import is_code
from mdp.wire.size_limits import TOO_LARGE
from mdp.worker.handler import BadReply, ReplyTooLarge, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.request import Request

log = logging.getLogger("mdp.worker")

# Enough tracebacks to see the fault, too few to fill a disk.
INTERVAL_S: Final = 10.0
LINES_MAX: Final = 20
# Characters of a deliberate text that are sent to the client, and of any text in the log.
_TEXT_CHARS_MAX: Final = 1000
# Bytes of a request's body in the log, if payloads are logged.
PAYLOAD_BYTES_MAX: Final = 1000


class Failure(NamedTuple):
    """The error for the client: code and text; `deliberate` if the handler chose them."""

    code: str
    text: str
    deliberate: bool


class FailureLog:
    """The log of the failures of one handler.

    Args:
        clock: reads monotonic seconds; by default the runtime's.
        payloads: log the beginning of the body of each request that is logged here.
    """

    def __init__(self, handler: Callable[..., Any], clock: Callable[[], float] | None = None, *, payloads: bool = False) -> None:
        self._name = name_of(handler)
        self._payloads = payloads
        self._clock = clock if clock is not None else runtime.current().monotonic
        self._rate = LogRate(INTERVAL_S, LINES_MAX, LINES_MAX)

    def note(self, request: Request, error: BaseException) -> Failure:
        """Log a failure; return the error for the client."""
        code, text = HandlerError.default_code, ""
        if isinstance(error, HandlerError):
            code = error.code if is_code(error.code) else code
            # An error with a service comes from another worker that this handler called, unless no time has passed: `HandlerError("text")`
            # sets the service only.
            own = not error.service or not (error.text or error.after_s)
            text = str(error.text or (error.service if own else ""))[:_TEXT_CHARS_MAX]
            if code != BAD_RESULT and own:
                return self._refused(request, code, text or type(error).__name__)
        if isinstance(error, ReplyTooLarge):
            code, text = TOO_LARGE, str(error)
        id = runtime.current().random_bytes(4).hex()
        name = "BadResult" if code == BAD_RESULT else type(error).__name__
        left_out = self._rate.admit(None, self._clock())
        if left_out is not None:
            # An error of ours needs no traceback, which would lead here.
            trace = None if isinstance(error, BadReply) or code == BAD_RESULT else error
            try:
                says = text if code == BAD_RESULT else str(error)[:_TEXT_CHARS_MAX]
            except Exception as odd:  # as at the end of a traceback
                says, trace = f"a message that cannot be read: {type(odd).__name__}", None
            template = "%s: handler %s failed with %s: %s, id %s"
            log.error(template, request.service, self._name, name, says, id, exc_info=trace, extra=self._fields(request, left_out))
        return Failure(code, text or f"{name}, id {id}", deliberate=False)

    def _refused(self, request: Request, code: str, text: str) -> Failure:
        """Log a `HandlerError`, which is no fault of the worker."""
        if log.isEnabledFor(logging.INFO) and (left_out := self._rate.admit(None, self._clock())) is not None:
            template = "%s: arguments of a caller do not fit %s: %s: %s" if code == BAD_ARGUMENTS else "%s: %s refused a caller: %s: %s"
            log.info(template, request.service, self._name, code, text, extra=self._fields(request, left_out))
        return Failure(code, text, deliberate=True)

    def _fields(self, request: Request, left_out: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"left_out": left_out} if left_out else {}
        if self._payloads:
            fields["payload"] = _beginning(request.body)
        return fields


def _beginning(body: Sequence[bytes]) -> str:
    shown, left = [], PAYLOAD_BYTES_MAX
    for frame in body:
        shown.append(repr(frame[:left])[1:])  # without the b: control characters are escaped
        left -= len(frame)
        if left < 0:
            break
    size = sum(map(len, body))
    return " ".join(shown) + (f" … {size} bytes" if size > PAYLOAD_BYTES_MAX else "")
