"""--help of every command of every program: -h, an example that the command takes, options in groups."""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from majordomo_toolkit import COMMANDS
from core.daemon.command import Group
from mdp.commands.settings.config import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


def program(name: str) -> Group:
    group = import_module(PROGRAMS[name]).main
    assert isinstance(group, Group)
    return group


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_list_of_commands_has_the_first_line_of_each(name: str) -> None:
    """It is written without importing the commands, and so has texts of its own."""
    group = program(name)
    context = click.Context(group, info_name=name)
    for command, lazy in group.lazy.items():
        found = group.get_command(context, command)
        assert found is not None
        assert lazy.short_help == found.get_short_help_str(1000)


def paths(name: str) -> Iterator[tuple[str, ...]]:
    def below(group: click.Group, above: click.Context, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for one in group.list_commands(above):
            command = group.get_command(above, one)
            assert command is not None
            if isinstance(command, click.Group):
                yield from below(command, click.Context(command, parent=above, info_name=one), (*path, one))
            else:
                yield (*path, one)

    root = program(name)
    yield from below(root, click.Context(root, info_name=name), (name,))


EVERY = [path for name in PROGRAMS for path in paths(name)]


def run(path: tuple[str, ...], *arguments: str) -> Result:
    return CliRunner().invoke(program(path[0]), [*path[1:], *arguments], prog_name=path[0])


def test_every_program_is_walked() -> None:
    assert sorted(PROGRAMS) == sorted(COMMANDS)


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_has_an_example_of_its_command_and_a_short_form(path: tuple[str, ...]) -> None:
    said = run(path, "--help")
    assert said.exit_code == 0
    assert run(path, "-h").output == said.output
    *_, heading, example = said.output.splitlines()
    assert heading.strip() == "Example:"
    assert said.output.count("Example:") == 1
    words = shlex.split(example)
    assert tuple(words[: len(path)]) == path


def test_help_does_not_depend_on_earlier_uses_of_the_command() -> None:
    root = program("mdp")
    config = root.get_command(click.Context(root), "config")
    assert isinstance(config, click.Group)
    check = config.get_command(click.Context(config, info_name="config"), "check")
    assert check is not None
    before = check.get_help(click.Context(check, info_name="check"))
    assert "Example" not in before
    assert run(("mdp", "config", "check"), "-h").output.endswith("Example:\n  mdp config check /etc/majordomo/broker.toml\n")


@pytest.mark.parametrize("line", [line for name in PROGRAMS for line in program(name).examples.values()])
def test_each_example_is_accepted_by_its_command(line: str, tmp_path: Path) -> None:
    for place in ("/var/log/majordomo", "/var/lib/titanic"):
        line = line.replace(place, str(tmp_path))  # must exist
    name, *words = shlex.split(line)
    group: click.Command = program(name)
    context = click.Context(group, info_name=name)
    while isinstance(group, click.Group):
        word = words.pop(0)
        command = group.get_command(context, word)
        assert command is not None
        group = command
        if isinstance(group, click.Group):
            context = click.Context(group, info_name=word, parent=context)
        else:
            assert group.make_context(word, words, parent=context).params


def test_options_are_in_groups() -> None:
    said = run(("mdp", "broker"), "--help").output
    places = [said.index(f"\n{name}:\n") for name in ("Options", "Limits", "Pairs and peers", "Security", "Watching")]
    assert places == sorted(places)
    assert said.index("--bind") < places[1] < said.index("--queue-max ") < places[2] < said.index("--bstar ") < places[3]
    assert places[3] < said.index("--curve-secret") < places[4] < said.index("--http ") < said.index("\nProcess, log and configuration:\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_option_takes_what_is_not_a_finite_number(name: str) -> None:
    """They are in every range, because no comparison with `nan` is true."""

    def options(group: click.Group, above: click.Context) -> Iterator[click.Option]:
        for one in group.list_commands(above):
            command = group.get_command(above, one)
            assert command is not None
            context = click.Context(command, parent=above, info_name=one)
            if isinstance(command, click.Group):
                yield from options(command, context)
            yield from (param for param in command.params if isinstance(param, click.Option))

    root = program(name)
    context = click.Context(root, info_name=name)
    numbers = [option for option in options(root, context) if isinstance(option.type, click.types.FloatParamType)]
    assert numbers
    for option in numbers:
        for wrong in ("nan", "inf", "-inf"):
            with pytest.raises(click.BadParameter):
                option.type_cast_value(context, (wrong,) if option.multiple else wrong)
