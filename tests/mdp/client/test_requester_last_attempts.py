"""BEY-04, message by message: the order of sending after lost connections, and the waits between last attempts."""

from __future__ import annotations

from math import inf

import pytest

from mdp.client.calls import Call, PendingRequest
from mdp.client.requester import Requester
from mdp.client.resending import PROOF_S, SINGLES
from mdp.errors import Timeout
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_PARTIAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from tests.scenes.mdp_requester import as_octets, connected, sent

TWICE = Call("echo", timeout_s=900.0, attempts=1)  # the one attempt, and one more after a lost connection
OFTEN = Call("echo", timeout_s=900.0, attempts=3)


@pytest.fixture(autouse=True, params=["frames", "octets"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "octets":
        monkeypatch.setattr(Requester, "receive", as_octets)


class Line:
    """A client's machine whose requests are known by their bodies."""

    def __init__(self, names: str = "", call: Call = TWICE, **limits: int) -> None:
        self.machine = connected(**limits)
        self.now = 0.0
        self.asked: dict[str, PendingRequest] = {}
        self.ask(names, call)

    def ask(self, names: str, call: Call = TWICE) -> None:
        for name in names:
            self.asked[name] = PendingRequest(call, (name.encode(),))
            self.machine.submit(self.asked[name], self.now)

    def goes_out(self) -> str:
        """Return the names of those that were sent, in order."""
        return "".join(frames[-1].decode() for frames in sent(self.machine) if frames[0][:HEAD_BYTES] == CLIENT_REQUEST_03)

    def breaks(self) -> str:
        """Lose the connection and have a new one; return the names of those that failed."""
        failed = self.machine.lost(self.now)
        assert self.machine.take_outgoing() == []
        self.machine.joined(self.now)
        return "".join(pending.body[0].decode() for pending in failed)

    def says(self, *messages: list[bytes]) -> None:
        self.machine.receive([[*message] for message in messages], self.now)

    def answers(self, names: str) -> None:
        self.says(*([CLIENT_FINAL_03 + self.asked[name].id, b"y"] for name in names))

    def later(self, seconds: float) -> None:
        self.now += seconds
        assert self.machine.tick(self.now) == []


def test_all_are_sent_again_at_once_while_they_have_further_attempts() -> None:
    line = Line("abc", OFTEN)
    assert line.goes_out() == "abc"
    assert line.breaks() == ""
    assert (line.goes_out(), line.machine.in_flight, line.machine.counters.repeated) == ("abc", 3, 3)
    assert line.breaks() == ""
    assert (line.goes_out(), line.machine.in_flight, line.machine.counters.repeated) == ("a", 1, 4)


def test_the_last_attempt_is_made_alone_until_nothing_has_happened_for_a_while() -> None:
    line = Line("abc")
    line.goes_out()
    line.now = 5.0
    line.breaks()
    assert (line.goes_out(), line.machine.deadline()) == ("a", 5.0 + PROOF_S)
    line.ask("d")  # meanwhile: it waits behind them
    line.later(PROOF_S / 2)
    assert (line.goes_out(), line.machine.deadline()) == ("", 5.0 + PROOF_S), "the wait has begun, and is not begun anew"
    line.later(PROOF_S / 2)
    assert (line.goes_out(), line.machine.deadline()) == ("b", 5.0 + 2 * PROOF_S)
    line.later(PROOF_S)
    assert line.goes_out() == "cd", "one that was never sent waits for nobody's sign"
    assert line.machine.deadline() == 5.0 + line.machine.limits.heartbeat_s, "nothing else is waited for"
    line.answers("abcd")
    assert (line.machine.deadline(), line.machine.counters.replied, line.machine.in_flight) == (900.0, 4, 0)


def test_a_reply_an_error_or_its_end_clears_the_last_attempt_and_nothing_else() -> None:
    line = Line("abcde", Call("echo", timeout_s=900.0, attempts=1, streaming=True))
    line.ask("z", OFTEN)
    line.goes_out()
    line.breaks()
    assert line.goes_out() == "a"
    line.says([CLIENT_PARTIAL_03 + line.asked["a"].id, b"part"])
    line.says([CLIENT_FINAL_03 + bytes(8), b"unknown"])
    assert line.goes_out() == ""
    line.answers("a")
    assert line.goes_out() == "b"
    line.says([CLIENT_ERROR_03 + line.asked["b"].id, b"HANDLER_ERROR", b""])
    assert line.goes_out() == "c"
    line.machine.cancel(line.asked["c"], line.now)
    told = sent(line.machine)
    assert [frames[0][:HEAD_BYTES] for frames in told] == [CLIENT_CANCEL_03, CLIENT_REQUEST_03]
    assert told[1][-1] == b"d"
    line.answers("d")
    assert line.goes_out() == "ez"


def test_the_request_that_ended_the_connection_has_failed_and_waiting_ones_go_before_cleared_ones() -> None:
    """A connection that was cleared is not closed again for an attempt that is yet to be made."""
    line = Line("abc")
    line.goes_out()
    line.breaks()
    line.ask("f")
    line.later(PROOF_S)  # the wait for `a` has begun when it went out
    assert line.goes_out() == "ab"
    assert line.breaks() == "b"
    assert isinstance(line.asked["b"].error, Timeout)
    assert line.goes_out() == "c", "`a` was cleared: it is behind those that were not"
    line.later(PROOF_S)
    assert line.goes_out() == "af"
    line.answers("caf")
    assert (line.machine.counters.replied, line.machine.counters.failed, line.machine.in_flight) == (3, 1, 0)
    assert line.machine.counters.repeated == 4
    assert [line.asked[name].sent for name in "abcf"] == [3, 2, 2, 1]


def test_a_request_cancelled_while_it_waits_is_skipped_and_the_others_keep_their_order() -> None:
    line = Line("abcde")
    line.goes_out()
    line.breaks()
    line.later(PROOF_S)
    assert line.goes_out() == "ab"
    line.machine.cancel(line.asked["c"], line.now)
    line.ask("xy")
    line.machine.cancel(line.asked["x"], line.now)
    assert line.breaks() == "b"
    signs = ""
    for _ in range(4):
        signs += line.goes_out() + "."
        line.later(PROOF_S)
    assert signs == "d.e.ay.."
    line.answers("deay")
    assert (line.machine.in_flight, line.machine.deadline()) == (0, 900.0)


def test_waiting_requests_are_counted_however_often_the_connection_is_lost() -> None:
    line = Line("abc", waiting_max=4)
    line.goes_out()
    line.breaks()
    line.later(PROOF_S)
    assert (line.goes_out(), line.breaks()) == ("ab", "b")
    assert line.goes_out() == "c"  # and `a` waits
    line.ask("def")
    with pytest.raises(Exception, match="4 requests waiting"):
        line.ask("g")


def test_after_some_that_were_sent_alone_groups_grow_and_of_a_group_each_has_another_attempt() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    line = Line(names)
    line.goes_out()
    line.breaks()
    groups = [line.goes_out()]
    while sum(map(len, groups)) < SINGLES + 2 + 3:
        line.later(PROOF_S)
        groups.append(line.goes_out())
    assert [*map(len, groups)] == [1] * SINGLES + [2, 4]
    assert "".join(groups) == names[: SINGLES + 6]
    before = line.machine.in_flight
    assert (before, line.breaks()) == (SINGLES + 6, "")
    assert line.goes_out() == names[SINGLES + 2], "one of the group did it: they go first, each alone"
    assert line.breaks() == names[SINGLES + 2]
    assert line.goes_out() == names[SINGLES + 3]


@pytest.mark.parametrize("window", [1, 2])
def test_no_more_are_sent_than_the_window_allows(window: int) -> None:
    line = Line("abc", window=window)
    assert line.goes_out() == "abc"[:window]
    line.breaks()
    assert line.goes_out() == "a"
    line.later(PROOF_S)
    assert line.goes_out() == ("b" if window == 2 else "")
    line.answers("a")
    assert line.goes_out() == ("b" if window == 1 else "c")
    assert line.machine.deadline() < inf


def test_sendings_used_up_by_lost_connections_are_not_repeated_by_timeouts() -> None:
    """An attempt whose time is over is the next one all the same.

    The request ends when it has had them all.
    """
    call = Call("echo", timeout_s=1.0, attempts=3)
    line = Line("a", call)
    assert line.goes_out() == "a"
    for _ in range(2):
        assert line.breaks() == ""
        assert line.goes_out() == "a"
    line.later(1.0)
    line.later(1.0)
    assert (line.goes_out(), line.asked["a"].sent, line.asked["a"].attempt) == ("", 3, 3)
    assert line.machine.tick(3.0) == [line.asked["a"]]
    assert line.machine.counters.repeated == 2
    line = Line("a", call)
    line.goes_out()
    line.breaks()
    assert line.goes_out() == "a"
    line.later(1.0)
    assert line.goes_out() == "a"
    line.later(1.0)
    assert (line.goes_out(), line.asked["a"].sent) == ("", 3)
