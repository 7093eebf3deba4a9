"""freelance.models.client_machine: what models 2 and 3 have in common."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from core.machine.requests import SETTLED
from freelance.errors import ClientClosed, NoServer
from freelance.models.agent import AgentLimits
from freelance.models.server_list import Health
from tests.scenes.freelance_machines import Finished, GaveUp, Send, WatchedAgent, WatchedShotgun

if TYPE_CHECKING:
    from tests.scenes.freelance_machines import Effect

A, B = b"tcp://a:1", b"tcp://b:1"
NAMES = [A.decode(), B.decode()]

Machine = WatchedAgent | WatchedShotgun


def machine(model: int, *, join: bool = True) -> Machine:
    made: Machine = WatchedAgent(NAMES, AgentLimits()) if model == 3 else WatchedShotgun(NAMES, 3.0)
    for name in (A, B) if join else ():
        made.joined(name, 0.0)
    return made


@pytest.fixture(params=[2, 3])
def model(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def reply(model: int, number: int, *body: bytes) -> list[bytes]:
    return [*([b""] if model == 2 else []), b"%d" % number, *body]


def take(made: Machine, model: int, name: bytes, number: int, *body: bytes, now: float = 0.1) -> list[Effect]:
    return made.receive(name, reply(model, number, *body), now)


def test_replies_in_any_order_each_once(model: int) -> None:
    made = machine(model)
    for body in (b"x", b"y", b"z"):
        made.submit([body], 0)
    assert take(made, model, A, 2, b"two") == [Finished(2, [b"two"])]
    assert take(made, model, A, 1, b"one", b"", b"!") == [Finished(1, [b"one", b"", b"!"])]
    assert take(made, model, A, 3, b"three") == [Finished(3, [b"three"])]
    assert [take(made, model, A, number, b"again") for number in (1, 2, 3)] == [[], [], []]
    assert (len(made), made.counters["reply_unknown"]) == (0, 3)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300])
def test_a_body_of_any_size_is_sent_as_it_is(model: int, size: int) -> None:
    assert machine(model).submit([b"x" * size], 0)[1][0] == Send(A, reply(model, 1, b"x" * size))


def test_flp_08_a_body_of_several_frames_is_sent_as_it_is() -> None:
    assert machine(3).submit([b"x", b"", b"y" * 300], 0) == (1, [Send(A, [b"1", b"x", b"", b"y" * 300])])
    assert machine(3).submit([b"x", b"y"], 0) == (1, [Send(A, [b"1", b"x", b"y"])])


def test_the_reply_of_a_server_that_was_not_asked_is_counted() -> None:
    """L1, FLP-13."""
    made = machine(3)
    made.submit([b"x"], 0)
    assert take(made, 3, B, 1, b"y") == []
    assert made.counters["reply_unasked"] == 1
    assert take(made, 3, A, 1, b"z") == [Finished(1, [b"z"])]


def test_withdrawn(model: int) -> None:
    made = machine(model)
    made.submit([b"x"], 0)
    made.withdraw(1)
    made.withdraw(1)
    assert (len(made), take(made, model, A, 1, b"y")) == (0, [])


def test_a_request_with_the_time_of_the_client_is_like_one_with_its_own() -> None:
    """BEY-13, FLP-16."""
    done: list[list[tuple[float, Effect]]] = []
    for timeout_s in (None, 3.0):
        made = machine(3)
        made.submit([b"x"], 0, timeout_s)
        events: list[tuple[float, Effect]] = []
        while (at := made.deadline()) is not None and at <= 3.0:
            events += [(at, effect) for effect in made.tick(at)]
        done.append(events)
    assert done[0] == done[1]
    assert done[0][0] == (0.5, Send(B, [b"1", b"x"]))
    assert isinstance(done[0][-1][1], GaveUp)
    assert done[0][-1][0] == 3.0


def test_time_ends_a_request_of_model_2() -> None:
    """FRL-05."""
    made = machine(2)
    made.submit([b"x"], 0.5)
    assert (made.deadline(), made.tick(3.4), made.tick(3.5)) == (3.5, [], [GaveUp(1, 2, 3.0)])


def test_a_lost_connection_moves_requests() -> None:
    made = machine(3)
    made.submit([b"x"], 0)
    made.submit([b"y"], 0)
    assert made.lost(A, 0.1) == [Send(B, [b"1", b"x"]), Send(B, [b"2", b"y"])]
    assert take(made, 3, B, 1, b"x") == [Finished(1, [b"x"])]


def test_replies_of_a_removed_server_are_ignored(model: int) -> None:
    made = machine(model)
    made.submit([b"x"], 0)
    made.remove(A, 0.1)
    assert take(made, model, A, 1, b"x") == []
    assert len(made) == 1


def test_a_server_that_joins_gets_what_is_open() -> None:
    """FRL-06."""
    made = machine(2, join=False)
    made.joined(A, 0)
    made.submit([b"x"], 0)
    assert made.joined(B, 0.1) == [Send(B, [b"", b"1", b"x"])]
    assert take(made, 2, B, 1, b"OK") == [Finished(1, [b"OK"])]


def test_replies_put_off_ping_and_death() -> None:
    """FLP-06."""
    made = WatchedAgent([A.decode()], AgentLimits(health=Health(ping_s=2.0, dead_s=6.0)))
    made.joined(A, 0)
    for second in range(20):
        made.submit([b"x"], second)
        assert take(made, 3, A, second + 1, b"y", now=second + 0.1)
        assert made.tick(second + 0.2) == []
    assert made.tick(21.0) == []
    assert made.tick(21.2) == [Send(A, [b"PING"])]
    assert made.servers.by_name[A].live
    while (at := made.deadline()) is not None and at < 25.0:
        made.tick(at)
    assert made.servers.by_name[A].live
    made.tick(25.1)
    assert (made.servers.by_name[A].live, made.counters["server_dead"]) == (False, 1)


def test_a_suspect_server_gets_a_trial_when_its_pause_is_over() -> None:
    made = machine(3)
    assert isinstance(made, WatchedAgent)
    made.servers.failed(A, 0, 1.0)
    assert made.submit([b"x"], 1.1)[1] == [Send(B, [b"1", b"x"])]
    assert made.submit([b"y"], 5.0)[1] == [Send(A, [b"2", b"y"])]
    assert made.submit([b"z"], 5.0)[1] == [Send(B, [b"3", b"z"])]


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_ends_every_request_once(seed: int, model: int) -> None:
    """Servers that join, leave, answer and are silent; a close at the end."""
    chance = random.Random(seed)
    made = machine(model, join=False)
    now = 0.0
    ended: set[int] = set()

    def note(effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                assert effect.number not in ended
                ended.add(effect.number)

    for _ in range(1500):
        now += chance.choice((0.0, 0.01, 0.2))
        name = chance.choice((A, B))
        number = chance.randrange(1, len(made.asked) + 2)
        match chance.randrange(8):
            case 0 | 1:
                note(made.submit([b"x"], now, chance.choice((None, 0.3, 5.0)))[1])
            case 2:
                note(made.joined(name, now))
            case 3:
                note(made.lost(name, now))
            case 4 if made.asked:
                pending = made.asked[chance.randrange(len(made.asked))]
                if pending.stage != SETTLED:
                    ended.add(int(pending.key))
                made.withdraw(int(pending.key), now)
            case 5:
                note(made.tick(now))
            case _:
                note(take(made, model, name, number, b"y", now=now))
        assert len(made) == sum(pending.stage != SETTLED for pending in made.asked)
    open_now = [pending for pending in made.asked if pending.stage != SETTLED]
    closed = made.machine.close(now)
    assert closed == open_now
    assert {type(pending.error) for pending in closed} <= {ClientClosed}
    assert len(made) == 0
    assert len(ended) + len(closed) == len(made.asked)
    assert all((pending.reply is not None) + (pending.error is not None) <= 1 for pending in made.asked)
    assert any(isinstance(pending.error, NoServer) for pending in made.asked)
