"""OpenTelemetry spans of requests, in the trace context that MDP/0.3 forwards from client to worker.

    client = TracedClient(client)                       # a span for each request, call and stream
    mdp.Worker(endpoint, "echo", handler=traced(echo))  # a span for each call of the handler, below the client's
    mdp.Worker(endpoint, traced(total))                 # the same of a function that is decorated with mdp.service
    BrokerSpans().add                                   # a span for each request the broker ended, from its event log

    spans = Spans()                                     # or all at once, as middleware:
    app.middleware(spans)                               # a span for each call of any handler of the app
    client.middleware(spans)                            # a span for each request, call and stream of the client

Needs the extra `otel` and a TracerProvider of the program: without one the API's spans go nowhere. Clients of MDP/0.1 and 0.2 send no
context: the worker's spans begin traces of their own. The broker forwards the context unread; its own spans come from the event log,
which keeps the client's `traceparent`: they are children of the client's span, like the worker's.
"""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from functools import wraps
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, get_type_hints

from core.daemon.command import needs_extra

with needs_extra("otel", "tracing"):
    from opentelemetry import trace
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import SpanKind, Status, StatusCode

from mdp.client.calls import CallOptions, MapOptions
from mdp.client.middleware import ClientCall
from mdp.request import Request
from mdp.typed.calls import typed_handler
from mdp.worker.handler import is_typed, mark_of, name_of, service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.util.types import Attributes

    from mdp.client.client import Client
    from mdp.client.replies import Body, Outcome
    from mdp.eventlog.format import Event

_NAME = "majordomo-toolkit"
# A carrier has a few short entries; a larger one is ignored and not parsed.
_CARRIER_ENTRIES_MAX = 8
_CARRIER_CHARS_MAX = 1024
_END: Final = object()
O = TypeVar("O", bound=MapOptions)  # noqa: E741


class TracedClient:
    """Client whose requests are spans: one for each request, call and stream, and one for all requests of a `map`.

    The methods have the arguments and errors of those of `mdp.Client`.

    Args:
        client: to wrap; for methods without spans, use it itself.
        provider: of tracers; None: the global one.
    """

    def __init__(self, client: Client, provider: trace.TracerProvider | None = None) -> None:
        self.client = client
        self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    async def request(self, service: str | bytes, *body: bytes, **options: Unpack[CallOptions]) -> list[bytes]:
        """Send a request as `mdp.Client.request` does, within a span whose context is sent to the worker."""
        with self._span("request", service, {"mdp.request_bytes": sum(map(len, body))}) as span:
            reply = await self.client.request(service, *body, **_with(span, options))
            span.set_attribute("mdp.reply_bytes", sum(map(len, reply)))
            return reply

    async def call(self, service: str | bytes, /, *arguments: Any, options: CallOptions | None = None, **named: Any) -> Any:
        """Call a typed function as `mdp.Client.call` does."""
        with self._span("call", service) as span:
            return await self.client.call(service, *arguments, options=_with(span, options or CallOptions()), **named)

    async def stream(self, service: str | bytes, *body: bytes, **options: Unpack[CallOptions]) -> AsyncGenerator[list[bytes], None]:
        """Send a request and yield its reply part by part as `mdp.Client.stream` does."""
        with self._detached("stream", service) as span:
            async with aclosing(self.client.stream(service, *body, **_with(span, options))) as parts:
                async for part in parts:
                    yield part

    async def call_stream(
        self, service: str | bytes, /, *arguments: Any, options: CallOptions | None = None, **named: Any
    ) -> AsyncGenerator[Any, None]:
        """Call a typed generator and yield its values as `mdp.Client.call_stream` does."""
        with self._detached("call_stream", service) as span:
            async with aclosing(
                self.client.call_stream(service, *arguments, options=_with(span, options or CallOptions()), **named)
            ) as values:
                async for value in values:
                    yield value

    async def map(
        self,
        service: str | bytes,
        requests: Iterable[Body],
        *,
        window: int = 256,
        key: Callable[[int], str | bytes] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Outcome, None]:
        """Send one request per body and yield the outcomes as `mdp.Client.map` does; failed ones are counted in the span."""
        failed = 0
        with self._detached("map", service) as span:
            async with aclosing(self.client.map(service, requests, window=window, key=key, **_with(span, options))) as outcomes:
                async for outcome in outcomes:
                    failed += outcome.error is not None
                    yield outcome
            span.set_attribute("mdp.failed", failed)

    def _span(self, what: str, service: str | bytes, more: Mapping[str, Any] | None = None) -> AbstractContextManager[trace.Span]:
        return self._tracer.start_as_current_span(**_named(what, service, more))

    @contextmanager
    def _detached(self, what: str, service: str | bytes) -> Iterator[trace.Span]:
        """Make a span of a generator, which is never the current one of the code between its values."""
        span = self._tracer.start_span(**_named(what, service, None))
        with _ended(span):
            yield span


