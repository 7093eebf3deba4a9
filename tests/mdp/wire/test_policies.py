"""Rates and retries as workers announce them: their bounds, and what a peer may send."""

from __future__ import annotations

from typing import Any

import pytest

from mdp.wire.options import BadOptions, ReadyOptions, decode_ready_options, decode_request_options, encode_options
from mdp.wire.policies import Rate, Retry


def test_they_survive_the_wire() -> None:
    """POL-02, POL-03."""
    rate, retry = Rate(2.5, burst=10), Retry(attempts=5, base_s=1, factor=3, max_s=60, jitter=0)
    octets = encode_options({"rate": rate.entries(), "retry": retry.entries()})
    assert decode_ready_options(octets) == ReadyOptions(rate=rate, retry=retry)
    assert decode_ready_options(encode_options({"credit": 1})) == ReadyOptions()


def test_priorities_have_names() -> None:
    """POL-01."""
    found = [decode_request_options(encode_options({"priority": name})).priority for name in ("high", "normal", "low", None)]
    assert found == [1, 0, -1, 0]


@pytest.mark.parametrize("priority", ["", "urgent", 1, True, b"high", ["high"]])
def test_other_priorities_are_refused(priority: Any) -> None:
    with pytest.raises(BadOptions) as caught:
        decode_request_options(encode_options({"priority": priority}))
    assert caught.value.field == "priority"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", 1),
        ("rate", {}),
        ("rate", {"per_s": 0}),
        ("rate", {"per_s": -1.0}),
        ("rate", {"per_s": float("nan")}),
        ("rate", {"per_s": float("inf")}),
        ("rate", {"per_s": "1"}),
        ("rate", {"per_s": True}),
        ("rate", {"per_s": 1.0, "burst": 0}),
        ("rate", {"per_s": 1.0, "burst": 1.5}),
        ("rate", {"per_s": 1.0, "burst": 10**9}),
        ("retry", []),
        ("retry", {"attempts": 1}),
        ("retry", {"attempts": 101}),
        ("retry", {"attempts": True}),
        ("retry", {"base_s": -1}),
        ("retry", {"base_s": 31.0}),
        ("retry", {"base_s": float("nan")}),
        ("retry", {"max_s": float("inf")}),
        ("retry", {"factor": 0.5}),
        ("retry", {"factor": 101}),
        ("retry", {"jitter": 1.5}),
        ("retry", {"jitter": None}),
    ],
)
def test_wrong_policies_of_a_peer_name_the_entry(field: str, value: Any) -> None:
    with pytest.raises(BadOptions) as caught:
        decode_ready_options(encode_options({field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("make", [lambda: Rate(0), lambda: Rate(1, burst=0), lambda: Retry(attempts=1), lambda: Retry(base_s=2, max_s=1)])
def test_wrong_policies_of_a_program_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        make()


def test_delays_grow_to_the_longest_with_jitter() -> None:
    retry = Retry(attempts=9, base_s=1, factor=3, max_s=20, jitter=0)
    assert [retry.delay_s(done, 0.5) for done in range(1, 6)] == [1, 3, 9, 20, 20]
    half = Retry(base_s=8, jitter=0.5)
    assert (half.delay_s(1, 0.0), half.delay_s(1, 0.5), half.delay_s(1, 1.0)) == (4, 6, 8)
