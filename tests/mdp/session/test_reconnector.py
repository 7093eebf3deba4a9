"""mdp.session.reconnector: what the actions of a search open and close, and what is logged about a broker that is away."""

from __future__ import annotations

import asyncio
import errno
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import core
from bstar.machine.ballot import NO_BALLOT, Ballot
from core.daemon.logs import RateLimitedLog
from mdp.session import reconnector
from mdp.session.broker_search import BrokerSearch, SearchState, SearchTimes
from mdp.session.reconnector import Reconnector
from mdp.wire.commands import V01, V03

if TYPE_CHECKING:
    from collections.abc import Callable

ONE, TWO = "tcp://127.0.0.1:7000", "tcp://127.0.0.1:8000"
START = 1000.0  # of the clock


class Wire:
    """A connection or a probe of one, that is only looked at."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.connection: Wire = self
        self.trouble, self.refused = "", False
        self.closed = self.ended = False

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        assert self.closed
        self.ended = True


class Scene:
    """A reconnector with its search and its clock; keeps what is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: tuple[str, ...], dialect: Any, context: Any, **options: Any) -> None:
        self.now = START
        self.said: list[str] = []
        self.probes: list[Wire] = []
        self.open: list[Wire] = []
        times = SearchTimes(reconnect_s=2.5, reconnect_max_s=2.5, lost_s=0.5, join_s=9.0, shard_s=7.0)
        self.search = BrokerSearch(brokers, dialect, times, lambda: 1.0)
        monkeypatch.setattr(reconnector, "clock_of", lambda _: lambda: self.now)
        monkeypatch.setattr(reconnector, "Probe", self._probe)
        self.context = context
        self.options = {"reconnect_ivl": 450_000, "refused_ivl": 650_000}
        callbacks: dict[str, Any] = {"on_open": self._open, "on_close": self._close, "on_change": lambda: self.said.append("change")}
        self.under_test = Reconnector(self.search, self.context, self.options, **callbacks, **options)
        self.search.start(self.now)
        self.under_test.run_actions()

    @property
    def probe(self) -> Wire:
        return self.probes[-1]

    def told(self, name: str, *arguments: Any) -> list[str]:
        """Have the probe call this; return what that made the reconnector call."""
        del self.said[:]
        self.probe.given[name](*arguments)
        return self.said

    def _probe(self, context: Any, endpoint: str, options: Any, **given: Any) -> Wire:
        assert (context, options) == (self.context, self.options)
        self.said.append(f"probe {endpoint}")
        self.probes.append(Wire(**given))
        return self.probe

    def _open(self) -> None:
        self.said.append(f"open {self.search.target} {self.search.dialect}")
        self.open.append(Wire())

    def _close(self) -> list[Wire]:
        self.said.append("close")
        closed, self.open = self.open, []
        for one in closed:
            one.close()
        return closed


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    def new(*brokers: str, dialect: Any = None, security: Any = None, **options: Any) -> Scene:
        return Scene(monkeypatch, brokers or (ONE,), dialect, SimpleNamespace(security=security), **options)

    return new


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


# ---- actions


@pytest.mark.parametrize("votes", [False, True])
async def test_a_broker_is_asked_and_then_opened_in_its_dialect(scenes: Callable[..., Scene], votes: bool) -> None:
    scene = scenes(votes=votes)
    assert scene.said == [f"probe {ONE}", "change"]
    assert (scene.probe.given["votes"], scene.probe.given["seen"]) == (votes, NO_BALLOT)
    assert scene.told("on_dialect", V01, NO_BALLOT, 0) == ["close", f"open {ONE} {V01}", "change"]
    assert scene.probe.closed
    await scene.under_test.wait_closed()
    assert scene.probe.ended
    assert not scene.open[0].closed


async def test_a_given_dialect_is_opened_at_once_and_what_was_opened_is_waited_for(scenes: Callable[..., Scene]) -> None:
    scene = scenes(dialect=V03)
    assert scene.said == [f"open {ONE} {V03}", "change"]
    (opened,) = scene.open
    scene.search.joined(scene.now)
    del scene.said[:]
    scene.under_test.lost()
    assert scene.said == []  # a socket is not closed from its own callback
    assert scene.search.state is SearchState.WAITING
    await asyncio.sleep(0)
    assert scene.said == ["close", "change"]
    await scene.under_test.wait_closed()
    assert opened.ended