def _named(what: str, service: str | bytes, more: Mapping[str, Any] | None) -> dict[str, Any]:
    name = service if isinstance(service, str) else service.decode(errors="replace")
    return {"name": f"{name} {what}", "kind": SpanKind.CLIENT, "attributes": {"rpc.system": "mdp", "rpc.service": name, **(more or {})}}


def _with(span: trace.Span, options: O) -> O:
    traced_options = options.copy()
    if traced_options.get("trace") is None:
        traced_options["trace"] = _carrier(span)
    return traced_options


def _carrier(span: trace.Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    inject(carrier, trace.set_span_in_context(span))
    return carrier


@contextmanager
def _ended(span: trace.Span) -> Iterator[None]:
    """End a span with the block, with the error that ends it."""
    try:
        yield
    except Exception as error:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
    finally:
        span.end()


def carrier_of(context: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the entries of a peer's trace context that are valid in a carrier: short texts with short names."""
    found: dict[str, str] = {}
    for name, value in (context or {}).items():
        short = isinstance(name, str) and isinstance(value, str) and max(len(name), len(value)) <= _CARRIER_CHARS_MAX
        if short and len(found) < _CARRIER_ENTRIES_MAX:
            found[name] = value
    return found


def traced(handler: Callable[..., Any], provider: trace.TracerProvider | None = None) -> Callable[..., Any]:
    """Return a handler whose calls are spans, each a child of its client's span.

    Args:
        handler: of any kind: a coroutine function, an asynchronous generator or a plain function, of a request or, decorated with
            `mdp.service`, of arguments. A decorated one stays decorated.
        provider: of tracers; None: the global one.
    """
    tracer = trace.get_tracer(_NAME, tracer_provider=provider)
    mark = mark_of(handler)
    typed = mark is not None and not mark.batch and is_typed(handler)
    if mark is not None and typed and not signature(handler).parameters:  # no place for the request
        return service(mark.name, inline=mark.inline, **mark.options)(traced(typed_handler(handler, name_of(handler)), provider))
    request_name, own = _request_parameter(handler) if typed else ("", True)

    def begun(positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return _handled(positional[0] if not typed else named[request_name] if own else named.pop(request_name))

    async def values(*positional: Any, **named: Any) -> AsyncIterator[Any]:
        span = tracer.start_span(**begun(positional, named))
        async with aclosing(_within(span, handler(*positional, **named))) as found:
            async for value in found:
                yield value

    async def answer(*positional: Any, **named: Any) -> Any:
        with tracer.start_as_current_span(**begun(positional, named)):
            return await handler(*positional, **named)

    def answer_plainly(*positional: Any, **named: Any) -> Any:
        with tracer.start_as_current_span(**begun(positional, named)):
            return handler(*positional, **named)

    made: Any = values if isasyncgenfunction(handler) else answer if iscoroutinefunction(handler) else answer_plainly
    wraps(handler)(made)
    if not own:
        added = Parameter(request_name, Parameter.KEYWORD_ONLY, annotation=Request)
        seen = signature(handler)
        made.__signature__ = seen.replace(parameters=[*seen.parameters.values(), added])
        made.__annotations__ = {**handler.__annotations__, request_name: Request}
    return cast("Callable[..., Any]", made)


class Spans:
    """Middleware that makes a span of each request: of the handlers of an `mdp.App`, and of a client.

    The span of a handler is a child of the client's. Of a `map`, each request has a span.

    Args:
        provider: of tracers; None: the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    async def __call__(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call the next one within a span; that of a generator ends with its last value.

        Args:
            request: an `mdp.Request` or an `mdp.ClientCall`.
            call_next: the handler or client, or further middleware.
        """
        if isinstance(request, ClientCall):
            size = {"mdp.request_bytes": sum(map(len, request.frames))}
            span = self._tracer.start_span(**_named("stream" if request.streaming else "request", request.service, size))
            request.options = _with(span, request.options)
        else:
            span = self._tracer.start_span(**_handled(request))
        goes_on = False
        try:
            with trace.use_span(span):
                reply = await call_next(request)
            goes_on = hasattr(reply, "__aiter__")
            return _within(span, reply) if goes_on else reply
        finally:
            if not goes_on:
                span.end()


def _handled(request: Request) -> dict[str, Any]:
    attributes: Attributes = {"rpc.system": "mdp", "rpc.service": request.service, "mdp.delivery": request.delivery}
    context = extract(carrier_of(request.trace))
    return {"name": f"{request.service} handle", "context": context, "kind": SpanKind.SERVER, "attributes": attributes}


async def _within(span: trace.Span, values: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the values of a generator within its span, which is current only while the generator runs."""
    with _ended(span):
        async with aclosing(values) as found:
            while True:
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    value = await anext(found, _END)
                if value is _END:
                    return
                yield value


def _request_parameter(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return the name of a typed function's parameter for the request, or a free name and False."""
    hints = get_type_hints(function)
    return next(((name, True) for name, kind in hints.items() if kind is Request), ("mdp_request", False))


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
