"""Base of every command: the sources of a value, `--config`, `--show-config`, exit codes.

A program is a `Group`, its commands are made with `@group.command()`. The value of an option comes from the first of: its flag; the
environment, `MDP_CALL_TIMEOUT` for one command or `MDP_TIMEOUT` for all; the named context, where a program has them (`Group(layer=…)`);
the command's table in the `--config` file; its default.

The names of a command in a group of the program include the group: `FREELANCE_NAMES_SERVE_BIND`, `[names.serve]`. A bad flag is a usage
error (2), a bad value from environment or file is `BadConfig` (78) with its place.
"""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from core.address import parse_bind, parse_connect
from core.daemon.config import ConfigFile, toml_text
from core.daemon.exit_codes import BadConfig, DiskFailed, ExitError, Interrupted
from core.daemon.option_fields import FiniteRange
from core.errors import InvalidEndpoint
from majordomo_toolkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NOT_CONFIGURABLE = frozenset({"config", "show_config", "help"})
# Errors of a full or broken standard output; click handles a closed pipe.
_OUTPUT_ERRORS = frozenset({EDQUOT, EFBIG, EIO, ENOSPC})
# Groups of options in --help, by key; all others are those of the command.
_GROUPS = {
    "Limits": re.compile(r"\w+_max(_bytes)?"),
    "Pairs and peers": re.compile(r"(bstar|peer)(_\w+)?"),
    "Security": re.compile(r"(curve|plain)_\w+|rules"),
    "Watching": re.compile(r"http(_\w+)?|events(_\w+)?"),
    "Process, log and configuration": re.compile(r"drain_s|uvloop|log_format|log_level|config|show_config|help|version"),
}
_eager_option = partial(click.Option, is_eager=True, expose_value=False)


