"""Events for watchers of a broker: one for each request, latencies, errors.

In every dialect, for every way in which a request ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdp.access.service_policies import ServicePolicies
from mdp.broker.recorder import BOUNDS_S, CODES_MAX, Latency, Recorder
from mdp.eventlog.format import Block, Clock, Event, events_of
from mdp.wire.commands import worker_disconnect, worker_error, worker_final, worker_partial
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, batch, one_by_one
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOCK = Clock(0, 0.0)


class Watched(Scene):
    """A scene whose machine is watched."""

    def __init__(self, **options: float | bool) -> None:
        super().__init__(**options)
        self.events: list[Event] = []
        self.recorder = Recorder(lambda block: self.events.extend(events_of(block, CLOCK)))
        self.machine.request_table.recorder = self.recorder
        # The other way through the machine, message by message, is watched too and must say the same.
        self.twin_events: list[Event] = []
        self.twin_recorder = self.twin.request_table.recorder = Recorder(lambda block: self.twin_events.extend(events_of(block, CLOCK)))

    def send(self, peer: bytes, *messages: Sequence[bytes]) -> list[list[bytes]]:
        self.recorder.now = self.twin_recorder.now = self.now
        return super().send(peer, *messages)

    def wait(self, seconds: float) -> list[list[bytes]]:
        self.recorder.now = self.twin_recorder.now = self.now + seconds
        return super().wait(seconds)

    def lose(self, peer: bytes) -> list[list[bytes]]:
        self.recorder.now = self.twin_recorder.now = self.now
        return super().lose(peer)

    def ends(self) -> list[tuple[str, str]]:
        assert sorted(self.events, key=str) == sorted(self.twin_events, key=str)
        return [(event.kind, event.code) for event in self.events if not event.kind.startswith("worker")]


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("worker", DIALECTS)
def test_an_answered_request_is_one_event_with_its_moments(client: str, worker: str) -> None:
    scene = Watched()
    scene.ask(client, b"c", b"body", options={"wait": True} if client == "0.3" else None)  # type: ignore[arg-type]
    scene.wait(2.0)
    scene.ready(worker, b"w")  # type: ignore[arg-type]
    work = scene.work(b"w")
    scene.wait(0.5)
    scene.answer(b"w", work, b"four")
    ready, event = scene.events
    assert scene.ends() == [("answered", "")]
    assert (ready.kind, ready.service, ready.worker, ready.code) == ("worker_ready", "echo", "77", worker)
    assert (event.kind, event.service, event.client, event.worker, event.attempts) == ("answered", "echo", "63", "77", 1)
    assert (event.queue_us, event.service_us) == (2_000_000, 500_000)
    assert event.request_bytes >= 6
    assert event.reply_bytes == len(b"four") + 2
    assert event.request_id
    assert scene.recorder.latencies[b"echo"].total_s == pytest.approx(2.5)


def test_many_answers_of_one_turn_are_one_block() -> None:
    scene = Watched()
    scene.ready("0.3", b"w", credit=8)
    ids = [scene.ask("0.3", b"c", b"x" * size) for size in range(1, 5)]
    for work in scene.at_worker(b"w"):
        scene.answer(b"w", work)  # type: ignore[arg-type]
    answered = [event for event in scene.events if event.kind == "answered"]
    assert [event.request_id for event in answered] == [id.hex() for id in ids]
    assert [event.request_bytes for event in answered] == [5, 6, 7, 8]
    assert len(scene.ends()) == 4


@pytest.mark.parametrize("clients", [["0.3"], ["0.1"], ["0.3", "0.3"], ["0.3", "0.1"]])
def test_a_hundred_answers_read_at_once_are_the_events_they_would_be_one_by_one(clients: list[str]) -> None:
    scene = Watched()
    scene.ready("0.3", b"w", credit=100)
    for number in range(100):
        scene.wait(0.001)
        which = number % len(clients)
        scene.ask(clients[which], b"c%d" % which, b"x" * (number % 3 + 1))  # type: ignore[arg-type]
    scene.wait(0.5)
    finals = [worker_final("0.3", work.id, [b"y" * size]) for size, work in enumerate(scene.at_worker(b"w"), 1)]  # type: ignore[union-attr]
    scene.recorder.now = scene.twin_recorder.now = scene.now
    scene.machine.receive(batch(b"w", *finals), scene.now)
    one_by_one(scene.twin, b"w", finals, scene.now)
    assert len(scene.ends()) == 100
    assert len({(event.client, event.request_id) for event in scene.events if event.kind == "answered"}) == 100
    mine, other = scene.recorder.latencies[b"echo"], scene.twin_recorder.latencies[b"echo"]
    assert mine.counts == other.counts
    assert sum(mine.counts) == 100
    assert mine.total_s == pytest.approx(other.total_s) == pytest.approx(100 * 0.5 + 0.001 * sum(range(100)))


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60), st.floats(0.0, 1e4))
def test_latencies_counted_together_are_those_counted_one_by_one(moments: list[float], since: float) -> None:
    now = max(moments) + since
    together, single = Latency(), Latency()
    together.add_since(moments, now)
    for moment in moments:
        single.add(now - moment)
    assert sum(together.counts) == len(moments)
    # A moment within a rounding error of a bound may stand on either side of it.
    for part in (0.01, 0.5, 1.0):
        assert together.percentile(part) == pytest.approx(single.percentile(part), rel=0.2)
    assert together.total_s == pytest.approx(single.total_s, abs=1e-6, rel=1e-9)


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("key", [None, b"k"])
def test_a_request_for_which_the_queue_is_full_is_one_event(client: str, before: int, key: bytes | None) -> None:
    """Whether its client had an open request before or not, and however the request was read."""
    scene = Watched(queue_max=1)
    scene.ready("0.3", b"w")
    for body in (b"runs", b"waits"):
        scene.ask("0.3", b"other", body)
    for _ in range(before):
        scene.ask(client, b"c", b"mmi", service=b"mmi.service")  # type: ignore[arg-type]
    options: dict[str, object] | None = None if key is None or client != "0.3" else {"key": key}
    scene.ask(client, b"c", options=options)  # type: ignore[arg-type]
    scene.ask(client, b"c", options=options)  # type: ignore[arg-type]
    assert scene.ends() == [("failed", "BUSY")] * 2
    assert [error.code for error in scene.recorder.errors] == ["BUSY"] * 2


def test_an_error_of_the_worker_is_a_failure_with_its_code() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c")
    work = scene.work(b"w")
    scene.send(b"w", worker_error(work.id, "HANDLER_ERROR", "no"))
    assert scene.ends() == [("failed", "HANDLER_ERROR")]
    assert [(error.code, error.text) for error in scene.recorder.errors] == [("HANDLER_ERROR", "no")]
    assert scene.recorder.failed == {"HANDLER_ERROR": 1}


def test_reasons_are_one_line_and_the_number_of_codes_is_bounded() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    codes = ["C" * (1 + number // 20) + "X" * (number % 20) for number in range(CODES_MAX + 5)]
    for code in codes:
        scene.ask("0.3", b"c")
        scene.send(b"w", worker_error(scene.work(b"w").id, code, "one\n\x1b[31mtwo " + "y" * 500))
    assert len(scene.recorder.failed) == CODES_MAX + 1
    assert scene.recorder.failed["OTHER"] == 5
    assert sum(scene.recorder.failed.values()) == len(codes)
    assert {error.text[:13] for error in scene.recorder.errors} == {"one  [31mtwo "}
    assert {len(error.text) for error in scene.recorder.errors} == {300}


def test_a_lost_worker_then_another_is_a_redelivery_and_one_answer() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c")
    scene.lose(b"w")
    scene.ready("0.3", b"v")
    scene.answer(b"v", scene.work(b"v"))
    assert scene.ends() == [("redelivered", "workers_lost"), ("answered", "")]
    assert [event.reply_bytes or 0 for event in scene.events if event.kind == "redelivered"] == [0]
    answered = scene.events[-1]
    assert (answered.attempts, answered.worker) == (2, "76")
    assert [event.code for event in scene.events if event.kind == "worker_lost"] == ["workers_lost"]


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_attempts_are_the_workers_that_a_request_was_given_to(losses: int) -> None:
    scene = Watched(deliveries_max=3)
    scene.ask("0.3", b"c", options={"wait": True, "deadline_ms": 60_000})
    for number in range(losses):
        scene.ready("0.3", b"w%d" % number)
        scene.work(b"w%d" % number)
        scene.lose(b"w%d" % number)
        scene.wait(1.0)
    given = [(event.kind, event.attempts) for event in scene.events if event.kind == "redelivered"]
    assert given == [("redelivered", number + 1) for number in range(min(losses, 2))]
    scene.wait(60.0)
    end = scene.events[-1]
    assert (end.kind, end.code, end.attempts) == (("failed", "DEAD_LETTER", 3) if losses == 3 else ("expired", "DEADLINE_EXCEEDED", losses))


def test_a_request_that_may_be_given_once_has_one_attempt_when_its_worker_is_lost() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c", options={"once": True})
    scene.lose(b"w")
    assert [(event.code, event.attempts) for event in scene.events if event.kind == "failed"] == [("WORKER_LOST", 1)]


def test_a_refused_request_has_its_service_and_its_reason() -> None:
    scene = Watched()
    scene.ask("0.3", b"c", service=b"nobody")
    (event,) = scene.events
    assert (event.kind, event.code, event.service, event.accepted_at) == ("refused", "NO_SERVICE", "nobody", None)


def test_a_deadline_a_cancel_and_a_client_that_goes() -> None:
    scene = Watched()
    scene.ready("0.3", b"w", credit=9)
    scene.ask("0.3", b"c", options={"deadline_ms": 100})
    scene.wait(0.2)
    id = scene.ask("0.3", b"c")
    scene.send(b"c", [b"MDPC03\x05" + id])
    scene.ask("0.3", b"c")
    scene.lose(b"c")
    kinds = {kind for kind, _ in scene.ends()}
    assert kinds >= {"expired", "cancelled"}
    assert scene.ends()[-1] == ("cancelled", "CLIENT_GONE")


def test_requests_that_share_a_key_have_an_event_each() -> None:
    scene = Watched()
    scene.ready("0.3", b"w", credit=9)
    for client in (b"a", b"b"):
        scene.ask("0.3", client, b"same", options={"key": b"k"})
    scene.answer(b"w", scene.work(b"w"))
    assert scene.ends() == [("answered", ""), ("answered", "")]
    scene.check()


@pytest.mark.parametrize("client", DIALECTS)
def test_each_accepted_request_has_exactly_one_end(client: str) -> None:
    """EVT-10."""
    scene = Watched(queue_max=3, deliveries_max=2)
    scene.ready("0.3", b"w", credit=2)
    for _ in range(12):
        scene.ask(client, b"c")  # type: ignore[arg-type]
    first, second = scene.at_worker(b"w")[:2]
    scene.send(b"w", worker_partial("0.3", first.id, [b"part"]))  # type: ignore[union-attr]
    scene.answer(b"w", first)  # type: ignore[arg-type]
    scene.lose(b"w")
    scene.ready("0.3", b"v")
    scene.lose(b"v")
    scene.wait(200.0)
    scene.both("stop")
    ended = [kind for kind, _ in scene.ends() if kind in ("answered", "failed", "expired", "cancelled")]
    assert len(ended) == scene.counters["closed"] == scene.counters["accepted"]
    assert second is not first


def test_percentiles_are_right_within_a_fifth() -> None:
    latency = Latency()
    for millisecond in range(1, 1001):
        latency.add(millisecond / 1000)
    for part in (0.01, 0.5, 0.99, 1.0):
        found = latency.percentile(part)
        assert found is not None
        assert part <= found <= part * 1.19
    assert Latency().percentile(0.5) is None
    before = [*latency.counts]
    latency.add(50.0)
    assert latency.percentile(0.5, since=before) == pytest.approx(50, rel=0.2)


def test_errors_kept_are_bounded_and_printable() -> None:
    scene = Watched()
    for _ in range(80):
        scene.ask("0.3", b"c", service=b"nobody")
    assert len(scene.recorder.errors) == 50
    assert all(error.service.isprintable() for error in scene.recorder.errors)


def test_each_request_that_shares_an_execution_has_an_end_of_its_own() -> None:
    """IDM-03: the executed request and its followers, cancelled, gone or answered."""
    scene = Watched()
    scene.ready("0.3", b"w")
    ids = {client: scene.ask("0.3", client, options={"key": b"k"}) for client in (b"1", b"2", b"3", b"4", b"5")}
    scene.send(b"2", client_cancel(ids[b"2"]))
    scene.lose(b"3")
    scene.send(b"1", client_cancel(ids[b"1"]))
    scene.lose(b"4")
    scene.answer(b"w", scene.work(b"w"))
    gone, cancelled = ("cancelled", "CLIENT_GONE"), ("cancelled", "CANCELLED")
    assert scene.ends() == [cancelled, gone, cancelled, gone, ("answered", "")]


def test_percentiles_to_the_bound() -> None:
    latency = Latency()
    for at in (3, 8):
        latency.add(BOUNDS_S[at])
    assert [latency.percentile(part) for part in (0.5, 0.51, 1.0)] == [BOUNDS_S[3], BOUNDS_S[8], BOUNDS_S[8]]
    latency.add(1e9, 3)
    assert latency.percentile(1.0) == BOUNDS_S[-1]
    assert latency.counts[-1] == 3
    assert latency.total_s == pytest.approx(BOUNDS_S[3] + BOUNDS_S[8] + 3e9)


def test_a_broker_without_event_log_has_latencies_and_errors() -> None:
    scene = Scene()
    recorders = [Recorder(), Recorder()]
    for machine, recorder in zip((scene.machine, scene.twin), recorders, strict=True):
        recorder.now = scene.now
        machine.request_table.recorder = recorder
    scene.ready("0.3", b"w", credit=9)
    for options in (None, {"wait": True}):
        scene.ask("0.3", b"c", options=options)  # type: ignore[arg-type]
    for recorder in recorders:
        recorder.now += 2.0
    for work in scene.at_worker(b"w"):
        scene.answer(b"w", work)  # type: ignore[arg-type]
    scene.ask("0.3", b"c", service=b"nobody")
    scene.ask("0.3", b"c")
    scene.lose(b"w")
    for recorder in recorders:
        assert recorder.latencies[b"echo"].total_s == pytest.approx(4.0)
        assert [(error.code, error.service) for error in recorder.errors] == [("NO_SERVICE", "nobody"), ("workers_lost", "echo")]
        assert recorder.failed == {"NO_SERVICE": 1}
        recorder.keep({b"echo": 1})
        assert [*recorder.latencies] == [b"echo"]
        recorder.keep({b"other": 1})
        assert recorder.latencies == {}


def test_a_worker_that_leaves_is_no_error() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    scene.send(b"w", worker_disconnect("0.3"))
    assert [(event.kind, event.code) for event in scene.events] == [("worker_ready", "0.3"), ("worker_lost", "workers_left")]
    assert list(scene.recorder.errors) == []


def test_a_refusal_is_of_the_request_that_is_being_checked_and_of_no_other() -> None:
    blocks: list[Block] = []
    recorder = Recorder(blocks.append)
    recorder.refused(b"c", b"12345678", "BAD_REQUEST", "no")
    recorder.current_request = (b"echo", 17)
    for _ in range(2):
        recorder.refused(b"c", 5, "BUSY", "no")
    assert [(block.service, block.request_bytes, block.ids) for block in blocks] == [
        (b"", 0, b"12345678"),
        (b"echo", 17, bytes(7) + b"\x05"),
        (b"", 0, bytes(7) + b"\x05"),
    ]


@pytest.mark.parametrize(("chars", "kept"), [(55, True), (64, True), (65, False)])
def test_the_trace_of_a_request_is_in_its_event_unless_it_is_too_long(chars: int, kept: bool) -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c", options={"trace": {"traceparent": "t" * chars}})
    scene.answer(b"w", scene.work(b"w"))
    assert scene.events[-1].text == ("t" * chars if kept else "")


def test_attempts_of_requests_that_ended_in_the_queue_or_were_given_once() -> None:
    scene = Watched()
    scene.ready("0.3", b"w")
    for _ in range(2):
        scene.ask("0.3", b"c")
    scene.lose(b"c")
    assert [(event.code, event.attempts) for event in scene.events[1:]] == [("CLIENT_GONE", 1), ("CLIENT_GONE", 0)]


def test_a_handler_that_failed_counts_as_an_attempt() -> None:
    scene = Watched()
    policies = ServicePolicies({"policy": [{"services": ["*"], "retry": {"attempts": 3, "base_s": 0.1}}]})
    scene.machine.directory.own_policies = scene.twin.directory.own_policies = policies
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c")
    scene.send(b"w", worker_error(scene.work(b"w").id, "HANDLER_ERROR", "no"))
    scene.wait(1.0)
    scene.answer(b"w", scene.work(b"w"))
    assert [(event.kind, event.attempts) for event in scene.events[1:]] == [("answered", 2)]
