"""core.machine.deadlines: deadlines come out in time, once, however they were moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.machine.deadlines import STALE_ENTRIES_MIN, Deadlines, earliest


def test_earliest_takes_none_as_never() -> None:
    assert earliest() is None
    assert earliest(None, None) is None
    assert earliest(3.0, None, 2.0) == 2.0


def test_due_in_order_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        deadlines.set(key, at)
    assert deadlines.deadline() == 1.0
    assert deadlines.due(2.0) == ["a", "b"]
    assert deadlines.due(2.0) == []
    assert "a" not in deadlines
    assert "c" in deadlines
    assert len(deadlines) == 1


def test_equal_times_come_out_first_in_first_out_even_for_keys_without_order() -> None:
    deadlines: Deadlines[object] = Deadlines()
    keys = [object() for _ in range(5)]
    for key in keys:
        deadlines.set(key, 1.0)
    assert deadlines.due(1.0) == keys


def test_moved_later_and_earlier() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    assert deadlines.deadline() == 5.0
    deadlines.set("a", 2.0)
    assert deadlines.get("a") == 2.0
    assert deadlines.deadline() == 2.0
    assert deadlines.due(9.0) == ["a"]
    assert deadlines.deadline() is None


def test_discarded_never_comes_up() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.discard("a")
    deadlines.discard("nobody")
    assert deadlines.deadline() is None
    assert deadlines.due(9.0) == []


def test_memory_follows_the_live_keys() -> None:
    """Requests that are answered long before their deadline must not pile up in the heap."""
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1000.0 + key)
        deadlines.discard(key)
    assert len(deadlines._heap) <= STALE_ENTRIES_MIN + 1
    assert len(deadlines._queued) <= STALE_ENTRIES_MIN + 1


def test_memory_follows_the_live_keys_also_of_many() -> None:
    deadlines: Deadlines[int] = Deadlines()
    live = range(-100, 0)
    for key in live:
        deadlines.set(key, 1000.0 - key)
    for key in range(1000):
        deadlines.set(key, 3000.0 - key)
        deadlines.discard(key)
        assert len(deadlines._heap) <= 2 * len(live) + STALE_ENTRIES_MIN + 2
    deadlines.set(-1, 0.5)
    deadlines.set(7, 1001.0)
    assert deadlines.due(1003.0) == [-1, 7, -2, -3], "in order"
    assert deadlines.deadline() == 1004.0


def test_a_deadline_that_is_put_off_or_set_again_is_queued_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in (1.0, 1.0, 2.0, 5.0, 3.0):
        deadlines.set("a", at)
        assert len(deadlines._heap) == 1
    assert deadlines.due(3.0) == ["a"]


@given(st.lists(st.tuples(st.sampled_from(["set", "discard", "due", "deadline"]), st.integers(0, 5), st.integers(0, 20)), max_size=200))
def test_behaves_as_a_plain_dictionary_would(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    for verb, key, at in steps:
        if verb == "set":
            deadlines.set(key, float(at))
            model[key] = float(at)
        elif verb == "discard":
            deadlines.discard(key)
            model.pop(key, None)
        elif verb == "due":
            gone = {key for key, when in model.items() if when <= at}
            found = deadlines.due(float(at))
            assert [model[key] for key in found] == sorted(model[key] for key in gone)
            assert sorted(found) == sorted(gone)
            for key in gone:
                del model[key]
        assert deadlines.deadline() == min(model.values(), default=None)
        assert len(deadlines) == len(model)


def test_what_is_due_is_taken_with_its_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        deadlines.set(key, at)
    deadlines.set("a", 1.5)
    assert deadlines.take_due(2.0) == [("a", 1.5), ("b", 2.0)]
    assert (deadlines.take_due(2.9), len(deadlines), deadlines.deadline()) == ([], 1, 3.0)
