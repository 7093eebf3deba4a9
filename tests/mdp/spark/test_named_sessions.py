"""Sessions by name: kept while they are used; no Java."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from mdp.spark.named_sessions import NamedSessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDLE_S = 10.0


class Clock:
    """Seconds that pass when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def sessions(clock: Clock, most: int = 2) -> NamedSessions:
    return NamedSessions(lambda: cast("SparkSession", object()), most, IDLE_S, clock)


def used(found: NamedSessions, name: str) -> SparkSession:
    with found.use(name) as session:
        return session


def test_a_session_is_found_again_by_its_name_only() -> None:
    found = sessions(Clock())
    mine = used(found, "mine")
    assert used(found, "mine") is mine
    assert used(found, "other") is not mine
    assert used(found, "") is not used(found, "")
    assert list(found) == ["mine", "other"]


def test_a_session_whose_request_takes_longer_than_idle_ones_are_kept_is_not_dropped() -> None:
    clock = Clock()
    found = sessions(clock)
    with found.use("mine") as mine:
        clock.now += 2 * IDLE_S
        used(found, "other")
        assert used(found, "mine") is mine
        clock.now += 2 * IDLE_S
    clock.now += IDLE_S / 2  # since the end of the request, not since its beginning
    assert used(found, "mine") is mine
    clock.now += 2 * IDLE_S
    assert used(found, "mine") is not mine


def test_of_too_many_sessions_those_with_a_request_stay() -> None:
    found = sessions(Clock(), most=1)
    with ExitStack() as requests:
        mine = requests.enter_context(found.use("mine"))
        other = requests.enter_context(found.use("other"))
        assert (used(found, "mine"), used(found, "other")) == (mine, other)
        used(found, "third")
        assert list(found) == ["mine", "other"]
    assert list(found) == ["mine"]
