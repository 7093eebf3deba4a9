"""Kept replies and dead letters as stores: bounds by number, octets and age."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mdp.broker.limits import BrokerOptions
from mdp.broker.requests.dead_letters import DeadLetter, DeadLetters
from mdp.broker.requests.reply_cache import EXECUTION_OVERHEAD_BYTES, ReplyCache, digest_of

if TYPE_CHECKING:
    from mdp.broker.requests.records import SharedExecution


def test_running_then_answered_then_too_old() -> None:
    results = ReplyCache(BrokerOptions(results_ms=1000))
    execution = results.begin(b"echo", b"k", digest_of(b"x"))
    assert results.find(b"echo", b"k", 0) is execution
    assert results.find(b"other", b"k", 0) is None
    results.complete(execution, b"reply", 5.0)
    assert results.find(b"echo", b"k", 5.9) is execution
    assert results.size == EXECUTION_OVERHEAD_BYTES + 5
    assert results.find(b"echo", b"k", 6.1) is None
    assert (len(results), results.size) == (0, 0)


def test_an_abandoned_execution_is_forgotten_with_its_parts() -> None:
    results = ReplyCache(BrokerOptions())
    execution = results.begin(b"echo", b"k", b"")
    results.add_part(execution, b"part")
    assert results.size == 4
    results.abandon(execution)
    assert results.find(b"echo", b"k", 0) is None
    assert results.size == 0


def test_digests_tell_bodies_apart() -> None:
    assert digest_of(b"a") != digest_of(b"b")
    assert digest_of(b"a") == digest_of(b"a")


def test_random_walk_keeps_all_bounds() -> None:
    """IDM-04: the octets counted are those kept, and never more than allowed."""
    source = random.Random(3)
    limits = BrokerOptions(results_max=20, results_max_bytes=30_000, results_ms=50_000, parts_max_bytes=4000)
    results = ReplyCache(limits)
    running: list[SharedExecution] = []
    for step in range(5000):
        dice = source.random()
        if dice < 0.3 and len(running) < 10:
            running.append(results.begin(b"echo", b"%d" % step, b""))
        elif running:
            execution = source.choice(running)
            if dice < 0.6:
                results.add_part(execution, source.randbytes(source.randrange(2000)))
            else:
                running.remove(execution)
                if dice < 0.7:
                    results.abandon(execution)
                else:
                    results.complete(execution, source.randbytes(source.randrange(5000)), step)
        assert len(results) <= 20
        assert results.size <= 30_000
        assert all(execution.shared or not execution.parts for execution in running)
    for execution in running:
        results.abandon(execution)
    results.forget_old(1e9)
    assert results.size == 0


def test_the_oldest_dead_letters_are_pushed_out() -> None:
    letters = DeadLetters(BrokerOptions(letters_max=2, letters_max_bytes=100))
    for number, size in enumerate((10, 20, 30)):
        letters.add(DeadLetter(number, b"echo", b"x" * size, [], 0.0))
    assert [letter.number for letter in letters] == [1, 2]
    assert (letters.size, letters.pushed_out) == (50, 1)
    letters.add(DeadLetter(3, b"echo", b"x" * 90, [], 0.0))
    assert [letter.number for letter in letters] == [3]
    assert letters.take(3) is not None
    assert letters.take(3) is None
    assert letters.size == 0
