"""MDP-32: what a worker that holds more than it works on is asked to give back, and when."""

from __future__ import annotations

from math import inf, nextafter

import pytest

from mdp.wire.commands import worker_heartbeat, worker_partial, worker_return
from mdp.wire.events import Recall, Work
from tests.mdp.broker.workers.test_maintenance import FIRST_LOOKS, Quiet
from tests.scenes.mdp_shop import Shop


def ahead(held: int, *, concurrency: int = 1) -> tuple[Quiet, list[Work]]:
    """Return a worker BUSY that got this many requests 10 ms ago, more than it runs, and those requests."""
    scene = Quiet()
    scene.now += 0.1
    scene.join(b"BUSY", concurrency, held)
    for place in range(held):
        scene.ask("0.3", b"C1", b"%d" % place)
    scene.wait(0.01)
    return scene, scene.given(b"BUSY")


def places(scene: Shop, given: list[Work], peer: bytes = b"BUSY") -> list[int]:
    """Return for which of the requests it was given a worker is asked, by their places."""
    return [[work.id for work in given].index(token) for token in scene.recalled(peer)]


@pytest.mark.parametrize(
    ("held", "concurrency", "free", "asked"),
    [
        pytest.param(2, 1, 1, [1], id="the one it has not begun"),
        pytest.param(4, 1, 1, [3, 2], id="half of three"),
        pytest.param(5, 1, 1, [4, 3], id="half of four"),
        pytest.param(9, 1, 1, [8, 7, 6, 5], id="half of eight"),
        pytest.param(5, 1, 3, [4, 3, 2], id="as much as the free one works on at once"),
        pytest.param(5, 1, 4, [4, 3, 2, 1], id="all"),
        pytest.param(5, 1, 9, [4, 3, 2, 1], id="and no more than that"),
        pytest.param(8, 4, 1, [7, 6], id="not what it works on"),
        pytest.param(5, 4, 9, [4], id="but one"),
        pytest.param(4, 4, 9, [], id="nothing"),
    ],
)
def test_what_is_asked_back_for_a_free_worker(held: int, concurrency: int, free: int, asked: list[int]) -> None:
    """2 ms after it is free; half of the rest 10 ms later."""
    scene, given = ahead(held, concurrency=concurrency)
    scene.join(b"FREE", free)
    scene.wait(0.0019)
    assert places(scene, given) == []
    scene.wait(0.0002)
    assert places(scene, given) == asked
    scene.wait(0.0098)
    assert places(scene, given) == []
    rest = held - concurrency - len(asked)
    scene.wait(0.0002)
    assert len(places(scene, given)) == min(rest, max(free, (rest + 1) // 2))
    scene.check()


def test_free_places_of_all_workers_count_but_not_those_beyond_what_they_work_on() -> None:
    """One of four and two of three, of which each would take four times as much.

    And one holds more than it works on without being full.
    """
    scene, given = ahead(6, concurrency=2)
    scene.join(b"MORE", 1, 8)
    for place in range(3):
        scene.ask("0.3", b"C2", b"more %d" % place)
    assert len(scene.given(b"MORE")) == 3
    scene.join(b"W1", 3)
    scene.join(b"W2", 4)
    for place in range(4):
        scene.ask("0.3", b"C2", b"%d" % place)
    assert [len(scene.given(peer)) for peer in (b"W1", b"W2")] == [2, 2]
    scene.wait(0.0021)
    assert places(scene, given) == [5, 4, 3]
    scene.check()


def test_nothing_is_recalled_when_no_worker_is_free() -> None:
    scene, given = ahead(5)
    scene.join(b"FREE", 1)
    scene.wait(0.001)
    scene.ask("0.3", b"C1")
    assert scene.checks(1.0) == [1.0]
    assert places(scene, given) == []
    scene.check()


def test_nothing_is_asked_back_while_requests_wait() -> None:
    """They go to who is free.

    Here to none: those that wait have lost their workers, and the free one has said nothing since.
    """
    scene = Shop()
    scene.join(b"BUSY", 1)
    scene.join(b"FREE", 1)
    scene.join(b"LOST", 1)
    for _ in range(6):
        scene.ask("0.3", b"C1")
    scene.wait(0.01)
    busy = scene.given(b"BUSY")
    for work in scene.given(b"FREE"):
        scene.answer(b"FREE", work)
    scene.lose(b"LOST")
    scene.wait(0.1)
    assert places(scene, busy) == []
    scene.beat(b"FREE")
    assert len([event for event in scene.at_worker(b"FREE") if isinstance(event, Work)]) == 2
    scene.check()


def test_of_what_a_worker_holds_only_what_it_was_given_a_while_ago_is_asked_for() -> None:
    """The last was given just now: what was given before it is asked for all the same."""
    scene, given = ahead(3)
    scene.answer(b"BUSY", given[0])
    scene.ask("0.3", b"C1", b"young")
    given += scene.given(b"BUSY")
    scene.join(b"FREE", 2)
    scene.wait(0.0021)
    assert places(scene, given) == [2]
    scene.check()


def test_what_was_given_just_now_is_asked_for_when_it_no_longer_is() -> None:
    scene = Quiet()
    scene.join(b"BUSY", 1)
    scene.ask("0.3", b"C1")
    scene.ask("0.3", b"C1")
    given = scene.given(b"BUSY")
    scene.join(b"FREE", 1)
    assert scene.checks(0.0059) == [2.0, 2.0]
    assert places(scene, given) == []
    scene.wait(0.0002)
    assert places(scene, given) == [1]
    scene.check()


def test_what_was_given_five_milliseconds_ago_was_not_given_just_now() -> None:
    scene = Quiet()
    scene.now = given_at = 1024.0
    scene.join(b"BUSY", 1)
    for _ in range(2):
        scene.ask("0.3", b"C1")
    given = scene.given(b"BUSY")
    scene.join(b"FREE", 1)
    scene.now = given_at + 0.005
    while scene.now - 0.005 < given_at:
        scene.now = nextafter(scene.now, inf)
    assert scene.now - 0.005 == given_at
    scene.both("tick")
    assert places(scene, given) == [1]


@pytest.mark.parametrize("how", ["client", "partial"])
def test_what_nobody_waits_for_and_what_has_begun_to_answer_is_passed_over(how: str) -> None:
    scene = Quiet()
    scene.join(b"BUSY", 1)
    for client in (b"C1", b"C1", b"C1", b"C2"):
        scene.ask("0.3", client, options={"wait": True})
    given = scene.given(b"BUSY")
    if how == "client":
        scene.both("peer_lost", b"C2")
    else:
        scene.send(b"BUSY", worker_partial("0.3", given[3].id, [b"part"]))
    scene.wait(0.01)
    scene.got(b"BUSY")
    scene.join(b"FREE", 1)
    scene.wait(0.0021)
    assert places(scene, given) == [2, 1]
    scene.check()


def test_when_all_was_asked_for_it_is_not_looked_again_for_that() -> None:
    """Only how quick workers are, 50 times a second as long as it holds more than it works on."""
    scene, given = ahead(2)
    scene.join(b"FREE", 1)
    scene.wait(0.1)
    assert places(scene, given) == [1]
    assert scene.checks(0.1)[1:] == [20.4] * 4
    scene.check()


def test_workers_beyond_sixteen_are_asked_the_next_time() -> None:
    """Eighteen hold more than they work on and give nothing back."""
    scene = Quiet()
    peers = [b"B%02d" % place for place in range(18)]
    for peer in peers:
        scene.join(peer, 1, 4)
    for _ in range(4 * len(peers)):
        scene.ask("0.3", b"C1")
    for peer in peers:
        assert len(scene.given(peer)) == 4
    scene.wait(0.01)
    scene.join(b"FREE", 1)
    scene.wait(0.0021)
    first = {peer for peer in peers if scene.recalled(peer)}
    scene.wait(0.01)
    assert len(first) == 16
    assert {peer for peer in peers if scene.recalled(peer)} >= {*peers} - first
    scene.check()


def test_what_it_was_asked_for_and_has_begun_does_not_count_as_what_it_was_asked_for() -> None:
    """Half of the five behind it, three, are asked for, as if its current request had never been recalled."""
    scene = Quiet()
    scene.join(b"BUSY", 1, 6)
    for _ in range(2):
        scene.ask("0.3", b"C1")
    given = scene.given(b"BUSY")
    scene.wait(0.01)
    scene.join(b"FREE", 1)
    scene.wait(0.0021)
    assert places(scene, given) == [1]
    scene.lose(b"FREE")
    scene.answer(b"BUSY", given[0])
    for _ in range(5):
        scene.ask("0.3", b"C1")
    given += scene.given(b"BUSY")
    scene.wait(0.01)
    scene.join(b"FREE", 1)
    scene.wait(0.0021)
    assert places(scene, given) == [6, 5, 4]
    scene.check()


def test_what_was_answered_after_it_was_asked_for_cannot_be_given_back() -> None:
    scene, given = ahead(3)
    scene.join(b"FREE", 1)
    scene.wait(0.0021)
    assert places(scene, given) == [2]
    for work in (given[0], given[2]):
        scene.answer(b"BUSY", work)
    scene.send(b"BUSY", worker_return(given[2].id))
    assert scene.is_sent_away(b"BUSY")
    assert scene.got(b"FREE") == []
    scene.check()


def test_one_that_is_slow_is_asked_for_the_one_it_has_not_begun_while_others_wait() -> None:
    scene = Quiet()
    for peer in (b"QUICK", b"SLOW"):
        scene.join(peer, 1, 2)
    for _ in range(40):
        scene.ask("0.3", b"C1")
    slow, quick = scene.given(b"SLOW"), scene.given(b"QUICK")
    for _ in range(20):
        scene.wait(0.01)
        scene.answer(b"QUICK", quick.pop(0))
        quick += scene.given(b"QUICK")
    assert len(quick) == 2
    assert places(scene, slow, b"SLOW") == [1]
    scene.check()


@pytest.mark.long
@pytest.mark.parametrize("gives_back", [True, False])
def test_a_slow_one_keeps_what_it_may_hold_ahead(gives_back: bool) -> None:
    """It takes 1 ms for one, and may have what it does in 5 ms.

    Of the 60 left of 64 it is asked for all but these, once.
    """
    scene = Quiet()
    for peer in (b"QUICK", b"SLOW"):
        scene.join(peer, 1, 64)
    for _ in range(1000):
        scene.ask("0.3", b"C1")
    slow, quick = scene.given(b"SLOW"), scene.given(b"QUICK")
    asked: set[bytes] = set()
    batches: list[int] = []
    kept: list[int] = []  # what it holds and was not asked for
    for _ in range(40):
        scene.wait(0.001)
        for _ in range(10):
            scene.answer(b"QUICK", quick.pop(0))
        quick += scene.given(b"QUICK")
        scene.answer(b"SLOW", slow.pop(0))
        before = len(asked)
        for event in scene.at_worker(b"SLOW"):
            if isinstance(event, Recall):
                asked.add(event.id)
                if gives_back:
                    slow = [work for work in slow if work.id != event.id]
                    scene.send(b"SLOW", worker_return(event.id))
            elif isinstance(event, Work):
                slow.append(event)
        batches.append(len(asked) - before)
        kept.append(len([work for work in slow if work.id not in asked]))
    first = next(place for place, count in enumerate(batches) if count)
    assert batches[first] > 50
    if gives_back:
        assert max(batches[first + 1 :]) <= 2
        assert min(kept) >= 4
    else:
        assert sum(batches[first + 1 :]) == 0
        assert kept[first : first + 6] == [5, 4, 3, 2, 1, 1]  # it begins what it was asked for, too
    scene.check()


def test_one_that_has_begun_the_last_it_was_asked_for_is_looked_at_like_any() -> None:
    """It holds less than it works on at once, and of that it was asked for something once."""
    scene = Quiet()
    for peer in (b"QUICK", b"SLOW"):
        scene.join(peer, 2, 8)
    for _ in range(60):
        scene.ask("0.3", b"C1")
    slow, quick = scene.given(b"SLOW"), scene.given(b"QUICK")

    def go_on(rounds: int) -> None:
        for _ in range(rounds):
            scene.wait(0.01)
            scene.answer(b"QUICK", quick.pop(0))
            quick.extend(scene.given(b"QUICK"))

    go_on(43)
    assert places(scene, slow, b"SLOW") == [7, 6, 5, 4, 3, 2]
    for work in slow[:7]:
        scene.answer(b"SLOW", work)
    go_on(6)
    assert scene.got(b"SLOW") == []
    scene.check()


def test_one_that_is_kept_from_work_is_given_it_ten_seconds_after_it_had_any() -> None:
    """Then no service is examined: no worker is paused, and nothing is known of any."""
    scene = Quiet()
    for peer in (b"QUICK", b"SLOW"):
        scene.join(peer, 1)
    for _ in range(40):
        scene.ask("0.3", b"C1")
    slow, quick = scene.given(b"SLOW"), scene.given(b"QUICK")
    while quick:
        scene.wait(0.01)
        scene.answer(b"QUICK", quick.pop(0))
        for token in [event.id for event in scene.at_worker(b"SLOW") if isinstance(event, Recall)]:
            slow = [work for work in slow if work.id != token]
            scene.send(b"SLOW", worker_return(token))
        quick += scene.given(b"QUICK")
    (last,) = slow
    scene.answer(b"SLOW", last)
    before = scene.now
    looked_at = before + sum(scene.checks(2.0)) / 1000
    scene.ask("0.3", b"C1")
    (work,) = scene.given(b"QUICK")
    scene.answer(b"QUICK", work)
    assert scene.checks(7.0) == []
    again_at = scene.now
    first, *others = scene.checks(5.0)
    assert again_at + first / 1000 - looked_at == pytest.approx(10.001, abs=0.001)
    assert others == [*FIRST_LOOKS[1:], 20.4]
    assert scene.checks(60.0) == []
    for _ in range(2):
        scene.ask("0.3", b"C1")
    assert (len(scene.given(b"QUICK")), len(scene.given(b"SLOW"))) == (1, 1)
    scene.check()


def test_a_worker_that_drains_is_asked_for_all_that_it_has_and_given_nothing() -> None:
    """MDP-23: it alone knows what it has begun."""
    scene, given = ahead(4, concurrency=4)
    scene.send(b"BUSY", worker_heartbeat("0.3", draining=True))
    assert places(scene, given) == [0, 1, 2, 3]
    scene.send(b"BUSY", worker_heartbeat("0.3", draining=True))
    assert places(scene, given) == []
    scene.join(b"FREE", 9)
    scene.send(b"BUSY", worker_return(given[2].id))
    assert [work.body for work in scene.given(b"FREE")] == [[b"2"]]
    for _ in range(20):
        scene.ask("0.3", b"C2", b"new")
    scene.wait(0.1)
    assert scene.given(b"BUSY") == []
    scene.answer(b"BUSY", given[0])
    scene.wait(0.1)
    assert scene.given(b"BUSY") == []
    scene.check()


def test_a_worker_that_drains_is_asked_for_what_no_client_waits_for_any_longer() -> None:
    """IDM-05: it would otherwise wait for that."""
    scene = Quiet()
    scene.join(b"BUSY", 1, 4)
    scene.ask("0.3", b"C2", b"begun", options={"key": b"k"})
    given = scene.given(b"BUSY")
    scene.lose(b"C2")
    assert places(scene, given) == []
    scene.send(b"BUSY", worker_heartbeat("0.3", draining=True))
    assert places(scene, given) == [0]
    scene.send(b"BUSY", worker_return(given[0].id))
    scene.check()
