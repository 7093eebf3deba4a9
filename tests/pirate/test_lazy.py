"""pirate.lazy: the client's machine (LPP-01 to LPP-07, BEY-01, BEY-02)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pirate.lazy import Close, Finished, GaveUp, LazyLimits, LazyPirate, Open, Send

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"


def same(request: list[bytes], reply: list[bytes]) -> bool:
    return request == reply


def test_lpp_01_the_same_request_three_times_2500_ms_each() -> None:
    client = LazyPirate([A], LazyLimits())
    assert client.begin([b"1"], 0.0) == [Open(A), Send(A, [b"1"])]
    assert client.deadline() == 2.5
    assert client.tick(2.499) == []
    assert client.tick(2.5) == [Close(A), Open(A), Send(A, [b"1"])]
    assert client.tick(5.0) == [Close(A), Open(A), Send(A, [b"1"])]
    assert client.tick(7.5) == [Close(A), GaveUp(3, 7.5)]
    assert client.deadline() is None
    assert not client.busy


def test_lpp_04_a_good_reply_resets_the_attempts() -> None:
    client = LazyPirate([A], LazyLimits())
    client.begin([b"1"], 0.0)
    client.tick(2.5)
    client.tick(5.0)
    assert client.receive(A, [b"OK"], 5.1) == [Finished([b"OK"])]
    assert client.begin([b"2"], 6.0) == [Send(A, [b"2"])]  # the socket is still good
    client.tick(8.5)
    assert client.tick(11.0) == [Close(A), Open(A), Send(A, [b"2"])]
    assert client.tick(13.5) == [Close(A), GaveUp(3, 7.5)]


def test_lpp_03_a_reply_to_something_else_is_counted_and_the_wait_goes_on() -> None:
    client = LazyPirate([A], LazyLimits(), same)
    client.begin([b"2"], 0.0)
    assert client.receive(A, [b"1"], 1.0) == []
    assert client.counters["reply_mismatch"] == 1
    assert client.deadline() == 2.5
    assert client.receive(A, [b"2"], 2.0) == [Finished([b"2"])]


def test_lpp_05_a_second_reply_is_none() -> None:
    client = LazyPirate([A], LazyLimits())
    client.begin([b"1"], 0.0)
    assert client.receive(A, [b"1"], 1.0) == [Finished([b"1"])]
    assert client.receive(A, [b"1"], 1.1) == []
    assert client.counters["reply_late"] == 1


def test_a_caller_that_leaves_takes_the_socket_along() -> None:
    client = LazyPirate([A], LazyLimits())
    client.begin([b"1"], 0.0)
    assert client.withdraw() == [Close(A)]
    assert client.withdraw() == []
    assert client.begin([b"2"], 1.0) == [Open(A), Send(A, [b"2"])]


def test_bey_02_a_relaxed_client_keeps_its_socket() -> None:
    client = LazyPirate([A], LazyLimits(relaxed=True))
    assert client.begin([b"1"], 0.0) == [Open(A), Send(A, [b"1"])]
    assert client.tick(2.5) == [Send(A, [b"1"])]
    assert client.withdraw() == []
    assert client.begin([b"2"], 3.0) == [Send(A, [b"2"])]


def test_bey_01_each_attempt_goes_to_the_next_server_and_a_silent_one_is_asked_last() -> None:
    client = LazyPirate([A, B, C], LazyLimits())
    client.begin([b"1"], 0.0)
    assert client.tick(2.5) == [Close(A), Open(B), Send(B, [b"1"])]
    assert client.tick(5.0) == [Close(B), Open(C), Send(C, [b"1"])]
    assert client.receive(C, [b"OK"], 5.1) == [Finished([b"OK"])]
    # A's two seconds are over, B's are not.
    assert client.begin([b"2"], 5.2) == [Open(A), Send(A, [b"2"])]
    assert client.tick(7.7) == [Close(A), Open(B), Send(B, [b"2"])]
    assert client.receive(B, [b"OK"], 7.8) == [Finished([b"OK"])]
    # A's second failure counts for four seconds.
    assert client.begin([b"3"], 11.6) == [Send(B, [b"3"])]
    client.receive(B, [b"OK"], 11.61)
    assert client.begin([b"4"], 11.8) == [Open(A), Send(A, [b"4"])]


def test_bey_01_one_lone_server_is_tried_again_although_it_is_suspect() -> None:
    client = LazyPirate([A, A], LazyLimits(attempts=2))
    client.begin([b"1"], 0.0)
    assert client.tick(2.5) == [Close(A), Open(A), Send(A, [b"1"])]


def test_bey_01_round_robin_begins_with_another_one_each_time() -> None:
    client = LazyPirate([A, B], LazyLimits(policy="round-robin"))
    for number, server in enumerate((A, B, A, B)):
        effects = client.begin([b"x"], float(number))
        assert effects[-1] == Send(server, [b"x"])
        client.receive(server, [b"y"], number + 0.5)


def test_a_reply_from_a_server_that_is_not_asked_now_is_none() -> None:
    client = LazyPirate([A, B], LazyLimits(relaxed=True))
    client.begin([b"1"], 0.0)
    client.tick(2.5)
    assert client.receive(A, [b"late"], 2.6) == []
    assert client.receive(B, [b"OK"], 2.7) == [Finished([b"OK"])]


def test_the_time_a_silent_server_is_asked_last_has_an_end() -> None:
    client = LazyPirate([A, B], LazyLimits(attempts=1, suspect_max_s=3.0))
    now = 0.0
    for _ in range(100):
        if client.begin([b"1"], now)[-1] == Send(A, [b"1"]):
            client.tick(now + 2.5)
        else:
            client.receive(B, [b"OK"], now)
        now += 3.0
    assert client.counters["gave_up"] >= 45


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["begin", "reply", "wrong", "late", "time", "withdraw"]), st.floats(0, 4)), max_size=60),
)
def test_every_request_ends_once_in_time_with_its_own_reply(
    servers: int, attempts: int, relaxed: bool, steps: list[tuple[str, float]]
) -> None:
    """LPP-04, LPP-05: for any order of events, from open sockets only."""
    names = [A, B, C][:servers]
    client = LazyPirate(names, LazyLimits(attempts=attempts, relaxed=relaxed), same)
    now, number, ended, began_at = 0.0, 0, 0, 0.0
    sockets: dict[str, int] = {}
    asked: str | None = None

    def carry_out(effects: list[Open | Close | Send | Finished | GaveUp]) -> None:
        nonlocal ended, asked
        for effect in effects:
            match effect:
                case Open(endpoint):
                    assert endpoint not in sockets
                    sockets[endpoint] = number
                case Close(endpoint):
                    del sockets[endpoint]
                case Send(endpoint, frames):
                    assert frames == [b"%d" % number]
                    assert endpoint in sockets
                    asked = endpoint
                case Finished(body):
                    assert body == [b"%d" % number]
                    ended += 1
                case GaveUp(count, after_s):
                    assert count == attempts
                    assert after_s == now - began_at
                    ended += 1

    for step, seconds in steps:
        now += seconds
        if client.busy:
            until = client.deadline()
            assert until is not None
            assert until - began_at <= attempts * 2.5 + 4 * attempts  # ticks come up to four seconds late here
        carry_out(client.tick(now))
        if step == "begin" and not client.busy:
            number, began_at = number + 1, now
            carry_out(client.begin([b"%d" % number], now))
        elif step in ("reply", "wrong", "late") and asked in sockets:
            content = {"reply": number, "wrong": number + 7, "late": number - 1}[step]
            carry_out(client.receive(asked, [b"%d" % content], now))
        elif step == "withdraw" and client.busy:
            carry_out(client.withdraw())
            ended += 1
        assert ended == number - client.busy
