"""Spans of one request in client, broker and worker, taken by OpenTelemetry's own exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import mdp
from mdp.eventlog.files import EventLogWriter, read_events
from mdp.observe.tracing import BrokerSpans, TracedClient, carrier_of, traced
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
