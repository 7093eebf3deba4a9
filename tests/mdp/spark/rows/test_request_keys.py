"""Keys of rows: equal for every run of a task, different for different requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mdp.spark.rows.request_keys import PartitionKeys

bodies = st.lists(st.binary(max_size=20), min_size=1, max_size=4)


def keys(job: str, partition: int, rows: list[list[bytes]]) -> list[str]:
    source = PartitionKeys(job, partition)
    return [source.next(row) for row in rows]


@given(st.lists(bodies, max_size=30), st.text(max_size=10), st.integers(0, 10_000))
def test_a_task_that_is_run_again_repeats_its_keys(rows: list[list[bytes]], job: str, partition: int) -> None:
    assert keys(job, partition, rows) == keys(job, partition, rows)


@given(st.lists(bodies, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_change_the_set_of_keys(rows: list[list[bytes]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(keys("job", 0, rows)) == sorted(keys("job", 0, shuffled))
    by_payload = {tuple(row): key for row, key in zip(rows, keys("job", 0, rows), strict=True) if rows.count(row) == 1}
    again = {tuple(row): key for row, key in zip(shuffled, keys("job", 0, shuffled), strict=True) if rows.count(row) == 1}
    assert by_payload == again


@given(st.lists(bodies, max_size=30))
def test_every_row_has_a_key_of_its_own_even_when_it_asks_the_same(rows: list[list[bytes]]) -> None:
    made = keys("job", 0, rows + rows)
    assert len(set(made)) == len(made)


def test_job_and_partition_are_part_of_the_key() -> None:
    row = [[b"body"]]
    assert len({keys("a", 0, row)[0], keys("b", 0, row)[0], keys("a", 1, row)[0]}) == 3


def test_keys_are_what_they_were_in_the_last_version() -> None:
    """A stream restarted after an upgrade must find its requests again."""
    assert keys("job", 3, [[b"x", b""], [b"x", b""]]) == [
        "8e1d50eae204b17903e26880f5d6f017",
        "2dc096b4120632157676b2b951f61487",
    ]


def test_the_borders_between_frames_count() -> None:
    bodies = ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [b"", b"abc"], [b"1:a"], [b"a"])
    assert len({keys("job", 0, [frames])[0] for frames in bodies}) == len(bodies)
