"""`mdp config check`: what is wrong in a configuration file, before a daemon is started with it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import Group, config_problems
from core.daemon.config import ConfigFile, read_toml
from core.daemon.exit_codes import BadConfig
from core.daemon.terminal import json_option, write_json
from mdp.access.rules_file import load_policies, load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Programs whose files can be checked, and where their commands are.
PROGRAMS: Final = {
    "mdp": "mdp.commands.main",
    "titanic": "titanic.commands.main",
    "bstar": "bstar.cli",
    "freelance": "freelance.cli",
    "pirate": "pirate.cli",
    "peering": "peering.cli",
    "zmtp": "core.cli",
}


@click.group(cls=Group)
def config() -> None:
    """Configuration files."""


@config.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--program", type=click.Choice([*PROGRAMS]), default="mdp", help="Program whose commands the tables of FILE are for.")
@json_option()
def check(file: str, program: str, as_json: bool) -> None:
    """Print every problem of FILE, a file for --config, and of the rules and policies it names; exit code 78."""
    group = import_module(PROGRAMS[program]).main
    assert isinstance(group, Group)
    tables, problems = config_problems(group, file)
    problems += _problems_of_named_files(file, tables)
    if as_json:
        write_json({"file": file, "program": program, "tables": tables, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(f"mdp: {problem}", err=True)
    else:
        click.echo(f"{file}: ok, for {', '.join(f'{program} {table.replace(chr(46), chr(32))}' for table in tables) or 'no command'}")
    if problems:
        raise click.exceptions.Exit(BadConfig.exit_code)


def _problems_of_named_files(file: str, tables: Sequence[str]) -> Iterator[str]:
    found = ConfigFile(file)
    _, content = read_toml(file, "")
    for table in tables:
        values: Any = content
        for part in table.split("."):
            values = values[part]
        for name, load in (("rules", load_rules), ("policies", load_policies)):
            path = values.get(name)
            if isinstance(path, str):
                try:
                    load(path, f"correct it in {found.place(table, name)}")
                except BadConfig as error:
                    yield error.message
