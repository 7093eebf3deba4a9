"""Progress of running requests, from the handler to the caller (PRG-03 to PRG-06)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import msgpack
import pytest

import mdp
import mdp.testing
from core.zmtp.frames import Encoded
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V03, WORKER_PROGRESS_03, worker_final, worker_partial
from mdp.wire.options import encode_options
from mdp.wire.progress import Progress, decode_progress
from mdp.worker.replies.progress_reports import PROGRESS_S, ProgressReports
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.fault_injection import sabotaged
from tests.scenes.mdp_dispatcher import Scene
from tests.scenes.mdp_messages import read, worker_request

if TYPE_CHECKING:
    from mdp.request import Request

WANTED: dict[str, object] = {"progress": True}
HALF = b"\x81\xa4done\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00"


def frames_of(sent: list[Any]) -> list[list[bytes]]:
    return [Encoded(one).frames() if isinstance(one, bytes) else [*one] for one in sent]


class ReportingSession:
    """A session with two requests in flight, and its reports."""

    def __init__(self) -> None:
        self.session = WorkerSession("echo", BrokerSearch(["tcp://b:1"], V03, SearchTimes(), lambda: 1.0), SessionOptions(credit=8))
        self.session.search.start(0.0)
        self.session.joined(0.0)
        self.session.take_outgoing(0.0)
        self.flushed = 0
        self.session.reports = self.reports = ProgressReports(self.session, self.flush)
        self.one, self.two = (self.give(number, {"reports": True}) for number in (1, 2))

    def give(self, number: int, options: dict[str, Any]) -> Request:
        message = worker_request(V03, number.to_bytes(8, "big"), (b"x",), options=encode_options(options))
        (request,) = self.session.receive(read([message]), 0.0)
        return request

    def flush(self) -> None:
        self.flushed += 1

    def sent(self) -> list[tuple[int, Progress | None]]:
        found = []
        for head, octets in frames_of(self.session.take_outgoing(0.0)):
            assert head[:7] == WORKER_PROGRESS_03
            found.append((int.from_bytes(head[7:], "big"), decode_progress(octets)))
        return found


def test_the_first_report_is_sent_at_once_and_then_the_newest_of_each_request() -> None:
    """PRG-04."""

    async def body() -> None:
        reporting = ReportingSession()
        reporting.one.progress(0.1)
        assert reporting.sent() == [(1, Progress(0.1))]
        for done in (0.2, 0.3, 0.4):
            reporting.one.progress(done)
            reporting.two.progress(text="waits")
        assert reporting.sent() == []
        await asyncio.sleep(PROGRESS_S)
        assert sorted(reporting.sent()) == [(1, Progress(0.4)), (2, Progress(text="waits"))]
        assert reporting.flushed == 2

    mdp.testing.run(body())


def test_a_report_alone_is_sent_when_its_time_has_come_unless_the_session_ends_before() -> None:
    """PRG-04."""

    async def body() -> None:
        reporting = ReportingSession()
        reporting.one.progress(0.1)
        reporting.sent()
        reporting.one.progress(0.2)
        await asyncio.sleep(PROGRESS_S)
        assert (reporting.sent(), reporting.flushed) == ([(1, Progress(0.2))], 2)
        reporting.one.progress(0.3)
        reporting.reports.close()
        await asyncio.sleep(2 * PROGRESS_S)
        assert (reporting.sent(), reporting.flushed) == ([], 2)

    mdp.testing.run(body())


def test_a_thread_that_reports_after_the_end_of_the_loop_is_not_disturbed() -> None:
    async def begin() -> ReportingSession:
        return ReportingSession()

    reporting = mdp.testing.run(begin())
    reporting.one.progress(0.5)
    assert reporting.flushed == 0


async def test_nothing_is_sent_where_no_client_asked_or_waits() -> None:
    """PRG-03, PRG-05."""
    reporting = ReportingSession()
    reporting.give(3, {"progress": True}).progress(0.5)  # an older broker has passed the client's option on
    reporting.session.answer(reporting.one, [b"reply"])
    reporting.session.take_outgoing(0.0)
    reporting.one.progress(0.5)
    assert (reporting.sent(), reporting.flushed) == ([], 0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        reporting.give(4, {}).progress(50)


async def test_a_report_that_waits_is_dropped_with_its_request() -> None:
    """PRG-05: nothing follows the reply."""
    reporting = ReportingSession()
    reporting.one.progress(0.1)
    reporting.sent()
    reporting.two.progress(0.5)
    reporting.session.answer(reporting.two, [b"reply"])
    reporting.session.take_outgoing(0.0)
    reporting.reports._send()
    assert reporting.sent() == []
    reporting.one.progress(0.5)
    reporting.reports.close()
    reporting.reports._send()
    assert reporting.sent() == []


async def test_a_report_of_another_thread_is_sent_by_the_loop() -> None:
    """PRG-03."""
    reporting = ReportingSession()
    thread = threading.Thread(target=reporting.one.progress, args=(0.5,))
    thread.start()
    thread.join()
    assert reporting.sent() == []
    await asyncio.sleep(0)
    assert reporting.sent() == [(1, Progress(0.5))]


@pytest.mark.faults
def test_a_fault_of_the_timer_loses_no_later_report() -> None:
    async def body() -> None:
        with sabotaged("mdp worker progress"):
            reporting = ReportingSession()
            reporting.one.progress(0.1)
            reporting.one.progress(0.2)
            await asyncio.sleep(PROGRESS_S)
            reporting.one.progress(0.3)
            assert reporting.sent()[-1] == (1, Progress(0.3))

    mdp.testing.run(body())


# ---------------------------------------------------------------------------------------------------------------------- the broker


def given(scene: Scene, worker: bytes = b"W") -> tuple[bytes, dict[str, Any]]:
    """Return token and options of the one request that a worker was given."""
    (frames,) = [frames for frames in scene.got(worker) if len(frames) > 2]
    return frames[0][7:], msgpack.unpackb(frames[1]) if frames[1] else {}


def test_the_broker_says_that_it_passes_progress_on_and_does() -> None:
    """PRG-03: an older broker says nothing of the kind, so no worker sends it what it would refuse."""
    scene = Scene()
    scene.ready("0.3", b"W")
    request = scene.ask("0.3", b"C", options={**WANTED, "user": "eve"})
    token, options = given(scene)
    assert options == {"progress": True, "reports": True}
    assert scene.send(b"W", [WORKER_PROGRESS_03 + token, HALF]) == [[b"C", b"MDPC03\x07" + request, HALF]]
    assert scene.counters["progress"] == 1
    assert scene.send(b"W", worker_final("0.3", token, [b"done"])) == [[b"C", b"MDPC03\x03" + request, b"done"]]


def test_a_client_cannot_speak_for_the_broker() -> None:
    """PRG-03."""
    scene = Scene()
    scene.ready("0.3", b"W")
    scene.ask("0.3", b"C", options={"reports": True})
    token, options = given(scene)
    assert options == {}
    assert scene.send(b"W", [WORKER_PROGRESS_03 + token, HALF]) == []  # an eager worker
    assert "progress" not in scene.counters or scene.counters["progress"] == 0


def test_a_worker_that_is_lost_after_progress_loses_nothing() -> None:
    """PRG-06: other than a part, progress commits no worker; the request goes to another worker."""
    scene = Scene()
    scene.ready("0.3", b"W")
    scene.ask("0.3", b"C", options=WANTED)
    token, _ = given(scene)
    scene.send(b"W", [WORKER_PROGRESS_03 + token, HALF])
    scene.lose(b"W")
    scene.ready("0.3", b"V")
    _, options = given(scene, b"V")
    assert options == {"progress": True, "reports": True, "delivery": 2}


def test_all_that_asked_for_the_progress_of_a_key_get_it() -> None:
    scene = Scene()
    scene.ready("0.3", b"W")
    first = scene.ask("0.3", b"C", options={**WANTED, "key": b"k"})
    scene.ask("0.3", b"D", options={"key": b"k"})
    third = scene.ask("0.3", b"E", options={**WANTED, "key": b"k"})
    token, _ = given(scene)
    out = scene.send(b"W", [WORKER_PROGRESS_03 + token, HALF])
    assert sorted(out) == [[b"C", b"MDPC03\x07" + first, HALF], [b"E", b"MDPC03\x07" + third, HALF]]


@pytest.mark.parametrize("frames", [[WORKER_PROGRESS_03 + bytes(8), HALF], [WORKER_PROGRESS_03 + b"short", HALF], [WORKER_PROGRESS_03]])
def test_progress_of_no_request_of_the_worker_ends_its_registration(frames: list[bytes]) -> None:
    """PRG-05, as for any answer (MDP-30)."""
    scene = Scene()
    scene.ready("0.3", b"W", credit=2)
    scene.ask("0.3", b"C", options=WANTED)
    scene.send(b"W", frames)
    assert b"W" not in scene.machine.directory.workers


def test_a_frame_that_is_too_long_is_not_passed_on() -> None:
    scene = Scene()
    scene.ready("0.3", b"W")
    scene.ask("0.3", b"C", options=WANTED)
    token, _ = given(scene)
    assert not any(peer == b"C" for peer, *_ in scene.send(b"W", [WORKER_PROGRESS_03 + token, bytes(5000)]))


def test_progress_and_parts_go_side_by_side() -> None:
    scene = Scene()
    scene.ready("0.3", b"W")
    request = scene.ask("0.3", b"C", options=WANTED)
    token, _ = given(scene)
    out = scene.send(b"W", worker_partial("0.3", token, [b"part"]), [WORKER_PROGRESS_03 + token, HALF])
    assert out == [[b"C", b"MDPC03\x02" + request, b"part"], [b"C", b"MDPC03\x07" + request, HALF]]


# ---------------------------------------------------------------------------------------------------------------------- as a whole


@mdp.service("resize", concurrency=4)
async def resize(request: mdp.Request, pages: int) -> int:
    for page in range(pages):
        request.progress((page + 1) / pages, f"page {page + 1}")
        await asyncio.sleep(0.1)
    return pages


@mdp.service("plain")
def plain(request: mdp.Request) -> bytes:
    request.progress(text="in a thread")
    return b"done"


def test_a_caller_sees_progress_and_waits_as_long_as_there_is_some() -> None:
    """PRG-04, PRG-07: the whole takes three times the timeout."""

    async def body() -> None:
        async with mdp.testing.broker(resize) as local:
            seen: list[Progress] = []
            options = cast("Any", {"progress": seen.append, "timeout": 0.5, "attempts": 1})
            assert await local.client.call("resize", 15, result=int, options=options) == 15
            assert [str(one) for one in seen[:2]] == ["7% page 1", "13% page 2"]
            assert len(seen) == 15
            with pytest.raises(mdp.Timeout):
                await local.client.call("resize", 15, result=int, options={"timeout": 0.5, "attempts": 1})

    mdp.testing.run(body())


async def test_a_handler_in_a_thread_reports_and_the_report_comes_before_the_reply() -> None:
    async with mdp.testing.broker(plain) as local:
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        assert await local.client.request("plain", progress=queue.put_nowait, timeout=60) == [b"done"]
        assert queue.get_nowait() == Progress(text="in a thread")
        assert await local.client.request("plain", timeout=60) == [b"done"]
        assert queue.empty()


async def test_a_callback_that_fails_is_reported_and_the_reply_comes() -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail(progress: Progress) -> None:
        raise ZeroDivisionError(progress.text)

    async with mdp.testing.broker(plain) as local:
        assert await local.client.request("plain", progress=fail, timeout=60) == [b"done"]
    assert [str(error) for error in errors] == ["in a thread"]
    asyncio.get_running_loop().set_exception_handler(None)


async def test_progress_is_of_one_request() -> None:
    async with mdp.testing.broker(plain) as local:
        with pytest.raises(TypeError, match="a progress is of one request, not of many"):
            await anext(local.client.map("plain", [b"x"], progress=print))  # type: ignore[call-arg]
        view = local.client.with_options(progress=print, wait=True)
        assert [outcome.reply async for outcome in view.map("plain", [b"x"])] == [[b"done"]]
