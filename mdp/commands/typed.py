"""`mdp call`, `mdp describe` and `mdp stub`: requests as bytes, and typed calls with arguments and results as JSON."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import click
import msgspec

from core.daemon.command import Command
from core.daemon.exit_codes import RequestFailed
from core.daemon.logs import printable
from core.daemon.option_fields import FiniteRange
from core.daemon.terminal import read_frames, write_json, write_reply
from mdp.commands.client_options import HEADERS, ask, client_options, header_map, output_options
from mdp.commands.settings.completion import service_names
from mdp.typed.calls import pack_call, unpack_result
from mdp.typed.descriptions import describe as described
from mdp.typed.schemas import Schema
from mdp.typed.stubs import stub_source
from mdp.wire.options import DEADLINE_MS_MAX, KEY_BYTES_MAX
from mdp.wire.policies import PRIORITIES

if TYPE_CHECKING:
    from mdp.client.calls import CallOptions, Priority
    from mdp.client.client import Client
    from mdp.typed.descriptions import Description


def _json(shape: type) -> Any:
    def parse(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return msgspec.json.decode(text.encode(errors="surrogateescape"), type=shape)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(f"this is no JSON {'array' if shape is list else 'object'}: {error}") from None

    return parse


def argument_options(command: Any) -> Any:
    """Add --args and --kwargs; the decorated function gets `positional` and `named`, None where not given."""
    for name, flag, shape, shown in (("named", "--kwargs", dict, "'{…}'"), ("positional", "--args", list, "'[…]'")):
        text = f"Arguments by {'name' if shape is dict else 'position'} of a function with annotations; in- and output are JSON."
        command = click.option(flag, name, metavar=shown, callback=_json(shape), help=text)(command)
    return command


def typed_call_of(positional: list[Any] | None, named: dict[str, Any] | None) -> bytes | None:
    """Return the body frame of a typed call, None without arguments."""
    return None if positional is None and named is None else pack_call(positional or [], named or {})


async def call_typed(client: Client, service: str, frame: bytes, as_json: bool, **options: Unpack[CallOptions]) -> None:
    """Print the result of a typed call, or each value of a generator as it comes, one a line."""
    schema = Schema(Any)
    async with aclosing(client.stream(service, frame, **options)) as parts:
        async for part in parts:
            if part != [b""]:  # the end of a generator without values
                plain = msgspec.to_builtins(unpack_result(part, schema, service), str_keys=True)
                write_json({"service": service, "result": plain} if as_json else plain)


def _checked_key(context: click.Context, parameter: click.Parameter, key: str | None) -> str | None:
    if key is not None and not 0 < len(key.encode()) <= KEY_BYTES_MAX:
        raise click.BadParameter(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
    return key


@click.command(cls=Command)
@client_options
@click.option(
    "--deadline",
    type=FiniteRange(min=0, min_open=True, max=DEADLINE_MS_MAX / 1000),
    help="Seconds for the whole request; the worker knows it too.",
)
@click.option("--key", callback=_checked_key, help="Idempotency key: requests with the same key are one request.")
@click.option("--once", is_flag=True, help="At most once: never sent or given to a worker again.")
@click.option("--wait", is_flag=True, help="Wait for a service that has no worker yet.")
@click.option("--priority", type=click.Choice([*PRIORITIES]), help="Which of the waiting requests are given to workers first.")
@click.option("--progress", is_flag=True, help="Print what the handler says of its progress, on stderr.")
@HEADERS
@argument_options
@output_options
@click.argument("service", shell_complete=service_names)
@click.argument("body", nargs=-1)
def call(
    service: str,
    body: tuple[str, ...],
    as_json: bool,
    deadline: float | None,
    key: str | None,
    once: bool,
    wait: bool,
    priority: Priority | None,
    progress: bool,
    headers: tuple[str, ...],
    positional: list[Any] | None,
    named: dict[str, Any] | None,
    **asking: Any,
) -> None:
    """Send a request of BODY frames to SERVICE and print the reply, one frame a line; '-' is standard input."""
    options: CallOptions = {"deadline": deadline, "key": key, "once": once, "wait": wait, "priority": priority}
    options["headers"] = header_map(headers)
    if progress:
        options["progress"] = lambda report: click.echo(str(report), err=True)
    arguments = typed_call_of(positional, named)
    if arguments is not None:
        if body:
            raise click.UsageError("arguments of a function, or BODY? --args and --kwargs do not go with BODY")
        ask(lambda client: call_typed(client, service, arguments, as_json, **options), **asking)
        return
    frames = read_frames(body)
    reply = ask(lambda client: client.request(service, *frames, **options), **asking)
    write_reply(reply, as_json, service=service)


@click.command(cls=Command)
@client_options
@output_options
@click.argument("service", shell_complete=service_names)
def describe(service: str, as_json: bool, **asking: Any) -> None:
    """Print signature, docstring and version of SERVICE; with --json the JSON schemas of its arguments and result too."""
    found = ask(lambda client: described(client, service), **asking)
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        click.echo("\n".join(printable(line) for line in _lines(found)))


@click.command(cls=Command)
@client_options
@output_options
@click.argument("services", metavar="SERVICE...", nargs=-1, required=True, shell_complete=service_names)
def stub(services: tuple[str, ...], as_json: bool, **asking: Any) -> None:
    """Print a Python module with a function for each typed SERVICE, which type checkers check."""

    async def all_of(client: Client) -> list[Description]:
        return [await described(client, service) for service in services]

    found = ask(all_of, **asking)
    try:
        source = stub_source(found)
    except ValueError as error:
        raise RequestFailed(str(error)) from None
    if as_json:
        write_json({"source": source})
    else:
        click.echo(source, nl=False)


def _lines(found: Description) -> list[str]:
    arrow = " (a stream)" if found.stream else ""
    lines = [f"{found.service}{found.signature}{arrow}" if found.signature else f"{found.service}: takes requests of bytes"]
    if found.version:
        lines.append(f"version {found.version}")
    lines += [f"    {line}".rstrip() for line in found.doc.splitlines()]
    for name, schema in found.definitions.items():
        required = schema.get("required", [])
        values = ", ".join(map(json.dumps, schema.get("enum", schema.get("prefixItems", ()))))
        lines.append(f"{name}: {values}".rstrip())
        for field, inner in schema.get("properties", {}).items():
            lines.append(f"    {field}{'' if field in required else ' (optional)'}: {json.dumps(inner)}")
    return lines
