"""OpenTelemetry spans of requests, in the trace context that MDP/0.3 forwards from client to worker.

    client = TracedClient(client)                       # a span for each request
    mdp.Worker(endpoint, "echo", handler=traced(echo))  # a span for each call of the handler, below the client's
    BrokerSpans().add                                   # a span for each request the broker ended, from its event log

Needs the extra `otel` and a TracerProvider of the program: without one the API's spans go nowhere. Clients of MDP/0.1 and 0.2 send no
context: the worker's spans begin traces of their own. The broker forwards the context unread; its own spans come from the event log,
which keeps the client's `traceparent`: they are children of the client's span, like the worker's.
"""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from core.daemon.command import needs_extra

with needs_extra("otel", "tracing"):
    from opentelemetry import trace
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import Attributes

    from mdp.client.client import Client
    from mdp.eventlog.format import Event
    from mdp.request import Request

__all__ = ["BrokerSpans", "TracedClient", "traced"]

_NAME = "majordomo-toolkit"
# A carrier has a few short entries; a larger one is ignored and not parsed.
_CARRIER_ENTRIES_MAX = 8
_CARRIER_CHARS_MAX = 1024


class TracedClient:
    """Client whose requests are spans.

    Args:
        client: to wrap; all attributes except `request` are its own.
        provider: of tracers; None: the global one.
    """

    def __init__(self, client: Client, provider: trace.TracerProvider | None = None) -> None:
        self.client = client
        self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    async def request(self, service: str, *body: bytes, **options: Any) -> list[bytes]:
        """Send a request as `mdp.Client.request` does, within a span whose context is sent to the worker."""
        attributes: Attributes = {"rpc.system": "mdp", "rpc.service": service, "mdp.request_bytes": sum(map(len, body))}
        with self._tracer.start_as_current_span(f"{service} request", kind=SpanKind.CLIENT, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            inject(carrier)
            reply = await self.client.request(service, *body, **{"trace": carrier, **options})
            span.set_attribute("mdp.reply_bytes", sum(map(len, reply)))
            return reply


def carrier_of(context: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the entries of a peer's trace context that are valid in a carrier: short texts with short names."""
    found: dict[str, str] = {}
    for name, value in (context or {}).items():
        short = isinstance(name, str) and isinstance(value, str) and max(len(name), len(value)) <= _CARRIER_CHARS_MAX
        if short and len(found) < _CARRIER_ENTRIES_MAX:
            found[name] = value
    return found


def traced(handler: Callable[[Request], Any], provider: trace.TracerProvider | None = None) -> Callable[[Request], Any]:
    """Return a handler whose calls are spans, each a child of its client's span.

    Args:
        handler: takes a request; a coroutine function or a plain one.
        provider: of tracers; None: the global one.
    """
    tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    def span_of(request: Request) -> Any:
        attributes: Attributes = {"rpc.system": "mdp", "rpc.service": request.service, "mdp.delivery": request.delivery}
        context = extract(carrier_of(request.trace))
        return tracer.start_as_current_span(f"{request.service} handle", context=context, kind=SpanKind.SERVER, attributes=attributes)

    if iscoroutinefunction(handler):

        @wraps(handler)
        async def answer(request: Request) -> Any:
            with span_of(request):
                return await handler(request)

        return answer

    @wraps(handler)
    def answer_plainly(request: Request) -> Any:
        with span_of(request):
            return handler(request)

    return answer_plainly


class BrokerSpans:
    """Spans of a broker's events, for a program that reads its event log.

    Each goes from acceptance to the end, with dispatch as an event.

    Args:
        provider: of tracers; None: the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    def add(self, event: Event) -> None:
        """Make a span of an event that ends a request; other events make none."""
        if event.accepted_at is None or event.kind == "redelivered":
            return
        span = self._tracer.start_span(
            f"{event.service} broker",
            context=extract(carrier_of({"traceparent": event.text})),
            kind=SpanKind.INTERNAL,
            start_time=event.accepted_at * 1000,
            attributes={
                "rpc.system": "mdp",
                "rpc.service": event.service,
                "mdp.request_id": event.request_id,
                "mdp.client": event.client,
                "mdp.worker": event.worker,
                "mdp.attempts": event.attempts,
            },
        )
        if event.dispatched_at is not None:
            span.add_event("dispatched", timestamp=event.dispatched_at * 1000)
        if event.kind != "answered":
            span.set_status(Status(StatusCode.ERROR, event.code))
        span.end(end_time=event.time * 1000)
