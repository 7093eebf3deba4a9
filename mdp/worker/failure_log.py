"""What a handler that failed leaves in the worker's log, and what its client hears.

Whose fault it is decides. A handler that breaks is its author's affair: an ERROR with message and traceback, at most `LINES_MAX` of them in
`INTERVAL_S` seconds, and to the client no more than the type and an id under which the log has the rest. A `HandlerError` is said on
purpose, because of what a caller asked: an INFO with code and text, which the client gets as well. Payloads are never logged by us; what an
author writes into an error's message is.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from core.machine.log_rate import LogRate
from mdp.errors import HandlerError
from mdp.typed.calls import BAD_ARGUMENTS, BAD_RESULT
from mdp.wire.commands import is_code
from mdp.wire.size_limits import TOO_LARGE
from mdp.worker.handler import BadReply, ReplyTooLarge, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.request import Request

__all__ = ["Failure", "FailureLog"]

log = logging.getLogger("mdp.worker")

# A traceback takes a screen: enough of them to see what is wrong, too few to fill a disk.
INTERVAL_S: Final = 10.0
LINES_MAX: Final = 20
# Characters of a deliberate text that reach the client, and of any text that reach the log.
_TEXT_CHARS_MAX: Final = 1000


class Failure(NamedTuple):
    """What the client is told: a code of the protocol or the handler's own, and a text. `deliberate` if the handler chose them."""

    code: str
    text: str
    deliberate: bool


class FailureLog:
    """Logs the failures of one handler.

    Args:
        handler: to be named.
        clock: reads monotonic seconds.
    """

    def __init__(self, handler: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name_of(handler)
        self._clock = clock
        self._rate = LogRate(INTERVAL_S, LINES_MAX, LINES_MAX)

    def note(self, request: Request, error: BaseException) -> Failure:
        """Log a failure; return what the client is told."""
        code, text = HandlerError.default_code, ""
        if isinstance(error, HandlerError):
            code = error.code if is_code(error.code) else code
            # One with a service comes from another worker, which this handler asked, and is no word of its own; but nobody was asked yet
            # where no time has passed: `HandlerError("why")` is how exceptions are made.
            own = not error.service or not (error.text or error.after_s)
            text = str(error.text or (error.service if own else ""))[:_TEXT_CHARS_MAX]
            if code != BAD_RESULT and own:
                return self._refused(request.service, code, text or type(error).__name__)
        if isinstance(error, ReplyTooLarge):
            code, text = TOO_LARGE, str(error)
        id = secrets.token_hex(4)
        name = type(error).__name__
        left_out = self._rate.admit(None, self._clock())
        if left_out is not None:
            # Our own words need no traceback, which would lead to us.
            trace = None if isinstance(error, BadReply) or code == BAD_RESULT else error
            try:
                says = str(error)[:_TEXT_CHARS_MAX]
            except Exception as odd:  # what a traceback ends with
                says, trace = f"a message that cannot be read: {type(odd).__name__}", None
            words = "%s: handler %s failed with %s: %s, id %s"
            log.error(words, request.service, self._name, name, says, id, exc_info=trace, extra=_fields(left_out))
        return Failure(code, text or f"{name}, id {id}", deliberate=False)

    def _refused(self, service: str, code: str, text: str) -> Failure:
        """Log what a handler said on purpose: as the caller's affair, not as a fault of the worker."""
        if log.isEnabledFor(logging.INFO) and (left_out := self._rate.admit(None, self._clock())) is not None:
            words = "%s: arguments of a caller do not fit %s: %s: %s" if code == BAD_ARGUMENTS else "%s: %s refused a caller: %s: %s"
            log.info(words, service, self._name, code, text, extra=_fields(left_out))
        return Failure(code, text, deliberate=True)


def _fields(left_out: int) -> dict[str, int]:
    return {"left_out": left_out} if left_out else {}
