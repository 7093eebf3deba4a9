"""Commands `mdp events show`, `mdp events tail` and `mdp trace`: a broker's event log on the terminal, without Spark."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import click

from core.daemon.command import SECONDS, Command, Group
from core.daemon.exit_codes import RequestFailed
from core.daemon.logs import utc_text
from core.daemon.option_fields import options
from core.daemon.terminal import json_option, write_json, write_line
from mdp.eventlog.files import logs_in, read_events
from mdp.eventlog.format import HEADER_BYTES, KINDS, Block, decode_blocks, events_of
from mdp.eventlog.tail import LogRemoved, Place, end_of_log, read_run, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mdp.eventlog.format import Event
    from mdp.eventlog.tail import Run

logger = logging.getLogger(__name__)

_DIRECTORY: Final = click.Path(exists=True, file_okay=False)
_ID_CHARACTERS: Final = 16

_JSON: Final = json_option("One JSON object a line.")
_filters = options(
    click.argument("directory", type=_DIRECTORY),
    click.option("--kind", type=click.Choice(sorted(KINDS.values())), help="Only events of this kind."),
    click.option("--service", help="Only events of this service."),
    _JSON,
)


@click.group(cls=Group)
def events() -> None:
    """Read the event log of a broker (`mdp broker --events`), of all its shards."""


@events.command()
@_filters
def show(directory: str, kind: str | None, service: str | None, as_json: bool) -> None:
    """Print the events in DIRECTORY, oldest first."""
    for event in _chosen(read_events(directory), kind, service):
        _print(event, as_json)


@events.command()
@_filters
@click.option("--interval", type=SECONDS, default=0.5, help="Seconds between two looks at the log.")
def tail(directory: str, kind: str | None, service: str | None, as_json: bool, interval: float) -> None:
    """Print the events that are written to DIRECTORY from now on, until Ctrl-C."""
    asyncio.run(_follow(directory, lambda event: _print(event, as_json), kind, service, interval))


async def _follow(directory: str, take: Callable[[Event], None], kind: str | None, service: str | None, interval_s: float) -> None:
    start = Place(0, HEADER_BYTES)
    places = {log: end_of_log(str(log), start, skip_lost=True) for log in logs_in(directory)}
    while True:
        new: list[Event] = []
        for log in logs_in(directory):  # a shard's begins when the shard does
            try:
                for run in runs(str(log), places.get(log, start), skip_lost=True):
                    with suppress(FileNotFoundError):  # removed meanwhile: its broker has begun others
                        new += _chosen(_events_in(run), kind, service)
                    places[log] = run.after
            except LogRemoved as error:
                logger.error("%s", error)
                places[log] = start
        for event in sorted(new, key=attrgetter("time")):
            take(event)
        await asyncio.sleep(interval_s)


@click.command(cls=Command, epilog="ID: 16 hex digits of a request, or part of the traceparent of its client.")
@_JSON
@click.argument("request_id", metavar="ID")
@click.argument("directory", type=_DIRECTORY)
def trace(request_id: str, directory: str, as_json: bool) -> None:
    """Print the way of the request with this ID, or of a trace, from the event log in DIRECTORY."""
    found = [event for event in read_events(directory) if _is_of(event, request_id.lower())]
    if not found:
        short = "; an ID has 16 digits, mdp events show prints them" if len(request_id) < _ID_CHARACTERS else ""
        raise RequestFailed(f"{request_id}: no event of it in {directory}{short}")
    for event in found:
        if as_json:
            _print(event, True)
        else:
            _print_way(event)


def _is_of(event: Event, wanted: str) -> bool:
    if len(wanted) == _ID_CHARACTERS and event.request_id == wanted:
        return True
    return len(wanted) >= _ID_CHARACTERS and wanted in event.text.lower()


def _chosen(found: Iterable[Event], kind: str | None, service: str | None) -> Iterator[Event]:
    for event in found:
        if kind in (None, event.kind) and service in (None, event.service):
            yield event


def _events_in(run: Run) -> Iterator[Event]:
    clock, octets = read_run(run.path, run.start, run.end, run.made_us)
    for block in decode_blocks(octets, run.start):
        if isinstance(block, Block):
            yield from events_of(block, clock)


def _ms(span_us: int | None) -> str:
    return "-" if span_us is None else f"{span_us / 1000:.1f} ms"


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        write_json(event._asdict())
        return
    words = [utc_text(event.time / 1e6), f"{event.kind:<12}", event.service or "-", event.request_id or "-"]
    words += [f"worker {event.worker or '-'}", f"queue {_ms(event.queue_us)}", f"service {_ms(event.service_us)}", event.code, event.text]
    write_line("  ".join(word for word in words if word))


def _print_way(event: Event) -> None:
    """Print the steps of one request, with the time since the one before."""
    write_line(f"request {event.request_id} of client {event.client or '-'} to {event.service}")
    before = event.accepted_at
    steps = [("accepted", event.accepted_at), (f"given to worker {event.worker}, attempt {event.attempts}", event.dispatched_at)]
    for text, at in [*steps, (" ".join(filter(None, (event.kind, event.code))), event.time)]:
        if at is not None:
            write_line(f"  {utc_text(at / 1e6)}  {'' if before is None else '+' + _ms(at - before):>12}  {text}")
            before = at
    write_line(f"  {event.request_bytes} bytes asked, {event.reply_bytes} bytes answered{', ' + event.text if event.text else ''}")
