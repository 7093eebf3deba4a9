"""Kept replies and dead letters as stores: bounds by number, octets and age."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgpack

from mdp.broker.limits import BrokerOptions
from mdp.broker.requests.dead_letters import DeadLetter, DeadLetters
from mdp.broker.requests.reply_cache import EXECUTION_OVERHEAD_BYTES, KEYS_MAX, ReplyCache, digest_of, state_of_keys
from tests.scenes.builds import stands_in

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


def test_idm_04_an_answer_is_kept_for_its_time_and_not_a_moment_longer() -> None:
    results = ReplyCache(BrokerOptions(results_ms=1000))
    for key, at in ((b"a", 5.0), (b"b", 6.0)):
        results.complete(results.begin(b"echo", key, b""), b"reply", at)
    assert results.find(b"echo", b"a", 5.9995) is not None
    assert results.find(b"echo", b"a", 6.0) is None
    assert results.find(b"echo", b"b", 6.0) is not None
    assert len(results) == 1


def test_idm_04_as_many_answers_are_kept_as_are_allowed() -> None:
    results = ReplyCache(BrokerOptions(results_max=2))
    for number in range(3):
        results.complete(results.begin(b"echo", b"%d" % number, b""), b"reply", 1.0)
    assert [results.find(b"echo", b"%d" % number, 1.0) is not None for number in range(3)] == [False, True, True]
    assert results.size == 2 * (EXECUTION_OVERHEAD_BYTES + 5)


def test_idm_04_answers_have_as_many_octets_as_are_allowed() -> None:
    most = 3 * EXECUTION_OVERHEAD_BYTES
    results = ReplyCache(BrokerOptions(results_max_bytes=most))
    first = results.begin(b"echo", b"first", b"")
    results.complete(first, bytes(EXECUTION_OVERHEAD_BYTES), 1.0)
    second = results.begin(b"echo", b"second", b"")
    results.complete(second, b"", 2.0)
    assert (results.size, len(results)) == (most, 2)  # all of it
    third = results.begin(b"echo", b"third", b"")
    results.complete(third, b"", 3.0)
    assert results.find(b"echo", b"first", 3.0) is None
    assert (results.size, len(results)) == (2 * EXECUTION_OVERHEAD_BYTES, 2)
    large = results.begin(b"echo", b"large", b"")
    results.complete(large, bytes(2 * EXECUTION_OVERHEAD_BYTES + 1), 4.0)
    assert results.find(b"echo", b"large", 4.0) is None
    assert (results.size, len(results)) == (0, 0)
    alone = results.begin(b"echo", b"alone", b"")
    results.complete(alone, bytes(2 * EXECUTION_OVERHEAD_BYTES), 5.0)
    assert results.find(b"echo", b"alone", 5.0) is alone
    assert (alone.reply, alone.done_at, alone.request) == (bytes(2 * EXECUTION_OVERHEAD_BYTES), 5.0, None)


def test_idm_04_parts_are_kept_within_the_limits_or_none_of_them() -> None:
    results = ReplyCache(BrokerOptions(parts_max_bytes=10, results_max_bytes=2000))
    execution = results.begin(b"echo", b"k", b"")
    for part in (b"12345", b"67890"):
        results.add_part(execution, part)
    assert (execution.parts, execution.shared, execution.size, results.size) == ([b"12345", b"67890"], True, 10, 10)
    results.add_part(execution, b"1")
    results.add_part(execution, b"2")
    assert (execution.parts, execution.shared, execution.size, results.size) == ([], False, 0, 0)
    results.complete(execution, b"end", 1.0)
    assert (len(results), results.size) == (0, 0)
    assert results.find(b"echo", b"k", 1.0) is None
    other = results.begin(b"echo", b"other", b"")
    results.add_part(other, b"part")
    results.complete(other, bytes(2000), 1.0)
    assert (other.parts, results.size, len(results)) == ([], 0, 0)


def test_idm_04_parts_of_running_executions_push_answers_out_and_have_a_limit_together() -> None:
    results = ReplyCache(BrokerOptions(parts_max_bytes=1000, results_max_bytes=1000))
    results.complete(results.begin(b"echo", b"done", b""), b"", 1.0)
    first, second = (results.begin(b"echo", key, b"") for key in (b"1", b"2"))
    results.add_part(first, bytes(1000 - EXECUTION_OVERHEAD_BYTES))
    assert (len(results), results.size) == (1, 1000)
    results.add_part(first, b"x")
    assert (len(results), results.size) == (0, 1001 - EXECUTION_OVERHEAD_BYTES)
    results.add_part(second, bytes(EXECUTION_OVERHEAD_BYTES - 1))
    assert (second.shared, results.size) == (True, 1000)
    results.add_part(second, b"y")
    assert (second.shared, first.shared, results.size) == (False, True, 1001 - EXECUTION_OVERHEAD_BYTES)
    results.abandon(first)
    assert results.size == 0


def test_idm_02_the_parts_of_an_answer_are_kept_with_it_and_its_followers_are_not() -> None:
    results = ReplyCache(BrokerOptions())
    execution = results.begin(b"echo", b"k", b"digest")
    results.add_part(execution, b"part")
    execution.followers[object()] = None  # type: ignore[index]
    results.complete(execution, b"end", 1.0)
    assert (execution.digest, execution.parts, execution.reply, len(execution.followers)) == (b"digest", [b"part"], b"end", 0)
    assert execution.size == results.size == 4 + 3 + EXECUTION_OVERHEAD_BYTES


@stands_in
def test_an_abandoned_execution_has_no_request() -> None:
    results = ReplyCache(BrokerOptions())
    execution = results.begin(b"echo", b"k", b"")
    execution.request = object()  # type: ignore[assignment]
    results.abandon(execution)
    assert execution.request is None
    assert results.begin(b"echo", b"k", b"") is not execution


def test_idm_07_the_state_of_keys() -> None:
    results = ReplyCache(BrokerOptions(results_ms=1000))
    results.begin(b"echo", b"annruns", b"")
    results.complete(results.begin(b"echo", b"annkept", b""), b"reply", 1.0)
    question = [msgpack.packb([b"runs", b"kept", b"else"]), b"echo"]
    assert state_of_keys(question, b"ann", results, 1.5) == [b"200", b"rk-"]
    assert state_of_keys(question, b"bob", results, 1.5) == [b"200", b"---"]
    assert state_of_keys([question[0], b"other"], b"ann", results, 1.5) == [b"200", b"---"]
    assert state_of_keys(question, b"ann", results, 2.0) == [b"200", b"r--"]
    assert state_of_keys([msgpack.packb([b"x"] * KEYS_MAX), b"echo"], b"", results, 2.0) == [b"200", b"-" * KEYS_MAX]
    for body in (
        [],
        question[:1],
        [*question, b""],
        [b"\xc1", b"echo"],
        [msgpack.packb({}), b"echo"],
        [msgpack.packb(["text"]), b"echo"],
        [msgpack.packb([b"x"] * (KEYS_MAX + 1)), b"echo"],
    ):
        assert state_of_keys(body, b"", results, 2.0) == [b"400"]


def test_the_oldest_dead_letters_are_pushed_out_by_their_octets_too() -> None:
    letters = DeadLetters(BrokerOptions(letters_max=9, letters_max_bytes=100))
    assert (letters.size, letters.pushed_out, len(letters)) == (0, 0, 0)
    for number in (1, 2):
        letters.add(DeadLetter(number, b"echo", bytes(50), [], 0.0))
    assert (letters.size, letters.pushed_out, len(letters)) == (100, 0, 2)
    letters.add(DeadLetter(3, b"echo", b"x", [], 0.0, "ann"))
    assert (letters.size, letters.pushed_out, len(letters)) == (51, 1, 2)
    found = letters.get(3)
    assert found is not None
    assert (found.user, found.retried, letters.get(1)) == ("ann", False, None)
    letters.add(DeadLetter(4, b"echo", bytes(101), [], 0.0))  # alone more than all may be: the others stay
    assert ([letter.number for letter in letters], letters.size, letters.pushed_out) == ([2, 3], 51, 2)
    assert letters.take(2) is not None
    assert letters.size == 1
