"""Permissions of users, asked of the broker (`mmi.allowed`) and cached for a short time.

A question in flight is not sent twice: all callers with the same one share the answer. When the broker cannot be asked, expired answers are
not used: the verdict is UNKNOWN.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mdp
from core.daemon.logs import RateLimitedLog
from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("titanic")

ALLOWED: Final = b"mmi.allowed"
ASK_TIMEOUT_S: Final = 5.0  # as for other questions to the broker, which may be far away: it answers at once
QUESTIONS_MAX: Final = 256  # in flight; further ones wait
ANSWERS_MAX: Final = 65_536  # cached, about 10 MB; the oldest are dropped


class Verdict(enum.Enum):
    """Answer to a question."""

    YES = enum.auto()
    NO = enum.auto()
    UNKNOWN = enum.auto()


class Question(NamedTuple):
    """Question whether a user may do something."""

    verb: bytes  # of the broker's rules: `call` or `manage`
    user: bytes  # as named by the broker, in UTF-8
    service: bytes


class Permissions:
    """Permissions at one broker."""

    def __init__(self, client: mdp.Client, keep_s: float, clock: Callable[[], float]) -> None:
        self.asked = 0  # questions sent to the broker
        self.failed = 0  # questions without an answer
        self.reason = ""  # why the last question had no answer, "" if it had one
        self._log = RateLimitedLog(log)
        self._supervisor = supervision.current()
        self._client = client  # with a window of `QUESTIONS_MAX`, for questions only, so that none waits behind a delivery
        self._keep_s = keep_s  # how long an answer is cached; a change of the broker's rules takes effect after this time
        self._clock = clock  # monotonic seconds
        self._answers: OrderedDict[Question, tuple[float, Verdict]] = OrderedDict()  # (expires at, verdict)
        self._asking: dict[Question, list[tuple[Callable[[Any, Verdict], None], Any]]] = {}
        self._queue: deque[Question] = deque()  # not sent yet
        self._sent = 0

    def ask(self, question: Question, then: Callable[[Any, Verdict], None], about: Any) -> None:
        """Call `then(about, verdict)`, at once if the answer is cached."""
        answer = self._answers.get(question)
        if answer is not None and answer[0] > self._clock():
            then(about, answer[1])
        elif question in self._asking:
            self._asking[question].append((then, about))
        else:
            self._asking[question] = [(then, about)]
            self._queue.append(question)
            self._send()

    def _send(self) -> None:
        while self._queue and self._sent < QUESTIONS_MAX:
            question = self._queue.popleft()
            self._sent += 1
            self.asked += 1
            try:
                self._client.ask(ALLOWED, question, self._answered, question)
            except mdp.RequestError as error:  # the client is closed
                self._answered(question, None, error)

    def _answered(self, question: Question, reply: list[bytes] | None, error: mdp.RequestError | None) -> None:
        self._sent -= 1
        verdict, reason = _verdict_of(reply, error)
        if verdict is Verdict.UNKNOWN:
            self.failed += 1
            # The question at the start of the store names no user; a broker without users need not answer it.
            if question.user or reply == [b"403"]:
                self._log.warning("unknown", "the broker does not say what users may do: %s", reason)
        else:
            self._answers.pop(question, None)
            self._answers[question] = self._clock() + self._keep_s, verdict
            if len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
        self.reason = reason
        try:
            self._supervisor.each("titanic permission", partial(_tell, verdict), iter(self._asking.pop(question)))
        finally:
            self._send()


def _tell(verdict: Verdict, waiting: Iterator[tuple[Callable[[Any, Verdict], None], Any]]) -> None:
    for then, about in waiting:
        then(about, verdict)


def _verdict_of(reply: list[bytes] | None, error: mdp.RequestError | None) -> tuple[Verdict, str]:
    """Return (verdict, reason why it is UNKNOWN)."""
    if reply is None:
        return Verdict.UNKNOWN, str(error)
    code = reply[0] if reply else b""
    if code == b"200":
        return Verdict.YES, ""
    if code == b"404":
        return Verdict.NO, ""
    if code == b"403":
        return Verdict.UNKNOWN, 'its rules do not let this store see users; they need see_users = ["titanic.*"]'
    return Verdict.UNKNOWN, "it is older than this store, or another program"
