"""`mdp describe`, `mdp stub`, and typed calls of `mdp call` with arguments and results as JSON."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import click
import msgspec

from core.daemon.command import Command
from core.daemon.exit_codes import RequestFailed
from core.daemon.logs import printable
from core.daemon.terminal import write_json
from mdp.commands.client_options import ask, client_options, output_options
from mdp.commands.settings.completion import service_names
from mdp.typed.calls import pack_call, unpack_result
from mdp.typed.descriptions import describe as described
from mdp.typed.schemas import Schema
from mdp.typed.stubs import stub_source

if TYPE_CHECKING:
    from mdp.client.calls import CallOptions
    from mdp.client.client import Client
    from mdp.typed.descriptions import Description

__all__ = ["argument_options", "call_typed", "describe", "stub", "typed_call_of"]


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
