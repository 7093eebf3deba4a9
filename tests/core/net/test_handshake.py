"""core.net.handshake: time limit, questions to an authenticator, steps that wait for key agreements."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.errors import HandshakeError
from core.net.handshake import Handshake
from core.options import Options
from core.zmtp.connection import State
from core.zmtp.scan import Batch
from core.zmtp.zap import ZapReply, ZapRequest
from tests.scenes.builds import stands_in

if TYPE_CHECKING:
    from collections.abc import Callable


class Session:
    """A session and its connection; records the calls."""

    def __init__(self, *, budget: bool = False) -> None:
        self.calls: list[str] = []
        self.errors: list[HandshakeError] = []
        self.questions: list[dict[str, Any]] = []
        self.options = Options(handshake_ivl=50)
        self.transport: asyncio.Transport | None = None
        self.budget = budget
        self.owner = cast("Any", SimpleNamespace(context=SimpleNamespace(authentication=SimpleNamespace(ask=self.ask))))
        self.connection = SimpleNamespace(
            mechanism=SimpleNamespace(zap_request=None),
            state=State.HANDSHAKE,
            work=0,
            permit=lambda: Batch.of([], [[b"permitted"]]),
            resume=self.resumed,
        )
        loop = asyncio.get_running_loop()
        self.timers: list[asyncio.TimerHandle] = []
        self.delays_s: list[float] = []

        def later(session: object, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
            self.delays_s.append(delay_s)
            self.timers.append(loop.call_later(delay_s, call))
            return self.timers[-1]

        scheduler = SimpleNamespace(later=later)
        self.handshake = Handshake(self, cast("Any", self.connection), cast("Any", scheduler))

    def resumed(self, verdict: ZapReply) -> Batch:
        return Batch.of([], [[verdict.status_code]])

    def ask(self, request: ZapRequest, **asked: Any) -> Callable[[], None]:
        self.questions.append(asked)
        return lambda: self.calls.append("forgotten")

    def suspend_handshake(self) -> None:
        self.calls.append("suspended")

    def resume_handshake(self, step: Callable[[], Batch]) -> None:
        self.calls.append(step()[0][0].decode())

    def refuse(self, error: HandshakeError) -> None:
        self.errors.append(error)

    def queue_key_agreements(self, number: int) -> bool:
        self.calls.append(f"queued {number}")
        return self.budget

    def abort_with(self, reason: str) -> None:
        self.calls.append(reason)


@stands_in
async def test_zmtp_11_a_handshake_that_takes_too_long_is_refused() -> None:
    session = Session()
    await asyncio.sleep(0.1)
    assert [str(error) for error in session.errors] == ["handshake not complete after 50 ms"]


@stands_in
async def test_a_handshake_that_is_over_has_no_time_limit() -> None:
    session = Session()
    session.handshake.stop_timer()
    await asyncio.sleep(0.1)
    assert not session.errors


@stands_in
async def test_a_question_is_asked_once_and_its_answer_goes_on() -> None:
    session = Session()
    session.connection.mechanism.zap_request = ZapRequest()
    session.handshake.proceed()
    session.handshake.proceed()
    assert (session.calls, len(session.questions)) == (["suspended"], 1)
    session.questions[0]["answer"](ZapReply(b"200"))
    assert session.calls == ["suspended", "200"]
    session.questions[0]["revoke"]("revoked")
    session.handshake.end()
    session.handshake.end()
    assert session.calls == ["suspended", "200", "revoked", "forgotten"]


@stands_in
async def test_zap_02_a_malformed_answer_refuses_the_peer() -> None:
    session = Session()
    session.connection.mechanism.zap_request = ZapRequest()
    session.handshake.proceed()
    error = HandshakeError("ZAP reply of 0 frames")
    session.questions[0]["answer"](error)
    assert session.errors == [error]
    session.handshake.end()


@stands_in
@pytest.mark.parametrize(("budget", "calls"), [(True, ["queued 3", "suspended"]), (False, ["queued 3"])])
async def test_c3_a_step_waits_for_key_agreements_where_they_are_limited(budget: bool, calls: list[str]) -> None:
    session = Session(budget=budget)
    session.connection.work = 3
    session.handshake.proceed()
    assert session.calls == calls
    session.handshake.permit()
    assert session.calls == [*calls, "permitted"]
    session.handshake.end()


@stands_in
async def test_zmtp_11_the_limit_is_that_of_the_option_and_ends_with_the_connection() -> None:
    session = Session()
    (timer,) = session.timers
    assert session.delays_s == [0.05]
    session.handshake.end()
    assert timer.cancelled()
    session.handshake.end()
    session.handshake.stop_timer()


@stands_in
async def test_each_step_is_waited_for_once_and_the_next_when_it_has_been_done() -> None:
    session = Session(budget=True)
    session.connection.work = 3
    for _ in range(2):
        session.handshake.proceed()
    assert session.calls == ["queued 3", "suspended"]
    session.handshake.permit()
    session.connection.work = 0
    session.connection.mechanism.zap_request = ZapRequest()
    for _ in range(2):
        session.handshake.proceed()
    assert session.calls[3:] == ["suspended"]
    session.questions[0]["answer"](ZapReply(b"200"))
    session.handshake.proceed()
    assert len(session.questions) == 2
    session.handshake.end()


@stands_in
async def test_nothing_is_asked_after_the_handshake() -> None:
    session = Session()
    session.connection.mechanism.zap_request = ZapRequest()
    session.connection.state = State.TRAFFIC
    session.handshake.proceed()
    assert not session.questions
    session.handshake.end()
