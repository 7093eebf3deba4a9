from __future__ import annotations

import random
from typing import Any

import pytest

from bstar.errors import Overrun
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State
from bstar.machine.requester import HINT_PAUSE_S, Limits, Renew, Send
from bstar.machine.wire import ReplyHeader, ReplyKind
from core.machine.requests import SENT, SETTLED
from tests.scenes.bstar_requester import Failed, Finished, GaveUp, RequesterEffect
from tests.scenes.bstar_requester import WatchedRequester as Requester

A, B = 0, 1
FIRST, SECOND = Ballot(1, 10), Ballot(2, 20)


def requester(*, stock: bool = False, lines: tuple[int, ...] = (A, B), **limits: Any) -> Requester:
    made = Requester(7, Limits(**limits), 0.0, stock=stock)
    for server in lines:
        made.joined(server, 0.0)
    return made


def sent(effects: list[RequesterEffect]) -> list[tuple[int, int]]:
    return [(effect.server, effect.header.sequence) for effect in effects if isinstance(effect, Send)]


def ask(one: Requester, now: float = 0.0) -> tuple[int, list[tuple[int, int]]]:
    sequence, effects = one.submit([b"hello"], now)
    return sequence, sent(effects)


def reply(sequence: int, ballot: Ballot = FIRST) -> ReplyHeader:
    return ReplyHeader(ReplyKind.REPLY, sequence, ballot)


def refusal(sequence: int, *, active: State | None = None, retry_ms: int = 500) -> ReplyHeader:
    return ReplyHeader(ReplyKind.NOT_ACTIVE, sequence, NO_BALLOT, active, retry_ms)


# --- the guide's algorithm --------------------------------------------------------------------------------------------------------


def test_primary_is_asked_first() -> None:
    """BST-21."""
    one = requester()
    sequence, where = ask(one)
    assert where == [(A, sequence)]
    assert one.receive(A, reply(sequence), [b"yes"], 0.1) == [Finished(sequence, [b"yes"])]
    assert len(one) == 0


def test_backup_is_not_asked_because_its_line_is_up_first() -> None:
    """BST-21: the primary's connection has as long as its answer would have."""
    one = requester(lines=())
    sequence, where = ask(one)
    assert where == []
    assert sent(one.joined(B, 0.2)) == []
    assert one.deadline() == 1.0
    assert sent(one.joined(A, 0.3)) == [(A, sequence)]
    late = requester(lines=(B,))
    sequence, _ = ask(late)
    assert sent(late.tick(1.0)) == [(B, sequence)]


def test_silent_server_is_left_for_the_other_one_with_the_same_request() -> None:
    """BST-22, BST-24: the same sequence, so the same idempotency key."""
    one = requester()
    sequence, effects = one.submit([b"hello"], 0.0)
    first = next(effect for effect in effects if isinstance(effect, Send))
    assert one.deadline() == 1.0
    effects = one.tick(1.0)
    again = next(effect for effect in effects if isinstance(effect, Send))
    assert (again.server, again.header, again.body) == (B, first.header, first.body)
    assert one.receive(B, reply(sequence), [], 1.1) == [Finished(sequence, [])]
    assert one.current == B


def test_silent_server_is_not_asked_again_before_the_fail_over_time() -> None:
    """BST-22: alternation, with a settling time, until the deadline of the caller."""
    one = requester(settle_s=2.0, deadline_s=100.0)
    sequence, _ = ask(one)
    log = []
    now = 0.0
    while now < 9.0:
        moment = one.deadline()
        assert moment is not None
        now = max(now, moment)
        log += [(now, server) for server, _ in sent(one.tick(now))]
    assert log == [(1.0, B), (3.0, A), (4.0, B), (6.0, A), (7.0, B), (9.0, A)]
    assert one.receive(A, reply(sequence), [], 9.1)


def test_stock_servers_are_left_with_a_fresh_connection_and_the_whole_settling_time() -> None:
    """BST-22 to the letter: close, switch, wait, reconnect, resend; one request at a time."""
    one = requester(stock=True, lines=(A,))
    first, where = ask(one)
    second, waits = ask(one)
    assert (where, waits) == ([(A, first)], [])
    assert one.tick(1.0) == [Renew(A)]
    assert one.lost(A, 1.0) == one.joined(B, 1.0) == []
    assert one.deadline() == 3.0
    assert sent(one.tick(3.0)) == [(B, first)]
    effects = one.receive_stock(B, [b"late", b"but right"], 3.1)
    assert effects[0] == Finished(first, [b"late", b"but right"])
    assert sent(effects) == [(B, second)]
    assert one.receive_stock(A, [b"nobody asked"], 3.2) == []
    assert one.counters["reply_unknown"] == 1


