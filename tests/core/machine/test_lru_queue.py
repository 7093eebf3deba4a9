"""core.machine.lru_queue: LRU-01."""

from __future__ import annotations

import pytest

from core.machine.lru_queue import LruQueue


def test_lru_01_longest_idle_first() -> None:
    queue: LruQueue[str] = LruQueue()
    for worker in "abc":
        queue.join(worker)
    assert queue.take() == "a"
    queue.join("a")
    assert [queue.take() for _ in range(3)] == ["b", "c", "a"]
    assert len(queue) == 0


def test_joining_again_moves_to_the_tail() -> None:
    queue: LruQueue[str] = LruQueue()
    for worker in "aba":
        queue.join(worker)
    assert list(queue) == ["b", "a"]


def test_leaving_from_the_middle() -> None:
    queue: LruQueue[str] = LruQueue()
    for worker in "abc":
        queue.join(worker)
    assert queue.leave("b")
    assert not queue.leave("b")
    assert "b" not in queue
    assert list(queue) == ["a", "c"]


def test_take_from_an_empty_queue() -> None:
    with pytest.raises(KeyError):
        LruQueue[str]().take()
