"""freelance.models.agent: passes, hedges, give-ups, and which replies are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freelance.errors import TooLarge
from freelance.models.agent import IN_PLAY_MAX, AgentLimits
from freelance.models.server_list import Health
from tests.scenes.freelance_machines import Finished, GaveUp, Refused, Send, WatchedAgent

if TYPE_CHECKING:
    from tests.scenes.freelance_machines import Effect

A, B, C = b"tcp://a:1", b"tcp://b:1", b"tcp://c:1"
NAMES = (A, B, C)


def agent(*names: bytes, limits: AgentLimits | None = None, join: bool = True) -> WatchedAgent:
    made = WatchedAgent([name.decode() for name in names], limits or AgentLimits())
    for name in names if join else ():
        assert made.joined(name, 0.0) == []
    return made


def run(made: WatchedAgent, until: float) -> list[tuple[float, Effect]]:
    """Tick at each deadline; omit PINGs."""
    done: list[tuple[float, Effect]] = []
    while (at := made.deadline()) is not None and at <= until:
        done += [(at, effect) for effect in made.tick(at) if not (isinstance(effect, Send) and len(effect.frames) == 1)]
    return done


def test_request_goes_to_the_first_live_server() -> None:
    """FLP-08, FLP-10."""
    made = agent(A, B)
    assert made.submit([b"x"], 0) == (1, [Send(A, [b"1", b"x"])])
    assert made.receive(A, [b"1", b"y", b"z"], 0.1) == [Finished(1, [b"y", b"z"])]
    assert len(made) == 0


def test_hedge_then_next_then_a_new_pass() -> None:
    """BEY-13, FLP-11: once per server and pass."""
    made = agent(A, B, C)
    made.submit([b"x"], 0)
    frames = [b"1", b"x"]
    assert run(made, 2.0) == [(0.5, Send(B, frames)), (1.0, Send(C, frames)), (2.0, Send(A, frames))]


def test_pongs_resend_nothing() -> None:
    """FLP-11."""
    made = agent(A, B)
    made.submit([b"x"], 0)
    assert [made.receive(A, [b"PONG"], t / 100) for t in range(40)] == [[]] * 40
    assert made.counters["sent"] == 1


def test_without_hedge_the_next_is_asked_after_a_whole_try() -> None:
    made = agent(A, B, limits=AgentLimits(hedge_s=None))
    made.submit([b"x"], 0)
    assert run(made, 1.5) == [(1.0, Send(B, [b"1", b"x"]))]


def test_a_lone_server_is_not_hedged() -> None:
    made = agent(A)
    made.submit([b"x"], 0)
    assert run(made, 3.0) == [(1.0, Send(A, [b"1", b"x"])), (2.0, Send(A, [b"1", b"x"])), (3.0, GaveUp(1, 3, 3.0))]


def test_the_late_answer_of_the_first_still_wins() -> None:
    made = agent(A, B)
    made.submit([b"x"], 0)
    run(made, 1.2)
    assert made.receive(A, [b"1", b"late"], 1.3) == [Finished(1, [b"late"])]
    assert made.receive(B, [b"1", b"later"], 1.4) == []
    assert made.counters["reply_unknown"] == 1


def test_wrong_and_unknown_replies_are_ignored() -> None:
    """L1, FLP-13: wrong correlation id, a server that was not asked, an unknown peer, noise."""
    made = agent(A, B)
    made.submit([b"x"], 0)
    for name, frames in ((A, [b"2", b"y"]), (A, [b"01", b"y"]), (B, [b"1", b"y"]), (b"who", [b"1", b"y"]), (A, [b"1"]), (A, [])):
        assert made.receive(name, frames, 0.1) == []
    counters = {name: made.counters[name] for name in ("reply_unknown", "reply_unasked", "peer_unknown", "reply_malformed")}
    assert counters == {"reply_unknown": 2, "reply_unasked": 1, "peer_unknown": 1, "reply_malformed": 2}
    assert made.joined(b"who", 0) == made.lost(b"who", 0) == []


def test_a_pong_before_the_first_request_is_no_reply() -> None:
    """FLP-09."""
    made = agent(A)
    assert made.receive(A, [b"PONG"], 0) == []
    assert made.submit([b"x"], 0)[1] == [Send(A, [b"1", b"x"])]


def test_waits_for_a_server_and_fails_at_the_end_not_earlier() -> None:
    """FLP-16, FLP-07."""
    made = agent(A, join=False)
    assert made.submit([b"x"], 10)[1] == []
    assert made.deadline() == 13.0
    assert made.tick(12.999) == []
    assert made.tick(13.0) == [GaveUp(1, 0, 3.0)]
    assert made.deadline() is None


def test_a_joining_server_gets_waiting_requests_in_order() -> None:
    made = agent(A, B, join=False)
    made.submit([b"x"], 0)
    made.submit([b"y"], 0)
    assert made.joined(B, 0.2) == [Send(B, [b"1", b"x"]), Send(B, [b"2", b"y"])]


def test_a_broken_connection_moves_its_requests_at_once() -> None:
    made = agent(A, B)
    made.submit([b"x"], 0)
    assert made.lost(A, 0.1) == [Send(B, [b"1", b"x"])]
    assert made.lost(B, 0.2) == []
    assert made.joined(A, 0.3) == [Send(A, [b"1", b"x"])], "restarted: it may be asked again (FLP-17)"


def test_a_silent_server_is_dead_and_returns_by_speaking() -> None:
    """FLP-06, FLP-10."""
    made = agent(A, limits=AgentLimits(timeout_s=60, try_s=30))
    made.submit([b"x"], 5.0)
    run(made, 6.5)
    assert made.counters["server_dead"] == 1
    assert made.receive(A, [b"PONG"], 7.0) == [Send(A, [b"1", b"x"])]


def test_suspect_servers_are_skipped() -> None:
    """BEY-13."""
    made = agent(A, B)
    made.submit([b"x"], 0)
    run(made, 1.0)
    made.receive(B, [b"1", b"y"], 1.1)
    assert made.submit([b"x"], 1.2)[1] == [Send(B, [b"2", b"x"])]


def test_many_outstanding_each_its_own_reply() -> None:
    """FLP-15."""
    made = agent(A)
    numbers = [made.submit([b"%d" % n], 0)[0] for n in range(100)]
    effects = [made.receive(A, [b"%d" % n, b"r%d" % n], 0.1) for n in reversed(numbers)]
    assert effects == [[Finished(n, [b"r%d" % n])] for n in reversed(numbers)]


def test_withdrawn_requests_leave_nothing() -> None:
    made = agent(A, join=False)
    number, _ = made.submit([b"x"], 0)
    made.withdraw(number)
    made.withdraw(number)
    assert (len(made), made.deadline(), made.joined(A, 1)) == (0, None, [])


FRAMES = [b"1", b"x"]
FIRST, SECOND = TooLarge("bytes of the request", 10, 5), TooLarge("bytes of the request", 10, 7)


def refused(made: WatchedAgent, name: bytes, error: TooLarge, now: float, control: bytes = b"1") -> list[Effect]:
    return made.effects(made.machine.refused(name, control, error, now))


def test_a_request_too_large_for_one_server_goes_to_the_next_and_fails_when_none_takes_it() -> None:
    made = agent(A, B)
    made.submit([b"x"], 0)
    assert refused(made, A, FIRST, 0.1) == [Send(B, FRAMES)]
    assert (made.counters["sent"], made.counters["send_refused"], made.counters["too_large"]) == (1, 1, 0)
    assert refused(made, B, SECOND, 0.1) == [Refused(1, FIRST)]
    assert (made.counters["sent"], made.counters["send_refused"], made.counters["too_large"]) == (0, 2, 1)
    assert (len(made), made.asked[0].sent, made.deadline()) == (0, 0, 2.0), "a PING is next"
    assert refused(made, B, SECOND, 0.1) == [], "it has ended"
    assert made.counters["send_refused"] == 2


def test_a_server_whose_copy_was_too_large_answers_nothing_and_may_be_asked_over_a_new_connection() -> None:
    made = agent(A, B)
    made.submit([b"x"], 0)
    refused(made, A, FIRST, 0.1)
    assert made.receive(A, [b"1", b"y"], 0.2) == []
    assert made.counters["reply_unasked"] == 1
    assert made.lost(B, 0.2) == [Refused(1, FIRST)], "the only one that is connected does not take it"
    made.joined(B, 0.3)
    made.submit([b"y"], 0.3)
    assert refused(made, A, FIRST, 0.3, b"2") == [Send(B, [b"2", b"y"])]
    made.lost(A, 0.4)
    made.joined(A, 0.4)
    assert made.lost(B, 0.5) == [Send(A, [b"2", b"y"])]
    assert made.receive(A, [b"2", b"z"], 0.6) == [Finished(2, [b"z"])]


def test_a_hedge_that_is_too_large_is_replaced_and_a_copy_given_up_before_changes_nothing() -> None:
    made = agent(A, B, C)
    made.submit([b"x"], 0)
    assert run(made, 0.5) == [(0.5, Send(B, FRAMES))]
    assert refused(made, B, FIRST, 0.5) == [Send(C, FRAMES)]
    assert run(made, 1.0) == []
    assert refused(made, A, FIRST, 1.1) == [], "its time was over"
    assert made.receive(C, [b"1", b"y"], 1.2) == [Finished(1, [b"y"])]


def test_a_removed_server_is_left_at_once_and_a_new_one_of_its_name_has_been_asked_nothing() -> None:
    """FLP-13."""
    made = agent(A, B)
    made.submit([b"x"], 0)
    assert made.remove(A, 0.1) == [Send(B, FRAMES)]
    assert made.remove(A, 0.1) == []
    assert made.add(A.decode())
    assert not made.add(A.decode())
    made.joined(A, 0.2)
    assert made.receive(A, [b"1", b"y"], 0.3) == []
    assert (made.counters["reply_unasked"], made.counters["peer_unknown"]) == (1, 0)


def test_each_message_of_a_batch_counts() -> None:
    made = agent(A)
    made.submit([b"x"], 0)
    made.submit([b"y"], 0)
    batch = [[b"who", b"1", b"z"], [A], [A, b"PONG"], [A, b"noise"], [A, b"2", b"two"], [A, b"PONG"], [A, b"1", b"one"]]
    assert made.effects(made.machine.receive(batch, 0.1)) == [Finished(2, [b"two"]), Finished(1, [b"one"])]
    assert [made.counters[name] for name in ("peer_unknown", "reply_malformed", "pong", "sent")] == [1, 2, 2, 2]


def test_connections_of_strangers_are_counted_and_change_nothing() -> None:
    made = agent(A, join=False)
    made.submit([b"x"], 0)
    assert made.joined(b"who", 0) == made.lost(b"who", 0) == made.remove(b"who", 0) == []
    assert made.counters["peer_unknown"] == 1
    assert made.joined(A, 0.1) == [Send(A, FRAMES)]
    assert made.joined(A, 0.2) == []


def test_bey_13_an_answer_to_a_request_ends_a_suspicion_and_nothing_else_does() -> None:
    made = agent(A, B, limits=AgentLimits(hedge_s=None))
    made.submit([b"x"], 0)
    assert run(made, 1.0) == [(1.0, Send(B, FRAMES))]
    made.receive(A, [b"PONG"], 1.1)
    made.receive(A, [b"7", b"y"], 1.1)
    assert made.submit([b"y"], 1.1)[1] == [Send(B, [b"2", b"y"])]
    made.receive(A, [b"2", b"y"], 1.1)
    assert made.submit([b"y"], 1.1)[1] == [Send(B, [b"3", b"y"])]
    assert made.receive(A, [b"1", b"late"], 1.2) == [Finished(1, [b"late"])]
    assert made.submit([b"z"], 1.2)[1] == [Send(A, [b"4", b"z"])]


def test_flp_06_pings_and_deaths_are_counted_and_a_late_tick_postpones_a_verdict() -> None:
    made = agent(A)
    assert made.deadline() == 2.0
    assert made.tick(2.0) == [Send(A, [b"PING"])]
    assert (made.counters["ping"], "verdict_postponed" in made.counters) == (1, False)
    made.tick(9.0)
    assert (made.counters["ping"], made.counters["verdict_postponed"], made.counters["server_dead"]) == (2, 1, 0)
    made.tick(11.0)
    assert (made.counters["ping"], made.counters["verdict_postponed"], made.counters["server_dead"]) == (3, 1, 1)


def test_bey_13_no_third_server_is_in_play_and_what_was_done_is_counted() -> None:
    made = agent(A, B, C, limits=AgentLimits(hedge_s=0.3))
    made.submit([b"x"], 0)
    assert run(made, 1.0) == [(0.3, Send(B, FRAMES)), (1.0, Send(C, FRAMES))]
    assert (made.counters["hedged"], made.counters["try_timeout"], made.counters["sent"]) == (2, 1, 3)
    assert made.asked[0].in_play == {B: 0.3, C: 1.0}
    assert made.deadline() == 1.3, "the second's whole try"


def test_flp_11_over_a_new_connection_a_server_is_asked_in_the_same_pass() -> None:
    made = agent(A, B, C)
    made.submit([b"x"], 0)
    assert made.lost(A, 0.1) == [Send(B, FRAMES)]
    assert made.joined(A, 0.2) == []
    assert run(made, 0.6) == [(0.6, Send(A, FRAMES))]


def test_flp_16_a_request_without_a_live_server_waits_for_its_end_alone() -> None:
    made = agent(A, limits=AgentLimits(health=Health(ping_s=60.0, dead_s=180.0)))
    made.submit([b"x"], 0)
    assert made.lost(A, 0.1) == []
    assert made.deadline() == 3.0
    assert made.joined(A, 0.2) == [Send(A, FRAMES)]
    assert run(made, 1.2) == [(1.2, Send(A, FRAMES))]
    assert (made.counters["hedged"], made.counters["try_timeout"]) == (0, 1)


def test_no_body() -> None:
    with pytest.raises(ValueError):
        agent(A).submit([], 0)


STEP = st.tuples(st.sampled_from(["submit", "reply", "pong", "join", "lose", "noise", "wait"]), st.sampled_from(NAMES), st.integers(0, 9))


@given(st.lists(STEP, max_size=120))
def test_every_request_ends_exactly_once_and_in_time(steps: list[tuple[str, bytes, int]]) -> None:
    """L1: for any behaviour of servers, one end each, within the timeout, and at most one hedge in play."""
    made, now, up, ends, began = agent(*NAMES, join=False), 0.0, set[bytes](), dict[int, float](), dict[int, float]()

    def note(effects: list[Effect], at: float) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                assert effect.name in up
            else:
                assert effect.number not in ends
                ends[effect.number] = at
        assert all(len(call.in_play) <= IN_PLAY_MAX for call in made.machine._open.values())

    def advance(until: float) -> None:
        while (at := made.deadline()) is not None and at <= until:
            note(made.tick(at), at)

    for what, name, size in steps:
        now += size / 10
        advance(now)
        match what:
            case "submit":
                number, effects = made.submit([b"x"], now)
                began[number] = now
                note(effects, now)
            case "join":
                up.add(name)
                note(made.joined(name, now), now)
            case "lose":
                up.discard(name)
                note(made.lost(name, now), now)
            case "reply" | "pong" | "noise" if name in up:
                frames = {"reply": [b"%d" % size, b"y"], "pong": [b"PONG"], "noise": [b""] * (size % 3)}[what]
                note(made.receive(name, frames, now), now)
    advance(now + 3.0)
    assert ends.keys() == began.keys()
    assert all(ends[n] - began[n] <= 3.0 + 1e-9 for n in ends)
    assert len(made) == 0