def test_reply_has_to_match() -> None:
    """BST-23: reported and ignored."""
    one = requester()
    sequence, _ = ask(one)
    assert one.receive(A, reply(sequence + 1), [b"?"], 0.1) == []
    assert one.counters["reply_unknown"] == 1
    one.receive(A, reply(sequence), [b"!"], 0.2)
    assert one.receive(A, reply(sequence), [b"!"], 0.3) == []
    assert one.counters["reply_unknown"] == 2


def test_a_request_ends_at_its_deadline() -> None:
    one = requester(deadline_s=2.5)
    sequence, _ = ask(one)
    one.tick(1.0)
    one.tick(2.0)
    assert one.tick(2.5) == [GaveUp(sequence, 2, 2.5)]
    assert one.deadline() is None


def test_a_request_may_have_its_own_deadline() -> None:
    one = requester(lines=())
    sequence, _ = one.submit([], 3.0, deadline_s=0.5)
    assert one.deadline() == 3.5
    assert one.tick(3.5) == [GaveUp(sequence, 0, 0.5)]


# --- refusals ---------------------------------------------------------------------------------------------------------------------


def test_refused_request_goes_to_the_other_server_at_once() -> None:
    one = requester()
    sequence, _ = ask(one)
    assert sent(one.receive(A, refusal(sequence), [], 0.1)) == [(B, sequence)]
    assert one.counters["refused"] == 1


def test_when_both_refuse_the_first_useful_moment_is_waited_for() -> None:
    one = requester()
    sequence, _ = ask(one)
    one.receive(A, refusal(sequence, retry_ms=900), [], 0.0)
    assert one.receive(B, refusal(sequence, retry_ms=300), [], 0.1) == []
    assert one.deadline() == 0.4
    assert sent(one.tick(0.4)) == [(B, sequence)]


def test_named_active_is_asked_even_if_it_refused_before() -> None:
    """F2: the refusal names the active server."""
    one = requester()
    sequence, _ = ask(one)
    one.receive(A, refusal(sequence, retry_ms=2000), [], 0.0)
    effects = one.receive(B, refusal(sequence, active=State.PRIMARY, retry_ms=2000), [], 0.1)
    assert sent(effects) == [(A, sequence)]
    assert one.current == A


def test_two_servers_that_name_each_other_do_not_make_us_run() -> None:
    one = requester()
    sequence, _ = ask(one)
    now, count = 0.0, 0
    server, role = A, State.BACKUP
    while now < 1.0:
        effects = one.receive(server, refusal(sequence, active=role, retry_ms=2000), [], now)
        moment = one.deadline()
        assert moment is not None
        if not effects:
            now = max(now, moment)
            effects = one.tick(now)
        server = sent(effects)[0][0]
        role = State.BACKUP if server == A else State.PRIMARY
        count += 1
    assert count <= 2 * (1.0 / HINT_PAUSE_S) + 2


def test_silent_server_is_not_asked_because_another_names_it() -> None:
    one = requester()
    sequence, _ = ask(one)
    one.tick(1.0)
    assert sent(one.receive(B, refusal(sequence, active=State.PRIMARY, retry_ms=400), [], 1.1)) == []
    assert sent(one.tick(1.5)) == [(B, sequence)]  # its request counts as a vote then


def test_late_refusal_of_a_request_that_is_elsewhere_changes_nothing() -> None:
    one = requester()
    sequence, _ = ask(one)
    one.tick(1.0)
    assert one.receive(A, refusal(sequence), [], 1.1) == []
    assert one.receive(B, reply(sequence), [b"x"], 1.2) == [Finished(sequence, [b"x"])]


# --- lines ------------------------------------------------------------------------------------------------------------------------


def test_lost_line_sends_its_requests_elsewhere_in_order() -> None:
    one = requester()
    sequences = [ask(one)[0] for _ in range(3)]
    assert sent(one.lost(A, 0.5)) == [(B, sequence) for sequence in sequences]
    assert one.current == B


def test_without_any_line_requests_wait() -> None:
    one = requester(lines=(A,))
    sequence, _ = ask(one)
    assert one.lost(A, 0.1) == []
    assert one.current == A
    assert sent(one.joined(A, 0.2)) == [(A, sequence)]


# --- ballots ----------------------------------------------------------------------------------------------------------------------


