"""pirate.lazy: the client's machine (LPP-01 to LPP-07, BEY-01, BEY-02)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pirate.errors import Busy, ClientClosed, NoReply
from pirate.lazy import Close, LazyLimits, LazyPirate, LazyRequest, NoResponse, Open, Order, Send

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"


def same(request: list[bytes], reply: list[bytes]) -> bool:
    return request == reply


class Scene:
    """A client whose servers are connected as soon as it opens a socket.

    Attributes:
        sockets: endpoints with an open socket.
        ended: results of the requests that have ended.
    """

    def __init__(self, endpoints: list[str], check: Callable[[list[bytes], list[bytes]], bool] | None = None, **limits: Any) -> None:
        self.machine = LazyPirate(endpoints, LazyLimits(**limits), check)
        self.sockets: set[str] = set()
        self.ended: list[list[bytes] | Exception | None] = []
        self.pending = LazyRequest([b""])
        self.now = 0.0

    def take(self, ended: Sequence[LazyRequest] = ()) -> list[Order]:
        """Return the orders; carry them out."""
        self.ended += [request.error or request.reply for request in ended]
        orders: list[Order] = []
        while self.machine.outgoing:
            order = self.machine.outgoing.pop(0)
            orders.append(order)
            match order:
                case Open(endpoint):
                    assert endpoint not in self.sockets
                    self.sockets.add(endpoint)
                    self.machine.joined(endpoint, self.now)
                case Close(endpoint):
                    self.sockets.remove(endpoint)
                case Send(endpoint, _):
                    assert endpoint in self.sockets
        return orders

    def begin(self, *body: bytes, now: float) -> list[Order]:
        self.pending, self.now = LazyRequest(body), now
        self.machine.submit(self.pending, now)
        return self.take()

    def tick(self, now: float) -> list[Order]:
        self.now = now
        return self.take(self.machine.tick(now))

    def receive(self, endpoint: str, *reply: bytes, now: float) -> list[Order]:
        self.now = now
        return self.take(self.machine.receive(endpoint, [*reply], now))

    def withdraw(self, now: float) -> list[Order]:
        self.machine.cancel(self.pending, now)
        return self.take()


def again(silent: str, following: str, body: bytes = b"1") -> list[Order]:
    return [NoResponse(silent), Close(silent), Open(following), Send(following, (body,))]


def test_lpp_01_the_same_request_three_times_2500_ms_each() -> None:
    client = Scene([A])
    assert client.begin(b"1", now=0.0) == [Open(A), Send(A, (b"1",))]
    assert client.machine.deadline() == 2.5
    assert client.tick(2.499) == []
    assert client.tick(2.5) == again(A, A)
    assert client.tick(5.0) == again(A, A)
    assert client.tick(7.5) == [NoResponse(A), Close(A)]
    (error,) = client.ended
    assert isinstance(error, NoReply)
    assert (error.attempts, error.after_s) == (3, 7.5)
    assert client.pending.sent == 3
    assert client.machine.deadline() == inf
    assert client.machine.counters == {"sent": 3, "timeout": 3, "gave_up": 1}


def test_lpp_04_a_good_reply_resets_the_attempts() -> None:
    client = Scene([A])
    client.begin(b"1", now=0.0)
    client.tick(2.5)
    client.tick(5.0)
    assert client.receive(A, b"OK", now=5.1) == []
    assert client.ended == [[b"OK"]]
    assert client.begin(b"2", now=6.0) == [Send(A, (b"2",))]  # the socket is still good
    client.tick(8.5)
    assert client.tick(11.0) == again(A, A, b"2")
    assert client.tick(13.5) == [NoResponse(A), Close(A)]
    assert isinstance(client.ended[1], NoReply)


def test_lpp_03_a_reply_to_something_else_is_counted_and_the_wait_goes_on() -> None:
    client = Scene([A], same)
    client.begin(b"2", now=0.0)
    assert client.receive(A, b"1", now=1.0) == []
    assert client.machine.counters["reply_mismatch"] == 1
    assert client.machine.deadline() == 2.5
    client.receive(A, b"2", now=2.0)
    assert client.ended == [[b"2"]]


def test_bey_01_a_server_whose_reply_does_not_match_is_left_at_once_for_one_with_fewer_attempts() -> None:
    client = Scene([A, B], same, attempts=4)
    client.begin(b"1", now=0.0)
    assert client.receive(A, b"?", now=1.0) == [Close(A), Open(B), Send(B, (b"1",))]
    assert client.tick(2.5) == []  # a whole attempt
    assert client.receive(B, b"?", now=3.0) == []  # both were asked once: the wait goes on, so that no server is flooded
    assert client.tick(3.5) == again(B, A)
    assert client.receive(A, b"?", now=4.0) == [Close(A), Open(B), Send(B, (b"1",))]
    assert client.receive(B, b"?", now=4.1) == []
    client.tick(6.5)
    assert isinstance(error := client.ended[0], NoReply)
    assert error.attempts == 4
    assert client.machine.counters == {"sent": 4, "timeout": 2, "reply_mismatch": 4, "gave_up": 1}


@pytest.mark.parametrize("relaxed", [False, True])
def test_bey_01_a_server_whose_reply_does_not_match_is_asked_last_for_some_time(relaxed: bool) -> None:
    client = Scene([A, B], same, relaxed=relaxed)
    client.begin(b"1", now=0.0)
    client.receive(A, b"?", now=1.0)
    client.receive(B, b"1", now=1.1)
    assert client.ended == [[b"1"]]
    assert client.begin(b"2", now=2.9) == [Send(B, (b"2",))]
    client.receive(B, b"2", now=2.9)
    assert client.begin(b"3", now=3.0)[-1] == Send(A, (b"3",))


def test_lpp_03_the_wait_of_the_last_attempt_goes_on_with_other_servers_too() -> None:
    client = Scene([A, B], same, attempts=1)
    client.begin(b"1", now=0.0)
    assert client.receive(A, b"?", now=1.0) == []
    assert client.machine.deadline() == 2.5


def test_lpp_05_a_second_reply_is_none() -> None:
    client = Scene([A])
    client.begin(b"1", now=0.0)
    client.receive(A, b"1", now=1.0)
    assert client.receive(A, b"1", now=1.1) == []
    assert client.ended == [[b"1"]]
    assert client.machine.counters["reply_late"] == 1


def test_lpp_06_a_second_request_is_refused_until_the_first_has_ended() -> None:
    client = Scene([A])
    client.begin(b"1", now=0.0)
    with pytest.raises(Busy):
        client.machine.submit(LazyRequest([b"2"]), 0.1)
    client.receive(A, b"1", now=1.0)
    assert client.begin(b"2", now=1.0) == [Send(A, (b"2",))]


@pytest.mark.parametrize("relaxed", [False, True])
def test_lpp_02_a_request_is_sent_when_its_server_is_connected_and_once_an_attempt(relaxed: bool) -> None:
    client = LazyPirate([A], LazyLimits(relaxed=relaxed, attempts=2))
    client.submit(LazyRequest([b"1"]), 0.0)
    assert client.outgoing.pop(0) == Open(A)
    assert not client.outgoing
    if relaxed:
        client.tick(2.5)
        assert client.outgoing == [NoResponse(A)]  # nothing waits in the socket
        client.outgoing.clear()
    client.joined(A, 2.5)
    client.lost(A)
    client.joined(A, 2.5)
    assert client.outgoing == [Send(A, [b"1"])]
    (ended,) = client.receive(A, [b"OK"], 2.6)
    assert ended.reply == [b"OK"]
    client.lost(A)
    client.outgoing.clear()
    client.submit(LazyRequest([b"2"]), 3.0)
    assert not client.outgoing
    client.joined(A, 3.0)
    assert client.outgoing == [Send(A, [b"2"])]


def test_lpp_01_the_time_for_an_answer_begins_when_the_server_is_connected() -> None:
    client = LazyPirate([A], LazyLimits(attempts=2))
    client.submit(LazyRequest([b"1"]), 0.0)
    client.joined(A, 2.0)
    client.outgoing.clear()
    client.tick(2.5)
    assert (client.outgoing, client.deadline()) == ([], 4.5)
    client.tick(4.5)
    assert client.outgoing == [NoResponse(A), Close(A), Open(A)]


def test_a_socket_that_is_still_connecting_is_left_to_the_next_attempt() -> None:
    """A server that is so far away that no attempt has time for both would never have the request."""
    client = LazyPirate([A, B], LazyLimits())
    client.submit(LazyRequest([b"1"]), 0.0)
    client.tick(2.5)
    assert client.outgoing == [Open(A), NoResponse(A), Open(B)]
    client.outgoing.clear()
    client.joined(A, 3.0)
    assert not client.outgoing, "it is for B now"
    client.tick(5.0)
    assert client.outgoing == [NoResponse(B), Send(A, [b"1"])]
    client.outgoing.clear()
    (ended,) = client.receive(A, [b"OK"], 6.0)
    assert ended.reply == [b"OK"]
    assert client.outgoing == [Close(B)], "an idle client connects to no server that was not there"
    client.outgoing.clear()
    client.submit(LazyRequest([b"2"]), 7.0)
    assert client.outgoing == [Send(A, [b"2"])]


def test_a_socket_that_was_left_to_an_attempt_is_closed_with_it_once() -> None:
    client = LazyPirate([A], LazyLimits(attempts=2))
    client.submit(LazyRequest([b"1"]), 0.0)
    client.tick(2.5)
    client.joined(A, 3.0)
    client.tick(5.5)
    assert client.outgoing == [Open(A), NoResponse(A), Send(A, [b"1"]), NoResponse(A), Close(A)]


def test_what_was_connected_meanwhile_stays_and_what_was_not_is_closed_with_the_request() -> None:
    client = LazyPirate([A, B], LazyLimits(attempts=2))
    client.submit(LazyRequest([b"1"]), 0.0)
    client.tick(2.5)
    client.joined(A, 3.0)
    client.outgoing.clear()
    (ended,) = client.tick(5.0)
    assert isinstance(ended.error, NoReply)
    assert client.outgoing == [NoResponse(B), Close(B)]


def test_a_reply_before_the_request_was_sent_is_none() -> None:
    client = LazyPirate([A], LazyLimits())
    client.submit(LazyRequest([b"1"]), 0.0)
    assert client.receive(A, [b"?"], 0.1) == []
    assert client.counters["reply_late"] == 1


def test_a_caller_that_leaves_takes_the_socket_along() -> None:
    client = Scene([A])
    client.begin(b"1", now=0.0)
    assert client.withdraw(0.5) == [Close(A)]
    assert client.withdraw(0.5) == []
    assert client.begin(b"2", now=1.0) == [Open(A), Send(A, (b"2",))]
    assert client.ended == []


def test_an_error_of_a_socket_ends_the_request_and_closes_the_socket() -> None:
    client = Scene([A, B])
    client.begin(b"1", now=0.0)
    error = OSError("no")
    assert client.take(client.machine.failed(B, error, 0.1)) == []
    assert client.take(client.machine.failed(A, error, 0.1)) == [Close(A)]
    assert client.ended == [error]


def test_the_end_of_the_client_ends_the_request() -> None:
    client = Scene([A])
    client.begin(b"1", now=0.0)
    client.take(client.machine.close(0.1))
    assert isinstance(client.ended[0], ClientClosed)
    assert client.machine.close(0.2) == []


def test_bey_02_a_relaxed_client_keeps_its_socket() -> None:
    client = Scene([A], relaxed=True)
    assert client.begin(b"1", now=0.0) == [Open(A), Send(A, (b"1",))]
    assert client.tick(2.5) == [NoResponse(A), Send(A, (b"1",))]
    assert client.withdraw(2.6) == []
    assert client.begin(b"2", now=3.0) == [Send(A, (b"2",))]


def test_bey_01_each_attempt_goes_to_the_next_server_and_a_silent_one_is_asked_last() -> None:
    client = Scene([A, B, C])
    client.begin(b"1", now=0.0)
    assert client.tick(2.5) == again(A, B)
    assert client.tick(5.0) == again(B, C)
    client.receive(C, b"OK", now=5.1)
    # A's two seconds are over, B's are not.
    assert client.begin(b"2", now=5.2) == [Open(A), Send(A, (b"2",))]
    assert client.tick(7.7) == again(A, B, b"2")
    client.receive(B, b"OK", now=7.8)
    # A's second failure counts for four seconds.
    assert client.begin(b"3", now=11.6) == [Send(B, (b"3",))]
    client.receive(B, b"OK", now=11.61)
    assert client.begin(b"4", now=11.8) == [Open(A), Send(A, (b"4",))]


def test_bey_01_one_lone_server_is_tried_again_although_it_is_suspect() -> None:
    client = Scene([A, A], attempts=2)
    client.begin(b"1", now=0.0)
    assert client.tick(2.5) == again(A, A)


def test_bey_01_round_robin_begins_with_the_next_one_each_time() -> None:
    client = Scene([A, B, C], policy="round-robin")
    for number, server in enumerate((A, B, C, A, B)):
        assert client.begin(b"x", now=float(number))[-1] == Send(server, (b"x",))
        client.receive(server, b"y", now=number + 0.5)


def test_a_reply_from_a_server_that_is_not_asked_now_is_none() -> None:
    client = Scene([A, B], relaxed=True)
    client.begin(b"1", now=0.0)
    client.tick(2.5)
    client.receive(A, b"late", now=2.6)
    assert client.ended == []
    client.receive(B, b"OK", now=2.7)
    assert client.ended == [[b"OK"]]


def test_bey_01_an_answer_ends_the_suspicion_and_its_doubling() -> None:
    client = Scene([A, B], attempts=2)
    client.begin(b"1", now=10.0)
    assert client.tick(12.5) == again(A, B)  # A is asked last until 14.5
    client.tick(15.0)  # and B until 17.0
    assert isinstance(error := client.ended[0], NoReply)
    assert error.after_s == 5.0
    assert client.begin(b"2", now=15.1) == [Open(A), Send(A, (b"2",))]
    client.receive(A, b"OK", now=15.2)
    assert client.machine.counters["answered"] == 1
    assert client.begin(b"3", now=15.3) == [Send(A, (b"3",))]
    assert client.tick(17.8) == again(A, B, b"3")  # one failure in a row: until 19.8, not 21.8
    client.receive(B, b"OK", now=17.9)
    assert client.begin(b"4", now=19.7) == [Send(B, (b"4",))]
    client.receive(B, b"OK", now=19.75)
    assert client.begin(b"5", now=19.8) == [Open(A), Send(A, (b"5",))]


def test_bey_01_a_server_that_answers_at_last_is_asked_first_again() -> None:
    client = Scene([A, B], attempts=3, relaxed=True)
    client.begin(b"1", now=0.0)
    client.tick(2.5)
    client.tick(5.0)
    client.receive(A, b"OK", now=5.1)  # in the third attempt; it was asked last until 4.5
    client.begin(b"2", now=5.2)
    client.tick(7.7)  # A does not answer, and B does
    client.receive(B, b"OK", now=7.8)
    assert client.begin(b"3", now=7.9) == [Send(B, (b"3",))]
    client.tick(10.4)
    assert client.receive(A, b"OK", now=10.5) == []  # before its time is over
    assert client.begin(b"4", now=10.6) == [Send(A, (b"4",))]


def test_lpp_02_a_fresh_socket_is_not_taken_for_connected() -> None:
    client = LazyPirate([A], LazyLimits())
    client.submit(LazyRequest([b"1"]), 0.0)
    client.joined(A, 0.0)
    client.outgoing.clear()
    client.tick(2.5)
    assert client.outgoing == [NoResponse(A), Close(A), Open(A)]
    client.outgoing.clear()
    for request in client.close(3.0):
        assert request.sent == 1
    client.outgoing.clear()
    client.submit(LazyRequest([b"2"]), 4.0)
    assert client.outgoing == [Open(A)]


def test_the_time_a_silent_server_is_asked_last_has_an_end() -> None:
    client = Scene([A, B], attempts=1, suspect_max_s=3.0)
    now = 0.0
    for _ in range(100):
        if client.begin(b"1", now=now)[-1] == Send(A, (b"1",)):
            client.tick(now + 2.5)
        else:
            client.receive(B, b"OK", now=now)
        now += 3.0
    assert client.machine.counters["gave_up"] >= 45


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["begin", "reply", "wrong", "late", "time", "withdraw", "lost"]), st.floats(0, 4)), max_size=60),
)
def test_every_request_ends_once_in_time_with_its_own_reply(
    servers: int, attempts: int, relaxed: bool, steps: list[tuple[str, float]]
) -> None:
    """LPP-04, LPP-05: for any order of events, from open sockets only."""
    names = [A, B, C][:servers]
    client = Scene(names, same, attempts=attempts, relaxed=relaxed)
    now, number, withdrawn, began_at = 0.0, 0, 0, 0.0
    asked = ""
    for step, seconds in steps:
        now += seconds
        busy = bool(len(client.machine))
        if busy:  # ticks come up to four seconds late here
            assert client.machine.deadline() - began_at <= attempts * 2.5 + 4 * attempts
        orders = client.tick(now)
        if step == "begin" and not len(client.machine):
            number, began_at = number + 1, now
            orders += client.begin(b"%d" % number, now=now)
        elif step in ("reply", "wrong", "late") and asked in client.sockets:
            content = {"reply": number, "wrong": number + 7, "late": number - 1}[step]
            orders += client.receive(asked, b"%d" % content, now=now)
        elif step == "withdraw" and len(client.machine):
            orders += client.withdraw(now)
            withdrawn += 1
        elif step == "lost" and asked in client.sockets:
            client.machine.lost(asked)
            client.machine.joined(asked, now)
            orders += client.take()
        for order in orders:
            if isinstance(order, Send):
                assert order.body == (b"%d" % number,)
                asked = order.endpoint
        assert len(client.ended) + withdrawn == number - len(client.machine)
    for ended in client.ended:
        assert isinstance(ended, list) or (isinstance(ended, NoReply) and ended.attempts == attempts)
    replies = [ended for ended in client.ended if isinstance(ended, list)]
    assert len({tuple(reply) for reply in replies}) == len(replies)
