"""freelance.models.shotgun: a copy for each connected server, the first answer wins."""

from __future__ import annotations

import pytest

from freelance.errors import TooLarge
from tests.scenes.freelance_machines import Finished, GaveUp, Refused, Send
from tests.scenes.freelance_machines import WatchedShotgun as Shotgun

A, B = b"tcp://a:1", b"tcp://b:1"


def shotgun(*up: bytes) -> Shotgun:
    made = Shotgun([A.decode(), B.decode()], 2.5)
    for name in up:
        made.joined(name, 0)
    return made


def test_each_server_gets_one_copy() -> None:
    """FRL-03."""
    assert shotgun(A, B).submit([b"x"], 0) == (1, [Send(A, [b"", b"1", b"x"]), Send(B, [b"", b"1", b"x"])])


def test_a_disconnected_server_gets_nothing_and_a_joining_one_the_open_requests() -> None:
    """FRL-07."""
    made = shotgun(A)
    made.submit([b"x"], 0)
    made.submit([b"y"], 0)
    made.receive(A, [b"", b"1", b"OK"], 0.1)
    assert made.joined(B, 0.2) == [Send(B, [b"", b"2", b"y"])]
    assert made.lost(A, 0.3) == []
    assert made.joined(A, 0.4) == [Send(A, [b"", b"2", b"y"])]


def test_a_copy_that_a_full_queue_did_not_take_is_sent_later_and_once() -> None:
    """FRL-07: unless its request has ended, or the connection has, whose next one gets it."""
    made = shotgun(A, B)
    for n in (1, 2, 3):
        made.submit([b"%d" % n], 0)
    made.machine.blocked(B, [b"1", b"3", b"4"])
    assert (made.counters["send_blocked"], made.counters["sent"]) == (2, 4)
    assert [pending.sent for pending in made.asked] == [1, 2, 1]
    made.receive(A, [b"", b"1", b"OK"], 0.1)
    assert made.effects(made.machine.writable(A)) == []
    assert made.effects(made.machine.writable(B)) == [Send(B, [b"", b"3", b"3"])]
    assert made.effects(made.machine.writable(B)) == []
    made.machine.blocked(B, [b"2"])
    assert made.lost(B, 0.2) == []
    assert made.effects(made.machine.writable(B)) == []
    assert made.joined(B, 0.3) == [Send(B, [b"", b"2", b"2"]), Send(B, [b"", b"3", b"3"])]
    made.machine.blocked(B, [b"2"])
    made.remove(B, 0.4)
    assert made.effects(made.machine.writable(B)) == []


def test_a_request_fails_when_it_is_too_large_for_all_connected_servers() -> None:
    error, other = TooLarge("bytes of the request", 10, 5), TooLarge("bytes of the request", 10, 7)
    made = shotgun(A, B)
    made.submit([b"x"], 0)
    assert made.effects(made.machine.refused(B, b"1", error, 0.1)) == []
    assert (made.counters["sent"], made.counters["send_refused"], made.counters["too_large"]) == (1, 1, 0)
    assert made.receive(B, [b"", b"1", b"OK"], 0.1) == []
    assert made.effects(made.machine.writable(B)) == [], "it does not take it over this connection"
    assert made.effects(made.machine.refused(A, b"1", other, 0.1)) == [Refused(1, error)]
    assert (made.counters["sent"], made.counters["send_refused"], made.counters["too_large"]) == (0, 2, 1)
    assert (made.asked[0].sent, made.counters["reply_unasked"]) == (0, 1)
    assert made.effects(made.machine.refused(A, b"1", other, 0.1)) == [], "it has ended"
    assert made.counters["send_refused"] == 2


def test_a_server_that_is_not_connected_takes_nothing_and_a_new_connection_may_take_more() -> None:
    error = TooLarge("bytes of the request", 10, 5)
    made = shotgun(A)
    made.submit([b"x"], 0)
    assert made.effects(made.machine.refused(A, b"1", error, 0.1)) == [Refused(1, error)]
    made.joined(B, 0.2)
    made.submit([b"x"], 0.3)
    made.machine.refused(A, b"2", error, 0.3)
    assert made.lost(A, 0.4) == []
    assert made.joined(A, 0.5) == [Send(A, [b"", b"2", b"x"])]
    assert made.receive(A, [b"", b"2", b"OK"], 0.6) == [Finished(2, [b"OK"])]


def test_a_server_that_is_added_gets_copies_once_it_is_connected() -> None:
    """FRL-06."""
    made = shotgun(A)
    assert made.add("tcp://c:1")
    assert [made.add("tcp://c:1"), made.add(A.decode())] == [False, False]
    assert made.submit([b"x"], 0)[1] == [Send(A, [b"", b"1", b"x"])]
    assert made.joined(b"tcp://c:1", 0.1) == [Send(b"tcp://c:1", [b"", b"1", b"x"])]


def test_frl_05_a_reply_may_have_no_body() -> None:
    made = shotgun(A)
    made.submit([b"x"], 0)
    assert made.receive(A, [b"", b"1"], 0.1) == [Finished(1, [])]


def test_first_matching_reply_wins_and_others_are_dropped() -> None:
    """FRL-05."""
    made = shotgun(A, B)
    made.submit([b"x"], 0)
    wrong: tuple[list[bytes], ...] = ([b"", b"2", b"OK"], [b"1", b"OK"], [b""], [])
    assert [made.receive(A, frames, 0.1) for frames in wrong] == [[]] * 4
    assert made.receive(B, [b"", b"1", b"OK"], 0.2) == [Finished(1, [b"OK"])]
    assert made.receive(A, [b"", b"1", b"OK"], 0.3) == []
    assert (made.counters["reply_unknown"], made.counters["reply_malformed"]) == (2, 3)


def test_a_reply_of_a_server_that_was_not_asked_is_ignored() -> None:
    made = shotgun(A)
    made.submit([b"x"], 0)
    assert made.receive(B, [b"", b"1", b"OK"], 0.1) == []
    assert made.counters["reply_unasked"] == 1


def test_gives_up_after_its_time() -> None:
    """FRL-05."""
    made = shotgun()
    made.submit([b"x"], 0)
    assert made.deadline() == 2.5
    assert (made.tick(2.4), made.tick(2.5)) == ([], [GaveUp(1, 0, 2.5)])
    assert len(made) == 0


def test_withdrawn() -> None:
    made = shotgun()
    number, _ = made.submit([b"x"], 0)
    made.withdraw(number)
    made.withdraw(number)
    assert (made.deadline(), made.joined(A, 1)) == (None, [])


def test_one_frame_and_one_server_at_least() -> None:
    with pytest.raises(ValueError):
        shotgun().submit([b"x", b"y"], 0)
    with pytest.raises(ValueError):
        Shotgun([], 1)