def test_reply_of_a_lower_ballot_is_dropped_and_its_server_left() -> None:
    """BST-33, G7."""
    one = requester()
    first, _ = ask(one)
    one.receive(A, reply(first, SECOND), [], 0.1)
    second, _ = ask(one, 0.2)
    assert sent(one.receive(A, reply(second, FIRST), [b"old"], 0.3)) == [(B, second)]
    assert one.counters["reply_lower_ballot"] == 1
    assert one.receive(B, reply(second, SECOND), [b"new"], 0.4) == [Finished(second, [b"new"])]


def test_what_was_seen_goes_with_every_request() -> None:
    one = requester()
    first, _ = ask(one)
    one.receive(A, reply(first, SECOND), [], 0.1)
    _, effects = one.submit([], 0.2)
    assert [effect.header.seen for effect in effects if isinstance(effect, Send)] == [SECOND]


def test_lower_ballot_of_a_server_that_was_given_up_changes_nothing() -> None:
    one = requester()
    one.highest.accept(SECOND)
    sequence, _ = ask(one)
    one.tick(1.0)
    assert one.receive(A, reply(sequence, FIRST), [], 1.1) == []
    assert one.current == B


def test_answer_that_comes_while_the_request_waits_to_be_sent_again_counts() -> None:
    one = requester()
    sequence, _ = ask(one)
    one.tick(1.0)
    one.receive(B, refusal(sequence), [], 1.1)
    assert one.receive(A, reply(sequence), [b"slow"], 1.2) == [Finished(sequence, [b"slow"])]
    assert one.deadline() is None


def test_failed_handler() -> None:
    one = requester()
    sequence, _ = ask(one)
    header = ReplyHeader(ReplyKind.FAILED, sequence, FIRST)
    assert one.receive(A, header, [b"KeyError\xff"], 0.1) == [Failed(sequence, "KeyError\\xff")]


# --- limits -----------------------------------------------------------------------------------------------------------------------


def test_window_and_queue() -> None:
    one = requester(window=2, waiting_max=1)
    first, _ = ask(one)
    ask(one)
    assert not one.full
    third, where = ask(one)
    assert where == []
    assert one.full
    assert sent(one.receive(A, reply(first), [], 0.1)) == [(A, third)]
    assert not one.full


def test_withdrawn_request_makes_room() -> None:
    one = requester(window=1)
    first, _ = ask(one)
    second, _ = ask(one)
    third, _ = ask(one)
    assert one.withdraw(second, 0.1) == []
    assert sent(one.withdraw(first, 0.1)) == [(A, third)]
    assert one.withdraw(first, 0.1) == []
    assert one.receive(A, reply(first), [], 0.2) == []