async def test_a_socket_that_cannot_be_made_is_an_error_at_first_and_later_a_reason_to_wait(
    scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scenes(dialect=V03, name="w")
    scene.search.joined(scene.now)
    scene.under_test.lost()
    await asyncio.sleep(0)
    scene.now = scene.search.deadline()
    scene.search.tick(scene.now)
    monkeypatch.setattr(scene.under_test, "on_open", fail := Mock(side_effect=core.ZMQError(errno.EMFILE)))
    scene.under_test.run_actions()
    assert scene.search.state is SearchState.WAITING
    assert scene.said[-2:] == ["close", "change"]
    (line,) = lines(caplog)
    assert line.startswith(f"w: cannot reach the broker at {ONE}: Too many open files; next try in")
    fail.side_effect = None
    scene.now = scene.search.deadline()
    scene.search.tick(scene.now)
    scene.under_test.run_actions()
    assert (fail.call_count, scene.search.state) == (2, SearchState.JOINING)
    begun = Reconnector(
        scene.search, scene.context, {}, on_open=Mock(side_effect=core.ZMQError(errno.EMFILE)), on_close=list, on_change=Mock()
    )
    scene.search.close()
    scene.search.take_actions()
    scene.search.start(scene.now)
    with pytest.raises(core.ZMQError, match="Too many open files"):
        begun.run_actions()


async def test_only_the_last_connections_are_waited_for(scenes: Callable[..., Scene]) -> None:
    scene = scenes(dialect=V03, ending_max=2)
    opened = []
    for _ in range(3):
        scene.search.joined(scene.now)
        opened += scene.open
        scene.under_test.lost()
        scene.now += 100.0
        scene.search.tick(scene.now)
        scene.under_test.run_actions()
    await scene.under_test.wait_closed()
    assert [one.ended for one in opened] == [False, True, True]


async def test_a_probe_that_is_up_is_waited_for_as_long_as_it_takes(scenes: Callable[..., Scene]) -> None:
    """A broker that drops the probe has `join_s` once more before the next is tried."""
    scene = scenes(ONE, TWO)
    assert scene.told("on_reached", True) == ["change"]
    assert scene.search.deadline() > scene.now + 1_000_000
    assert scene.told("on_reached", False) == ["change"]
    assert scene.search.deadline() == scene.now + 9.0


async def test_the_next_broker_is_asked_when_one_cannot_be_reached(scenes: Callable[..., Scene]) -> None:
    scene = scenes(ONE, TWO)
    first = scene.probe
    assert scene.told("on_unreachable") == []  # later: the probe's socket is calling
    await asyncio.sleep(0)
    assert scene.said == ["close", f"probe {TWO}", "change"]
    assert (first.closed, scene.probe.closed) == (True, False)


async def test_a_broker_that_refuses_is_asked_again_when_it_may_serve(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.probe.trouble = "no route"
    assert scene.under_test.trouble == "no route"
    assert scene.told("on_refused", 3.0, "it is passive") == ["close", "change"]
    assert (scene.under_test.trouble, scene.probe.closed) == ("it is passive", True)
    assert scene.search.deadline() == scene.now + 3.5
    scene.now += 3.5
    scene.search.tick(scene.now)
    scene.under_test.run_actions()
    assert len(scene.probes) == 2
    scene.told("on_dialect", V03, NO_BALLOT, 0)
    assert scene.under_test.trouble == ""


async def test_a_ballot_is_kept_and_given_to_the_next_probe_until_a_broker_has_another(scenes: Callable[..., Scene]) -> None:
    """BST-33: a lower one has been checked by the broker.

    Where there are two brokers, the next is tried when this one has no ballot.
    """
    scene = scenes(ONE, TWO)
    for seen, told in ((NO_BALLOT, Ballot(7, 1)), (Ballot(7, 1), Ballot(6, 2))):
        assert scene.probe.given["seen"] == seen
        scene.told("on_dialect", V03, told, 0)
        assert scene.search.ballot == told
        scene.search.joined(scene.now)
        scene.under_test.lost()
        await asyncio.sleep(0)
        scene.now += 100.0
        scene.search.tick(scene.now)
        scene.under_test.run_actions()
    assert scene.told("on_dialect", V01, NO_BALLOT, 0) == []
    await asyncio.sleep(0)
    assert scene.said == ["close", f"probe {TWO}", "change"]


async def test_a_broker_without_a_ballot_is_used_where_there_is_no_other_or_never_was_a_pair(scenes: Callable[..., Scene]) -> None:
    alone, two = scenes(), scenes(ONE, TWO)
    alone.search.ballot = Ballot(7, 1)
    assert f"open {ONE} {V03}" in alone.told("on_dialect", V03, NO_BALLOT, 0)
    assert alone.search.ballot == Ballot(7, 1)
    assert f"open {ONE} {V03}" in two.told("on_dialect", V03, NO_BALLOT, 0)


async def test_shards_have_the_key_of_their_broker(scenes: Callable[..., Scene]) -> None:
    public, secret = core.curve_keypair()
    same: list[tuple[str, str]] = []

    class Noting(core.Curve):
        def expect_same(self, endpoint: str, known: str) -> None:
            same.append((endpoint, known))

    curve = Noting(secret_key=secret, server_key=public)
    scenes(security=curve).told("on_dialect", V03, NO_BALLOT, 2)
    assert same == [("tcp://127.0.0.1:7001", ONE), ("tcp://127.0.0.1:7002", ONE)]
    del same[:]
    scenes("tcp://127.0.0.1:65534", security=curve).told("on_dialect", V03, NO_BALLOT, 2)
    assert same == [("tcp://127.0.0.1:65535", "tcp://127.0.0.1:65534")]  # there is no further port
    del same[:]
    scenes(security=curve).told("on_dialect", V03, NO_BALLOT, 0)
    assert same == []
    plain = scenes(security=core.Plain(user="ann", password="secret"))
    assert f"open {ONE} {V03}" in plain.told("on_dialect", V03, NO_BALLOT, 2)
    assert plain.search.shards == 2


# ---- the log


async def test_a_worker_says_at_once_why_a_broker_cannot_be_reached_and_when_it_tries_again(
    scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    scene = scenes(name="echo")
    scene.probe.trouble = "no route"
    scene.told("on_unreachable")
    assert lines(caplog) == [f"echo: cannot reach the broker at {ONE}: no route; next try in 450.0 s"]
    scene.told("on_unreachable")
    assert lines(caplog) == []  # one of its kind in a while


async def test_a_refusal_is_tried_again_after_another_time(scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    scene = scenes(name="client", votes=True)
    scene.probe.refused = True
    scene.told("on_unreachable")
    assert lines(caplog) == [f"client: cannot reach the broker at {ONE}: reason unknown; next try in 650.0 s"]


async def test_without_times_of_its_own_the_log_has_the_usual_ones(scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    for refused, seconds in ((False, "0.1"), (True, "30.0")):
        scene = scenes(name="echo")
        scene.options.clear()
        scene.under_test.log_unreachable("why", refused=refused)
        assert lines(caplog) == [f"echo: cannot reach the broker at {ONE}: why; next try in {seconds} s"]


async def test_a_client_waits_a_second_before_it_says_so(scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    scene = scenes(name="client", votes=True)
    scene.told("on_unreachable")
    scene.now += 0.9
    scene.told("on_unreachable")
    assert lines(caplog) == []
    scene.now = START + 1.0
    scene.told("on_unreachable")
    assert len(lines(caplog)) == 1


async def test_the_log_has_the_time_of_the_search_and_the_endpoint_that_was_tried(
    scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    scene = scenes(name="echo")
    scene.search.service = b"a"
    scene.told("on_dialect", V03, NO_BALLOT, 1)
    scene.under_test.log_unreachable("why")
    assert lines(caplog) == ["echo: cannot reach the broker at tcp://127.0.0.1:7001: why; next try in 7.0 s"]
    late = scenes(ONE, TWO, name="echo")
    late.now += 10.0
    late.under_test.log_unreachable("why")
    assert lines(caplog) == [f"echo: cannot reach the broker at {ONE}: why; next try in 0.0 s"]


async def test_the_return_is_logged_with_the_time_it_took_and_nothing_without_a_name(
    scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mdp")
    scene = scenes(name="echo")
    scene.told("on_dialect", V03, NO_BALLOT, 0)
    scene.under_test.log_unreachable("why")
    scene.now += 2.0
    scene.under_test.log_unreachable("why")
    scene.now += 1.0
    scene.under_test.connected()
    assert lines(caplog)[1:] == [f"echo: connected after 3.0 s, to {ONE}"]
    scene.under_test.connected()
    assert lines(caplog) == []
    scene.search.joined(scene.now)
    scene.under_test.lost()
    await asyncio.sleep(0)
    scene.now += 4.0
    scene.search.tick(scene.now)
    scene.under_test.run_actions()
    scene.now += 1.0
    scene.told("on_dialect", V03, NO_BALLOT, 0)  # the probe is closed, and was no connection
    scene.under_test.connected()
    assert lines(caplog) == [f"echo: connected again after 5.0 s, to {ONE}"]
    silent = scenes(dialect=V03)
    silent.under_test.log_unreachable("why")
    silent.under_test.connected()
    assert lines(caplog) == []


async def test_a_connection_at_the_first_attempt_is_not_logged(scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mdp")
    scene = scenes(name="echo", dialect=V03)
    scene.under_test.connected()
    assert lines(caplog) == []


@pytest.mark.parametrize(("votes", "logger"), [(False, "mdp.worker"), (True, "mdp.client")])
async def test_the_log_is_that_of_workers_or_of_clients(
    scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture, votes: bool, logger: str
) -> None:
    scenes(name="it", votes=votes).under_test.log_unreachable("why", refused=True)
    assert [record.name for record in caplog.records] == [logger]


async def test_workers_that_share_connections_share_the_line(scenes: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    shared = RateLimitedLog(logging.getLogger("mdp.worker"))
    for name in ("a", "b"):
        scenes(name=name, lines=shared).under_test.log_unreachable("why")
    assert len(lines(caplog)) == 1
