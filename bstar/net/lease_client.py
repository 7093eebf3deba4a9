"""Connection of a server to the witness: questions with nonces, matched answers, nothing queued while disconnected."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import core
from bstar.errors import MalformedMessage
from bstar.machine.wire import Question, QuestionKind, WitnessAnswerKind, decode_answer, encode_question, signed_by
from core.rpc.connect_times import with_connect_times

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from bstar.machine.ballot import Ballot
    from bstar.machine.signing import Trust
    from bstar.machine.wire import WitnessAnswer

# Answers to older questions are useless: their lease has nearly ended.
QUESTIONS_MAX: Final = 16

# Reasons of the witness to refuse, other than a lease of the other server.
_REASONS: Final = {
    WitnessAnswerKind.TOO_FAR: "the witness takes our ballot for one nobody can have drawn",
    WitnessAnswerKind.NOT_WRITTEN: "the witness cannot write its ballot file",
    WitnessAnswerKind.NOT_SIGNED: "the witness has a pair key, and our questions are not signed with it",
}


class PendingQuestion(NamedTuple):
    """A question without an answer yet."""

    ballot: Ballot
    at: float


class LeaseClient:
    """DEALER to the witness."""

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        *,
        lease_ms: int,  # length of the lease to ask for
        # called with the answer, its ballot, and when it was asked; for GRANTED and REFUSED only
        on_answer: Callable[[WitnessAnswer, Ballot, float], None],
        trust: Trust,  # in the answers, with the key for questions
        nonce: int,  # random first nonce, so that answers to an earlier process are not accepted
        # `witness_malformed`, `witness_unasked`, `witness_unreachable`, `witness_unsigned`, `witness_cannot` are counted here
        counters: Counter[str],
        socket_options: dict[str, Any],
    ) -> None:
        self.heard_at: float | None = None  # when the newest answered question was sent
        self.trouble = ""  # why the witness refuses this server in general, "" if it does not
        self._trust = trust
        self._last: WitnessAnswer | None = None
        self._silent_since: float | None = None  # the first question after the last answer
        self._lease_ms = lease_ms
        self._on_answer = on_answer
        self._nonce = nonce
        self._counters = counters
        self._asked: OrderedDict[int, PendingQuestion] = OrderedDict()
        self._pending_release: Ballot | None = None  # not sent yet, for lack of a connection
        # IMMEDIATE: a question must not wait for a connection and be answered too late.
        self._socket = context.socket(core.DEALER, **{**with_connect_times(socket_options), "immediate": 1, "linger": 0})
        self._socket.set_receiver(self._on_answers, on_peer=self._on_peer)
        self._socket.connect(endpoint)

    def ask(self, ballot: Ballot, *, holding: bool, now: float) -> None:
        self._asked[self._next_nonce()] = PendingQuestion(ballot, now)
        self._silent_since = now if self._silent_since is None else self._silent_since
        while len(self._asked) > QUESTIONS_MAX:
            self._asked.popitem(last=False)
        self._send(Question(QuestionKind.KEEP if holding else QuestionKind.ASK, self._nonce, ballot, self._lease_ms))

    def release(self, ballot: Ballot) -> None:
        """Release the lease, as soon as the witness can be reached; that is never too late."""
        sent = self._send(Question(QuestionKind.RELEASE, self._next_nonce(), ballot, 0))
        self._pending_release = None if sent else ballot

    def delay_reason(self, now: float) -> str:
        """Return why a claim has not been granted yet, "" if unknown."""
        waits_s = self._lease_ms / 2000  # half a lease: four questions
        if self._last is None or (self._silent_since is not None and now >= self._silent_since + waits_s):
            return "the witness does not answer"
        if self._last.kind is not WitnessAnswerKind.REFUSED:
            return ""
        holder = self._last.holder
        return f"the witness has granted the lease to {holder}" if holder.counter else "the witness grants nothing so soon after its start"

    def close(self) -> None:
        self._socket.close(linger=200)  # a release that was just sent still leaves

    async def wait_closed(self) -> None:
        await self._socket.wait_closed()

    def _next_nonce(self) -> int:
        self._nonce = self._nonce + 1 & (1 << 64) - 1
        return self._nonce

    def _send(self, question: Question) -> bool:
        try:
            self._socket.send_multipart([encode_question(question, self._trust.key)], core.NOBLOCK)
        except core.Again:
            self._counters["witness_unreachable"] += 1
            return False
        return True

    def _on_peer(self, _: bytes, joined: bool) -> None:
        if joined and self._pending_release is not None:
            self.release(self._pending_release)

    def _on_answers(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            try:
                if len(frames) != 1:
                    raise MalformedMessage(f"answer of {len(frames)} frames")
                answer = decode_answer(frames[0])
            except MalformedMessage:
                self._counters["witness_malformed"] += 1
                continue
            asked = self._asked.get(answer.nonce)
            if asked is None or answer.kind is WitnessAnswerKind.STATUS:
                self._counters["witness_unasked"] += 1
                continue
            if not self._trust.admits(signed=signed_by(self._trust.key, frames[0])):
                self._counters["witness_unsigned"] += 1
                self.trouble = _REASONS.get(answer.kind, "the answers of the witness are not signed with our pair key")
                continue
            del self._asked[answer.nonce]
            self.heard_at, self._last, self._silent_since = asked.at, answer, None
            self.trouble = _REASONS.get(answer.kind, "")
            if self.trouble:
                self._counters["witness_cannot"] += 1  # as if it were absent: an active server may still serve by the word of its peer
            else:
                self._on_answer(answer, asked.ballot, asked.at)
