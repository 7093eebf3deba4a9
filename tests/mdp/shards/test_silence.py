"""mdp.shards.silence: shards that run and send nothing."""

from __future__ import annotations

from mdp.shards.silence import SILENT_BEATS, Silence


def test_a_shard_that_sends_nothing_for_some_beats_is_silent_once_and_until_it_is_heard() -> None:
    silence = Silence()
    for _ in range(SILENT_BEATS - 1):
        assert silence.beat([0, 1]) == []
        assert not silence.heard(0)
    assert silence.beat([0, 1]) == [1]
    assert silence.beat([0, 1]) == []
    assert silence.silent == {1}
    assert silence.heard(1)
    assert silence.silent == set()
    assert silence.beat([0, 1]) == []


def test_a_shard_that_does_not_serve_yet_is_not_silent() -> None:
    silence = Silence()
    assert [silence.beat([]) for _ in range(2 * SILENT_BEATS)] == [[]] * 2 * SILENT_BEATS
