"""`mdp ctx`: named contexts, each the broker, security files and timeouts of one installation.

    mdp ctx add production --broker tcp://10.0.0.1:5555 --curve-secret me.key --curve-server-key broker.pub
    mdp ctx use production
    mdp call echo hello                         # at tcp://10.0.0.1:5555
    mdp --context test call echo hello          # at that of another context, once; "" is none
    MDP_CONTEXT=test mdp call echo hello        # the same

A context is a file of the user, `~/.config/majordomo/contexts/NAME.toml`. Flags and environment come before its values, `--config`
files and defaults after them. It applies to every command that has `--broker`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from core.daemon.command import Command, Group, Layer
from core.daemon.config import ConfigFile, toml_text
from core.daemon.exit_codes import BadConfig, DiskFailed, file_problem
from core.daemon.security_flags import NAMES as SECURITY_NAMES
from core.daemon.terminal import json_option, write_json
from core.security.curve_keys import parse_key
from mdp.commands.client_options import client_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLE: Final = "MDP_CONTEXT"
_TABLE: Final = "context"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILES: Final = frozenset(("curve_secret", "plain_password"))


_STORED: Final = frozenset(("brokers", "timeout", "attempts")) | SECURITY_NAMES


class _ContextCommand(Command):
    """A command about contexts, to which none applies."""

    layered = False


class _ContextGroup(Group):
    command_class = _ContextCommand


# ----------------------------------------------------------------------------------------------------------------------- commands


@click.group(cls=_ContextGroup)
def ctx() -> None:
    """Named contexts: broker, security files and timeouts, for all commands of mdp that have --broker."""


@ctx.command()
@click.argument("name")
@client_options
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
def add(name: str, replace: bool, **_: Any) -> None:
    """Store the given options under NAME; the first context is used from now on."""
    context = click.get_current_context()
    path = _path(name)
    if path.exists() and not replace:
        raise click.UsageError(f"there is a context {name!r}; give --replace, or take another name")
    lines = [f"[{_TABLE}]"]
    for option in _options(context.command):
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            value = context.params[option.name or ""]
            lines.append(f"{_key(option)} = {toml_text(_absolute(option, value))}")
    if len(lines) == 1:
        raise click.UsageError("a context of nothing? give --broker ENDPOINT, or other options")
    first = not _names()
    _write(path, "\n".join(lines) + "\n")
    if first and not _current()[0]:
        _write(_current_file(), f"{name}\n")
    click.echo(f"{name} is stored in {path}")


@ctx.command("ls")
@json_option()
def list_contexts(as_json: bool) -> None:
    """List the contexts; the one in use has a star."""
    current, _ = _current()
    found = []
    for name in _names():
        values = ConfigFile(str(_path(name))).table(_TABLE, [_TABLE], _keys())
        found.append({"name": name, "used": name == current, **values})
    if as_json:
        write_json({"contexts": found})
        return
    for entry in found:
        rest = ", ".join(f"{key} = {toml_text(value)}" for key, value in entry.items() if key not in ("name", "used"))
        click.echo(f"{'*' if entry['used'] else ' '} {entry['name']}  {rest}")


@ctx.command()
@click.argument("name", default="")
def use(name: str) -> None:
    """Use the context NAME from now on; without NAME none."""
    if name and not _path(name).exists():
        raise click.UsageError(_unknown(name))
    if name:
        _write(_current_file(), f"{name}\n")
    else:
        _current_file().unlink(missing_ok=True)
    click.echo(f"{name} is used" if name else "no context is used")
    if VARIABLE in os.environ:
        click.echo(f"{VARIABLE} in the environment comes first: {os.environ[VARIABLE] or 'none'}", err=True)


@ctx.command()
@click.argument("name")
def rm(name: str) -> None:
    """Remove the context NAME; if it was in use, none is."""
    path = _path(name)
    if not path.exists():
        raise click.UsageError(_unknown(name))
    path.unlink()
    if _in_use() == name:
        _current_file().unlink(missing_ok=True)
    click.echo(f"{name} is removed")


def context_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [name for name in _names() if name.startswith(begun)]


def layer_of(command: click.Command) -> Layer | None:
    """Return the values of the context that applies, for a command with `--broker`; raises BadConfig for an unusable one."""
    if not any("--broker" in option.opts for option in command.params):
        return None
    name, source = _current()
    if not name:
        return None
    if not _NAME.fullmatch(name) or not _path(name).exists():
        raise BadConfig(f"{source}: {_unknown(name)}")
    return Layer(f"context {name}", ConfigFile(str(_path(name))), _TABLE, _keys())


# ------------------------------------------------------------------------------------------------------------------------- files


def _folder() -> Path:
    from pathlib import Path  # late: a daemon without --broker reads no context

    return Path(click.get_app_dir("majordomo")) / "contexts"


def _current_file() -> Path:
    return _folder().parent / "context"


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} cannot be a name: letters, digits, dots, dashes and underscores, 64 at most, no dot or dash first"
        )
    return _folder() / f"{name}.toml"


def _names() -> list[str]:
    try:
        return sorted(path.stem for path in _folder().iterdir() if path.suffix == ".toml" and _NAME.fullmatch(path.stem))
    except FileNotFoundError:
        return []


def _in_use() -> str:
    try:
        return _current_file().read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _current() -> tuple[str, str]:
    """Return the name of the context that applies, empty for none, and its source."""
    root = click.get_current_context().find_root()
    if root.get_parameter_source("context") is ParameterSource.COMMANDLINE:
        return root.params["context"], "--context"
    chosen = os.environ.get(VARIABLE)
    return (_in_use(), "mdp ctx use") if chosen is None else (chosen, f"{VARIABLE} in the environment")


def _unknown(name: str) -> str:
    return f"there is no context {name!r}; there are: {', '.join(_names()) or 'none'}"


def _write(path: Path, text: str) -> None:
    """Replace a file; only its owner can read it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        raise DiskFailed(file_problem(error, path)) from None


# ----------------------------------------------------------------------------------------------------------------------- options


def _options(command: click.Command) -> Iterator[click.Option]:
    return (option for option in command.params if isinstance(option, click.Option) and option.name in _STORED)


def _key(option: click.Option) -> str:
    return option.opts[0].removeprefix("--").replace("-", "_")


def _keys() -> frozenset[str]:
    return frozenset(_key(option) for option in _options(add))


def _absolute(option: click.Option, value: Any) -> Any:
    """Return a value that means the same in every folder: paths of files are absolute."""
    if option.name == "curve_server_keys":
        return [_absolute_key(text) for text in value]
    return os.path.abspath(value) if option.name in _FILES else value


def _absolute_key(text: str) -> str:
    endpoint, equals, key = text.partition("=") if "://" in text else ("", "", text)
    return endpoint + equals + (key if parse_key(key) is not None else os.path.abspath(key))
