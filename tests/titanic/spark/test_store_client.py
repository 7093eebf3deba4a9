"""Conversation with a store about a batch, without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgpack
import pytest

from mdp.client.client import Outcome
from mdp.errors import RequestError, Timeout
from titanic.spark import store_client
from titanic.spark.store_client import BatchRefused, commit, fetch_all

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Outcomes:
    """A store of whose requests these are the ends."""

    def __init__(self, *ends: list[bytes] | RequestError) -> None:
        self.ends = ends

    def map(self, service: bytes, bodies: Iterable[object], **options: Any) -> list[Outcome]:
        outcomes = []
        for number, (_, end) in enumerate(zip(bodies, self.ends, strict=True)):
            error = end if isinstance(end, RequestError) else None
            outcomes.append(Outcome(number, None if isinstance(end, RequestError) else end, error, 1, 0.0))
        return outcomes


def fetched(*ends: list[bytes] | RequestError) -> list[tuple[str, str | None]]:
    uuids = [bytes([number + 1]) * 16 for number in range(len(ends))]
    return [(answer.status, answer.error) for answer in fetch_all(cast("SyncClient", Outcomes(*ends)), uuids, 16)]


def test_what_a_request_has_come_to_is_the_status_of_its_row() -> None:
    dead = b"DEAD_LETTER after 5 attempts: no"
    assert fetched([b"200", b"x"], [b"300"], [b"400"], [b"500", dead], [b"500", b"EXPIRED"], [b"500", b"DAMAGED"]) == [
        ("OK", None),
        ("PENDING", None),
        ("CLOSED", None),
        ("DEAD_LETTER", dead.decode()),
        ("EXPIRED", "EXPIRED"),
        ("DAMAGED", "DAMAGED"),
    ]


@pytest.mark.parametrize("end", [Timeout("titanic.reply"), [b"500", b"the journal is closed"]])
def test_a_store_that_cannot_tell_fails_the_read(end: list[bytes] | RequestError) -> None:
    """A stream continues after the rows that it got, and may close them: the reply was lost."""
    with pytest.raises((RequestError, BatchRefused), match=r"titanic.reply|the journal is closed"):
        fetched([b"200", b"x"], end)
