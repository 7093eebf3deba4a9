from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

import pytest

from bstar.machine.ballot import Ballot
from mdp.session.broker_search import Action, BrokerSearch, EndReason, SearchState, SearchTimes, chosen_dialect
from mdp.wire.commands import V01, V02, V03

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.wire.commands import Dialect

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"
IDLE, WAITING, PROBING, JOINING, UP = SearchState
PROBE, OPEN, CLOSE = Action
LOST, SILENT, DISCONNECTED = EndReason


def search(*brokers: str, dialect: Dialect | None = None, times: SearchTimes | None = None, chance: float = 1.0) -> BrokerSearch:
    return BrokerSearch(brokers or (A,), dialect, times or SearchTimes(), lambda: chance)


def in_state(state: SearchState) -> BrokerSearch:
    made = search()
    reach: dict[SearchState, Callable[[], None]] = {
        PROBING: lambda: made.start(0.0),
        JOINING: lambda: made.probed(V01, 0.0),
        UP: lambda: made.joined(0.0),
        WAITING: lambda: made.failed(SILENT, 0.0),
    }
    if state is not IDLE:
        for step, go in reach.items():
            go()
            if step is state:
                break
    made.take_actions()
    assert made.state is state
    return made


CELLS: dict[str, dict[SearchState, tuple[SearchState, list[Action]]]] = {
    # event: state -> (state after, steps); a state that is not named stays and does nothing
    "start": {IDLE: (PROBING, [PROBE])},
    "reached": {},
    "probed": {PROBING: (JOINING, [CLOSE, OPEN])},
    "joined": {JOINING: (UP, [])},
    "confirmed": {},
    "lost": {UP: (WAITING, [CLOSE])},
    "silent": {UP: (WAITING, [CLOSE])},
    "disconnected": {UP: (WAITING, [CLOSE])},
    "close": {WAITING: (IDLE, []), PROBING: (IDLE, [CLOSE]), JOINING: (IDLE, [CLOSE]), UP: (IDLE, [CLOSE])},
    "tick": {WAITING: (PROBING, [PROBE])},
    "refused": {PROBING: (WAITING, [CLOSE])},
    "unreachable": {},  # there is no other broker
    "stopped_short": {PROBING: (WAITING, [CLOSE]), JOINING: (WAITING, [CLOSE])},
}
EVENTS: dict[str, Callable[[BrokerSearch], None]] = {
    "start": lambda made: made.start(99.0),
    "reached": lambda made: made.reached(True, 99.0),
    "probed": lambda made: made.probed(V03, 99.0),
    "joined": lambda made: made.joined(99.0),
    "confirmed": lambda made: made.confirmed(),
    "lost": lambda made: made.failed(LOST, 99.0),
    "silent": lambda made: made.failed(SILENT, 99.0),
    "disconnected": lambda made: made.failed(DISCONNECTED, 99.0),
    "close": lambda made: made.close(),
    "tick": lambda made: made.tick(99.0),
    "refused": lambda made: made.refused(5.0, 99.0),
    "unreachable": lambda made: made.unreachable(99.0),
    "stopped_short": lambda made: made.stopped_short(99.0),
}


@pytest.mark.parametrize("state", SearchState)
@pytest.mark.parametrize("event", CELLS)
def test_every_event_in_every_state(event: str, state: SearchState) -> None:
    made = in_state(state)
    EVENTS[event](made)
    assert (made.state, made.take_actions()) == CELLS[event].get(state, (state, []))


def test_a_given_dialect_is_not_asked_for() -> None:
    made = search(dialect=V01)
    made.start(0.0)
    assert (made.take_actions(), made.dialect) == ([OPEN], V01)


def test_the_broker_is_asked_for_its_dialect_at_every_reconnect() -> None:
    made = in_state(UP)
    spoken = [made.dialect]
    made.failed(LOST, 10.0)
    made.tick(made.deadline())
    made.probed(V03, 11.0)
    spoken.append(made.dialect)
    assert (made.take_actions(), spoken) == ([CLOSE, PROBE, CLOSE, OPEN], [V01, V03])


def test_one_broker_is_waited_for_without_a_limit() -> None:
    made = in_state(PROBING)
    assert made.deadline() == inf
    made.probed(V03, 5.0)
    assert made.deadline() == inf


@pytest.mark.parametrize("why", [SILENT, DISCONNECTED])
def test_the_first_wait_after_silence_or_disconnect_is_the_reconnect_delay_and_they_double_to_the_cap(why: EndReason) -> None:
    """MDP-18, MDP-20, BEY-05."""
    made = search(dialect=V01)
    made.start(0.0)
    waits = []
    for _ in range(7):
        made.joined(0.0)
        made.failed(why, 100.0)
        waits.append(made.deadline() - 100.0)
        made.tick(made.deadline())
    assert waits == [2.5, 5.0, 10.0, 20.0, 32.0, 32.0, 32.0]


