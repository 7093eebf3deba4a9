"""Spans of one request in client, broker and worker, taken by OpenTelemetry's own exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator  # noqa: TC003 - annotations of services are read at run time
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import mdp
import mdp.testing
from mdp.eventlog.files import EventLogWriter, read_events
from mdp.observe.tracing import BrokerSpans, Spans, TracedClient, carrier_of, traced
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


def plain(request: mdp.Request) -> bytes:
    raise ValueError("no")


async def test_one_request_is_three_spans_of_one_trace(exporter: InMemorySpanExporter, provider: TracerProvider, tmp_path: Path) -> None:
    with EventLogWriter(tmp_path) as log:
        async with mdp.Broker() as broker:
            broker.watch(log.append)
            endpoint = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Worker(endpoint, "echo", handler=traced(echo, provider)), mdp.Client(endpoint) as client:
                assert await TracedClient(client, provider).request("echo", b"hello", wait=True) == [b"hello"]
    spans = BrokerSpans(provider)
    for event in read_events(tmp_path):
        spans.add(event)
    found = {span.name: span for span in exporter.get_finished_spans()}
    asked, handled, passed = found["echo request"], found["echo handle"], found["echo broker"]
    assert (asked.kind, handled.kind, passed.kind) == (SpanKind.CLIENT, SpanKind.SERVER, SpanKind.INTERNAL)
    assert asked.context is not None
    for below in (handled, passed):
        assert below.context is not None
        assert below.parent is not None
        assert below.context.trace_id == asked.context.trace_id
        assert below.parent.span_id == asked.context.span_id
    assert [event.name for event in passed.events] == ["dispatched"]
    assert asked.start_time is not None
    assert passed.start_time is not None
    assert passed.end_time is not None
    assert passed.start_time < passed.end_time


async def test_errors_are_errors_in_every_span(exporter: InMemorySpanExporter, provider: TracerProvider, tmp_path: Path) -> None:
    with EventLogWriter(tmp_path) as log:
        async with mdp.Broker() as broker:
            broker.watch(log.append)
            endpoint = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Worker(endpoint, "bad", handler=traced(plain, provider)), mdp.Client(endpoint) as client:
                with pytest.raises(mdp.HandlerError):
                    await TracedClient(client, provider).request("bad", b"x", wait=True)
    spans = BrokerSpans(provider)
    for event in read_events(tmp_path):
        spans.add(event)
    found = {span.name: span.status.is_ok for span in exporter.get_finished_spans()}
    assert found == {"bad request": False, "bad handle": False, "bad broker": False}


@mdp.service("area", inline=True)
def area(width: float, *, height: float = 1.0) -> float:
    return width * height


@mdp.service("count")
async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number


@mdp.service("who")
async def who(request: mdp.Request, greeting: str) -> str:
    trace.get_current_span().set_attribute("greeting", greeting)
    return f"{greeting} {request.service}"


@mdp.service("nothing")
async def nothing() -> int:
    return 5


async def numbers(request: mdp.Request) -> AsyncIterator[bytes]:
    yield b"1"
    trace.get_current_span().set_attribute("seen", True)
    if request.body == [b"bad"]:
        raise ValueError("no")
    yield b"2"


def parents(exporter: InMemorySpanExporter) -> dict[str, str | None]:
    """Return the parent of each span, by name, and forget them."""
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    exporter.clear()
    return {span.name: names.get(span.parent.span_id) if span.parent is not None else None for span in spans}


async def test_typed_services_streams_and_maps_are_spans_of_one_trace(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    handlers = [traced(one, provider) for one in (area, count, who, nothing)]
    async with mdp.testing.broker(*handlers) as local:
        await local.add_worker("numbers", traced(numbers, provider))
        client = TracedClient(local.client, provider)
        assert await client.call("area", 2.0, height=3.0, result=float, options={"deadline": 10.0}) == 6.0
        assert parents(exporter) == {"area call": None, "area handle": "area call"}
        assert await client.call("who", "hello", result=str) == "hello who"
        assert exporter.get_finished_spans()[0].attributes["greeting"] == "hello"  # type: ignore[index]
        assert parents(exporter) == {"who call": None, "who handle": "who call"}
        assert await client.call(b"nothing") == 5
        assert parents(exporter) == {"nothing call": None, "nothing handle": "nothing call"}
        assert [number async for number in client.call_stream("count", 3, result=int)] == [0, 1, 2]
        assert parents(exporter) == {"count call_stream": None, "count handle": "count call_stream"}
        async for part in client.stream("numbers", b"good"):
            assert not trace.get_current_span().get_span_context().is_valid, "the span is not that of the code between"
            assert part in ([b"1"], [b"2"])
        assert parents(exporter) == {"numbers stream": None, "numbers handle": "numbers stream"}
        with pytest.raises(mdp.HandlerError):
            assert [part async for part in client.stream("numbers", b"bad")]
        assert {span.name: span.status.is_ok for span in exporter.get_finished_spans()} == {
            "numbers stream": False,
            "numbers handle": False,
        }
        exporter.clear()
        outcomes = [outcome async for outcome in client.map("numbers", [b"good", b"bad", b"good"])]
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]
        (mapped,) = [span for span in exporter.get_finished_spans() if span.name == "numbers map"]
        assert mapped.attributes is not None
        assert mapped.attributes["mdp.failed"] == 1
        assert parents(exporter) == {"numbers map": None, "numbers handle": "numbers map"}
        assert (await mdp.describe(local.client, "area")).signature == "(width: float, *, height: float = 1.0) -> float"


def test_a_trace_context_of_a_peer_is_taken_in_small_texts_only() -> None:
    odd: dict[object, object] = {"traceparent": "00-x", "n": 5, b"k": "v", "long": "x" * 5000, **{f"k{n}": "v" for n in range(50)}}
    carrier = carrier_of(odd)
    assert carrier["traceparent"] == "00-x"
    assert len(carrier) == 8
    assert "long" not in carrier
    assert carrier_of(None) == {}


def test_a_missing_extra_is_one_clear_line() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from core.daemon.exit_codes import BadConfig\n"
        "try:\n    import mdp.observe.tracing\nexcept BadConfig as error:\n    print(error.format_message())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("fix: pip install 'majordomo-toolkit[otel]'"), done.stderr


async def test_one_middleware_makes_the_spans_of_an_app_and_of_a_client(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    """Coroutine functions, plain functions and generators; the values of a stream are within its spans, errors are errors."""
    app, spans, seen = mdp.App(), Spans(provider), list[bool]()
    app.middleware(spans)

    @app.service("double")
    async def double(number: int) -> int:
        seen.append(trace.get_current_span().is_recording())
        return number * 2

    @app.service("halves", inline=True)
    def halves(number: int) -> float:
        if not number:
            raise ValueError("nothing")
        return number / 2

    @app.service("upto")
    async def upto(number: int) -> AsyncIterator[int]:
        for one in range(number):
            seen.append(trace.get_current_span().is_recording())
            yield one

    async with mdp.testing.broker(app) as local:
        client = local.client
        client.middleware(spans)
        assert await client.call("double", 2, result=int) == 4
        assert await client.stub(halves)(3) == 1.5
        assert [value async for value in client.call_stream("upto", 2, result=int)] == [0, 1]
        with pytest.raises(mdp.HandlerError):
            await client.call("halves", 0)
    assert seen == [True] * 3
    found = exporter.get_finished_spans()
    assert [(span.name, span.status.is_ok) for span in found if span.kind is SpanKind.SERVER] == [
        ("double handle", True),
        ("halves handle", True),
        ("upto handle", True),
        ("halves handle", False),
    ]
    asked = {span.context.span_id: span for span in found if span.kind is SpanKind.CLIENT and span.context is not None}
    assert [span.name for span in asked.values()] == ["double request", "halves request", "upto stream", "halves request"]
    assert all(span.parent is not None and span.parent.span_id in asked for span in found if span.kind is SpanKind.SERVER)
