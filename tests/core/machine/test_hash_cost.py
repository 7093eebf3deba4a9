"""Sets and dicts that a peer has made slow are refused before they are made, others are not (fault X2)."""

from __future__ import annotations

import random
from bisect import bisect_left
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from core.machine import hash_cost
from core.machine.hash_cost import ALIKE_MAX, ELEMENT_STEPS, FAR_STEPS, FEW, FEW_HASHES, KEY_STEPS, LONG, TooCostly
from tests.scenes import meeting_hashes
from tests.scenes.builds import replaces_names

if TYPE_CHECKING:
    from collections.abc import Callable

P = 2**61 - 1
meeting = cache(meeting_hashes.meeting)
# As on a machine on which all of them are slow: the steps are counted.
check_set, check_keys = partial(hash_cost.check_set, quick_ns=0), partial(hash_cost.check_keys, quick_ns=0)
CHECKS = [check_set, check_keys]
DRAW = random.Random(7)
COUNT = 3_000
HONEST: dict[str, list[Any]] = {
    "numbers in order": list(range(COUNT)),
    "numbers against the order": list(range(COUNT, 0, -1)),
    "numbers below nothing": list(range(-COUNT, COUNT)),
    "random numbers": [DRAW.getrandbits(63) for _ in range(COUNT)],
    "milliseconds": [1_700_000_000_000 + 250 * number for number in range(COUNT)],
    "multiples of 2**22": [number << 22 | DRAW.getrandbits(3) for number in range(COUNT)],
    "multiples of 2**32": [number << 32 for number in range(COUNT)],
    "multiples of 2**48": [number << 48 for number in range(COUNT)],
    "multiples of a million": [number * 10**6 for number in range(COUNT)],
    "floats": [DRAW.random() for _ in range(COUNT)],
    "halves": [number / 2 for number in range(COUNT)],
    "prices": [round(number * 0.01, 2) for number in range(COUNT)],
    "UUIDs": [UUID(int=DRAW.getrandbits(128)) for _ in range(COUNT)],
    "decimals": [Decimal(number) / 100 for number in range(COUNT)],
    "pairs": [(number // 60, number % 60) for number in range(COUNT)],
    "texts": list(map(str, range(COUNT))),
    "texts and numbers": [*range(COUNT), *map(str, range(COUNT))],
    "one number again and again": [7] * COUNT,
    "equal numbers of other types": [kind(number) for number in range(100) for kind in (int, float, Decimal, Fraction)] * 5,
}
MAKERS: dict[str, Callable[[int], Any]] = {
    "UUIDs": lambda number: UUID(int=number),
    "decimals": Decimal,
    "pairs": lambda number: (number, "x"),
    "numbers": int,
    "fractions": Fraction,
}


def is_refused(check: Callable[[list[Any]], None], values: list[Any]) -> bool:
    try:
        check(values)
    except TooCostly:
        return True
    return False


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", HONEST)
def test_what_programs_have_in_sets_and_as_keys_is_not_refused(check: Callable[[list[Any]], None], name: str) -> None:
    values = HONEST[name]
    for count in (0, 1, FEW, 100, 700, COUNT, len(values)):
        assert not is_refused(check, values[:count])
    mixed = values[:]
    random.Random(1).shuffle(mixed)
    assert not is_refused(check, mixed)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MAKERS)
def test_many_values_of_one_hash_are_refused(check: Callable[[list[Any]], None], name: str) -> None:
    make = MAKERS[name]
    alike = [make(5 + P * times) for times in range(ALIKE_MAX + 1)]
    assert len({hash(value) for value in alike}) == 1
    others = [make(number) for number in range(100, 100 + FEW)]
    check([*alike[:ALIKE_MAX], *alike[:ALIKE_MAX], *others])
    for order in ([*others, *alike], [*alike, *others], [*alike[:4], *others, *alike[4:]]):
        with pytest.raises(TooCostly, match="chosen to be slow"):
            check(order)


def test_so_few_values_are_not_looked_at() -> None:
    alike = [UUID(int=5 + P * times) for times in range(FEW + 1)]
    for check in CHECKS:
        check(alike[:FEW])
        check([[]] * FEW)
        with pytest.raises(TooCostly):
            check(alike)
        with pytest.raises(TypeError):
            check([[]] * (FEW + 1))


@pytest.mark.parametrize(
    ("check", "is_set", "bits", "count"),
    [(check_keys, False, 12, 2_700), (check_keys, False, 13, 5_400), (check_set, True, 13, 4_900)],
)
def test_different_hashes_whose_ways_meet_are_refused(check: Callable[[list[int]], None], is_set: bool, bits: int, count: int) -> None:
    values = meeting(bits, count, is_set)
    assert len(set(map(hash, values))) == count
    check(values[: count // 2])  # those that fill the way
    with pytest.raises(TooCostly):
        check(values)
    with pytest.raises(TooCostly):
        check([*sorted(values), values[0]])  # neither their order nor one that comes twice makes them harmless
    with pytest.raises(TooCostly):
        check(sorted(values))
    with pytest.raises(TooCostly):
        check([*[values[0]] * (2 * count), *values])  # one that comes again and again makes no table larger
    later = [number << 30 for number in range(1, 4 * count)]
    with pytest.raises(TooCostly):  # the table grows afterwards: the time was lost before
        check([*values, *later])


def test_of_ways_that_meet_one_is_free() -> None:
    values = meeting(12, 2_700)
    half = values[: 2_700 // 2]
    check_keys([*half, values[len(half)]])
    with pytest.raises(TooCostly):
        check_keys([*half, *values[len(half) : len(half) + 200]])


@pytest.mark.parametrize(("check", "is_set", "bits", "count"), [(check_keys, False, 12, 2_700), (check_set, True, 13, 4_900)])
def test_a_value_that_comes_again_goes_its_way_again(check: Callable[[list[int]], None], is_set: bool, bits: int, count: int) -> None:
    values = meeting(bits, count, is_set)
    fill, some = values[: count // 2], values[-8:]
    check([*fill, some[0]])
    check([*fill, *fill, *fill])  # their ways are short
    with pytest.raises(TooCostly):
        check([*fill, *some * (count // 8)])
    with pytest.raises(TooCostly):  # it grows afterwards: the time was lost before
        check([*fill, *some * (count // 8), *range(1 << 40, (1 << 40) + count)])


def test_few_hashes_meet_as_they_like() -> None:
    """In a dict so few may take more steps than are allowed; they cost little all the same."""
    for check in CHECKS:
        check([number << 55 for number in range(FEW_HASHES)])
    values = meeting_hashes.meeting_few(FEW_HASHES + 1)
    assert counted(values[:FEW_HASHES], False)[0] > 0
    check_keys(values[:FEW_HASHES])
    with pytest.raises(TooCostly):
        check_keys(values)


def test_in_a_set_so_few_hashes_cannot_take_more_steps_than_are_allowed() -> None:
    """Bits of a hash choose 14 steps; of the circle behind them ten slots a step have to be taken."""
    steps = 0
    for slots, count in ((8, 5), (32, 19), (128, FEW_HASHES)):
        longest = [0] * (slots + 1)  # steps of the circle, by slots taken
        for begin in range(slots):
            slot, taken = begin, set[int]()
            for step in range(1, slots + 1):
                taken |= set(range(slot, slot + 10) if slot + 10 <= slots else [slot])
                longest[len(taken)] = max(longest[len(taken)], step)
                slot = (5 * slot + 1) % slots
        assert max(longest[:FEW_HASHES]) + 14 < LONG
        steps += sum(14 + max(longest[: taken + 1]) for taken in range(1, count))
    assert steps < ELEMENT_STEPS * FEW_HASHES


@pytest.mark.parametrize("check", [hash_cost.check_set, hash_cost.check_keys], ids=["set", "dict"])
@pytest.mark.parametrize("name", ["multiples of 2**32", "multiples of 2**48", "random numbers", "one number again and again", "halves"])
@replaces_names
def test_what_is_quick_is_not_counted(monkeypatch: pytest.MonkeyPatch, check: Callable[..., None], name: str) -> None:
    """Counting takes 50 times as long as the set itself."""
    monkeypatch.setattr(hash_cost, "_fill", None)
    check(HONEST[name], quick_ns=10**9)
    with pytest.raises(TypeError):
        check(HONEST[name], quick_ns=0)


@pytest.mark.parametrize("check", [hash_cost.check_set, hash_cost.check_keys], ids=["set", "dict"])
def test_values_of_one_hash_are_refused_however_quick(check: Callable[..., None]) -> None:
    values = [*(Decimal(number) for number in range(500)), *(Decimal(5 + P * times) for times in range(ALIKE_MAX + 1))]
    with pytest.raises(TooCostly):
        check(values, quick_ns=10**9)
    with pytest.raises(TooCostly):
        check(values, quick_ns=0)


@pytest.mark.parametrize("count", [FEW + 1, FEW_HASHES, FEW_HASHES + 1, 700, COUNT])
@pytest.mark.parametrize("name", ["numbers in order", "random numbers", "multiples of 2**48", "texts and numbers", "UUIDs"])
def test_a_dict_of_pairs_is_made(name: str, count: int) -> None:
    keys = [*HONEST[name][:count], *HONEST[name][: count // 2]]
    pairs = [(key, number) for number, key in enumerate(keys)]
    made = hash_cost.make_dict(pairs, keys)
    assert made == dict(pairs)
    assert list(made) == list(dict(pairs))


@pytest.mark.parametrize("name", ["UUIDs", "decimals"])
def test_no_dict_is_made_of_many_keys_of_one_hash(name: str) -> None:
    keys = [MAKERS[name](5 + P * times) for times in range(ALIKE_MAX + 1)]
    with pytest.raises(TooCostly):
        hash_cost.make_dict(list(zip(keys, keys, strict=True)), keys)


@replaces_names
def test_integers_that_a_dict_or_set_is_slow_with_are_refused_however_many_come_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which all of them are slow."""
    monkeypatch.setattr(hash_cost, "QUICK_NS", 0)
    for keys in (meeting(12, 2_700), [*range(1_000), *meeting(12, 2_700)]):
        with pytest.raises(TooCostly):
            hash_cost.make_dict([(key, 1) for key in keys], keys)
    values = meeting(13, 4_900, True)
    with pytest.raises(TooCostly):
        hash_cost.check_integers(values)
    hash_cost.check_integers(values[:FEW_HASHES])
    for name in ("multiples of 2**48", "random numbers", "one number again and again"):
        hash_cost.check_integers(HONEST[name])
        assert hash_cost.make_dict([(key, 1) for key in HONEST[name]], HONEST[name]) == dict.fromkeys(HONEST[name], 1)


@replaces_names
def test_what_is_compared_in_c_and_quick_is_looked_at_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [Decimal(number) / 8 for number in range(500)]
    monkeypatch.setattr(hash_cost, "_refuse_alike", None)
    hash_cost.check_set([*values, values[0]], quick_ns=10**9, are_compared_in_c=True)
    for quick_ns, are_compared_in_c in ((10**9, False), (0, True)):
        with pytest.raises(TypeError):
            hash_cost.check_set([*values, values[0]], quick_ns, are_compared_in_c)


@pytest.mark.parametrize("are_compared_in_c", [True, False])
def test_decimals_of_one_hash_are_refused_as_quickly(are_compared_in_c: bool) -> None:
    alike = [Decimal(5 + P * times) for times in range(2_000)]
    with pytest.raises(TooCostly):
        hash_cost.check_set(alike, are_compared_in_c=are_compared_in_c)
    with pytest.raises(TooCostly):
        hash_cost.check_set(alike[: ALIKE_MAX + 1], are_compared_in_c=are_compared_in_c)


@replaces_names
def test_texts_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can know their hashes."""
    monkeypatch.setattr(hash_cost, "_fill", None)
    for check in CHECKS:
        check([str(number) for number in range(100)])
        check([b"%d" % number for number in range(100)])
        check([*map(str, range(50)), *(b"%d" % number for number in range(50))])
        with pytest.raises(TypeError):
            check([0.5 * number for number in range(100)])


def test_numbers_that_follow_one_another_are_refused_in_an_order_that_makes_them_slow() -> None:
    values = meeting_hashes.following(11, 4_000)
    assert sorted(values) == [*range(4_000)]
    check_keys(sorted(values))
    with pytest.raises(TooCostly):
        check_keys(values)


def counted(hashes: list[int], is_set: bool) -> tuple[int, int, int]:
    """Count steps beyond what is allowed, long ways, and how far these go: all tables in turn, by slot."""
    slots, steps, long_ways, far = 8, 0, 0, 0
    while True:
        table: set[int] = set()
        taken = hashes[: 3 * (slots - 1) // 5 + 1 if is_set else 2 * slots // 3 + 1]
        for number in taken:
            rest = number % 2**64
            slot, way = rest % slots, 0
            while True:
                near = range(slot, slot + 10) if is_set and slot + 10 <= slots else [slot]
                free = [one for one in near if one not in table]
                if free:
                    table.add(free[0])
                    break
                way, rest = way + 1, rest // 32
                slot = (5 * slot + rest + 1) % slots
            steps, long_ways, far = steps + min(way, LONG + 1), long_ways + (way > LONG), far + max(0, way - LONG)
        if len(taken) == len(hashes):
            return steps - (ELEMENT_STEPS if is_set else KEY_STEPS) * len(hashes), long_ways, far
        slots *= 2
        while is_set and slots <= 4 * len(taken):
            slots *= 2


def test_a_large_set_grows_until_all_are_in_it() -> None:
    assert not is_refused(check_set, [3 * number for number in range(80_000)])


def costs_too_much(hashes: list[int], is_set: bool) -> bool:
    """Return whether it is too many steps or long ways, or whether these go too far."""
    beyond, long_ways, far = counted(hashes, is_set)
    return beyond > 0 or long_ways > 8 + len(hashes) // 128 or far > FAR_STEPS * len(hashes)


@pytest.mark.parametrize(("check", "is_set"), [(check_keys, False), (check_set, True)], ids=["dict", "set"])
@pytest.mark.parametrize("kind", ["long ways", "many steps"])
def test_the_limit_is_where_the_module_says(check: Callable[[list[int]], None], is_set: bool, kind: str) -> None:
    """Values that meet, more and more of them among others, until they are refused."""
    bits, count = (13, 4_900) if is_set else (11, 1_300)
    values = meeting(bits, count, is_set)
    half = count // 2
    begin, end = (half - 50, half + 150) if kind == "long ways" else (half, count)
    if kind == "many steps":  # ways that are not long: the circle is broken off
        values = [*values[: 700 if is_set else 100], *values[half:]]
        begin, end = 700 if is_set else 100, len(values)

    def refused(most: int) -> bool:
        try:
            check(values[:most])
        except TooCostly:
            return True
        return False

    assert (refused(begin), refused(end)) == (False, True)
    edge = bisect_left(range(begin, end), True, key=refused) + begin
    assert (costs_too_much(values[: edge - 1], is_set), costs_too_much(values[:edge], is_set)) == (False, True)
    assert (refused(edge - 1), refused(edge)) == (False, True)


def test_a_hundredth_of_the_numbers_cannot_each_go_through_half_the_table() -> None:
    """Their steps grew with the square of the numbers: 10 times an honest message of 1 MiB."""
    count = 10_922
    values = meeting_hashes.few_far(14, count, count // 128)
    assert 0 < counted(values[:-84], False)[1] <= 8
    check_keys(values[:-84])
    with pytest.raises(TooCostly):
        check_keys(values)


def in_an_order(values: list[int], number: int) -> list[int]:
    """Return values in one of many orders."""
    return sorted(values, key=lambda value: value * (2 * number + 3) * 0x9E3779B97F4A7C15 % 2**64)


@pytest.mark.parametrize("order", [73, 108, 114, 241, 270, 374, 226, 240, 274, 340, 379])
def test_one_step_more_than_a_dict_may_take_is_too_many(order: int) -> None:
    values = meeting(8, 170)
    values = [*in_an_order(values[:20], order), *in_an_order(values[85:], order)]
    for count in range(FEW_HASHES + 1, 99):
        beyond, long_ways, _ = counted(values[:count], False)
        if beyond in (0, 1):
            assert long_ways == 0
            break
    else:
        pytest.fail("no number of them takes as many steps as are allowed")
    if beyond == 0:
        check_keys(values[:count])
    else:
        with pytest.raises(TooCostly):
            check_keys(values[:count])


@pytest.mark.parametrize(
    ("order", "count", "then", "beyond"),
    [(2, 970, 1, 0), (6, 961, 3, 0), (6, 961, 7, 0), (2, 970, 15, 1), (2, 970, 18, 1), (21, 956, 2, 1)],
)
def test_one_step_more_than_a_set_may_take_is_too_many(order: int, count: int, then: int, beyond: int) -> None:
    values = meeting(11, 1_400, True)
    values = [*in_an_order(values[:300], order), *in_an_order(values[700:], order)]
    values = [*values[:count], values[count + then]]
    assert counted(values, True)[0] == beyond
    if beyond:
        with pytest.raises(TooCostly):
            check_set(values)
    else:
        check_set(values)


def way_through(slots: int, hashed: int, steps: int) -> list[int]:
    """Return the slots that a number of a dict comes to, of a table so large."""
    way, rest = [hashed % slots], hashed
    for _ in range(steps):
        rest //= 32
        way.append((5 * way[-1] + rest + 1) % slots)
    return way


@pytest.mark.parametrize(("steps", "refused"), [(LONG, False), (LONG + 1, True)])
@pytest.mark.parametrize("hashed", [1_024, 1_024 + 7, 5_000_000])
def test_a_way_is_long_from_one_step_more_on(hashed: int, steps: int, refused: bool) -> None:
    """A number whose way goes through so many taken slots comes again and again.

    One of them is as far from the least number as the table is large.
    """
    *taken, free = way_through(1_024, hashed, steps)
    assert free not in taken
    others = [slot for slot in range(1_024) if slot not in {*taken, free}]
    values = [*dict.fromkeys([0, *taken]), *others[: 400 - len({0, *taken})]]  # a table of 1,024 slots has 342 to 683 numbers
    check_keys(values)
    if refused:
        with pytest.raises(TooCostly):
            check_keys([*values, *[hashed] * 20])
    else:
        check_keys([*values, *[hashed] * 20])


@pytest.mark.parametrize(("put", "most"), [(hash_cost._put_into_set, 153), (hash_cost._put_into_dict, 171)], ids=["set", "dict"])
def test_a_value_that_comes_again_has_one_slot(put: Callable[[list[int | None], list[int], Any], int], most: int) -> None:
    for seed in range(50):
        draw = random.Random(seed)
        few = [draw.choice([0, 1, 2, 250, 255]) | draw.getrandbits(20) << 8 for _ in range(most)]
        hashes = [draw.choice(few) for _ in range(600)]
        table: list[int | None] = [None] * 256
        assert put(table, hashes, hash_cost._Steps(100_000, ELEMENT_STEPS)) == 600 - len(set(hashes))
        assert sorted(one for one in table if one is not None) == sorted(set(hashes))


@pytest.mark.parametrize(("check", "bits", "count", "is_set"), [(check_keys, 12, 2_700, False), (check_set, 13, 4_900, True)])
def test_the_order_of_their_hashes_makes_meeting_ones_no_better(
    check: Callable[[list[int]], None], bits: int, count: int, is_set: bool
) -> None:
    ordered = sorted(meeting(bits, count, is_set), key=hash)
    for values in (ordered, [hash(ordered[0]) - 1, *ordered], [-(2**60), *map(hash, ordered)]):
        with pytest.raises(TooCostly):
            check(values)
