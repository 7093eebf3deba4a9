"""`mdp mmi`, `services`, `workers`, `check`, `dlq`: an operator's requests to a broker's MMI (`mdp.broker.mmi`).

A broker is a peer like any other: its answers are validated, and nothing reaches a terminal unescaped.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import Command
from core.daemon.exit_codes import RequestFailed, Unreachable
from core.daemon.logs import printable
from core.daemon.terminal import json_frame, read_frames, write_frames, write_json, write_reply
from core.machine.peer_text import BadJson, read_json
from mdp.client.client import Unreachable as NoBroker
from mdp.commands.client_options import ask, client_options, output_options
from mdp.commands.settings.completion import service_names
from mdp.errors import Timeout
from mdp.shards.merging import silence_in_words, silent_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.client.client import Client

_OK, _NOT_FOUND, _NOT_OFFERED, _UNANSWERED = "200", "404", "501", "504"
_SERVICE_COLUMNS: Final = ("name", "workers", "credit", "running", "queued", "queued_bytes", "done", "enabled")
_WORKER_COLUMNS: Final = ("service", "id", "dialect", "credit", "running", "done", "silent_ms", "stuck", "draining", "version", "metadata")
_GAUGES: Final = {"letters": "dead letters"}  # a gauge's name -> its words
_DEAD_LETTER_COLUMNS: Final = ("id", "service", "bytes", "age_ms", "lost")
_NUMBERS: Final = frozenset(("workers", "credit", "running", "queued", "queued_bytes", "done", "silent_ms", "bytes", "age_ms"))


# ------------------------------------------------------------------------------------------------------------------ commands


@click.command(cls=Command)
@client_options
@output_options
@click.argument("name")
@click.argument("body", nargs=-1)
def mmi(name: str, body: tuple[str, ...], as_json: bool, **asking: Any) -> None:
    """Ask the broker about itself and print the code: `mdp mmi service echo` is 200 or 404."""
    frames, service = read_frames(body), name if name.startswith("mmi.") else f"mmi.{name}"
    reply = ask(lambda client: client.request(service, *frames), **asking)
    if as_json:
        write_json({"code": json_frame(reply[0]), "data": [json_frame(frame) for frame in reply[1:]]})
    else:
        write_frames(reply)


@click.command(cls=Command)
@client_options
@output_options
def services(as_json: bool, **asking: Any) -> None:
    """List the services of a broker."""
    _write_list("services", _SERVICE_COLUMNS, ask(lambda client: _listed(client, "mmi.services"), **asking), as_json)


@click.command(cls=Command)
@client_options
@output_options
@click.argument("service", default="", shell_complete=service_names)
def workers(service: str, as_json: bool, **asking: Any) -> None:
    """List the workers of a broker, or those of SERVICE."""
    unknown = f"{service}: the broker knows no such service"
    found = ask(lambda client: _listed(client, "mmi.workers", os.fsencode(service), unknown), **asking)
    _write_list("workers", _WORKER_COLUMNS, found, as_json)


@click.command(cls=Command)
@client_options
@click.option(
    "--service", "wanted", multiple=True, shell_complete=service_names, help="A service that must have a worker; may be repeated."
)
@output_options
def check(wanted: tuple[str, ...], as_json: bool, **asking: Any) -> None:
    """Print whether a broker answers and services have workers; exit code 0, 1 for no worker, 69 for no broker."""

    async def talk(client: Client) -> dict[str, Any]:
        try:
            return await _examine(client, wanted)
        except NoBroker:
            raise
        except Timeout as error:
            raise Unreachable(f"{client.endpoint} is connected, but gave no answer within {error.after_s:.1f} s") from None

    found = ask(talk, **asking)
    if as_json:
        write_json(found)
    if not found["ok"]:
        raise RequestFailed("; ".join(_troubles(found)))
    if not as_json:
        served = f"{', '.join(wanted)} served, " if wanted else ""
        gauges = "".join(f"{_cell(count)} {_GAUGES.get(name, name)}, " for name, count in found["gauges"].items())
        click.echo(printable(f"ok: {served}{gauges}{found['endpoint']} answers in {found['answer_ms']:.1f} ms"))


@click.command(cls=Command)
@client_options
@output_options
@click.argument("action", type=click.Choice(["ls", "show", "retry", "drop"]))
@click.argument("number", metavar="[ID]", type=click.IntRange(0, 2**64 - 1), required=False)  # eight octets
def dlq(action: str, number: int | None, as_json: bool, **asking: Any) -> None:
    """List dead letters, or show, retry or drop one by ID; all but ls need a broker with --manage."""
    if (number is None) != (action == "ls"):
        raise click.UsageError("ls takes no ID" if action == "ls" else f"which dead letter? mdp dlq {action} ID")
    if number is None:
        _write_list("letters", _DEAD_LETTER_COLUMNS, ask(lambda client: _listed(client, "mmi.dlq"), **asking), as_json)
    elif action == "show":
        _write_dead_letter(ask(lambda client: _show(client, number), **asking), as_json)
    elif action == "retry":
        # A second attempt would be refused while the first is open: one attempt gets the time of all.
        asking["timeout"], asking["attempts"] = asking["timeout"] * asking["attempts"], 1
        write_reply(ask(lambda client: _retry(client, number), **asking), as_json, id=number)
    else:
        ask(lambda client: _dead_letter(client, "mmi.dlq.drop", number), **asking)
        write_json({"id": number, "dropped": True}) if as_json else click.echo(f"dropped {number}")


# ------------------------------------------------------------------------------------------------------------- conversations


async def _question(client: Client, name: str, about: bytes, unknown: str = "") -> list[bytes]:
    """Return the frames after the code 200 in the broker's answer; raises RequestFailed for another code, with `unknown` for 404."""
    code, *data = await client.request(name, about)
    word = code.decode("ascii", "backslashreplace")
    if word == _OK:
        return data
    if word == _NOT_FOUND and unknown:
        raise RequestFailed(unknown)
    _refuse_silence([code, *data])
    if word == _NOT_OFFERED:
        remedy = "; it must be started with --manage" if name.startswith("mmi.dlq.") else ""
        raise RequestFailed(f"{client.endpoint} does not offer {name}{remedy}")
    raise RequestFailed(f"{client.endpoint} answers {name} with {word[:40]}")


