"""Conversation of the data source with a store: the verbs of `titanic.batch`, and replies fetched in bulk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgpack

from core.machine.bounded_msgpack import unpack
from mdp.spark.rows.reply_columns import OK, Answer
from titanic.errors import TitanicError
from titanic.wire.batch_frames import DIGEST, NO_REQUEST
from titanic.wire.tsp import BATCH, CLOSE, REPLY, WAIT, format_uuid, parse_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mdp.client.client import Outcome
    from mdp.client.sync import SyncClient

# Time for a commit that is still in progress; a million rows take a minute.
COMMIT_TIMEOUT_S = 600.0
_POLL_S = 0.1
_FULL_S = 1.0  # the store reads the whole batch each time
# Longest wait in one request, below the store's own limit of a minute.
_WAIT_SLICE_S = 20.0
_STATES = {300: "PENDING", 400: "CLOSED"}
# First words of a reason that a store gives for a request that has ended: "DEAD_LETTER after 5 attempts: …".
_ENDS = ("DEAD_LETTER", "EXPIRED", "DAMAGED")
_REPLY_OF = "reply of a request"
_REFUSED = Answer(None, "REFUSED", "the store refused the row: its key was used for another request", 1, 0.0)


class BatchRefused(TitanicError):
    """The store refused a request about a batch."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


def ok_frames(what: str, reply: Sequence[bytes]) -> list[bytes]:
    """Return the frames after the status `[200]`; raises BatchRefused for another status."""
    if parse_status(reply[0]) == 200:
        return list(reply[1:])
    reason = reply[1].decode(errors="replace") if len(reply) > 1 else reply[0].decode(errors="replace")
    raise BatchRefused(what, reason)


def commit(client: SyncClient, batch: str, stages: Sequence[tuple[str, int]], timeout_s: float = COMMIT_TIMEOUT_S) -> dict[str, Any]:
    """Commit what was staged; return the store's summary: rows, refused, again, closed, and the digest of what was committed first.

    While the store has no space for all of the rows, none of them is stored, and the commit is repeated.

    Raises BatchRefused if staged rows are gone or the store does not finish, mdp.RequestError if it cannot be reached.
    """
    packed = msgpack.packb([[name.encode(), count] for name, count in stages])
    give_up_at = time.monotonic() + timeout_s
    while True:
        reply = client.request(BATCH, b"commit", batch.encode(), packed, wait=True)
        late = time.monotonic() > give_up_at
        full = parse_status(reply[0]) == 500 and reply[-1].startswith(b"store is full")  # none of its rows is stored
        if parse_status(reply[0]) != 300 and (late or not full):
            summary: dict[str, Any] = unpack(ok_frames(f"commit of batch {batch}", reply)[0])
            return summary
        if late:
            raise BatchRefused(f"commit of batch {batch}", f"not done after {timeout_s:g} s; the store continues")
        time.sleep(_FULL_S if full else _POLL_S)


def page(client: SyncClient, *asked: bytes) -> tuple[int, list[bytes], list[bytes]]:
    """Ask for requests, by `rows` or `ends`; return (total number, UUIDs of this page, their keys)."""
    total, uuids, keys = ok_frames(b" ".join(asked[:2]).decode(errors="replace"), client.request(BATCH, *asked, wait=True))
    return int(total), [uuids[at : at + 16] for at in range(0, len(uuids), 16)], unpack(keys)


def replied(what: str, outcome: Outcome) -> list[bytes]:
    """Return the frames of an answer of the store; raises mdp.RequestError, BatchRefused without one."""
    if outcome.reply is None:
        raise outcome.error if outcome.error is not None else BatchRefused(what, "no answer")
    return outcome.reply


def fetch_all(client: SyncClient, uuids: Sequence[bytes], window: int, wait_s: float = 0.0) -> list[Answer]:
    """Fetch replies, waiting for missing ones up to `wait_s` seconds in total.

    Raises mdp.RequestError, BatchRefused if the store cannot tell: a row without its reply would be taken for read.
    """
    answers = dict(zip(uuids, _fetch(client, uuids, window, 0.0), strict=True))
    give_up_at = time.monotonic() + wait_s
    while (left_s := give_up_at - time.monotonic()) > 0:
        pending = [uuid for uuid, answer in answers.items() if answer.status == "PENDING"]
        if not pending:
            break
        answers.update(zip(pending, _fetch(client, pending, window, min(left_s, _WAIT_SLICE_S)), strict=True))
    return [answers[uuid] for uuid in uuids]


def _fetch(client: SyncClient, uuids: Sequence[bytes], window: int, wait_s: float) -> list[Answer]:
    answers: list[Answer] = []
    if wait_s:
        wait_ms = b"%d" % max(1, round(wait_s * 1000))
        timeout_s = wait_s + _WAIT_SLICE_S
        asked = ((format_uuid(uuid), wait_ms) for uuid in uuids)
        outcomes = client.map(WAIT, asked, window=window, timeout=timeout_s, wait=True)
    else:
        outcomes = client.map(REPLY, (format_uuid(uuid) for uuid in uuids), window=window, wait=True)
    for uuid, outcome in zip(uuids, outcomes, strict=True):
        answers.append(_REFUSED if uuid == NO_REQUEST else _answer(replied(_REPLY_OF, outcome)))
    return answers


def _answer(frames: Sequence[bytes]) -> Answer:
    code = parse_status(frames[0])
    if code == 200:
        return Answer(list(frames[1:]), OK, None, 1, 0.0)
    if code in _STATES:
        return Answer(None, _STATES[code], None, 1, 0.0)
    reason = frames[1].decode(errors="replace") if len(frames) > 1 else "the store's answer has no status"
    state = reason.split(" ", 1)[0]
    if state not in _ENDS:
        raise BatchRefused(_REPLY_OF, reason)
    return Answer(None, state, reason, 1, 0.0)


def close_all(client: SyncClient, uuids: Iterable[bytes], window: int) -> None:
    """Have requests forgotten; one that cannot be closed now is left for the next batch."""
    for _ in client.map(CLOSE, (format_uuid(uuid) for uuid in uuids), window=window, wait=True):
        continue


def digest_stage(digest: bytes) -> str:
    """Return the stage of a commit that names the digest of its rows."""
    return (DIGEST + digest).decode()


def stage_of(batch: str, partition: int) -> str:
    """Return a name that no other attempt has: each driver numbers its attempts from 0."""
    return f"{batch}/{partition}/{uuid4().hex}"
