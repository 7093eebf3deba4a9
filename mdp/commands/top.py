"""`mdp top`: services, queues and workers of a broker in the terminal, redrawn every few seconds; plain ANSI, no library."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from core.daemon.command import Command
from core.daemon.exit_codes import RequestFailed
from core.daemon.logs import printable
from core.daemon.option_fields import FiniteRange
from core.daemon.run import log_options, loop_option
from core.daemon.terminal import json_option, write_json
from core.machine.peer_text import json_or_none
from mdp.commands.client_options import ask, client_options
from mdp.shards.merging import silence_in_words, silent_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdp.client.client import Client

# Move home and clear below: no flicker, and the lines above stay.
_HOME = "\x1b[H\x1b[J"
_WHOLE = 1_000_000
_COUNTS = ("accepted", "replies", "queued", "running", "services", "workers", "clients", "redelivered", "letters")


_NUMBERS = ("workers", "credit", "queued", "running", "done", "silent_ms")


class View(NamedTuple):
    """A broker at one time, as `mmi.stats`, `mmi.services` and `mmi.workers` report it."""

    at: float
    stats: Mapping[str, int]
    services: Sequence[Mapping[str, Any]]
    workers: Sequence[Mapping[str, Any]]
    silent_shards: Sequence[int] = ()

    def as_dict(self) -> dict[str, Any]:
        found = {"stats": dict(self.stats), "services": [*self.services], "workers": [*self.workers]}
        return found | ({"silent_shards": [*self.silent_shards]} if self.silent_shards else {})


async def read_view(client: Client) -> View:
    """Ask a broker for everything to show; raises RequestFailed if it does not support this."""
    answers = []
    silent = set[int]()
    for name in ("mmi.stats", "mmi.services", "mmi.workers"):
        reply = await client.request(name, b"")
        answers.append(json_or_none(reply[1]) if reply[0] == b"200" and len(reply) > 1 else None)
        silent.update(silent_shards(reply))
    stats, services, workers = answers
    if not isinstance(stats, dict) or not isinstance(services, list) or not isinstance(workers, list):
        raise RequestFailed("this broker does not answer mmi.stats, mmi.services and mmi.workers as ours do")
    # A truncated list ends with null.
    kept = [[_checked(row) for row in rows if isinstance(row, dict)] for rows in (services, workers)]
    numbers = {name: value for name, value in stats.items() if isinstance(value, int)}
    return View(time.monotonic(), numbers, kept[0], kept[1], sorted(silent))


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: value if type(value := row.get(name)) is int else 0 for name in _NUMBERS}


def draw(view: View, before: View | None, columns: int, lines: int) -> str:
    """Return a view that fits the terminal, busiest services first, with rates since the view `before`."""
    seconds = 0.0 if before is None else view.at - before.at
    earlier = {} if before is None else {row.get("name"): row.get("done", 0) for row in before.services}
    head = "  ".join(f"{'dead letters' if name == 'letters' else name} {view.stats.get(name, 0):,}" for name in _COUNTS)
    rate = (view.stats.get("replies", 0) - before.stats.get("replies", 0)) / seconds if before is not None and seconds > 0 else 0.0
    view_lines = [f"mdp top  {rate:,.0f} replies/s", head, silence_in_words(view.silent_shards) if view.silent_shards else ""]

    def per_s(row: Mapping[str, Any]) -> float:
        name = row.get("name")
        return (row.get("done", 0) - earlier[name]) / seconds if name in earlier and seconds > 0 else 0.0

    services = sorted(view.services, key=lambda row: (-per_s(row), -row.get("queued", 0), str(row.get("name"))))
    most = max(2, (lines - len(view_lines) - 3) // 2)
    view_lines.append(f"{'SERVICE':24} {'WORKERS':>8} {'CREDIT':>8} {'QUEUED':>9} {'RUNNING':>8} {'DONE':>12} {'PER S':>10}")
    for row in services[:most]:
        numbers = (row.get("workers", 0), row.get("credit", 0), row.get("queued", 0), row.get("running", 0), row.get("done", 0))
        text = "{:>8,} {:>8,} {:>9,} {:>8,} {:>12,}".format(*numbers)
        off = "" if row.get("enabled", True) else "  out of service"
        view_lines.append(f"{printable(str(row.get('name')))[:24]:24} {text} {per_s(row):>10,.0f}{off}")
    view_lines += ["", f"{'WORKER':24} {'SERVICE':24} {'MDP':>4} {'IN FLIGHT':>11} {'DONE':>12} {'SILENT MS':>10}"]
    for row in sorted(view.workers, key=lambda row: (-row.get("running", 0), str(row.get("id"))))[:most]:
        in_flight = f"{row.get('running', 0)}/{row.get('credit', 0)}"
        names = f"{printable(str(row.get('id')))[:24]:24} {printable(str(row.get('service')))[:24]:24}"
        dialect = printable(str(row.get("dialect")))
        leaving = "  draining" if row.get("draining") is True else ""
        view_lines.append(f"{names} {dialect:>4} {in_flight:>11} {row.get('done', 0):>12,} {row.get('silent_ms', 0):>10,}{leaving}")
    return "\n".join(line[:columns] for line in view_lines[:lines])


@click.command(cls=Command)
@client_options
@click.option("--every", type=FiniteRange(min=0.1), default=2.0, help="Seconds between two views.")
@click.option("--once", is_flag=True, help="Print one view and end.")
@json_option("Print JSON objects, one a line, instead of views.")
@loop_option
@log_options("warning")
def top(every: float, once: bool, as_json: bool, **asking: Any) -> None:
    """Watch a broker in the terminal; Ctrl-C ends it."""

    async def talk(client: Client) -> None:
        before: View | None = None
        while True:
            view = await read_view(client)
            if as_json:
                write_json(view.as_dict())
            else:
                size = shutil.get_terminal_size()
                # A single view may go to a file or a pipe: it is not truncated.
                text = draw(view, before, *((_WHOLE, _WHOLE) if once else (size.columns, size.lines - 1)))
                click.echo(text if once else _HOME + text)
            if once:
                return
            before = view
            await asyncio.sleep(every)

    ask(talk, **asking)