def _endpoint_type(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return an option type that checks an endpoint when it is given, not when it is first used."""

    def endpoint(text: str) -> str:
        try:
            parse(text)
        except InvalidEndpoint as error:
            raise click.BadParameter(str(error)) from None
        return text

    return endpoint


BIND = _endpoint_type(lambda text: parse_bind(text, ipv6=True))
CONNECT = _endpoint_type(parse_connect)
SECONDS = FiniteRange(min=0, min_open=True)


class Layer(NamedTuple):
    """Values between environment and `--config`, for every command that has an option of their name."""

    name: str  # for people
    file: ConfigFile
    table: str  # in the file
    keys: frozenset[str]  # that may be there


class Context(click.Context):
    """One call of a command: its arguments, and where values come from that are neither flags nor environment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given_args: list[str] = []
        self.places: dict[str, tuple[str, str]] = {}  # by parameter: "file" or the name of a layer, and file:line
        self.only_show_config = False


class Documented(click.Command):
    """A command with `-h`, and with the example that its program has for it at the end of its help."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        program = ctx.find_root().command
        if isinstance(program, Group) and (line := program.example_of(ctx)):
            with formatter.section("Example"):
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")  # not wrapped


class Command(Documented):
    """A command with `--config` and `--show-config`."""

    context_class = Context
    layered = True  # the layer of its program applies

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            _eager_option(["--config"], metavar="FILE", callback=_load_config, help="TOML file with a table for this command."),
            _eager_option(
                ["--show-config"], is_flag=True, callback=_note_show_config, help="Print each value with where it comes from, and exit."
            ),
        ]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", *_GROUPS)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                key = _key_of(param) or param.name or ""
                groups[next((name for name, pattern in _GROUPS.items() if pattern.fullmatch(key)), "Options")].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        assert isinstance(ctx, Context)
        ctx.given_args = list(args)
        _name_environment(ctx, self)
        try:
            with _arguments_as_text(ctx):
                return super().parse_args(ctx, args)
        except click.BadParameter as error:
            raise _blamed(ctx, error) from None

    def invoke(self, ctx: click.Context) -> Any:
        assert isinstance(ctx, Context)
        if ctx.only_show_config:
            _show_config(ctx)
            return None
        try:
            with _arguments_as_text(ctx):
                return super().invoke(ctx)
        except click.BadParameter as error:  # of a value that is checked when it is used
            raise _blamed(ctx, error) from None


@contextmanager
def _arguments_as_text(ctx: Context) -> Iterator[None]:
    """Raise UsageError for an argument that is not UTF-8 and is needed as text; bodies, topics and paths are not."""
    try:
        yield
    except UnicodeEncodeError as error:
        octet = error.object[error.start]
        for argument in ctx.given_args:
            if octet in argument:
                raise click.UsageError(f"{os.fsencode(argument)!r} is not UTF-8", ctx) from None
        raise


class Lazy(NamedTuple):
    """A command whose module is imported on use."""

    module: str  # to import
    attribute: str  # the command in it
    short_help: str  # for the list of commands, which imports nothing
    extra: str = ""  # of the distribution, with the dependencies of the module


class Group(Documented, click.Group):
    """A program."""

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        layer: Callable[[click.Command], Layer | None] | None = None,
        examples: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = dict(examples or {})  # a command line for each command of the program, by its names: "ballot show"
        self.layer = layer  # returns the layer of a command of the program
        self.lazy = dict(lazy or {})  # commands by name that are imported on use
        self.params.append(_eager_option(["--version"], is_flag=True, callback=_show_version, help="Print the version, and exit."))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        lazy = self.lazy[cmd_name]
        with needs_extra(lazy.extra):
            command = getattr(import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def example_of(self, ctx: click.Context) -> str:
        """Return the line that shows how a command is used; of a group, the first of its commands."""
        path = "".join(f"{name} " for name in _path_of(ctx)) if ctx.parent is not None else ""
        return next((line for names, line in self.examples.items() if f"{names} ".startswith(path)), "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing the lazy ones."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                rows.append((name, self.lazy[name].short_help))
            elif (command := self.get_command(ctx, name)) is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(formatter.width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program and end the process with the exit code of its result."""
        extra.setdefault("auto_envvar_prefix", (self.name or "").upper() or None)
        extra.setdefault("max_content_width", 120)
        extra.setdefault("show_default", True)
        prog_name = prog_name or self.name
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _write_whole_outputs()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()  # here, where a full disk is reported
        except click.ClickException as error:
            if isinstance(error, ExitError):
                error.program = prog_name or ""
            error.show()
            sys.exit(error.exit_code)
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
                raise
            # The rest of the buffer cannot be written either: without this the interpreter fails again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"{prog_name}: cannot write the output: {error.strerror}; free some space or write elsewhere", err=True)
            sys.exit(DiskFailed.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(Interrupted.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


def _write_whole_outputs() -> None:
    """Buffer an output that is not (PYTHONUNBUFFERED): Python drops what the system does not take in one write."""
    output = sys.stdout
    if isinstance(getattr(output, "buffer", None), io.RawIOBase):
        whole = io.BufferedWriter(io.FileIO(output.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, output.encoding, output.errors, line_buffering=True, write_through=True)


@contextmanager
def needs_extra(extra: str, what: str = "this") -> Iterator[None]:
    """Name the extra of the distribution (`BadConfig`) if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadConfig(f"{what} needs {error.name}, which is not installed; fix: pip install 'majordomo-toolkit[{extra}]'") from None


def reread(ctx: Context) -> dict[str, Any]:
    """Read file and environment again; returns the parameters that have changed, raises click.ClickException for an invalid value."""
    fresh = ctx.command.make_context(ctx.info_name, list(ctx.given_args), parent=ctx.parent)
    return {name: value for name, value in fresh.params.items() if value != ctx.params.get(name)}


def _key_of(param: click.Parameter) -> str | None:
    """Return the key of a parameter: the name of its long option, in files and, in capitals, in the environment."""
    longest = [option for option in param.opts if option.startswith("--")]
    return longest[0].removeprefix("--").replace("-", "_") if longest and isinstance(param, click.Option) else None


def _configurable(command: click.Command) -> dict[str, click.Option]:
    options = {_key_of(param): param for param in command.params if isinstance(param, click.Option)}
    return {key: option for key, option in options.items() if key is not None and key not in _NOT_CONFIGURABLE}


def _name_environment(ctx: Context, command: click.Command) -> None:
    prefix = ctx.find_root().auto_envvar_prefix
    if not prefix:
        return
    prefixes = [prefix]
    for name in _path_of(ctx):
        prefixes.insert(0, f"{prefixes[0]}_{name.upper().replace('-', '_')}")
    for option in command.params:
        key = _key_of(option)
        if key is not None and key != "show_config" and option.envvar is None:
            option.envvar = [f"{one}_{key.upper()}" for one in prefixes]


def _path_of(ctx: click.Context) -> list[str]:
    """Return the names from the program to the command; that of the program only if there is no other."""
    names = [ctx.info_name or ""]
    while (parent := ctx.parent) is not None and parent.parent is not None:
        names.insert(0, parent.info_name or "")
        ctx = parent
    return names


def _table_of(ctx: click.Context) -> str:
    """Return the command's table in a file: `broker`, or `names.serve` of a command in a group of the program."""
    return ".".join(_path_of(ctx))


def _tables_of(ctx: click.Context) -> list[str]:
    """Return the tables of all commands next to the command, or next to a group that contains it."""
    found = []
    above, path = ctx.parent, _path_of(ctx)
    while above is not None and isinstance(above.command, click.Group):
        path.pop()
        found += [".".join([*path, name]) for name in above.command.list_commands(above)]
        above = above.parent
    return found or [ctx.info_name or ""]


def _load_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    assert isinstance(ctx, Context)
    options = _configurable(ctx.command)
    program = ctx.find_root().command
    found: list[tuple[str, ConfigFile, str, dict[str, Any]]] = []
    if path is not None:
        file, table = ConfigFile(path), _table_of(ctx)
        found.append(("file", file, table, file.table(table, _tables_of(ctx), options)))
    if isinstance(program, Group) and program.layer is not None and getattr(ctx.command, "layered", False):
        layer = program.layer(ctx.command)
        if layer is not None:
            given = layer.file.table(layer.table, [layer.table], layer.keys)
            found.append((layer.name, layer.file, layer.table, {key: value for key, value in given.items() if key in options}))
    values: dict[str, Any] = {}
    for source, file, table, given in found:
        for key, value in given.items():
            place = file.place(table, key)
            _check_shape(ctx, options[key], key, value, place)
            name = options[key].name or key
            values[name], ctx.places[name] = value, (source, place)
    if values:
        ctx.default_map = values


def _check_shape(ctx: click.Context, option: click.Option, key: str, value: object, place: str) -> None:
    wanted, kinds = _shape_wanted(option)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        default = option.get_default(ctx)
        hint = f", such as {toml_text(default)}" if isinstance(default, bool | int | float | str | tuple) else ""
        raise BadConfig(f"{place}: {key} is {toml_text(value)}; write {wanted}{hint}")


def config_problems(program: Group, path: str) -> tuple[list[str], list[str]]:
    """Return the tables of a configuration file, and its problems with line and fix; raises BadConfig."""
    root = Context(program, info_name=program.name, auto_envvar_prefix=(program.name or "").upper())
    file = ConfigFile(path, "give the path of the file to check")
    tables: list[str] = []
    return tables, [*_check_group(root, program, file, "", tables)]


def _check_group(parent: click.Context, group: click.Group, file: ConfigFile, above: str, checked: list[str]) -> Iterator[str]:
    names = group.list_commands(parent)
    tables = [f"{above}.{name}" if above else name for name in names]
    yield from file.strays(above, tables, tables[0])
    for name, table in zip(names, tables, strict=True):
        command = group.get_command(parent, name) if file.has(table) else None
        if command is None:
            continue
        context = Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from _check_group(context, command, file, table, checked)
        else:
            checked.append(table)
            values, problems = file.values(table, _configurable(command))
            yield from problems
            yield from _wrong_values(context, file, values)


def _wrong_values(ctx: Context, file: ConfigFile, values: Mapping[str, Any]) -> Iterator[str]:
    options = _configurable(ctx.command)
    for key, value in values.items():
        place = file.place(_table_of(ctx), key)
        try:
            _check_shape(ctx, options[key], key, value, place)
            options[key].type_cast_value(ctx, value)
        except BadConfig as error:
            yield error.message
        except click.BadParameter as error:
            yield _bad_value(place, key, error.message)


def _bad_value(place: str, key: str, problem: str) -> str:
    return f"{place}: {key}: {problem.rstrip('.')}; write a fitting value or remove the line"


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"{ctx.find_root().info_name} {__version__}")
        ctx.exit()


def _note_show_config(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    assert isinstance(ctx, Context)
    ctx.only_show_config = value


def _shape_wanted(option: click.Option) -> tuple[str, type | tuple[type, ...]]:
    """Return the kind of TOML value an option takes, in words and as types: click would convert 2.5 to 2."""
    if option.multiple:
        return "a list", list
    if option.is_flag:
        return "true or false", bool
    if isinstance(option.type, click.types.IntParamType):
        return "an integer", int
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", (int, float)
    return "a text in quotes", str


def _variable_of(option: click.Parameter) -> str:
    names = [option.envvar or ""] if isinstance(option.envvar, str | None) else list(option.envvar)
    return next((name for name in names if os.environ.get(name)), names[0])


def _blamed(ctx: Context, error: click.BadParameter) -> click.ClickException:
    """Return the usage error, or a `BadConfig` for a value of environment or files."""
    param = error.param
    if param is None or param.name is None:
        return error
    source = ctx.get_parameter_source(param.name)
    text = error.message.rstrip(".")
    if source is ParameterSource.ENVIRONMENT:
        return BadConfig(f"{_variable_of(param)} in the environment: {text}; set it to a fitting value or unset it")
    if source is ParameterSource.DEFAULT_MAP and param.name in ctx.places:
        return BadConfig(_bad_value(ctx.places[param.name][1], _key_of(param) or param.name, text))
    return error


def _show_config(ctx: Context) -> None:
    """Print a TOML table with the origin of each value as comment."""
    click.echo(f"[{_table_of(ctx)}]")
    for key, option in _configurable(ctx.command).items():
        value = ctx.params.get(option.name or key)
        if value is None:
            click.echo(f"# {key} is not set")
            continue
        # A value parsed from one word has that word as its text.
        word = str(value) if isinstance(value, tuple) and not option.multiple else value
        text = '"(hidden)"' if option.hide_input else toml_text(word)
        click.echo(f"{key} = {text}  # {_origin(ctx, key, option)}")


def _origin(ctx: Context, key: str, option: click.Option) -> str:
    source = ctx.get_parameter_source(option.name or key)
    if source is ParameterSource.COMMANDLINE:
        return f"flag {option.opts[0]}"
    if source is ParameterSource.ENVIRONMENT:
        return f"environment {_variable_of(option)}"
    if source is ParameterSource.DEFAULT_MAP and (option.name or key) in ctx.places:
        return " ".join(ctx.places[option.name or key])
    return "default"
