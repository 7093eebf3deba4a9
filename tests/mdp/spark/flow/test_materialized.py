"""Rows that are asked about once; with Spark in `test_request_columns.py`."""

from __future__ import annotations

from typing import Any

import pytest

from mdp.spark.flow.materialized import materialized


class Frame:
    """A frame that notes what is done with it."""

    def __init__(self, streaming: bool = False) -> None:
        self.isStreaming = streaming
        self.kept = False

    def persist(self) -> Frame:
        self.kept = True
        return self


def test_rows_stay_as_they_are_or_are_kept() -> None:
    frame: Any = Frame()
    assert materialized(frame, None) is frame
    assert not frame.kept
    assert materialized(frame, "cache") is frame
    assert frame.kept


def test_a_stream_is_refused() -> None:
    stream: Any = Frame(streaming=True)
    assert materialized(stream, None) is stream
    with pytest.raises(ValueError, match="a stream has no end"):
        materialized(stream, "cache")
