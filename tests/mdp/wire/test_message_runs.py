"""Runs of messages as columns: nothing is lost or invented, and each row means what the events say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.zmtp.frames import decode_frames, encode_message
from mdp.broker.requests.records import Service
from mdp.wire.commands import (
    DIALECTS,
    client_heartbeat,
    client_request,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_ready,
)
from mdp.wire.events import Final, Partial, Request, parse_at_broker
from mdp.wire.message_runs import AT_BROKER, NO_OPTIONS, Layout, Run, Verb, cut
from tests.scenes.mdp_dispatcher import batch, number
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from core.zmtp.scan import Batch
    from mdp.wire.commands import Dialect

BODIES = st.lists(st.one_of(st.binary(max_size=3), st.just(b"x" * 300)), min_size=1, max_size=3)
IDS = st.integers(0, 5).map(number)
NAMES = st.sampled_from([b"echo", b"other", b"e"])
DIALECT = st.sampled_from(DIALECTS)
OPTIONS = st.sampled_from([b"", b"", b"\x81\xa3key\xc4\x01k", b"\x80" * 300])
UNKNOWN = [
    client_heartbeat(),
    client_cancel(number(1)),
    worker_heartbeat("0.1"),
    worker_heartbeat("0.2"),
    worker_ready("0.3", b"echo"),
    [b"MDPC03\x01" + number(1)],
    [b"MDPC03\x01" + number(1), b"echo"],
    [b"", b"MDPC01"],
    [b"", b"MDPC01", b"echo"],
    [b"MDPC02", b"\x01"],
]
MESSAGES = st.one_of(
    st.builds(lambda *made: client_request(*made[:3], id=made[3], options=made[4]), DIALECT, NAMES, BODIES, IDS, OPTIONS),
    st.builds(worker_final, DIALECT, IDS, BODIES),
    st.builds(worker_partial, st.sampled_from(["0.2", "0.3"]), IDS, BODIES),
    st.builds(worker_error, IDS, st.just("CODE"), st.just("text")),
    st.sampled_from(UNKNOWN),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
)


def messages_of(run: Run, whole: Batch) -> list[bytes]:
    """Return the encoded messages of a run, put together again."""
    layout = run.layout
    if layout is None:
        return [whole.octets[whole.starts[run.first] : whole.ends[run.first]]]
    count = len(run.tails)
    names = [name[: -len(NO_OPTIONS)] if layout.options else name for name in run.names] or [b""] * count
    return [layout.head + key + name + tail for key, name, tail in zip(run.keys or [b""] * count, names, run.tails, strict=True)]


@given(st.lists(MESSAGES, max_size=12))
def test_runs_are_the_messages_in_their_order(messages: list[list[bytes]]) -> None:
    whole = batch(b"peer", *messages)
    runs = cut(whole, AT_BROKER)
    assert sum(max(1, len(run.tails)) for run in runs) == len(messages)
    assert [run.first for run in runs] == [sum(max(1, len(run.tails)) for run in runs[:at]) for at in range(len(runs))]
    for run, next_first in zip(runs, [*(run.first for run in runs), len(messages)][1:], strict=True):
        for octets, frames in zip(messages_of(run, whole), messages[run.first : next_first], strict=True):
            event = parse_at_broker(frames)
            if run.layout is None or type(event).__name__ == "Invalid":
                assert not isinstance(event, Request | Final | Partial)
                continue
            assert octets == encode_message(frames)
            assert isinstance(event, {Verb.REQUEST: Request, Verb.FINAL: Final, Verb.PARTIAL: Partial}[run.layout.verb])
            assert isinstance(event, Request | Final | Partial)
            assert event.dialect == run.layout.dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_many_alike_are_one_run_with_columns(dialect: Dialect) -> None:
    requests = [client_request(dialect, b"echo", [b"%d" % at], id=number(at) if dialect == "0.3" else b"") for at in range(20)]
    (run,) = cut(batch(b"C", *requests), AT_BROKER)
    assert run.layout is not None
    assert (run.layout.verb, run.layout.dialect) == (Verb.REQUEST, dialect)
    assert run.keys == ([number(at) for at in range(20)] if dialect == "0.3" else [])
    assert set(run.names) == {b"\x01\x04echo" + (NO_OPTIONS if dialect == "0.3" else b"")}
    assert run.alike
    assert [decode_frames(tail)[-1] for tail in run.tails] == [b"%d" % at for at in range(20)]
    finals = [worker_final(dialect, number(at), [b"y"]) for at in range(20)]
    (run,) = cut(batch(b"W", *finals), AT_BROKER)
    assert run.layout is not None
    assert (run.layout.verb, len(run.keys), set(run.tails)) == (Verb.FINAL, 20, {b"\x00\x01y"})


def test_other_services_and_options_stay_in_the_run() -> None:
    requests = [
        client_request("0.3", name, [b"x"], id=number(1), options=b"\x80" * size) for name, size in ((b"a", 0), (b"bb", 1), (b"c", 0))
    ]
    (run,) = cut(batch(b"C", *requests), AT_BROKER)
    assert run.names == [b"\x01\x01a\x01\x00", b"\x01\x02bb\x01\x01", b"\x01\x01c\x01\x00"]
    assert not run.alike
    assert run.tails == [b"\x01\x00\x00\x01x", b"\x01\x01\x80\x00\x01x", b"\x01\x00\x00\x01x"]


def test_runs_of_one_dialect_end_at_each_message_that_is_no_command_of_the_table() -> None:
    final, other = worker_final("0.2", number(1), [b"y"]), worker_ready("0.2", b"echo")
    for messages in ([final, final, other, final], [other, final, other, other, final, final]):
        runs = cut(batch(b"w", *messages), AT_BROKER)
        found = [run.layout is not None for run in runs for _ in range(len(run.keys) or 1)]
        assert found == [message is final for message in messages]
        assert [run.first for run in runs if run.layout is None] == [at for at, message in enumerate(messages) if message is other]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_single_request_has_the_name_that_finds_its_service(dialect: Dialect) -> None:
    (run,) = cut(batch(b"c", client_request(dialect, b"other", [b"x"], id=number(1))), AT_BROKER)
    service = Service(b"other")
    assert run.names == [service.route if dialect == "0.3" else service.encoded]


def test_messages_of_no_row_are_a_run_each_and_no_message_is_no_run() -> None:
    runs = cut(batch(b"w", *UNKNOWN[:5], *UNKNOWN[:5]), AT_BROKER)
    assert [(run.layout, run.first, run.keys, run.names, run.tails) for run in runs] == [(None, at, [], [], []) for at in range(10)]
    assert cut(batch(b"w"), AT_BROKER) == []


def test_requests_and_answers_in_turn_are_runs_with_their_own_bytes() -> None:
    ask, final = client_request("0.3", b"echo", [b"x"], id=number(1)), worker_final("0.3", number(2), [b"yy"])
    for counts in ((1, 2), (2, 3, 2), (3, 1, 2, 2)):
        messages = [(ask, final)[place % 2] for place, count in enumerate(counts) for _ in range(count)]
        runs = cut(batch(b"p", *messages), AT_BROKER)
        assert [len(run.tails) for run in runs if run.layout is not None] == [*counts]
        assert [run.first for run in runs] == [sum(counts[:place]) for place in range(len(counts))]
        for place, run in enumerate(runs):
            assert set(run.keys) == {number(1 + place % 2)}
            assert set(run.names) == (set() if place % 2 else {b"\x01\x04echo\x01\x00"})
            assert set(run.tails) == {b"\x00\x02yy" if place % 2 else b"\x01\x00\x00\x01x"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_two_alike_are_one_run_wherever_they_are(dialect: Dialect, before: int) -> None:
    others = [worker_ready("0.3", b"echo")] * before
    for alike in (client_request(dialect, b"echo", [b"x"], id=number(1)), worker_final(dialect, number(1), [b"y"])):
        *_, run = cut(batch(b"p", *others, alike, alike), AT_BROKER)
        assert (run.first, len(run.tails)) == (before, 2)


def test_a_request_beside_one_that_differs_after_the_first_bytes() -> None:
    request, other = client_request("0.2", b"echo", [b"x"]), [b"MDPC02", b"\x02", b"echo", b"x"]
    for messages in ([request, other], [other, request], [other, request, other], [request, other, request]):
        runs = cut(batch(b"c", *messages), AT_BROKER)
        assert [run.names for run in runs] == [[b"\x01\x04echo"] if message is request else [] for message in messages]
        assert [run.tails for run in runs] == [[b"\x00\x01x"] if message is request else [] for message in messages]
        assert [run.first for run in runs] == [*range(len(messages))]


@pytest.mark.parametrize("row", [row for rows in AT_BROKER.values() for row in rows], ids=lambda row: f"{row.verb.name} {row.dialect}")
def test_a_row_made_again_divides_as_that_of_the_broker(row: Layout) -> None:
    key_bytes = row.key_end - len(row.head)
    again = Layout(row.verb, row.dialect, row.head, key_bytes, named=row.named, options=row.options)
    fields = [name for name in dir(row) if not name.startswith("__") and not callable(getattr(row, name))]
    assert "key_end" in fields
    assert {name: getattr(again, name) for name in fields} == {name: getattr(row, name) for name in fields}
    assert (row.keyed, row.key_end) == (key_bytes > 0, len(row.head) + key_bytes)
    assert Layout(row.verb, row.dialect, row.head, 1).keyed
