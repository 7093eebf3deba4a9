"""Requests of a Spark partition that are stored before they are executed: `dispatch(…, via="titanic")`.

Each is one `ask` of `titanic.batch`: the store keeps it under its key, and answers when it has ended. A task that runs again asks under the
same keys, and gets the replies that are there; a request that is being executed is executed to its end, whichever task asked for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from core.machine.backoff import backoff_s
from core.runtime import supervision
from mdp.client.client import Outcome
from mdp.errors import BadRequest, DeadLetter, Forbidden, HandlerError, RequestError, WorkerLost
from mdp.spark.rows.request_keys import short_key
from titanic.wire.batch_frames import ASK, KEPT
from titanic.wire.tsp import ATTEMPTS_MAX, BATCH, Options, encode_options, parse_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.spark.flow.windows import RequestClient

# Status of a row whose request is stored and has no reply yet.
PENDING_CODE = "PENDING"
_WAIT_S = 20.0  # of one question; shorter than the idle timeout of middle boxes
_RETRY_S = 0.2  # first wait before a store that cannot answer is asked again
_RETRY_MAX_S = 5.0
# The broker gave up a question, because the store was killed with it or the broker stopped: asking again is safe.
_PASSING = (DeadLetter, WorkerLost)


class _Questions(Protocol):
    """Requests without keys; see `mdp.client.iterators.RequestWindow`."""

    def send(self, bodies: Sequence[Sequence[bytes]]) -> int: ...
    def take(self) -> Sequence[Outcome]: ...
    async def withdraw(self) -> None: ...


@dataclass(slots=True)
class _Asked:
    """One request, until its outcome is known."""

    index: int
    frames: tuple[bytes, ...]  # after `[ask][ms]`
    began: float
    sent: int = 0  # questions sent
    faults: int = 0  # of them in a row without an answer of the store
    kept: bool | None = None  # the reply was there when it was first asked for


class StoredWindow:
    """Requests in flight whose outcomes are taken in the order in which they end.

    Args:
        on_end: called when there are outcomes to take, and there were none before.
        timeout_s: of an attempt to reach the store. A reply is waited for `attempts` times as long.
        attempts: of reaching the store; and failed executions after which a request is a dead letter.
    """

    def __init__(self, client: RequestClient, service: str, on_end: Callable[[], None], *, timeout_s: float, attempts: int) -> None:
        self._service = service
        self._target = service.encode()
        self._on_end = on_end
        self._attempts = min(attempts, ATTEMPTS_MAX)
        self._timeout_s = attempts * timeout_s
        self._clock = asyncio.get_running_loop().time
        self._wait_s = min(_WAIT_S, timeout_s / 2)  # of a question, whose own timeout is that of the client
        # Without keys: the broker would answer a question that is repeated from its memory, and the state has changed since.
        self._questions = cast("_Questions", client.open_window(BATCH.decode(), self._answered, wait=True))
        self._open: dict[int, _Asked] = {}  # by the index of the question
        self._later: dict[int, asyncio.TimerHandle] = {}  # requests that are asked again, by index
        self._ended: list[Outcome] = []
        self._count = self._questions_count = 0

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        """Ask for the replies of requests; return the index of the first."""
        first = self._count
        self._count += len(bodies)
        now = self._clock()
        asked = []
        for index, (body, key) in enumerate(zip(bodies, keys, strict=True), first):
            # In a store keys are of no service.
            name = short_key(f"{self._service}/{key}").encode()
            options = encode_options(Options(name, attempts=self._attempts))
            asked.append(_Asked(index, (*options, self._target, *body), now))
        self._ask(asked)
        return first

    def take(self) -> list[Outcome]:
        """Return the outcomes of the requests that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def withdraw(self) -> None:
        """Stop waiting; requests stay stored."""
        for handle in self._later.values():
            handle.cancel()
        self._later.clear()
        self._open.clear()
        await self._questions.withdraw()

    def _ask(self, asked: Sequence[_Asked]) -> None:
        now = self._clock()
        bodies = []
        for one in asked:
            one.sent += 1
            left_s = max(0.001, min(self._wait_s, self._timeout_s - (now - one.began)))
            bodies.append((ASK, b"%d" % round(left_s * 1000), *one.frames))
        first = self._questions_count
        self._questions_count += len(asked)
        self._open.update(enumerate(asked, first))  # before they are sent: one that is too large ends at once
        self._questions.send(bodies)

    def _answered(self) -> None:
        again = []
        ended = []
        for outcome in self._questions.take():
            asked = self._open.pop(outcome.index)
            found = self._outcome(asked, outcome)
            if found is not None:
                ended.append(found)
            elif not asked.faults:
                again.append(asked)
            else:
                wait_s = backoff_s(_RETRY_S, _RETRY_MAX_S, asked.faults - 1)
                failed = partial(self._failed, asked)
                self._later[asked.index] = supervision.current().later(
                    "titanic dispatch retry", wait_s, self._ask_again, asked, failed=failed
                )
        if again:
            self._ask(again)
        if ended:
            first = not self._ended
            self._ended += ended
            if first:
                self._on_end()

    def _ask_again(self, asked: _Asked) -> None:
        self._later.pop(asked.index, None)
        self._ask([asked])

    def _failed(self, asked: _Asked, error: Exception) -> None:
        """End a request after an internal fault."""
        self._ended.append(Outcome(asked.index, None, self._error(asked, "UNAVAILABLE", repr(error)), asked.sent, 0.0))
        self._on_end()

    def _outcome(self, asked: _Asked, outcome: Outcome) -> Outcome | None:
        """Return the end of a request, None to ask again: later if there were faults."""
        late = self._clock() - asked.began >= self._timeout_s
        error = outcome.error
        frames = outcome.reply or ()
        code = parse_status(frames[0]) if frames else None
        if error is not None:
            if isinstance(error, _PASSING) and not late:
                asked.faults += 1
                return None
            return self._end(asked, error)
        if code == 400:
            reason = _text(frames)
            kind = "CLOSED" if reason.startswith("CLOSED") else "FORBIDDEN" if reason.startswith("FORBIDDEN") else "BAD_REQUEST"
            return self._end(asked, self._error(asked, kind, reason))
        if code not in (200, 300, 500) or len(frames) < 3:
            if late:
                return self._end(asked, self._error(asked, "UNAVAILABLE", _text(frames)))
            asked.faults += 1
            return None
        asked.faults = 0
        asked.kept = frames[1] == KEPT if asked.kept is None else asked.kept
        if code == 300:
            return self._end(asked, self._error(asked, PENDING_CODE, "it is stored and has no reply yet")) if late else None
        if code == 200:
            return self._end(asked, None, list(frames[2:]))
        reason = frames[2].decode(errors="replace")
        return self._end(asked, self._error(asked, reason.split(" ", 1)[0].rstrip(":"), reason))

    def _end(self, asked: _Asked, error: RequestError | None, reply: list[bytes] | None = None) -> Outcome:
        return Outcome(asked.index, reply, error, asked.sent, self._clock() - asked.began, bool(asked.kept))

    def _error(self, asked: _Asked, code: str, text: str) -> RequestError:
        # A stored request whose handler fails each time is a dead letter. As an error of the handler it has its table halved.
        kinds: dict[str, type[RequestError]] = {"DEAD_LETTER": HandlerError, "FORBIDDEN": Forbidden, "BAD_REQUEST": BadRequest}
        kind = kinds.get(code, RequestError)
        return kind(self._service, attempts=asked.sent, after_s=self._clock() - asked.began, text=text, code=code)


def _text(frames: Sequence[Any]) -> str:
    return bytes(frames[-1]).decode(errors="replace") if len(frames) > 1 else "the answer of the store has no status"