def _refuse_silence(reply: Sequence[bytes]) -> None:
    """Raise RequestFailed if this says that shards which may know the answer are silent."""
    silent = silent_shards(reply) if reply[0] == _UNANSWERED.encode() else []
    if silent:
        raise RequestFailed(silence_in_words(silent, "it is unknown whether what was asked about is there"))


async def _listed(client: Client, name: str, about: bytes = b"", unknown: str = "") -> tuple[list[Any], list[int]]:
    """Return the JSON array in the broker's answer, and its silent shards; raises RequestFailed as `_question`."""
    data = await _question(client, name, about, unknown)
    items = _parsed(name, data)
    if not isinstance(items, list):
        raise RequestFailed(f"the broker's answer to {name} is not a list")
    return items, silent_shards([_OK.encode(), *data])


async def _examine(client: Client, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the result of `mdp check`; 501 about gauges, from a broker with RFC 8 only, is an answer."""
    clock = asyncio.get_running_loop().time
    started = clock()
    code, *data = await client.request("mmi.stats", b"")
    answer_ms = (clock() - started) * 1000
    stats = _parsed("mmi.stats", data) if code == _OK.encode() else {}
    silent = silent_shards([code, *data]) if code == _OK.encode() else []
    gauges = (
        {name: stats[name] for name in ("services", "workers", "queued", "letters") if name in stats} if isinstance(stats, dict) else {}
    )
    missing = [name for name in wanted if await client.mmi("service", os.fsencode(name)) != _OK]
    unserved = await _unserved(client) if gauges.get("queued") else []
    return {
        "ok": not missing and not silent and not unserved,
        "endpoint": client.endpoint,
        "dialect": client.dialect,
        "answer_ms": round(answer_ms, 3),
        "missing": missing,
        "unserved": unserved,
        "gauges": gauges,
        **({"silent_shards": silent} if silent else {}),
    }


async def _unserved(client: Client) -> list[str]:
    """Return services without workers for which requests wait; none if the broker does not list its services to this client."""
    try:
        rows, _ = await _listed(client, "mmi.services")
    except RequestFailed:
        return []
    return [str(row.get("name")) for row in rows if isinstance(row, dict) and row.get("queued") and not row.get("workers")]


def _troubles(found: dict[str, Any]) -> list[str]:
    """Return what is wrong by the result of `mdp check`."""
    missing, unserved, silent = found["missing"], found["unserved"], found.get("silent_shards", ())
    told = [f"no worker for {', '.join(missing)}"] if missing else []
    if unserved:
        told.append(f"requests wait for {', '.join(unserved)}, which {'have' if len(unserved) > 1 else 'has'} no worker")
    return [*told, silence_in_words(silent)] if silent else told


async def _dead_letter(client: Client, verb: str, number: int) -> list[bytes]:
    return await _question(client, verb, b"%d" % number, f"{number}: the broker has no such dead letter")


async def _show(client: Client, number: int) -> list[bytes]:
    return await _dead_letter(client, "mmi.dlq.show", number) or [b""]


async def _retry(client: Client, number: int) -> list[bytes]:
    """Return the reply of the service.

    The service's reply replaces the broker's answer, so a lone 404 may come from either: from the broker if the dead letter is still there.
    """
    await _show(client, number)
    reply = await client.request("mmi.dlq.retry", b"%d" % number)
    _refuse_silence(reply)
    if reply == [_NOT_FOUND.encode()]:
        still = await client.request("mmi.dlq.show", b"%d" % number)
        if still[0] == _OK.encode():
            raise RequestFailed(f"{number}: no worker offers its service now, the dead letter is kept")
    return reply


# ------------------------------------------------------------------------------------------------------------------- answers


def _parsed(name: str, data: Sequence[bytes]) -> Any:
    try:
        return read_json(data[0]) if data else None
    except BadJson:
        raise RequestFailed(f"the broker's answer to {name} is not JSON") from None


def _write_list(what: str, columns: Sequence[str], found: tuple[list[Any], list[int]], as_json: bool) -> None:
    """Write a broker's list; a null at its end means that it is truncated."""
    items, silent = found
    complete = not items or items[-1] is not None
    rows = [item for item in items if isinstance(item, dict)]
    if columns is not _DEAD_LETTER_COLUMNS:  # those are ordered by age; the others arrive in no useful order
        rows.sort(key=lambda row: [str(row.get(name)) for name in columns[:2]])
    if as_json:
        write_json({what: rows, "complete": complete} | ({"silent_shards": silent} if silent else {}))
        return
    _write_table(columns, [[_field(name, row.get(name)) for name in columns] for row in rows])
    if silent:
        click.echo(silence_in_words(silent), err=True)
    elif not complete:
        click.echo(f"only the first {len(rows)} {what}: more do not fit in an answer, see --mmi-max-bytes of the broker", err=True)


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write aligned columns, separated by two spaces; numbers to the right."""
    table = [[_heading(name) for name in columns], *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width) for name, cell, width in zip(columns, row, widths, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _heading(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ").upper()


def _field(name: str, value: object) -> str:
    """Return a field of a description as text; milliseconds as seconds."""
    if name.endswith("_ms") and type(value) is int:
        return f"{value // 1000}.{value // 100 % 10} s"
    if name == "lost" and isinstance(value, list):
        return ", ".join(_cell(loss.get("why")) for loss in value if isinstance(loss, dict)) or "-"
    return _cell(value)


def _cell(value: object) -> str:
    """Return a JSON value as one line of printable text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or value == {}:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _write_dead_letter(data: list[bytes], as_json: bool) -> None:
    description = _parsed("mmi.dlq.show", data)
    if not isinstance(description, dict):
        raise RequestFailed("the broker's answer to mmi.dlq.show is not a description")
    body = data[1:]
    if as_json:
        write_json({**description, "frames": [json_frame(frame) for frame in body]})
        return
    for name in _DEAD_LETTER_COLUMNS:
        click.echo(f"{_heading(name).lower():8} {_field(name, description.get(name))}")
    for frame in body:
        click.echo(f"{'frame':8} {printable(frame.decode('utf-8', 'backslashreplace'))}")
