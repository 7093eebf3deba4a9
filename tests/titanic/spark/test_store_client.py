"""Conversation with a store about a batch, without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgpack
import pytest

from titanic.spark import store_client
from titanic.spark.store_client import BatchRefused, commit

if TYPE_CHECKING:
    from mdp.client.sync import SyncClient

FULL = [b"500", b"store is full: bytes_max (90 of 100 in use, and a batch needs 20 more)"]
DONE = [b"200", msgpack.packb({"rows": 3, "refused": 0, "again": False, "closed": False})]


class Answers:
    """A store that gives these replies."""

    def __init__(self, *replies: list[bytes]) -> None:
        self.replies = list(replies)

    def request(self, *_: Any, **__: Any) -> list[bytes]:
        return self.replies.pop(0)


def test_a_commit_is_repeated_while_the_store_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_FULL_S", 0.0)
    answers = Answers(FULL, FULL, DONE)
    assert commit(cast("SyncClient", answers), "job", [("job/0", 1)])["rows"] == 3
    assert not answers.replies


@pytest.mark.parametrize("reply", [FULL, [b"500", b"TOO_LARGE: 3 rows"]])
def test_a_commit_that_ends_says_what_the_store_said(reply: list[bytes]) -> None:
    answers = Answers(reply)
    with pytest.raises(BatchRefused, match=r"90 of 100|3 rows"):
        commit(cast("SyncClient", answers), "job", [("job/0", 1)], timeout_s=-1.0)