def test_brokers_that_cannot_be_reached_are_tried_again_within_the_shorter_cap() -> None:
    """BEY-05: a broker that starts after a long outage waits one liveness window for its workers."""
    made = search(A, B, times=SearchTimes(away_max_s=3.75))
    made.ballot = Ballot(1, 0)
    made.start(0.0)
    now, waits = 0.0, []
    for _ in range(40):
        made.unreachable(now)
        if made.state is WAITING:
            waits.append(made.deadline() - now)
            now = made.deadline()
            made.tick(now)
    assert waits[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert max(waits) == pytest.approx(3.75)


def test_a_broker_that_disconnects_us_is_asked_less_often_than_one_that_is_away() -> None:
    """MDP-18: the shorter cap is not for those that are not wanted."""
    made = search(dialect=V01, times=SearchTimes(away_max_s=3.75))
    made.start(0.0)
    waits = []
    for why in (DISCONNECTED, DISCONNECTED, DISCONNECTED, SILENT):
        made.joined(0.0)
        made.failed(why, 0.0)
        waits.append(made.deadline())
        made.tick(made.deadline())
    assert waits == [2.5, 5.0, 10.0, 3.75]


def test_half_of_a_wait_is_random() -> None:
    for chance, wait in ((0.0, 1.25), (0.5, 1.875), (0.999, 2.49875)):
        made = search(dialect=V01, chance=chance)
        made.start(0.0)
        made.joined(0.0)
        made.failed(SILENT, 0.0)
        assert made.deadline() == pytest.approx(wait)


def test_a_lost_connection_is_retried_soon_and_backs_off_too() -> None:
    """B10: a crowd spreads; a broker that takes connections and drops them is not hammered."""
    made = search(dialect=V01)
    made.start(0.0)
    waits = []
    for _ in range(12):
        made.joined(0.0)
        made.failed(LOST, 0.0)
        waits.append(made.deadline())
        made.tick(made.deadline())
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(waits) == 32.0


def test_a_connection_alone_does_not_end_the_back_off_but_an_answer_does() -> None:
    """MDP-18: a broker that accepts and then disconnects would otherwise be asked without pause."""
    made = search(dialect=V01)
    made.start(0.0)
    for _ in range(3):
        made.joined(0.0)
        made.failed(DISCONNECTED, 0.0)
        made.tick(made.deadline())
    made.joined(0.0)
    made.confirmed()
    made.failed(DISCONNECTED, 0.0)
    assert made.deadline() == 2.5


def test_a_broker_that_cannot_be_reached_in_time_is_followed_by_the_next() -> None:
    """BEY-03."""
    made = search(A, B, C)
    made.start(0.0)
    tried = [made.endpoint]
    for _ in range(2):
        made.tick(made.deadline())
        tried.append(made.endpoint)
    assert tried == [A, B, C]
    assert made.take_actions() == [PROBE, CLOSE, PROBE, CLOSE, PROBE]
    assert made.deadline() == 3.0
    made.tick(3.0)
    assert (made.state, made.endpoint, made.deadline()) == (WAITING, A, 5.5)


def test_a_broker_that_accepted_the_connection_may_answer_late() -> None:
    made = search(A, B)
    made.start(0.0)
    made.reached(True, 0.5)
    assert made.deadline() == inf
    made.reached(False, 0.7)
    assert made.deadline() == 1.7


def test_dialects_by_name() -> None:
    assert [chosen_dialect(name) for name in ("auto", "0.1", "0.2", "0.3")] == [None, V01, V02, V03]
    with pytest.raises(ValueError, match=r"0\.4"):
        chosen_dialect("0.4")


def test_every_new_search_begins_with_the_first_broker() -> None:
    made = search(A, B)
    made.start(0.0)
    made.tick(1.0)
    made.probed(V03, 1.1)
    made.joined(1.2)
    assert made.endpoint == B
    made.failed(LOST, 2.0)
    made.tick(made.deadline())
    assert made.endpoint == A


@pytest.mark.parametrize("why", [SILENT, DISCONNECTED])
def test_a_silent_broker_is_followed_by_the_next_at_once(why: EndReason) -> None:
    made = search(A, B, dialect=V03)
    made.start(0.0)
    made.joined(0.0)
    made.failed(why, 1.0)
    assert (made.state, made.endpoint) == (JOINING, B)


def test_there_must_be_a_broker_and_waits_must_be_positive() -> None:
    assert SearchTimes(reconnect_s=5.0, reconnect_max_s=5.0).reconnect_max_s == 5.0
    with pytest.raises(ValueError, match="one broker"):
        BrokerSearch((), None, SearchTimes(), random.random)
    for wrong in (
        {"reconnect_s": 0.0},
        {"reconnect_s": 5.0, "reconnect_max_s": 1.0},
        {"lost_s": 0.0},
        {"join_s": -1.0},
        {"away_max_s": 0.0},
        {"shard_s": 0.0},
    ):
        with pytest.raises(ValueError, match="positive"):
            SearchTimes(**wrong)


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_never_leaves_two_things_open_or_stops_trying(seed: int) -> None:
    chance = random.Random(seed)
    made = BrokerSearch((A, B)[: chance.choice((1, 2))], chance.choice((None, V01)), SearchTimes(), chance.random)
    made.start(0.0)
    now, open_things = 0.0, 0
    for _ in range(3000):
        now += chance.choice((0.0, 0.2, 3.0))
        name = chance.choice([*EVENTS])
        if name in ("start", "close") and chance.random() < 0.9:
            continue
        match name:
            case "probed":
                made.probed(V03, now)
            case "tick":
                made.tick(now)
            case "lost" | "silent" | "disconnected":
                made.failed(EndReason[name.upper()], now)
            case "joined":
                made.joined(now)
            case "start":
                made.start(now)
            case _:
                EVENTS[name](made)
        for step in made.take_actions():
            open_things += -1 if step is CLOSE else 1
            assert open_things in (0, 1)
        assert open_things == (made.state in (PROBING, JOINING, UP))
        assert (made.state is WAITING) <= (made.deadline() < inf)


SHARDED = "tcp://a:5555"


def test_a_worker_that_does_not_ask_for_the_dialect_connects_to_the_broker_itself() -> None:
    """SHD-04: it does not hear of shards."""
    made = search(SHARDED, dialect=V03)
    made.service = b"echo"
    made.start(0.0)
    assert made.target == SHARDED


def probed_of_shards(service: bytes, shards: int) -> BrokerSearch:
    made = search(SHARDED)
    made.service = service
    made.start(0.0)
    made.take_actions()
    made.probed(V03, 1.0, shards)
    return made


def test_a_worker_connects_to_the_shard_of_its_service() -> None:
    """SHD-04."""
    assert probed_of_shards(b"geo.nearest", 2).target == "tcp://a:5557"
    assert probed_of_shards(b"echo", 2).target == "tcp://a:5556"
    for service, shards in ((b"", 2), (b"echo", 0)):
        made = probed_of_shards(service, shards)
        assert made.target == made.endpoint == SHARDED
        assert made.deadline() == inf


def test_the_broker_itself_is_used_when_the_shard_cannot_be_reached_and_the_shard_next_time() -> None:
    made = probed_of_shards(b"echo", 2)
    assert made.take_actions() == [Action.CLOSE, Action.OPEN]
    assert made.deadline() == 1.0 + SearchTimes().shard_s
    made.tick(made.deadline())
    assert made.take_actions() == [Action.CLOSE, Action.PROBE]
    made.probed(V03, 7.0, 2)
    assert made.target == SHARDED
    assert made.take_actions() == [Action.CLOSE, Action.OPEN]
    made.joined(8.0)
    assert made.target == SHARDED
    made.failed(EndReason.LOST, 20.0)
    made.tick(made.deadline())
    made.probed(V03, 30.0, 2)
    assert made.target == "tcp://a:5556"


def test_a_broker_that_has_other_shards_now() -> None:
    made = probed_of_shards(b"geo.nearest", 2)
    made.joined(2.0)
    made.failed(EndReason.LOST, 20.0)
    made.tick(made.deadline())
    made.probed(V03, 30.0, 0)
    assert made.target == SHARDED


def test_after_a_disconnect_of_a_shard_the_same_broker_is_asked_soon_and_then_the_next() -> None:
    """SHD-05."""
    made = search(A, B)
    made.service = b"echo"
    made.start(0.0)
    made.probed(V03, 1.0, 2)
    for failures in (1, 2):
        assert made.target != A
        made.joined(2.0)
        made.failed(EndReason.DISCONNECTED, 2.0)
        assert (made.state, made.endpoint, made.failures) == (WAITING, A, failures)
        assert made.deadline() <= 2.0 + 2 * SearchTimes().lost_s
        made.tick(made.deadline())
        made.probed(V03, 2.5, 2 + failures)
    made.joined(3.0)
    made.failed(EndReason.DISCONNECTED, 3.0)
    assert (made.state, made.endpoint) == (PROBING, B)