# --- walks ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stock", [False, True])
def test_a_walk_ends_every_request_once_and_counts_what_is_in_flight(seed: int, stock: bool) -> None:
    """Servers that join, leave, refuse, answer with lower ballots, fail and are silent; a close at the end."""
    chance = random.Random(seed)
    one = requester(stock=stock, lines=(), window=chance.choice((1, 3)), waiting_max=20, deadline_s=5.0)
    machine, now = one.machine, 0.0
    ended: set[int] = set()

    def note(effects: list[RequesterEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send | Renew):
                assert effect.sequence not in ended
                ended.add(effect.sequence)

    for _ in range(1500):
        now += chance.choice((0.0, 0.01, 0.3))
        server = chance.choice((A, B))
        sequence = chance.randrange(1, len(one.asked) + 2)
        match chance.randrange(9):
            case 0 | 1 if not one.full:
                note(one.submit([b"x"], now, chance.choice((None, 0.5)))[1])
            case 2:
                note(one.joined(server, now))
            case 3:
                note(one.lost(server, now))
            case 4 if one.asked:
                pending = chance.choice(one.asked)
                if pending.stage != SETTLED:
                    ended.add(pending.key)
                note(one.withdraw(pending.key, now))
            case 5:
                note(one.tick(now))
            case 6 if not stock:
                note(one.receive(server, refusal(sequence, active=chance.choice((None, State.PRIMARY, State.BACKUP))), [], now))
            case _ if stock:
                note(one.receive_stock(server, [b"y"], now))
            case _:
                kind = chance.choice((ReplyKind.REPLY, ReplyKind.REPLY, ReplyKind.FAILED))
                note(one.receive(server, ReplyHeader(kind, sequence, chance.choice((FIRST, SECOND))), [b"y"], now))
        open_now = [pending for pending in one.asked if pending.stage != SETTLED]
        assert len(one) == len(open_now)
        flying = [pending for pending in open_now if pending.server is not None]
        assert [pending.stage for pending in flying] == [SENT] * len(flying)
        assert machine._in_flight == len(flying) <= machine._window
        assert one.full == (len(open_now) - len(flying) >= 20)
    open_now = [pending for pending in one.asked if pending.stage != SETTLED]
    assert {id(pending) for pending in machine.close(now)} == {id(pending) for pending in open_now}
    assert len(ended) + len(open_now) == len(one.asked) > 100


def test_what_is_counted() -> None:
    one = requester(lines=(A, B), settle_s=2.0)
    sequence, _ = ask(one)
    one.tick(1.0)
    assert one.counters == {"sent": 2, "timeout": 1, "switched": 1}
    one.receive(B, reply(sequence), [], 1.1)
    one.receive(B, reply(sequence), [], 1.2)
    assert one.counters == {"sent": 2, "timeout": 1, "switched": 1, "reply_unknown": 1}


def test_a_request_that_its_server_does_not_take_makes_place_for_the_next() -> None:
    one = requester(window=1)
    first, _ = ask(one)
    second, where = ask(one)
    assert where == []
    error = ValueError("too large")
    machine = one.machine
    assert machine.refused(99, error, 0.1) == []
    assert machine.counters["too_large"] == 0
    assert [(ended.key, ended.error) for ended in machine.refused(first, error, 0.1)] == [(first, error)]
    assert machine.counters["too_large"] == 1
    assert sent(one.effects([])) == [(A, second)]


def test_more_than_may_wait_are_refused() -> None:
    one = requester(lines=(), waiting_max=2)
    ask(one)
    ask(one)
    with pytest.raises(Overrun):
        ask(one)
    assert len(one) == 2


def test_connections_to_stock_servers_say_nothing() -> None:
    """They stand for as long as the answer takes that shows them."""
    one = requester(stock=True, lines=())
    ask(one)
    assert [one.lost(A, 1.5), one.joined(B, 1.6), one.lost(B, 1.7)] == [[], [], []]


def test_a_primary_that_connects_again_makes_no_silent_backup_useful() -> None:
    one = requester(settle_s=5.0)
    ask(one)
    one.tick(1.0)
    one.tick(2.0)
    one.lost(A, 2.1)
    assert sent(one.joined(A, 2.2)) == []
    assert one.deadline() == 6.0


@pytest.mark.parametrize("kind", [ReplyKind.FAILED, ReplyKind.REPLY])
def test_a_late_answer_of_a_silent_server_makes_it_the_current_one_at_once(kind: ReplyKind) -> None:
    one = requester(settle_s=5.0)
    sequence, _ = ask(one)
    assert sent(one.tick(1.0)) == [(B, sequence)]
    ended = one.receive(A, ReplyHeader(kind, sequence, FIRST), [b"first", b"last"], 1.1)
    assert ended == [Failed(sequence, "first") if kind is ReplyKind.FAILED else Finished(sequence, [b"first", b"last"])]
    assert one.current == A
    assert ask(one, 1.2)[1] == [(A, 2)]


def test_an_answer_of_a_stock_server_makes_it_the_current_one() -> None:
    one = requester(stock=True, lines=(), settle_s=2.0)
    sequence, where = ask(one)
    assert where == [(A, sequence)]
    one.tick(1.0)
    assert sent(one.tick(3.0)) == [(B, sequence)]
    assert one.receive_stock(B, [b"x"], 3.1) == [Finished(sequence, [b"x"])]
    assert ask(one, 3.2)[1] == [(B, 2)]


def test_a_full_window_waits_for_answers_and_not_for_servers() -> None:
    one = requester(window=1)
    ask(one)
    ask(one)
    assert one.deadline() == 1.0


def test_the_server_that_a_refusal_names_is_the_current_one() -> None:
    one = requester(lines=(A,))
    sequence, _ = ask(one)
    one.receive(A, refusal(sequence, active=State.BACKUP), [], 0.1)
    assert (one.current, one.counters["switched"], one.counters["refused"]) == (B, 1, 1)


def test_a_stock_server_is_silent_only_once_it_is_connected() -> None:
    """Its request waits in the socket; a server that is far would be left before its answer can come."""
    one = requester(stock=True, lines=(), timeout_s=1.0, deadline_s=2.5)
    one.submit([b"x"], 0.0)
    assert one.joined(B, 0.5) == []  # a connection that was given up
    assert one.joined(A, 0.8) == []
    assert one.tick(1.0) == []
    assert one.joined(A, 1.5) == []  # again: a server that comes and goes is no better than a silent one
    assert one.tick(1.8) == [Renew(A)]
